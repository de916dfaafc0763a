//! Ranks of a real MPI launcher, which must belong to the MPI library of this build.

use crate::job::{Ended, assert_barriers_hold, command, reserve_port, soon, start};
use std::env;
use std::process::Command;
use tempfile::TempDir;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("mpi::ranks_connect_wait_and_gather", ranks_connect_wait_and_gather),
    ("mpi::threads_of_processes_call_together", threads_of_processes_call_together),
    ("mpi::an_abort_ends_all", an_abort_ends_all),
    ("mpi::a_panic_ends_all", a_panic_ends_all),
    ("mpi::a_killed_rank_takes_the_others_down", a_killed_rank_takes_the_others_down),
    ("mpi::a_stopped_rank_takes_the_others_down", a_stopped_rank_takes_the_others_down),
    ("mpi::a_failure_is_reported_by_check", a_failure_is_reported_by_check),
    ("mpi::a_rank_that_reports_its_failure_is_named", a_rank_that_reports_its_failure_is_named),
    ("mpi::another_mpis_launcher_is_detected", another_mpis_launcher_is_detected),
    ("mpi::tcp_works_under_its_launcher", tcp_works_under_its_launcher),
    ("mpi::going_on_after_a_failure_is_refused", going_on_after_a_failure_is_refused),
];

/// True if this program was built with Open MPI, otherwise MPICH or a derivative.
fn open_mpi() -> bool {
    mpi::environment::library_version().unwrap().starts_with("Open MPI")
}

/// Launcher of the MPI library of this build, or of the other one.
fn launcher(own: bool) -> &'static str {
    if open_mpi() == own { "mpirun.openmpi" } else { "mpirun.mpich" }
}

/// With a folder of its own: Open MPI's launchers that start at the same time interfere with each other in
/// `/tmp`.
fn under(launcher: &str, count: usize, steps: &str) -> (Command, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(launcher);
    command.env("TMPDIR", folder.path());
    command.args(["-np", &count.to_string()]);
    if launcher.ends_with("openmpi") {
        command.arg("--oversubscribe");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    command.arg(env::current_exe().unwrap()).env("WORLD_STEPS", steps);
    (command, folder)
}

fn run(count: usize, steps: &str) -> Ended {
    let (command, _folder) = under(launcher(true), count, steps);
    start(command).ended(soon())
}

fn ranks_connect_wait_and_gather() {
    for count in [1, 2, 4] {
        let ended = run(count, "print barriers:20 gather:5 check gather-bytes:0 gather-bytes:100000");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_barriers_hold(&[&ended.stdout], 20);
        let how = match (count, open_mpi()) {
            (1, _) => "one process",
            (_, true) => "Open MPI ",
            (_, false) => "MPICH ",
        };
        for rank in 0..count {
            let line = format!("rank {rank} of {count}, {rank} of {count} here, {how}");
            assert!(ended.stdout.contains(&line), "{line}: {ended:?}");
        }
    }
}

fn threads_of_processes_call_together() {
    let ended = run(2, "threads:2 print barriers:10 gather:4");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_barriers_hold(&[&ended.stdout], 10);
    assert!(ended.stdout.contains("rank 3 of 4, 3 of 4 here"), "{ended:?}");
}

fn an_abort_ends_all() {
    let ended = run(2, "exit-on-failure barriers:1 abort@1:42 stuck");
    assert_eq!(ended.code, Some(42), "{ended:?}");
    assert!(ended.stderr.contains("rank 1 on host "), "{ended:?}");
    assert!(ended.stderr.contains(": the test wants it"), "{ended:?}");
}

fn a_panic_ends_all() {
    let ended = run(2, "barriers:1 panic@1 stuck");
    assert_eq!(ended.code, Some(101), "{ended:?}");
}

fn a_killed_rank_takes_the_others_down() {
    let ended = run(3, "exit-on-failure barriers:1 kill@1 stuck");
    assert_ne!(ended.code, Some(0), "{ended:?}");
    // Open MPI reports it too, and may be faster.
    assert!(ended.stderr.contains("rank 1 "), "{ended:?}");
}

fn a_stopped_rank_takes_the_others_down() {
    let ended = run(3, "exit-on-failure barriers:1 stop@1 stuck");
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("rank 1 on host "), "{ended:?}");
    assert!(ended.stderr.contains("nothing was heard from it for 8 s"), "{ended:?}");
}

fn a_failure_is_reported_by_check() {
    let ended = run(2, "barriers:1 stop@1 check-until-failed");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("error: rank 1 on host "), "{ended:?}");
}

fn a_rank_that_reports_its_failure_is_named() {
    let ended = run(2, "barriers:1 fail@1:lost check-until-failed@0");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("error: rank 1 on host "), "{ended:?}");
    assert!(ended.stderr.contains(" failed: lost\n"), "{ended:?}");
}

fn another_mpis_launcher_is_detected() {
    let (command, _folder) = under(launcher(false), 2, "kind:mpi print");
    let ended = start(command).ended(soon());
    assert_ne!(ended.code, Some(0), "{ended:?}");
    let (theirs, ours) =
        if open_mpi() { ("MPICH's mpiexec", "Open MPI") } else { ("Open MPI's mpirun", "MPICH") };
    let expected = format!("{theirs} started 2 processes, but this program was built with {ours}");
    assert!(ended.stderr.contains(&expected), "{ended:?}");
    assert!(ended.stderr.contains("`Options::kind = Kind::Tcp`"), "{ended:?}");
    assert!(!ended.stdout.contains("rank 0 of 1"), "{ended:?}");
}

fn tcp_works_under_its_launcher() {
    for own in [true, false] {
        for address in [None, Some(format!("127.0.0.1:{}", reserve_port()))] {
            let (mut command, _folder) = under(launcher(own), 2, "kind:tcp print gather:3");
            if let Some(address) = &address {
                command.env("NCCL_BENCH_ADDR", address);
            }
            let ended = start(command).ended(soon());
            assert_eq!(ended.code, Some(0), "{ended:?}");
            let at = address.as_deref().unwrap_or("127.0.0.1:2");
            let line = format!("rank 1 of 2, 1 of 2 here, TCP rendezvous at {at}");
            assert!(ended.stdout.contains(&line), "{line}: {ended:?}");
        }
    }
}

fn going_on_after_a_failure_is_refused() {
    let ended = run(2, "recovery");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("let the ranks meet over TCP (`Options::kind = Kind::Tcp`)"), "{ended:?}");
    let ended = run(2, "kind:tcp recovery barriers:1");
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
