//! `nccl-bench doctor job` as a process: what it refuses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

use std::process::Command;

/// Runs it, and returns exit code, standard output and standard error.
fn job(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    let output = command.args(["doctor", "job"]).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn files_that_are_no_dumps_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("README"), "no dump").unwrap();
    let folder = folder.path().to_str().unwrap();
    for (path, reason) in
        [("/nowhere/rank_0", "cannot be read: No such file"), (folder, "has no dumps: files with a rank")]
    {
        let (code, out, err) = job(&["--flight-recorder", path]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.starts_with(&format!("error: `{path}` {reason}")), "{err}");
    }
}

#[test]
fn a_process_that_does_not_exist_is_told() {
    // Nothing listens at port 1.
    let (code, out, err) = job(&["--pid", "4294967295", "--address", "127.0.0.1:1"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("process 4294967295") && err.contains("this host has no such process"), "{err}");
}

#[test]
fn rank_0_alone_prints_under_a_launcher() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let ask = ["doctor", "job", "--address", "127.0.0.1:1"];
    for arguments in [&["topo"][..], &["doctor", "log", log], &ask] {
        let printed = |rank: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
            command.env("NCCL_BENCH_RANK", rank).env("NCCL_BENCH_SIZE", "2");
            let output = command.args(arguments).output().unwrap();
            (output.status.code(), !output.stdout.is_empty(), output.stderr)
        };
        assert_eq!(printed("1"), (Some(0), false, Vec::new()), "{arguments:?}");
        assert!(printed("0").1, "{arguments:?}");
    }
}
