//! A job whose world rewords every message on its way: behaviour depends on values, never on the words of an
//! error.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use collectives::job::{Backend, Group, Job};
use collectives::world::{self, Called, Handle, Position, Reason, Wait, World};
use collectives::{Error, ReduceOp};

/// Rewords the texts of failures, both those that its rank reports and those that it reads.
struct Rewording(Handle);

fn reword(text: String) -> String {
    text.replace(char::is_alphanumeric, "x")
}

fn reword_reason(reason: Reason) -> Reason {
    match reason {
        Reason::Reported(text) => Reason::Reported(reword(text)),
        Reason::Other(text) => Reason::Other(reword(text)),
        value => value,
    }
}

fn reword_error(error: world::Error) -> world::Error {
    match error {
        world::Error::RankFailed { rank, host, reason } => {
            world::Error::RankFailed { rank, host, reason: reword_reason(reason) }
        }
        world::Error::Mismatch(text) => world::Error::Mismatch(reword(text)),
        other => other,
    }
}

impl World for Rewording {
    fn position(&self) -> Position {
        self.0.position()
    }

    fn describe(&self) -> String {
        reword(self.0.describe())
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.0.barrier().map_err(reword_error)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.0.all_gather(mine).map_err(reword_error)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.0)
    }

    fn check(&self) -> Result<(), world::Error> {
        self.0.check().map_err(reword_error)
    }

    fn fail(&self, reason: Reason) {
        self.0.fail(reword_reason(reason));
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        self.0.compare(rank, topic, calls);
    }

    fn time_out(&self, wait: &Wait) -> bool {
        self.0.time_out(wait)
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.0.abort(code, &reword(message.to_owned()))
    }
}

/// Runs `run` on a group of all ranks, each on a thread of its own.
fn on_groups<R: Send>(ranks: usize, run: impl Fn(&Job, Group) -> R + Sync) -> Vec<R> {
    let run = &run;
    thread::scope(|scope| {
        let start = |world: Handle| {
            scope.spawn(move || {
                let job = Job::new(Arc::new(Rewording(world)));
                let group = job.group(Backend::Host).unwrap();
                run(&job, group)
            })
        };
        let threads: Vec<_> =
            world::threads(world::single(), ranks).unwrap().into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Calls broadcast if `broadcasts`, else all_reduce. Returns the error.
fn call_wrongly(group: &Group, broadcasts: bool) -> Error {
    if broadcasts {
        group.broadcast(vec![1.0_f32; 5], 0).wait().unwrap_err()
    } else {
        group.all_reduce(vec![1.0_f32; 5], ReduceOp::Sum).wait().unwrap_err()
    }
}

#[test]
fn different_calls_are_values_on_every_rank() {
    for split in [false, true] {
        let errors = on_groups(4, |job, group| {
            let rank = job.rank();
            if !split {
                return Some(call_wrongly(&group, rank == 3));
            }
            let part = group.split((rank > 0).then_some(1)).unwrap()?;
            Some(call_wrongly(&part, rank == 3))
        });
        for (rank, error) in errors.into_iter().enumerate().filter_map(|(rank, error)| Some((rank, error?))) {
            let Error::Mismatch { rank: one, called, peer, peer_called: Some(other) } = error else {
                panic!("rank {rank}: {error:?}")
            };
            let mut calls = [(one, called), (peer, other)];
            calls.sort_unstable();
            assert!(calls[0].0 < 3 && calls[0].0 >= usize::from(split), "{calls:?}");
            assert_eq!(calls[0].1, "all_reduce of 5 float, sum");
            assert_eq!(calls[1], (3, "broadcast of 5 float, root 0".to_owned()));
        }
    }
}

#[test]
fn timeouts_are_values_on_every_rank() {
    let limit = Duration::from_millis(500);
    let ended = Barrier::new(3);
    let errors = on_groups(3, |job, group| {
        group.set_timeout(Some(limit));
        if job.rank() == 1 {
            // It keeps its groups until the others have given up.
            ended.wait();
            return None;
        }
        let error = group.all_reduce(vec![1.0_f32; 5], ReduceOp::Sum).wait().unwrap_err();
        ended.wait();
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let Error::TimedOut { operation, limit: passed, late } = &error else { panic!("{error:?}") };
        assert_eq!((operation.as_str(), *passed), ("all_reduce", limit));
        assert_eq!(late.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn a_failed_rank_is_known_by_its_number() {
    let errors = on_groups(3, |job, group| {
        if job.rank() == 1 {
            job.fail("the loss is NaN");
            return None;
        }
        Some(group.all_reduce(vec![1.0_f32; 100_000], ReduceOp::Sum).wait().unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        let Error::RankFailed { rank: 1, reason, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*reason, Reason::Reported("xxx xxxx xx xxx".to_owned()));
    }
}
