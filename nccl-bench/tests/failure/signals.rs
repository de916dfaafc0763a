//! Signals and closed outputs.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::{Duration, Instant};

use record::RunOutcome;

use crate::process::*;
use crate::tests;

pub(crate) const TESTS: crate::Tests = tests![
    a_signal_ends_a_stuck_run_with_its_code,
    a_signal_stops_a_sweep_between_measurements,
    what_was_measured_before_a_stuck_operation_is_kept,
    results_are_kept_when_nobody_reads_the_output,
    a_second_signal_does_not_wait,
    two_signals_at_once_lose_no_results,
    a_signal_that_was_ignored_stays_ignored,
    a_signal_to_one_rank_stops_all,
    a_signal_to_one_stuck_rank_ends_all,
    a_signal_ends_a_rank_that_waits_for_others,
    a_closed_output_ends_a_run_quietly,
    a_closed_output_ends_all_ranks_quietly,
];

fn a_signal_ends_a_stuck_run_with_its_code() {
    for (signal, name, code) in [
        (libc::SIGINT, "SIGINT", 130),
        (libc::SIGTERM, "SIGTERM", 143),
        (libc::SIGHUP, "SIGHUP", 129),
        (libc::SIGQUIT, "SIGQUIT", 131),
        (libc::SIGUSR1, "SIGUSR1", 138),
        (libc::SIGXCPU, "SIGXCPU", 152),
    ] {
        // libfabric is loaded, and its providers have installed handlers of their own, which end with code 1.
        let mut run = start(bench(&format!("{LONG_MEASUREMENT} -t 2")));
        run.read_to(CONNECTED);
        run.signal(signal);
        let ended = run.ended();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.stderr, format!("nccl-bench: ended by {name}\n"), "{ended:?}");
    }
}

fn a_signal_stops_a_sweep_between_measurements() {
    let folder = tempfile::tempdir().unwrap();
    let [json, lines, compatible] =
        ["run.json", "run.jsonl", "tests.json"].map(|name| folder.path().join(name));
    let files =
        format!("--output {} --output {} -J {}", json.display(), lines.display(), compatible.display());
    let mut run = start(bench(&format!("{LONG_SWEEP} -t 2 {files}")));
    run.read_to(CONNECTED);
    run.read_to("  ");
    run.signal(libc::SIGINT);
    let ended = run.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(130), ""), "{ended:?}");
    assert!(ended.stdout.ends_with(&not_whole("SIGINT")), "{ended:?}");
    for success in ["OK", "Out of bounds", "Avg bus", "concluded"] {
        assert!(!ended.stdout.contains(success), "{ended:?}");
    }
    for file in [json, lines] {
        assert_interrupted(&record::files::read_run(&file).unwrap());
    }
    let text = std::fs::read_to_string(compatible).unwrap();
    assert!(text.contains("SIGINT") && !text.contains("end_time"), "{text}");
}

/// The last line of a run that a signal ended.
pub(crate) fn not_whole(signal: &str) -> String {
    format!("# Test failure: FAILED: this run is not whole: interrupted by {signal}\n")
}

pub(crate) fn assert_interrupted(run: &record::Run) {
    assert_eq!(run.outcome, RunOutcome::Interrupted { signal: "SIGINT".to_owned() });
    assert!(!run.measurements.is_empty() && run.ended_at.is_some(), "{run:?}");
}

fn what_was_measured_before_a_stuck_operation_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    // The second size takes far longer than a signal waits.
    let sizes = "allreduce --backend fabric -b 8 -e 64M -f 8388608 -n 2000 -t 2";
    let mut run = start(bench(&format!("{sizes} --output {}", file.display())));
    run.read_to(CONNECTED);
    run.read_to("  ");
    run.signal(libc::SIGINT);
    let ended = run.ended();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let kept = record::files::read_run(&file).unwrap();
    assert_interrupted(&kept);
    assert_eq!(kept.measurements.len(), 2, "{kept:?}");
}

fn results_are_kept_when_nobody_reads_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let [json, lines] = ["run.json", "run.jsonl"].map(|name| folder.path().join(name));
    let files = format!("--output {} --output {}", json.display(), lines.display());
    let mut run = start(bench(&format!("allreduce --backend fabric -b 8 -e 8 -n 1 -w 0 -N 0 -t 2 {files}")));
    run.read_to(CONNECTED);
    // The pipe holds 64 KiB: when the file of lines stops growing, a row is being printed that nobody reads.
    let length = || std::fs::metadata(&lines).map_or(0, |found| found.len());
    let mut before = 0;
    loop {
        thread::sleep(Duration::from_secs(1));
        let now = length();
        if now > 0 && now == before {
            break;
        }
        before = now;
    }
    run.signal(libc::SIGTERM);
    // Nobody reads until it has ended.
    let by = Instant::now() + Duration::from_secs(60);
    while run.child.try_wait().unwrap().is_none() && Instant::now() < by {
        thread::sleep(Duration::from_millis(10));
    }
    let ended = run.ended();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    for file in [json, lines] {
        let kept = record::files::read_run(&file).unwrap();
        assert_eq!(kept.outcome, RunOutcome::Interrupted { signal: "SIGTERM".to_owned() });
        assert!(kept.measurements.len() > 100, "{}", kept.measurements.len());
    }
}

fn a_second_signal_does_not_wait() {
    let mut run = start(bench(&format!("{LONG_MEASUREMENT} -t 2")));
    run.read_to(CONNECTED);
    run.signal(libc::SIGINT);
    // Signals within 0.3 s count as one.
    thread::sleep(Duration::from_millis(400));
    run.signal(libc::SIGTERM);
    let ended = run.ended();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(ended.stderr.contains("ended by SIGTERM"), "{ended:?}");
}

fn two_signals_at_once_lose_no_results() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let mut run = start(bench(&format!("{LONG_SWEEP} -t 2 --output {}", file.display())));
    run.read_to(CONNECTED);
    run.read_to("  ");
    run.signal(libc::SIGINT);
    run.signal(libc::SIGTERM);
    let ended = run.ended();
    assert!(matches!(ended.code, Some(130 | 143)), "{ended:?}");
    let kept = record::files::read_run(&file).unwrap();
    assert!(matches!(kept.outcome, RunOutcome::Interrupted { .. }), "{kept:?}");
    assert!(!kept.measurements.is_empty(), "{kept:?}");
}

fn a_signal_that_was_ignored_stays_ignored() {
    // By the time of the second one libfabric's providers have installed handlers of their own.
    for (ignored, other) in
        [(libc::SIGHUP, libc::SIGTERM), (libc::SIGINT, libc::SIGTERM), (libc::SIGTERM, libc::SIGINT)]
    {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.json");
        let mut command = bench(&format!("{LONG_SWEEP} -t 2 --output {}", file.display()));
        // SAFETY: `signal` may be called between `fork` and `exec`.
        unsafe {
            command.pre_exec(move || {
                libc::signal(ignored, libc::SIG_IGN);
                Ok(())
            })
        };
        let mut run = start(command);
        run.read_to(CONNECTED);
        run.signal(ignored);
        run.read_to("  ");
        run.signal(ignored);
        run.read_to("  ");
        run.signal(other);
        let ended = run.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(128 + other), ""), "{ended:?}");
        let kept = record::files::read_run(&file).unwrap();
        assert!(
            matches!(&kept.outcome, RunOutcome::Interrupted { .. }) && !kept.measurements.is_empty(),
            "{kept:?}"
        );
    }
}

fn a_signal_to_one_rank_stops_all() {
    let mut job = start_job(3, || bench(LONG_SWEEP), &[]);
    job[0].read_to(CONNECTED);
    job[0].read_to("  ");
    job[2].signal(libc::SIGTERM);
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(143), ""), "rank {rank}: {ended:?}");
        assert_eq!(ended.stdout.ends_with(&not_whole("SIGTERM")), rank == 0, "rank {rank}: {ended:?}");
        let names_the_rank = ended.stdout.contains("# SIGTERM reached rank 2 first, and ends the run\n");
        assert_eq!(names_the_rank, rank == 0, "rank {rank}: {ended:?}");
    }
}

fn a_signal_to_one_stuck_rank_ends_all() {
    let mut job = start_job(3, || bench(LONG_MEASUREMENT), &[]);
    job[0].read_to(CONNECTED);
    job[1].signal(libc::SIGINT);
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!(ended.code, Some(130), "rank {rank}: {ended:?}");
        assert!(ended.stderr.starts_with(&format!("rank 1 on host {}", host())), "rank {rank}: {ended:?}");
        assert!(ended.stderr.contains("ended by SIGINT"), "rank {rank}: {ended:?}");
    }
}

fn a_signal_ends_a_rank_that_waits_for_others() {
    // Rank 0 is there already.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut command = bench(LONG_SWEEP);
    command.envs([("NCCL_BENCH_RANK", "1"), ("NCCL_BENCH_SIZE", "2"), ("NCCL_BENCH_ADDR", &address)]);
    let mut waiting = start(command);
    let (_rank_0, _) = listener.accept().unwrap();
    waiting.signal(libc::SIGINT);
    let ended = waiting.ended();
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(130), "nccl-bench: ended by SIGINT\n"),
        "{ended:?}"
    );
}

fn a_closed_output_ends_a_run_quietly() {
    let mut run = start(bench(&format!("{LONG_SWEEP} -t 2")));
    run.read_to("# nccl-bench version");
    run.stdout = None;
    let ended = run.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(141), ""), "{ended:?}");
}

fn a_closed_output_ends_all_ranks_quietly() {
    let mut job = start_job(3, || bench(LONG_SWEEP), &[]);
    job[0].read_to(CONNECTED);
    job[0].read_to("  ");
    job[0].stdout = None;
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(141), ""), "rank {rank}: {ended:?}");
    }
}
