//! Ranks under mpirun, with the MPI whose launcher is the default.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use crate::crashes::assert_watchdog_named_rank_1;
use crate::doctor::{DOCTOR, assert_interrupted, wait_for_thread};
use crate::logs::{Fakes, examination_of_logs};
use crate::process::*;
use crate::tests;

pub(crate) const TESTS: crate::Tests = tests![
    a_killed_rank_of_mpirun_is_named,
    a_stopped_rank_of_mpirun_is_named,
    a_stopped_rank_of_mpirun_is_named_by_the_watchdog,
    a_signal_to_mpirun_ends_its_ranks,
    a_signal_of_mpirun_interrupts_the_doctor,
    the_driver_starts_after_mpi,
];

/// `mpirun` and the processes of its ranks, which rank 0 lists.
#[cfg(feature = "mpi")]
pub(crate) struct Launched {
    pub(crate) launcher: Process,
    pub(crate) ranks: Vec<u32>,
    pub(crate) _session: tempfile::TempDir,
}

#[cfg(feature = "mpi")]
pub(crate) fn mpirun(ranks: usize, arguments: &str, variables: &[(&str, &str)]) -> Launched {
    let (mut launcher, session) = launch(ranks, arguments, variables);
    launcher.read_to(CONNECTED);
    launcher.read_to("  ");
    let pid = |line: &str| line.split_once(" Pid ")?.1.split_whitespace().next()?.parse().ok();
    let processes: Vec<u32> = launcher.seen.lines().filter_map(pid).collect();
    assert_eq!(processes.len(), ranks, "{}", launcher.seen);
    Launched { launcher, ranks: processes, _session: session }
}

/// Starts `mpirun`, with a folder for its files.
#[cfg(feature = "mpi")]
fn launch(ranks: usize, arguments: &str, variables: &[(&str, &str)]) -> (Process, tempfile::TempDir) {
    // Naming the sibling makes cargo build it; nccl-bench finds it beside itself.
    assert!(std::path::Path::new(env!("CARGO_BIN_EXE_nccl-bench-mpi")).exists());
    // Launchers of Open MPI that start at the same time race for one folder in the default place.
    let session = tempfile::tempdir().unwrap();
    let mut command =
        command("mpirun", &format!("-np {ranks} {} {arguments}", env!("CARGO_BIN_EXE_nccl-bench")));
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("TMPDIR", session.path())
        .envs(variables.iter().copied());
    (start(command), session)
}

#[cfg(feature = "mpi")]
fn a_killed_rank_of_mpirun_is_named() {
    let mut job = mpirun(3, LONG_SWEEP, &[]);
    send(job.ranks[1], libc::SIGKILL);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    // Open MPI also names it, and may be faster.
    let named = ended.stderr.contains(&format!("rank 1 on host {} died", host()))
        || ended.stderr.contains(&format!("rank 1 with PID {} on node {}", job.ranks[1], host()));
    assert!(named, "{ended:?}");
}

#[cfg(feature = "mpi")]
fn a_stopped_rank_of_mpirun_is_named() {
    let mut job = mpirun(3, LONG_SWEEP, &[("NCCL_BENCH_DEAD_AFTER", "3")]);
    send(job.ranks[1], libc::SIGSTOP);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    let named = format!("rank 1 on host {} died: nothing was heard from it for 3 s", host());
    assert!(ended.stderr.contains(&named), "{ended:?}");
}

#[cfg(feature = "mpi")]
fn a_stopped_rank_of_mpirun_is_named_by_the_watchdog() {
    let mut job = mpirun(3, &format!("{LONG_SWEEP} -T {WATCHDOG_S}"), &[("NCCL_BENCH_DEAD_AFTER", "0")]);
    thread::sleep(Duration::from_millis(1500));
    send(job.ranks[1], libc::SIGSTOP);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert_watchdog_named_rank_1(&ended.stderr);
}

#[cfg(feature = "mpi")]
fn a_signal_to_mpirun_ends_its_ranks() {
    // It sends SIGTERM to its ranks, and SIGKILL soon after.
    let mut job = mpirun(2, LONG_SWEEP, &[]);
    job.launcher.signal(libc::SIGTERM);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    let by = Instant::now() + Duration::from_secs(60);
    while job.ranks.iter().any(|&rank| is_running(rank)) {
        assert!(Instant::now() < by, "they are still there: {:?}", job.ranks);
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(feature = "mpi")]
fn a_signal_of_mpirun_interrupts_the_doctor() {
    let (mut launcher, _session) = launch(2, DOCTOR, &[]);
    let launched = launcher.child.id();
    let by = Instant::now() + Duration::from_secs(60);
    let ranks = loop {
        let children = std::fs::read_to_string(format!("/proc/{launched}/task/{launched}/children")).unwrap();
        let ranks: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        if ranks.len() == 2 {
            break ranks;
        }
        assert!(Instant::now() < by, "mpirun has started {ranks:?}");
        thread::sleep(Duration::from_millis(5));
    };
    for (rank, &process) in ranks.iter().enumerate() {
        wait_for_thread(process, &format!("rank {rank}"));
    }
    // As mpirun does a second after Ctrl-C, when a fast machine has measured everything.
    ranks.iter().for_each(|&rank| send(rank, libc::SIGTERM));
    let ended = launcher.ended();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert_interrupted(&ended.stdout, "SIGTERM");
}

/// True for a running process, which is not a zombie.
#[cfg(feature = "mpi")]
pub(crate) fn is_running(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// MPI_Init sets environment variables, which the CUDA driver reads while it starts: at the same time, the
/// process can crash.
#[cfg(feature = "mpi")]
fn the_driver_starts_after_mpi() {
    let fakes = Fakes::build();
    let (folder, nccl) = (fakes.0.path().to_str().unwrap(), fakes.nccl());
    let variables = [("LD_LIBRARY_PATH", folder), ("NCCL_LIBRARY", nccl.to_str().unwrap())];
    let (mut launcher, _session) = launch(2, "doctor -T 60 --json", &variables);
    let ended = launcher.ended();
    let log = examination_of_logs(&ended.stdout);
    assert_eq!(log["facts"]["communicators"][0]["ranks"], 4, "{log}");
}
