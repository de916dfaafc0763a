//! The programs export the profiler plugin that NCCL looks for.

#![allow(clippy::unwrap_used, reason = "all of this is tests, though not marked as such")]

use std::path::Path;
use std::process::Command;

#[track_caller]
fn assert_found_in(program: &str) {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("plays_nccl.so");
    let status = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/plays_nccl.c"))
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(status.success(), "a C compiler, for this test");
    let output = Command::new(program).env("LD_PRELOAD", &library).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 6, "{found}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(lines[0], "ncclProfiler_v1: none");
    for (line, version) in lines[1..].iter().zip(2..) {
        assert_eq!(*line, format!("ncclProfiler_v{version}: nccl-bench, event given, results 0 0"));
    }
}

#[test]
fn nccl_bench_has_the_plugin() {
    assert_found_in(env!("CARGO_BIN_EXE_nccl-bench"));
}

#[cfg(feature = "mpi")]
#[test]
fn nccl_bench_mpi_has_the_plugin() {
    assert_found_in(env!("CARGO_BIN_EXE_nccl-bench-mpi"));
}
