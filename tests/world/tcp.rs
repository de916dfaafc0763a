//! Worlds over TCP: collectives, failures and exits.

use crate::job::{
    Ended, Process, all_ended, assert_all_well, assert_barriers_hold, reserve_port, soon, start_job,
    start_rank,
};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("tcp::ranks_connect_wait_and_gather", ranks_connect_wait_and_gather),
    ("tcp::long_messages_are_gathered", long_messages_are_gathered),
    ("tcp::barriers_hold", barriers_hold),
    ("tcp::a_killed_rank_takes_the_others_down", a_killed_rank_takes_the_others_down),
    ("tcp::a_stopped_rank_takes_the_others_down", a_stopped_rank_takes_the_others_down),
    ("tcp::a_failure_is_reported_by_every_operation", a_failure_is_reported_by_every_operation),
    ("tcp::a_rank_that_reports_its_failure_is_named", a_rank_that_reports_its_failure_is_named),
    ("tcp::late_ranks_are_named", late_ranks_are_named),
    ("tcp::a_limit_applies_only_while_ranks_wait", a_limit_applies_only_while_ranks_wait),
    ("tcp::notes_reach_rank_zero", notes_reach_rank_zero),
    ("tcp::a_process_runs_its_exit_hook", a_process_runs_its_exit_hook),
    ("tcp::an_abort_ends_all_with_its_code", an_abort_ends_all_with_its_code),
    ("tcp::a_panic_is_reported", a_panic_is_reported),
    ("tcp::a_rank_that_leaves_early_is_named", a_rank_that_leaves_early_is_named),
    ("tcp::ranks_may_leave_at_different_times", ranks_may_leave_at_different_times),
    ("tcp::different_collectives_are_an_error", different_collectives_are_an_error),
];

/// Time limit for the end of all ranks after a failure.
const LIMIT: Duration = Duration::from_secs(10);

fn ranks_connect_wait_and_gather() {
    for size in 1..=8 {
        let port = reserve_port();
        // Rank 0 comes last in half of the cases.
        let mut order: Vec<usize> = (0..size).collect();
        if size % 2 == 0 {
            order.reverse();
        }
        let mut job: Vec<(usize, Process)> = order
            .into_iter()
            .map(|rank| {
                (rank, start_rank(rank, size, port, "print barriers:5 gather:6 check fast-barriers:200"))
            })
            .collect();
        job.sort_by_key(|(rank, _)| *rank);
        let job: Vec<Ended> = job.iter_mut().map(|(_, process)| process.ended(soon())).collect();
        assert_all_well(&job);
        for (rank, ended) in job.iter().enumerate() {
            let how = if size == 1 {
                "one process".to_owned()
            } else {
                format!("TCP rendezvous at 127.0.0.1:{port}")
            };
            let line = format!("rank {rank} of {size}, {rank} of {size} here, {how}");
            assert_eq!(ended.stdout.lines().next(), Some(line.as_str()));
        }
    }
}

fn long_messages_are_gathered() {
    // Larger than socket buffers, so that sending has to wait for the receivers.
    let job =
        all_ended(&mut start_job(4, "gather-bytes:10000000 gather-bytes:0 gather-bytes:3000001"), soon());
    assert_all_well(&job);
    let job = all_ended(&mut start_job(2, "gather-bytes:16777217"), soon());
    for ended in job {
        assert!(ended.stderr.contains("16777217 bytes is too long"), "{ended:?}");
    }
}

fn barriers_hold() {
    let job = all_ended(&mut start_job(4, "barriers:100"), soon());
    assert_all_well(&job);
    assert_barriers_hold(&job.iter().map(|ended| ended.stdout.as_str()).collect::<Vec<_>>(), 100);
}

/// Waits until all ranks are at their last step, in which they hang.
fn let_them_get_stuck() {
    thread::sleep(Duration::from_millis(1500));
}

/// Panics unless all ranks but `dead` exit with code 1 and exactly one line that names it and the reason.
fn assert_taken_down(job: &mut [Process], dead: usize, reason: &str, by: Instant) {
    for (rank, process) in job.iter_mut().enumerate().filter(|(rank, _)| *rank != dead) {
        let ended = process.ended(by);
        assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "rank {rank}: {ended:?}");
        assert!(ended.stderr.starts_with(&format!("rank {dead} on host ")), "rank {rank}: {ended:?}");
        assert!(ended.stderr.contains(reason), "rank {rank}: {ended:?}");
    }
}

fn a_killed_rank_takes_the_others_down() {
    for dead in [0, 1, 3] {
        let mut job = start_job(4, "exit-on-failure barriers:2 stuck");
        let_them_get_stuck();
        job[dead].signal(libc::SIGKILL);
        assert_taken_down(&mut job, dead, "died: its connection", Instant::now() + LIMIT);
    }
}

fn a_stopped_rank_takes_the_others_down() {
    for dead in [0, 2] {
        let mut job = start_job(3, "exit-on-failure barriers:2 stuck");
        let_them_get_stuck();
        assert!(job.iter_mut().all(Process::is_running));
        job[dead].signal(libc::SIGSTOP);
        assert_taken_down(&mut job, dead, "died: nothing was heard from it for 8 s", Instant::now() + LIMIT);
    }
}

fn a_failure_is_reported_by_every_operation() {
    for waiting in ["barriers:1", "gather:2", "check-until-failed"] {
        let mut job = start_job(3, &format!("barriers:1 stuck@1 {waiting}"));
        let_them_get_stuck();
        job[1].signal(libc::SIGKILL);
        let by = Instant::now() + LIMIT;
        for rank in [0, 2] {
            let ended = job[rank].ended(by);
            assert_eq!(ended.code, Some(3), "{ended:?}");
            assert!(ended.stderr.starts_with("error: rank 1 on host "), "{ended:?}");
        }
    }
}

fn a_rank_that_reports_its_failure_is_named() {
    for failing in [0, 1] {
        // It leaves without a failure afterwards.
        let mut job =
            start_job(3, &format!("barriers:1 fail@{failing}:lost check-until-failed@{}", (failing + 1) % 3));
        for (rank, ended) in all_ended(&mut job, soon()).into_iter().enumerate() {
            if rank == (failing + 1) % 3 {
                assert_eq!(ended.code, Some(3), "{ended:?}");
                assert!(ended.stderr.starts_with(&format!("error: rank {failing} on host ")), "{ended:?}");
                assert!(ended.stderr.ends_with(" failed: lost\n"), "{ended:?}");
            } else {
                assert_eq!(ended.code, Some(0), "{ended:?}");
            }
        }
        let mut job =
            start_job(2, &format!("exit-on-failure barriers:1 fail@{failing}:lost stuck@{}", 1 - failing));
        let ended = all_ended(&mut job, soon());
        assert_eq!((ended[failing].code, ended[failing].stderr.as_str()), (Some(0), ""), "it lives on");
        let other = &ended[1 - failing];
        assert_eq!(other.code, Some(1), "{other:?}");
        assert!(other.stderr.starts_with(&format!("rank {failing} on host ")), "{other:?}");
    }
}

fn late_ranks_are_named() {
    for (late, call, name) in [(2, "fast-barriers:1", "a barrier"), (0, "gather:1", "an all_gather")] {
        let mut job = start_job(3, &format!("limit:1500 note@{late}:loading barriers:1 stuck@{late} {call}"));
        for rank in (0..3).filter(|&rank| rank != late) {
            let ended = job[rank].ended(soon());
            assert_eq!(ended.code, Some(3), "{ended:?}");
            assert!(ended.stderr.starts_with(&format!("error: rank {late} on host ")), "{ended:?}");
            let reason = format!(" did not come to {name} within 1.5 s (last heard of it: loading)\n");
            assert!(ended.stderr.ends_with(&reason), "{ended:?}");
        }
    }
    let mut job = start_job(4, "limit:1500 barriers:1 stuck@1 stuck@3 fast-barriers:1");
    for rank in [0, 2] {
        let ended = job[rank].ended(soon());
        assert!(ended.stderr.contains("within 1.5 s; neither did rank 3 on host "), "{ended:?}");
    }
}

fn a_limit_applies_only_while_ranks_wait() {
    // No rank waits while all compute for longer than the limit.
    let job = all_ended(&mut start_job(3, "limit:20000 barriers:20 gather:4"), soon());
    assert_all_well(&job);
    let job = all_ended(&mut start_job(2, "limit:4000 barriers:2 sleep:6000 barriers:2"), soon());
    assert_all_well(&job);
}

fn notes_reach_rank_zero() {
    let job = all_ended(
        &mut start_job(3, "note:old note@0:zero note@1:one note@2:two fast-barriers:1 notes"),
        soon(),
    );
    assert_all_well(&job);
    assert_eq!(job[0].stdout, "heard: true\nheard: true\nnotes: one, two\n");
    assert_eq!(job[1].stdout, "heard: true\nheard: true\nnotes: \n");
    let alone = all_ended(&mut start_job(1, "note:old notes"), soon());
    assert_eq!(alone[0].stdout, "heard: false\nnotes: \n");
}

fn a_process_runs_its_exit_hook() {
    let mut job = start_job(3, "exit-on-failure exit-hook barriers:2 kill@1 stuck");
    for rank in [0, 2] {
        let ended = job[rank].ended(soon());
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stdout.contains("\nkept with code 1 although rank 1 on host "), "{ended:?}");
    }
    // A rank that has left without a failure does not exit with the others.
    let mut job = start_job(3, "exit-on-failure exit-hook barriers:1 sleep@1:500 kill@1 stuck@2");
    let first = job[0].ended(soon());
    assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""), "{first:?}");
    let last = job[2].ended(soon());
    assert_eq!(last.code, Some(1), "rank 0 still passed it on: {last:?}");
    assert!(last.stderr.contains("rank 1 on host "), "{last:?}");
}

fn an_abort_ends_all_with_its_code() {
    for aborting in [0, 2] {
        let mut job = start_job(3, &format!("exit-on-failure barriers:2 abort@{aborting}:42 stuck"));
        for (rank, ended) in all_ended(&mut job, Instant::now() + LIMIT).into_iter().enumerate() {
            assert_eq!(ended.code, Some(42), "rank {rank}: {ended:?}");
            assert_eq!(ended.stderr.lines().count(), 1, "rank {rank}: {ended:?}");
            assert!(ended.stderr.starts_with(&format!("rank {aborting} on host ")), "rank {rank}: {ended:?}");
            assert!(ended.stderr.contains("the test wants it"), "rank {rank}: {ended:?}");
            assert_eq!(ended.stderr.contains("aborted with exit code 42"), rank != aborting, "{ended:?}");
        }
    }
}

fn a_panic_is_reported() {
    for panicking in [0, 1] {
        let mut job = start_job(3, &format!("exit-on-failure barriers:1 panic@{panicking} stuck"));
        for (rank, ended) in all_ended(&mut job, Instant::now() + LIMIT).into_iter().enumerate() {
            assert_eq!(ended.code, Some(101), "rank {rank}: {ended:?}");
            let told = ended.stderr.contains(&format!("rank {panicking} on host "))
                && ended.stderr.contains("died: it panicked");
            assert_eq!(told, rank != panicking, "rank {rank}: {ended:?}");
        }
    }
}

fn a_rank_that_leaves_early_is_named() {
    for (size, leaving) in [(3, 0), (3, 2)] {
        let others: Vec<usize> = (0..size).filter(|&rank| rank != leaving).collect();
        let waiting: Vec<String> = others.iter().map(|rank| format!("fast-barriers@{rank}:1")).collect();
        let mut job = start_job(size, &format!("barriers:1 {}", waiting.join(" ")));
        for (rank, ended) in all_ended(&mut job, soon()).into_iter().enumerate() {
            if rank == leaving {
                assert_eq!(ended.code, Some(0), "{ended:?}");
            } else {
                assert_eq!(ended.code, Some(3), "{ended:?}");
                assert!(ended.stderr.contains(&format!("rank {leaving} on host ")), "{ended:?}");
                assert!(ended.stderr.contains("has left the job"), "{ended:?}");
            }
        }
    }
}

fn ranks_may_leave_at_different_times() {
    for late in [0, 1] {
        let job = all_ended(
            &mut start_job(3, &format!("exit-on-failure barriers:1 sleep@{late}:1500 check")),
            soon(),
        );
        assert_all_well(&job);
    }
}

fn different_collectives_are_an_error() {
    let mut job = start_job(3, "barriers:1 gather-bytes@2:5 fast-barriers:1");
    for ended in all_ended(&mut job, soon()) {
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.stderr.contains("rank 0 called barrier while rank 2 called all_gather"), "{ended:?}");
    }
}
