//! Ranks of communicators over host buffers that wait for others: their sleep, wake-up and timeouts.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::env;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use collectives::fabric::{Communicator, Error, Options};
use collectives::{ReduceOp, world};

#[allow(dead_code, reason = "shared with other tests, which use all of it")]
mod host;
#[allow(dead_code, reason = "shared with other tests, which use all of it")]
mod port;

use host::{on_every_rank, over};

/// Longer than any wait of these tests, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_millis(300);

/// Runs `body` on `ranks` ranks with a communicator each, and returns their results in rank order. Panics when one hangs.
fn results<T: Send + 'static>(
    ranks: usize,
    options: &Options,
    body: impl Fn(Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let (sender, receiver) = mpsc::channel();
    for handle in world::threads(world::single(), ranks).unwrap() {
        let (sender, options, body) = (sender.clone(), options.clone(), body.clone());
        thread::spawn(move || {
            let rank = handle.rank();
            let communicator = Communicator::new(handle, &options).unwrap();
            sender.send((rank, body(communicator))).unwrap();
        });
    }
    let mut results: Vec<_> = (0..ranks).map(|_| receiver.recv_timeout(PATIENCE).unwrap()).collect();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Rank 1 has a timeout, and rank 0 none; rank 2 is alive, but calls nothing until both have failed.
fn assert_times_out(provider: &str, operation: &'static str) {
    let (sender, failed) = mpsc::channel();
    let failed = std::sync::Arc::new(std::sync::Mutex::new(failed));
    let errors = results(3, &over(provider), move |mut communicator| {
        let mut data = [1.0_f32; 4];
        communicator.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [3.0; 4]);
        let rank = communicator.rank();
        if rank == 1 {
            communicator.set_timeout(Some(LIMIT));
        }
        if rank == 2 {
            for _ in 0..2 {
                failed.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
        }
        let mut run = || match operation {
            "all_reduce" => communicator.all_reduce_in_place(&mut data, ReduceOp::Sum),
            "recv" if rank < 2 => communicator.recv(&mut data, 2),
            _ => communicator.barrier(),
        };
        let start = Instant::now();
        // Rank 2 may find all the data of its first operation in the segment.
        let error = run().and_then(|()| run()).unwrap_err();
        let waited = start.elapsed();
        assert!(matches!(run().unwrap_err(), Error::Closed { .. }));
        if rank < 2 {
            sender.send(()).unwrap();
        }
        (error, waited)
    });
    let [(first, _), (second, waited), (third, _)] = &errors[..] else { panic!("three ranks") };
    let expected = format!("{operation}: not complete after 0.3 s, the timeout");
    assert!(
        matches!(second, Error::TimedOut { operation: named, limit } if named == operation && *limit == LIMIT),
        "{provider}: {second:?}"
    );
    assert_eq!(second.to_string(), expected, "{provider}");
    assert!(*waited >= LIMIT, "{provider}: {waited:?}");
    // The others get rank 1's reason, also the one that has no timeout, and the one that calls something later.
    for other in [first, third] {
        assert!(
            matches!(other, Error::World(_)) && other.to_string().contains(&expected),
            "{provider}: {other:?}"
        );
    }
}

#[test]
fn an_operation_that_waits_too_long_fails_on_all_ranks_in_shared_memory() {
    assert_times_out("shm", "all_reduce");
    assert_times_out("shm", "barrier");
    assert_times_out("shm", "recv");
}

#[test]
fn an_operation_that_waits_too_long_fails_on_all_ranks_over_a_network() {
    assert_times_out("tcp", "all_reduce");
    assert_times_out("tcp", "barrier");
    assert_times_out("tcp", "recv");
}

/// The limit is of each operation's wait, not of all waits together, and the time between operations does not count.
#[test]
fn ranks_that_are_late_within_the_timeout_are_waited_for() {
    for provider in ["shm", "tcp"] {
        on_every_rank(2, &over(provider), |communicator| {
            communicator.set_timeout(Some(PATIENCE));
            communicator.barrier().unwrap();
            communicator.set_timeout(Some(Duration::from_secs(10)));
            for late in [0, 1, 0, 1] {
                if communicator.rank() == late {
                    thread::sleep(Duration::from_millis(30));
                }
                let mut sum = [communicator.rank() as u64 + 1];
                communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [3]);
            }
            // None again: this wait is longer than the limit before.
            communicator.set_timeout(Some(Duration::from_millis(1)));
            communicator.set_timeout(None);
            if communicator.rank() == 0 {
                thread::sleep(Duration::from_millis(100));
            }
            communicator.barrier().unwrap();
        });
    }
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the time.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A rank that polls takes all the time. The bound is far above what sleeping takes (`tools/host_waiting.rs` measures it).
#[test]
fn a_rank_that_waits_leaves_the_processor_to_others() {
    const LATE: Duration = Duration::from_secs(1);
    for (provider, operation) in [("shm", "barrier"), ("shm", "recv"), ("tcp", "barrier"), ("tcp", "recv")] {
        on_every_rank(2, &over(provider), |communicator| {
            communicator.barrier().unwrap();
            let is_late = communicator.rank() == 0;
            if is_late {
                thread::sleep(LATE);
            }
            let (start, used) = (Instant::now(), thread_time());
            let mut data = [7_u8];
            match operation {
                "recv" if is_late => communicator.send(&data, 1).unwrap(),
                "recv" => communicator.recv(&mut data, 0).unwrap(),
                _ => communicator.barrier().unwrap(),
            }
            let (waited, used) = (start.elapsed(), thread_time() - used);
            assert!(
                is_late || used < waited.mul_f64(0.3),
                "{operation} over {provider}: {used:?} of {waited:?}"
            );
        });
    }
}

/// Sums of all ranks, of which another one is late each time; more ranks than processors.
fn sums_with_late_ranks(communicator: &mut Communicator) {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    for operation in 0..4 * ranks {
        if operation % ranks == rank {
            thread::sleep(Duration::from_millis(3));
        }
        // Short and long messages, in the segment and beside it.
        for count in [1, 3000, 200_000] {
            let mut sum = vec![(rank + operation) as u64; count];
            communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            let expected = (0..ranks).map(|rank| (rank + operation) as u64).sum::<u64>();
            assert!(sum.iter().all(|&value| value == expected), "{operation} of {count}");
        }
        let mut root = [if operation % ranks == rank { operation } else { usize::MAX } as u64];
        communicator.broadcast_in_place(&mut root, operation % ranks).unwrap();
        assert_eq!(root, [operation as u64]);
    }
}

#[test]
fn ranks_that_sleep_are_woken_with_more_ranks_than_processors() {
    on_every_rank(9, &over("shm"), sums_with_late_ranks);
    on_every_rank(5, &over("tcp"), sums_with_late_ranks);
}

/// Started again by the test below, once per rank.
#[test]
#[ignore = "started by another test"]
fn rank_of_several_processes() {
    let world = world::from_environment(&world::Options::from_environment().unwrap()).unwrap();
    for provider in ["shm", "tcp"] {
        let mut communicator = Communicator::new(world.clone(), &over(provider)).unwrap();
        sums_with_late_ranks(&mut communicator);
        communicator.close().unwrap();
    }
    println!("all sums are right");
}

#[test]
fn ranks_that_sleep_are_woken_by_other_processes() {
    const RANKS: usize = 3;
    let port = port::reserve_port();
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["rank_of_several_processes", "--exact", "--ignored", "--nocapture"]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string())]);
        command.envs([("WORLD_SIZE", RANKS.to_string()), ("RANK", rank.to_string())]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..RANKS).map(start).collect();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("all sums are right"), "{out}{err}");
    }
}
