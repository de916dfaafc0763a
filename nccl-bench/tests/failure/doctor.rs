//! A measurement of `doctor` that fails: rank 0 reports with NCCL's logs of all processes.
//!
//! The measurement is one of host memory, and the tests write the logs in NCCL's place.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{Process, bench, host, reserve_port, start};
use crate::{Tests, tests};

pub(crate) const TESTS: Tests =
    tests![the_log_of_a_dead_process_is_in_the_report, a_log_that_died_with_its_host_is_listed];

/// Starts three ranks, of which the last one has a host of its own, and waits until they measure.
fn start_doctor() -> Vec<Process> {
    let port = reserve_port();
    let ranks = (0..3).map(|rank| {
        let mut command = bench("doctor --backend fabric -T 60");
        command.env("NCCL_BENCH_RANK", rank.to_string());
        command.env("NCCL_BENCH_SIZE", "3");
        command.env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"));
        if rank == 2 {
            command.env("NCCL_HOSTID", "another");
        }
        start(command)
    });
    let job: Vec<Process> = ranks.collect();
    for (rank, process) in job.iter().enumerate() {
        write_log(process, rank);
    }
    let by = Instant::now() + Duration::from_secs(60);
    while !job.iter().enumerate().all(|(rank, process)| measures(process, rank)) {
        assert!(Instant::now() < by, "the ranks do not measure");
        thread::sleep(Duration::from_millis(5));
    }
    job
}

/// Returns true once the process has the thread of its rank.
fn measures(process: &Process, rank: usize) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", process.child.id())) else { return false };
    let name = format!("rank {rank}\n");
    threads
        .flatten()
        .any(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm == name))
}

/// Writes a warning into the log of a process, once it has one.
fn write_log(process: &Process, rank: usize) {
    let by = Instant::now() + Duration::from_secs(60);
    let file = loop {
        assert!(Instant::now() < by, "there is no file for the log");
        match memory(process.child.id()) {
            Some(file) => break file,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let line = format!("vm:{rank}:{rank} [0] elsewhere.cc:{rank} NCCL WARN strange thing number {rank}\n");
    fs::OpenOptions::new().append(true).open(file).unwrap().write_all(line.as_bytes()).unwrap();
}

/// The file for NCCL's log of a process.
fn memory(process: u32) -> Option<PathBuf> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let is_log =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|file| file.starts_with("/memfd:nccl-log (deleted)"));
    open.flatten().map(|file| file.path()).find(is_log)
}

/// Kills a rank, and returns the report and the ends of the others.
fn kill(victim: usize) -> String {
    let mut job = start_doctor();
    job[victim].signal(libc::SIGKILL);
    let mut report = String::new();
    for (rank, process) in job.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let ended = process.ended();
        if rank == 0 {
            assert_eq!(ended.code, Some(2), "{ended:?}");
            report = ended.stdout;
        } else {
            assert_ne!(ended.code, Some(0), "{ended:?}");
        }
    }
    assert!(report.starts_with("BROKEN"), "{report}");
    report
}

fn assert_logs(report: &str, seen: &[usize]) {
    for rank in 0..3 {
        let warning = format!("strange thing number {rank}");
        let line = format!("> NCCL's log of process {rank} on {0}:1, host {0}: {warning}\n", host());
        assert_eq!(report.contains(&line), seen.contains(&rank), "rank {rank}: {report}");
    }
}

fn the_log_of_a_dead_process_is_in_the_report() {
    let report = kill(1);
    assert_logs(&report, &[0, 1, 2]);
    assert!(!report.contains("did not reach rank 0"), "{report}");
}

fn a_log_that_died_with_its_host_is_listed() {
    let report = kill(2);
    assert_logs(&report, &[0, 1]);
    let unseen = format!("NCCL's log of process 2 on {}: it did not reach rank 0", host());
    assert!(report.contains(&unseen), "{report}");
}
