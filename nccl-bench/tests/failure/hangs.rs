//! Ranks of this program, which hang at a place that a test chooses.

use std::env;
use std::process::Command;
use std::thread;
use std::time::Duration;

use collectives::ReduceOp;
use collectives::fabric::{self, Communicator};
use collectives::world::{self, OnFailure, Options};
use diagnosis::knowledge::rules::{Origin, Rules};
use engine::supervision::{Salvage, Watchdog};
use record::RunOutcome;

use crate::process::*;
use crate::tests;

pub(crate) const TESTS: crate::Tests = tests![
    a_rank_that_hangs_is_told_from_those_that_wait,
    ranks_that_hang_together_are_all_named,
    a_process_that_hangs_before_it_has_ranks_is_named,
    a_thread_that_hangs_is_named,
    a_thread_that_fails_is_named_by_all,
    a_rank_that_never_comes_is_named,
    the_rendezvous_may_have_its_own_limit,
    saving_cannot_hold_up_the_end,
    a_timeout_is_the_only_reason_when_a_rank_falls_silent_later,
    a_stopped_rank_is_named_with_the_time_at_which_it_was_heard,
    the_results_are_saved_when_another_rank_dies,
    what_is_not_limited_may_take_its_time,
];

/// Performs the steps as one rank of the job, or as two or four with `threads` or `threads=4` first. A step
/// is for all ranks, or for one as `step@rank`. The watchdog's limit is two seconds. Saved results are
/// printed.
pub(crate) fn rank(steps: &str) {
    let mut steps: Vec<&str> = steps.split(' ').collect();
    let mut options = Options::from_environment().unwrap();
    options.on_failure = OnFailure::Exit;
    let process = world::from_environment(&options).unwrap();
    let threads =
        steps[0].strip_prefix("threads").map(|count| count.strip_prefix('=').unwrap_or("2").to_owned());
    if threads.is_some() {
        steps.remove(0);
    }
    let threads: usize = threads.map_or(1, |count| count.parse().unwrap());
    let rescue = Salvage::default();
    let stuck = steps[0] == "stuck-hook";
    rescue.set_hook(move |outcome| {
        let RunOutcome::Failed { message } = outcome else { panic!("{outcome:?}") };
        println!("saved: {message}");
        if stuck {
            thread::sleep(Duration::from_secs(600));
        }
    });
    rescue.watch_world(&*process);
    let mut watch = Watchdog::start(&process, Some(Duration::from_secs(2)), &rescue).unwrap();
    watch.begin_step("looking for devices");
    if steps[0] == format!("early@{}", process.rank()) {
        thread::sleep(Duration::from_secs(600));
    }
    let ranks = world::threads(process.clone(), threads).unwrap();
    let watched = watch.watch_ranks(ranks.iter().map(|rank| rank.rank()));
    let others = process.size() - 1;
    thread::scope(|scope| {
        for (world, watched) in ranks.into_iter().zip(watched) {
            let (steps, rescue) = (&steps, &rescue);
            scope.spawn(move || {
                watched.set_device(format!("GPU {}", world.rank()));
                let mut communicator = None;
                let end =
                    |error: &dyn std::fmt::Display| -> ! { rescue.end_rank(&*world, 1, &error.to_string()) };
                for step in steps {
                    let (step, rank) = step.split_once('@').unwrap_or((step, ""));
                    let mine = rank.is_empty() || rank.parse() == Ok(world.rank());
                    match step {
                        "init" => watched.begin_step("initialising NCCL"),
                        "barrier" => {
                            watched.begin_step("a barrier");
                            world.barrier().unwrap_or_else(|error| end(&error));
                        }
                        "connect" => {
                            let connected = Communicator::new(world.clone(), &fabric::Options::default());
                            communicator = Some(connected.unwrap_or_else(|error| end(&error)));
                        }
                        "reduce" => {
                            let (communicator, mut data) =
                                (communicator.as_mut().unwrap(), vec![1_f32; 300_000]);
                            let reduced = communicator.all_reduce_in_place(&mut data, ReduceOp::Sum);
                            reduced.unwrap_or_else(|error| end(&error));
                        }
                        "error" if mine => end(&"lost its device"),
                        "panic" if mine => std::panic::resume_unwind(Box::new("as the test wants it")),
                        "hang" if mine => thread::sleep(Duration::from_secs(600)),
                        // SAFETY: `raise` touches no memory.
                        "stop" if mine => drop(unsafe { libc::raise(libc::SIGSTOP) }),
                        "heard" if mine => {
                            let is_in_barrier = |(note, _): &(String, Duration)| note.contains("a barrier");
                            while world.notes().iter().filter(|note| is_in_barrier(note)).count() < others {
                                thread::sleep(Duration::from_millis(10));
                            }
                        }
                        // SAFETY: `kill` touches no memory, and the number is this process' own.
                        "kill" if mine => drop(unsafe { libc::kill(libc::getpid(), libc::SIGKILL) }),
                        "rest" => {
                            watched.begin_unlimited_step("writing a report");
                            thread::sleep(Duration::from_secs(5));
                        }
                        "hang" | "stop" | "heard" | "kill" | "stuck-hook" | "early" | "error" | "panic" => {}
                        other => panic!("unknown step {other}"),
                    }
                }
            });
        }
    });
    drop(watch);
    rescue.remove_hook();
}

pub(crate) fn this_program(steps: &str) -> Command {
    let mut command = command(env::current_exe().unwrap().to_str().unwrap(), "");
    command.env("FAILURE_STEPS", steps);
    command
}

/// Panics unless all processes end with code 4 and the message `expected`, which rank 0 found and all saved.
pub(crate) fn assert_timed_out(mut job: Vec<Process>, expected: &str) {
    for (rank, process) in job.iter_mut().enumerate() {
        assert_rank_timed_out(rank, &process.ended(), expected);
    }
}

/// Panics unless this process ended with code 4 and the message `expected`, which rank 0 found and this rank
/// saved.
fn assert_rank_timed_out(rank: usize, ended: &Ended, expected: &str) {
    assert_eq!(ended.code, Some(4), "rank {rank}: {ended:?}");
    let who = format!("rank 0 on host {}", host());
    let line = match rank {
        0 => format!("{who}: nccl-bench: {expected}\n"),
        _ => format!("{who} aborted with exit code 4: nccl-bench: {expected}; rank {rank} ends with it\n"),
    };
    assert_eq!(ended.stderr, line, "rank {rank}");
    assert!(ended.stdout.contains("saved: ") && ended.stdout.contains(expected), "rank {rank}: {ended:?}");
}

fn a_rank_that_hangs_is_told_from_those_that_wait() {
    for (late, waiting) in [(1, "0, 2"), (0, "1-2")] {
        let job = start_job(3, || this_program(&format!("init hang@{late} barrier")), &[]);
        let who = format!("rank {late} on {} (GPU {late})", host());
        let expected =
            format!("{who} did not finish initialising NCCL within 2 s; rank {waiting} wait in a barrier");
        assert_timed_out(job, &expected);
    }
}

fn ranks_that_hang_together_are_all_named() {
    let job = start_job(2, || this_program("barrier init hang"), &[]);
    let host = host();
    let both = format!("rank 0 on {host} (GPU 0), rank 1 on {host} (GPU 1)");
    assert_timed_out(job, &format!("no rank has finished initialising NCCL within 2 s: {both}"));
}

fn a_process_that_hangs_before_it_has_ranks_is_named() {
    let job = start_job(2, || this_program("early@1 barrier"), &[]);
    let host = host();
    // The other rank is further, but in a step of the same name.
    let both = format!("process 0 on {host}, process 1 on {host}");
    assert_timed_out(job, &format!("no rank has finished looking for devices within 2 s: {both}"));
}

fn a_thread_that_hangs_is_named() {
    let ended = start(this_program("threads init hang@1 barrier")).ended();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let line = format!(
        "nccl-bench: rank 1 on {} (GPU 1) did not finish initialising NCCL within 2 s; rank 0 waits in a \
         barrier\n",
        host()
    );
    assert_eq!(ended.stderr, line);
    assert!(ended.stdout.starts_with("saved: rank 1 on "), "{ended:?}");
}

/// Panics unless all processes end with the failure `said` of this rank, and have saved it.
pub(crate) fn assert_all_end_with(mut job: Vec<Process>, rank: usize, said: &str, steps: &str) {
    let who = format!("rank {rank} on host {}", host());
    for (process, ended) in job.iter_mut().map(Process::ended).enumerate() {
        let line = ended.stderr.lines().next().unwrap_or_default();
        assert!(line.starts_with(&who) && line.contains(said), "{steps}, process {process}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{steps}, process {process}: {ended:?}");
        let saved = ended.stdout.strip_prefix("saved: ").unwrap_or_default();
        let named = saved.starts_with(&who) && saved.contains(said);
        assert!(named, "{steps}, process {process}: {ended:?}");
        assert_ne!(ended.code, Some(0), "{steps}, process {process}: {ended:?}");
    }
}

fn a_thread_that_fails_is_named_by_all() {
    for (processes, threads, rank) in [(2, 2, 1), (2, 2, 3), (3, 2, 2)] {
        for (fault, said) in [("panic", "panicked"), ("error", "lost its device")] {
            for (before, after) in [("barrier", "barrier"), ("connect reduce", "reduce")] {
                let steps = format!("threads={threads} {before} {fault}@{rank} {after}");
                assert_all_end_with(start_job(processes, || this_program(&steps), &[]), rank, said, &steps);
            }
        }
    }
    // In a process alone no rank is another one's process.
    for (fault, said) in [("panic", "panicked"), ("error", "lost its device")] {
        let steps = format!("threads=4 connect reduce {fault}@2 reduce");
        let ended = start(this_program(&steps)).ended();
        let named = ended.stderr.starts_with("rank 2") && ended.stderr.contains(said);
        assert!(named && ended.stderr.lines().count() == 1, "{steps}: {ended:?}");
        assert!(ended.stdout.starts_with("saved: rank 2 on host "), "{steps}: {ended:?}");
    }
}

/// The end of rank `rank` of 2 without the other one, with `-T 2`.
pub(crate) fn alone(rank: &str, variables: &[(&str, &str)]) -> Ended {
    let variables = [&[("NCCL_BENCH_RANK", rank), ("NCCL_BENCH_SIZE", "2")], variables].concat();
    let ended = start_job(1, || bench("allreduce --backend fabric -T 2"), &variables).remove(0).ended();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""), "{ended:?}");
    ended
}

fn a_rank_that_never_comes_is_named() {
    let zero = alone("0", &[]);
    assert!(zero.stderr.starts_with("error: the rendezvous at 127.0.0.1:"), "{zero:?}");
    assert!(zero.stderr.ends_with(" failed: after 2 s, 1 of 2 ranks is missing: rank 1\n"), "{zero:?}");
    let one = alone("1", &[]);
    let tried = "error: rank 1 did not find rank 0 within 2 s; tried 127.0.0.1:";
    assert!(one.stderr.starts_with(tried) && one.stderr.contains(": Connection refused"), "{one:?}");
    for ended in [zero, one] {
        let line = ended.stderr.lines().next().unwrap_or_default();
        let rule = Rules::built_in().find_rule(line.as_bytes(), Origin::Any).map(|rule| rule.id.clone());
        assert_eq!(rule.as_deref(), Some("nccl-bench-rendezvous"), "doctor log has to know: {line}");
    }
}

fn the_rendezvous_may_have_its_own_limit() {
    let zero = alone("0", &[("NCCL_BENCH_TIMEOUT", "0.5")]);
    assert!(zero.stderr.ends_with(" failed: after 0.5 s, 1 of 2 ranks is missing: rank 1\n"), "{zero:?}");
}

fn saving_cannot_hold_up_the_end() {
    let mut job = start_job(2, || this_program("stuck-hook init hang@1 barrier"), &[]);
    for process in &mut job {
        let ended = process.ended();
        assert_eq!(ended.code, Some(4), "{ended:?}");
        assert!(ended.stdout.contains("saved: "), "it was begun: {ended:?}");
    }
}

/// The rank stops once rank 0 has begun to save, which takes longer than the silence after which a rank is
/// dead.
fn a_timeout_is_the_only_reason_when_a_rank_falls_silent_later() {
    let steps = "stuck-hook init hang@1 barrier";
    let mut job = start_job(3, || this_program(steps), &[("NCCL_BENCH_DEAD_AFTER", "3")]);
    job[0].read_to("saved: ");
    job[1].signal(libc::SIGSTOP);
    let who = format!("rank 1 on {} (GPU 1)", host());
    let expected = format!("{who} did not finish initialising NCCL within 2 s; rank 0, 2 wait in a barrier");
    for rank in [0, 2] {
        assert_rank_timed_out(rank, &job[rank].ended(), &expected);
    }
}

/// The rank stops in a step of which it has told nobody: after a barrier, to which rank 0 comes once it has
/// heard that the others wait there. The time limit passes before the silence after which a rank is dead,
/// which ends before the watchdog acts.
fn a_stopped_rank_is_named_with_the_time_at_which_it_was_heard() {
    for dead_after in ["3.5", "0"] {
        let steps = "init heard@0 barrier init stop@1 barrier";
        let mut job = start_job(3, || this_program(steps), &[("NCCL_BENCH_DEAD_AFTER", dead_after)]);
        let zero = job[0].ended();
        let first = format!("no progress within 2 s: rank 1 on {} (GPU 1) was last heard ", host());
        let said = zero.stderr.split_once(&first).unwrap_or_else(|| panic!("{dead_after}: {zero:?}")).1;
        let (age, rest) = said.split_once(" s ago, in ").unwrap();
        assert!(age.parse::<u64>().unwrap() >= 2, "{zero:?}");
        // A note can have left between the barrier and the stop.
        let step = rest.split_once("; ").unwrap().0;
        assert!(["initialising NCCL", "a barrier"].contains(&step), "{zero:?}");
        let expected = format!("{first}{age} s ago, in {step}; rank 0, 2 wait in a barrier");
        assert_rank_timed_out(0, &zero, &expected);
        assert_rank_timed_out(2, &job[2].ended(), &expected);
    }
}

fn the_results_are_saved_when_another_rank_dies() {
    // One waits for it in a call of the world, which fails; the other hangs elsewhere, and its process is
    // ended.
    let mut job = start_job(3, || this_program("init barrier kill@1 hang@2 barrier"), &[]);
    for rank in [0, 2] {
        let ended = job[rank].ended();
        assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
        let dead = format!("rank 1 on host {} died: its connection", host());
        assert!(ended.stderr.starts_with(&dead), "rank {rank}: {ended:?}");
        assert!(ended.stdout.starts_with(&format!("saved: {dead}")), "rank {rank}: {ended:?}");
    }
}

fn what_is_not_limited_may_take_its_time() {
    for ended in
        start_job(2, || this_program("init barrier rest barrier"), &[]).iter_mut().map(Process::ended)
    {
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(0), "", ""),
            "{ended:?}"
        );
    }
}
