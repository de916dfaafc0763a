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
        let printed = |rank: &str, variables: &[(&str, &str)]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
            command.envs(variables.iter().copied()).env(variables[0].0, rank);
            let output = command.args(arguments).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            (output.status.code(), !output.stdout.is_empty(), err)
        };
        let torchrun = [("RANK", ""), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")];
        for launcher in [&[("NCCL_BENCH_RANK", ""), ("NCCL_BENCH_SIZE", "2")][..], &torchrun] {
            assert_eq!(printed("1", launcher), (Some(0), false, String::new()), "{arguments:?}");
            assert!(printed("0", launcher).1, "{arguments:?}");
        }
        // A person may have typed it in a pod.
        for pod in [&torchrun[..2], &[("JOB_COMPLETION_INDEX", "")]] {
            let (_, has_printed, err) = printed("1", pod);
            assert!(has_printed && err.contains("make this process rank 1; each rank prints"), "{err}");
            assert!(!printed("0", pod).2.contains("each rank prints"), "{arguments:?}");
        }
    }
}
