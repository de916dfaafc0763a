//! Result files under a limit of the file size, which stands for a full disk.
//!
//! The limit is that of the process, so this test has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use record::files::{Files, Output, read_run};
use record::{LeftOut, Measurement, Run, RunOutcome};

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
    let opened = Files::open_outputs(&outputs, false);
    limit_files(None);
    let error = opened.unwrap_err();
    assert_eq!(error.failures.len(), 3);
    assert!(error.to_string().contains("run.json: File too large"), "{error}");
    assert_eq!(names(), [""; 0]);

    fs::write(path("run.json"), "older").unwrap();
    let mut files = Files::open_outputs(&outputs, true).unwrap();
    let header = Run { measurements: Vec::new(), outcome: RunOutcome::Running, ..run.clone() };
    files.start_run(&header).unwrap();
    files.add_measurement(&run.measurements[0]).unwrap();
    let (begun, streamed) = (fs::read(path("run.json")).unwrap(), fs::read(path("run.jsonl")).unwrap());
    assert_ne!(begun, b"older");
    // Room for a part of the next line, and for all of the Markdown, but not for the JSON.
    limit_files(Some(streamed.len() as u64 + 480));
    let second = files.add_measurement(&run.measurements[1]);
    let finished = files.finish_run(&run);
    limit_files(None);
    let error = second.unwrap_err();
    assert!(error.to_string().contains("run.jsonl: File too large"), "{error}");
    let failed: Vec<_> = error.failures.iter().map(|(path, _)| path.file_name().unwrap()).collect();
    assert_eq!(failed, ["run.json", "run.jsonl"]);
    // It is said once.
    finished.unwrap();

    assert_eq!(names(), ["run.json", "run.jsonl", "run.md"]);
    assert_eq!(fs::read(path("run.json")).unwrap(), begun);
    // The outcome takes the room of measurements where there is no other.
    let kept = read_run(&path("run.jsonl")).unwrap();
    let left_out = run.measurements.len() - kept.measurements.len();
    assert!(left_out > 0 && kept.measurements[..] == run.measurements[..kept.measurements.len()], "{kept:?}");
    let said =
        format!("the last {left_out} measurement(s) are not in the file: File too large (os error 27)");
    assert_eq!(
        (&kept.outcome, kept.notes.last()),
        (&RunOutcome::Failed { message: said.clone() }, Some(&said))
    );
    let wrong_measurements = run.measurements.iter().filter(|each| each.is_wrong()).count();
    assert!(wrong_measurements > 0 && kept.measurements.iter().all(|each| !each.is_wrong()), "{kept:?}");
    assert_eq!(kept.left_out, Some(LeftOut { measurements: left_out, wrong_measurements }));
    assert!(fs::read_to_string(path("run.md")).unwrap().ends_with("|\n"));

    // The end has the lines for which there was no room before.
    let mut files = Files::open_outputs(&outputs[1..2], false).unwrap();
    files.start_run(&header).unwrap();
    files.add_measurement(&run.measurements[0]).unwrap();
    limit_files(Some(streamed.len() as u64 + 480));
    let second = files.add_measurement(&run.measurements[1]);
    limit_files(None);
    assert!(second.is_err());
    assert_eq!(fs::read(path("run.jsonl")).unwrap(), streamed);
    files.finish_run(&run).unwrap();
    assert_eq!(read_run(&path("run.jsonl")).unwrap(), run);
    for name in ["full.json", "full.csv", "full.md"] {
        what_was_measured_is_kept(&path(name), &run);
    }
}

/// Measures until the disk is full, and ends the run as failed.
fn what_was_measured_is_kept(path: &Path, run: &Run) {
    let mut growing = Run { measurements: Vec::new(), outcome: RunOutcome::Running, ..run.clone() };
    limit_files(Some(32 << 10));
    let mut files = Files::open_outputs(&[path.to_str().unwrap().parse().unwrap()], false).unwrap();
    files.start_run(&growing).unwrap();
    let error = loop {
        growing.measurements.push(Measurement { wrong: Some(1), ..run.measurements[0].clone() });
        if let Err(error) = files.add_measurement(growing.measurements.last().unwrap()) {
            break error.to_string();
        }
    };
    growing.outcome = RunOutcome::Failed { message: error.clone() };
    let finished = files.finish_run(&growing);
    limit_files(None);
    assert!(
        error.ends_with(&format!("cannot write {}: File too large (os error 27)", path.display())),
        "{error}"
    );
    // It was said.
    finished.unwrap();
    let text = fs::read_to_string(path).unwrap();
    let kept = text.lines().filter(|line| line.contains("1048576")).count();
    assert!(kept + 1 >= growing.measurements.len(), "{kept} of {}\n{text}", growing.measurements.len());
    assert!(kept > 10 && text.contains("ailed"), "{text}");
    if path.extension().unwrap() == "json" {
        let found = read_run(path).unwrap();
        assert_eq!(found.outcome, growing.outcome);
        let lost = growing.measurements.len() - found.measurements.len();
        let left_out = (lost > 0).then_some(LeftOut { measurements: lost, wrong_measurements: lost });
        assert_eq!(found.left_out, left_out);
        assert_eq!(found.measurements[..], growing.measurements[..found.measurements.len()]);
        assert!(found.measurements.len() + 1 >= growing.measurements.len());
    }
}
