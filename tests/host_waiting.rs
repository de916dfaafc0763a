//! Ranks of communicators over host buffers that wait for others: their timeouts.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use collectives::fabric::{Communicator, Error, Options};
use collectives::{ReduceOp, world};

#[allow(dead_code, reason = "shared with other tests, which use all of it")]
mod host;

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
