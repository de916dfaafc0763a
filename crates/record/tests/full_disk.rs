//! Result files under a limit of the file size, which stands for a full disk.
//!
//! The limit is that of the process, so this test has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use record::files::{Files, Output, read};
use record::{Outcome, Run};

/// Limits the size of files of this process; `None` restores the limit.
fn limit_files(bytes: Option<u64>) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid struct for the call to fill.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) }, 0);
    limit.rlim_cur = bytes.unwrap_or(limit.rlim_max);
    // SAFETY: `limit` is a valid struct, which the call only reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    // SAFETY: ignoring a signal runs no code of this process; the write that met the limit then says so.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[test]
fn no_file_is_left_in_half() {
    let run: Run = serde_json::from_str(include_str!("data/run.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let outputs: Vec<Output> = ["run.json", "run.jsonl", "run.md"]
        .map(|name| path(name).to_str().unwrap().parse().unwrap())
        .to_vec();
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };

    // No room at all: said before the run.
    limit_files(Some(100));
    let opened = Files::open(&outputs, false);
    limit_files(None);
    let error = opened.unwrap_err();
    assert_eq!(error.failures.len(), 3);
    assert!(error.to_string().contains("run.json: File too large"), "{error}");
    assert_eq!(names(), [""; 0]);

    fs::write(path("run.json"), "older").unwrap();
    let mut files = Files::open(&outputs, true).unwrap();
    let header = Run { measurements: Vec::new(), outcome: Outcome::Running, ..run.clone() };
    files.start(&header).unwrap();
    files.measurement(&run.measurements[0]).unwrap();
    let (begun, streamed) = (fs::read(path("run.json")).unwrap(), fs::read(path("run.jsonl")).unwrap());
    assert_ne!(begun, b"older");
    // Room for a part of the next line, and for all of the Markdown, but not for the JSON.
    limit_files(Some(streamed.len() as u64 + 400));
    let second = files.measurement(&run.measurements[1]);
    let finished = files.finish(&run);
    limit_files(None);
    assert!(second.unwrap_err().to_string().contains("run.jsonl: File too large"));
    let error = finished.unwrap_err();
    let failed: Vec<_> = error.failures.iter().map(|(path, _)| path.file_name().unwrap()).collect();
    // Lines come first, as they take least.
    assert_eq!(failed, ["run.jsonl", "run.json"]);

    assert_eq!(names(), ["run.json", "run.jsonl", "run.md"]);
    assert_eq!(fs::read(path("run.json")).unwrap(), begun);
    assert_eq!(fs::read(path("run.jsonl")).unwrap(), streamed);
    let kept = read(&path("run.jsonl")).unwrap();
    assert_eq!((kept.outcome, &kept.measurements[..]), (Outcome::Running, &run.measurements[..1]));
    assert!(fs::read_to_string(path("run.md")).unwrap().ends_with("|\n"));

    // The end has the lines for which there was no room before.
    let mut files = Files::open(&outputs[1..2], false).unwrap();
    files.start(&header).unwrap();
    files.measurement(&run.measurements[0]).unwrap();
    limit_files(Some(streamed.len() as u64 + 400));
    let second = files.measurement(&run.measurements[1]);
    limit_files(None);
    assert!(second.is_err());
    assert_eq!(fs::read(path("run.jsonl")).unwrap(), streamed);
    files.finish(&run).unwrap();
    assert_eq!(read(&path("run.jsonl")).unwrap(), run);
}
