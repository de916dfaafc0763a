//! The program under real MPI launchers. Built with `--features mpi` against the MPI whose `mpirun` is the default.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn under(launcher: &str, ranks: usize, arguments: &str) -> Output {
    // Naming the sibling makes cargo build it; nccl-bench finds it beside itself.
    assert!(std::path::Path::new(env!("CARGO_BIN_EXE_nccl-bench-mpi")).exists());
    // Open MPI's launchers that start at the same time race for one folder in the usual place.
    let session = tempfile::tempdir().unwrap();
    Command::new(launcher)
        .args(["-np", &ranks.to_string(), env!("CARGO_BIN_EXE_nccl-bench")])
        .args(arguments.split_whitespace())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("TMPDIR", session.path())
        .output()
        .expect("the launcher is installed by make test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ranks_of_mpirun_form_one_job_and_only_rank_0_prints() {
    let output = under("mpirun", 3, "allreduce --backend fabric -e 4K -n 1");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert_eq!(out.matches("# Collective test starting: all_reduce_perf").count(), 1, "{out}");
    assert!(out.contains("# World: Open MPI"), "{out}");
    for rank in 0..3 {
        assert!(out.contains(&format!("#  Rank  {rank} Group  0 Pid")), "{out}");
    }
    assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
}

#[test]
fn processes_and_threads_multiply() {
    let output = under("mpirun", 2, "allgather --backend fabric -t 2 -b 4K -e 4K -n 1");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert!(out.contains("#  Rank  3 Group  0 Pid"), "{out}");
}

#[test]
fn processes_have_every_collective_over_host_memory() {
    let output = under("mpirun", 2, "all --backend fabric -e 64K -n 2");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert_eq!(out.matches("# Out of bounds values : 0 OK").count(), 11, "{out}");
}

#[test]
fn bad_input_is_refused_under_a_launcher_too() {
    let output = under("mpirun", 2, "allreduce -f 1");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("write 2 or more"));
}

#[test]
fn a_launcher_of_another_mpi_is_reported_and_nothing_is_measured() {
    let output = under("mpirun.mpich", 2, "allreduce --backend fabric -e 4K -n 1");
    assert!(!output.status.success());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!out.contains("Collective test starting"), "{out}");
    assert!(err.contains("MPICH") && err.contains("--world tcp"), "{err}");
}
