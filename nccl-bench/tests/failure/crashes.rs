//! Ranks that crash or stop in the middle of a sweep.

use std::thread;
use std::time::Duration;

use crate::process::*;
use crate::tests;

pub(crate) const TESTS: crate::Tests =
    tests![a_killed_rank_is_named, a_stopped_rank_is_named, a_stopped_rank_is_named_by_the_watchdog,];

fn a_killed_rank_is_named() {
    for dead in [0, 1] {
        let mut job = start_job(3, || bench(LONG_SWEEP), &[]);
        job[0].read_to(CONNECTED);
        job[0].read_to("  ");
        job[dead].signal(libc::SIGKILL);
        for rank in (0..3).filter(|&rank| rank != dead) {
            let ended = job[rank].ended();
            assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
            let named = format!("rank {dead} on host {} died: its connection", host());
            assert!(ended.stderr.contains(&named), "rank {rank}: {ended:?}");
        }
    }
}

fn a_stopped_rank_is_named() {
    for (dead, arguments) in [(1, LONG_SWEEP), (0, LONG_MEASUREMENT)] {
        let mut job = start_job(3, || bench(arguments), &[("NCCL_BENCH_DEAD_AFTER", "3")]);
        job[0].read_to(CONNECTED);
        job[dead].signal(libc::SIGSTOP);
        for rank in (0..3).filter(|&rank| rank != dead) {
            let ended = job[rank].ended();
            assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
            let named = format!("rank {dead} on host {} died: nothing was heard from it for 3 s", host());
            assert!(ended.stderr.contains(&named), "rank {rank}: {ended:?}");
        }
        if dead == 0 {
            // It blames no rank that works.
            job[0].signal(libc::SIGCONT);
            let ended = job[0].ended();
            let named = format!("rank 0 on host {} was stopped for ", host());
            assert!(ended.code == Some(1) && ended.stderr.contains(&named), "{ended:?}");
        }
    }
}

/// Panics unless this process ended because the watchdog found that rank 1, which is stopped, keeps the
/// others waiting.
pub(crate) fn assert_watchdog_named_rank_1(stderr: &str) {
    let named = stderr.contains(&format!("rank 1 on {} (host memory) was last heard ", host()));
    // Which rank is behind depends on the moment of the stop.
    assert!(named && stderr.contains(&format!(" within {WATCHDOG_S} s")), "{stderr}");
}

fn a_stopped_rank_is_named_by_the_watchdog() {
    // As if nobody noticed its silence.
    let mut job =
        start_job(3, || bench(&format!("{LONG_SWEEP} -T {WATCHDOG_S}")), &[("NCCL_BENCH_DEAD_AFTER", "0")]);
    job[0].read_to(CONNECTED);
    job[0].read_to("  ");
    thread::sleep(Duration::from_millis(1500));
    job[1].signal(libc::SIGSTOP);
    for rank in [0, 2] {
        let ended = job[rank].ended();
        assert_eq!(ended.code, Some(4), "rank {rank}: {ended:?}");
        assert_watchdog_named_rank_1(&ended.stderr);
    }
}
