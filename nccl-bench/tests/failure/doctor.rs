//! A measurement of `doctor` that fails or is interrupted: rank 0 reports with NCCL's logs of all processes.
//!
//! The measurement is one of host memory, and the tests write the logs in NCCL's place.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{Process, bench, host, reserve_port, start};
use crate::{Tests, tests};

pub(crate) const TESTS: Tests = tests![
    the_log_of_a_dead_process_is_in_the_report,
    a_log_that_died_with_its_host_is_listed,
    an_interrupted_measurement_is_no_failure,
    an_interrupted_examination_of_the_host_is_reported,
    a_signal_to_all_ranks_is_reported_with_what_was_found_before,
    a_signal_to_one_rank_ends_all_with_its_code,
];

/// The command of the tests.
pub(crate) const DOCTOR: &str = "doctor --backend fabric -T 60 --verbose";

/// Starts three ranks, of which the last one has a host of its own, and waits until they measure.
fn start_doctor() -> Vec<Process> {
    let port = reserve_port();
    let ranks = (0..3).map(|rank| {
        let mut command = bench(DOCTOR);
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
    for (rank, process) in job.iter().enumerate() {
        wait_for_thread(process.child.id(), &format!("rank {rank}"));
    }
    job
}

/// Waits until the process has a thread of this name: that of a rank exists while it measures.
pub(crate) fn wait_for_thread(process: u32, name: &str) {
    let by = Instant::now() + Duration::from_secs(60);
    let has_thread = || {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
        let named = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm"));
        threads.flatten().any(|thread| named(thread).is_ok_and(|comm| comm.trim_end() == name))
    };
    while !has_thread() {
        assert!(Instant::now() < by, "there is no thread {name}");
        thread::sleep(Duration::from_millis(5));
    }
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

/// Panics unless this is the report of an examination that a signal ended.
pub(crate) fn assert_interrupted(report: &str, signal: &str) {
    let verdict = format!("CANNOT TELL: interrupted by {signal} before the measurement was complete");
    assert_eq!(report.matches(&verdict).count(), 1, "{report}");
    assert!(!report.contains("measurement-failed") && !report.contains("BROKEN"), "{report}");
}

fn an_interrupted_measurement_is_no_failure() {
    let mut alone = start(bench(DOCTOR));
    wait_for_thread(alone.child.id(), "rank 0");
    alone.signal(libc::SIGTERM);
    let ended = alone.ended();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert_interrupted(&ended.stdout, "SIGTERM");
}

fn an_interrupted_examination_of_the_host_is_reported() {
    let mut alone = start(bench(&format!("{DOCTOR} --json")));
    // This thread starts before the examinations, which take a second at least.
    wait_for_thread(alone.child.id(), "endings");
    alone.signal(libc::SIGINT);
    let ended = alone.ended();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert_interrupted(&ended.stdout, "SIGINT");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["health"], "cannot_tell", "{report}");
    let examinations = report["examinations"].as_array().unwrap();
    let measurement = examinations.iter().find(|one| one["subject"] == "measurement").unwrap();
    assert_eq!(measurement["interrupted"], "SIGINT", "{report}");
}

fn a_signal_to_all_ranks_is_reported_with_what_was_found_before() {
    let mut job = start_doctor();
    for process in &job {
        process.signal(libc::SIGINT);
    }
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!(ended.code, Some(130), "rank {rank}: {ended:?}");
        if rank == 0 {
            assert_interrupted(&ended.stdout, "SIGINT");
            // The logs and the hosts.
            assert!(ended.stdout.contains("strange thing number 0"), "{ended:?}");
            assert!(ended.stdout.contains("\nComparison of hosts\n"), "{ended:?}");
        } else {
            assert_eq!(ended.stdout, "", "rank {rank}: {ended:?}");
        }
    }
}

fn a_signal_to_one_rank_ends_all_with_its_code() {
    let mut job = start_doctor();
    job[1].signal(libc::SIGTERM);
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!(ended.code, Some(143), "rank {rank}: {ended:?}");
        if rank == 0 {
            assert_interrupted(&ended.stdout, "SIGTERM");
        }
    }
}
