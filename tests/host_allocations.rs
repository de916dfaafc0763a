//! Operations over host buffers allocate when one of a size and kind is called for the first time, and never
//! again.
//!
//! Counted are allocations by a rank's thread from Rust's global allocator, in any crate. Not counted is
//! memory that libfabric and the C library take from `malloc`, which no Rust allocator sees (libfabric has
//! pools for its messages, which grow with the number in flight).

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use collectives::fabric::{Algorithm, Collective, Communicator, Error, Options};
use collectives::{Element, ReduceOp};

mod counting;
mod host;

use counting::allocations;
use host::{on_every_rank, on_hosts, over, serves};

/// Buffers of the operations: all elements are equal, and stay so, since reductions average them.
struct Buffers<T> {
    /// A rank's block.
    block: Vec<T>,
    result: Vec<T>,
    /// A block for each rank.
    blocks: Vec<T>,
    results: Vec<T>,
    /// A part of `blocks` for each rank, of different lengths and not in order.
    sent: Vec<Range<usize>>,
    received: Vec<Range<usize>>,
}

impl<T: Element> Buffers<T> {
    fn new(rank: usize, ranks: usize, count: usize, value: T) -> Self {
        // Elements from one rank to another.
        let length = |from: usize, to: usize| count * ((from + 2 * to) % ranks) / ranks;
        let parts = |length: &dyn Fn(usize) -> usize| {
            let mut end = ranks * count;
            let mut part = |peer| {
                let part = end - length(peer)..end;
                end = part.start;
                part
            };
            (0..ranks).map(&mut part).collect::<Vec<_>>()
        };
        Self {
            block: vec![value; count],
            result: vec![T::default(); count],
            blocks: vec![value; ranks * count],
            results: vec![T::default(); ranks * count],
            sent: parts(&|to| length(rank, to)),
            received: parts(&|from| length(from, rank)),
        }
    }
}

type Call<T> = fn(&mut Communicator, &mut Buffers<T>, usize) -> Result<(), Error>;

/// Every operation, with the collective whose algorithm it has, if any; the last argument is the root.
fn operations<T: Element>() -> [(&'static str, Option<Collective>, Call<T>); 22] {
    use Collective::*;
    use ReduceOp::Avg;
    [
        ("barrier", None, |ranks, _, _| ranks.barrier()),
        ("all_reduce", Some(AllReduce), |ranks, on, _| ranks.all_reduce(&on.block, &mut on.result, Avg)),
        ("all_reduce in place", Some(AllReduce), |ranks, on, _| {
            ranks.all_reduce_in_place(&mut on.block, Avg)
        }),
        ("all_gather", Some(AllGather), |ranks, on, _| ranks.all_gather(&on.block, &mut on.results)),
        ("all_gather in place", Some(AllGather), |ranks, on, _| ranks.all_gather_in_place(&mut on.blocks)),
        ("reduce_scatter", Some(ReduceScatter), |ranks, on, _| {
            ranks.reduce_scatter(&on.blocks, &mut on.result, Avg)
        }),
        ("reduce_scatter in place", Some(ReduceScatter), |ranks, on, _| {
            ranks.reduce_scatter_in_place(&mut on.blocks, Avg)
        }),
        ("broadcast", Some(Broadcast), |ranks, on, root| {
            ranks.broadcast(Some(&on.block), &mut on.result, root)
        }),
        ("broadcast in place", Some(Broadcast), |ranks, on, root| {
            ranks.broadcast_in_place(&mut on.block, root)
        }),
        ("reduce", Some(Reduce), |ranks, on, root| ranks.reduce(&on.block, Some(&mut on.result), Avg, root)),
        ("reduce in place", Some(Reduce), |ranks, on, root| ranks.reduce_in_place(&mut on.block, Avg, root)),
        ("all_to_all", Some(AllToAll), |ranks, on, _| ranks.all_to_all(&on.blocks, &mut on.results)),
        ("all_to_all in place", Some(AllToAll), |ranks, on, _| ranks.all_to_all_in_place(&mut on.blocks)),
        ("all_to_all_v", Some(AllToAllV), |ranks, on, _| {
            ranks.all_to_all_v(&on.blocks, &on.sent, &mut on.results, &on.received)
        }),
        ("all_to_all_v in place", Some(AllToAllV), |ranks, on, _| {
            ranks.all_to_all_v_in_place(&mut on.blocks, &on.sent, &on.received)
        }),
        ("gather", Some(Gather), |ranks, on, root| ranks.gather(&on.block, Some(&mut on.results), root)),
        ("gather in place", Some(Gather), |ranks, on, root| ranks.gather_in_place(&mut on.blocks, root)),
        ("scatter", Some(Scatter), |ranks, on, root| ranks.scatter(Some(&on.blocks), &mut on.result, root)),
        ("scatter in place", Some(Scatter), |ranks, on, root| ranks.scatter_in_place(&mut on.blocks, root)),
        ("exchange", None, |ranks, on, _| {
            let (next, previous) = neighbours(ranks);
            ranks.exchange(&on.block, next, &mut on.result, previous)
        }),
        ("exchange in place", None, |ranks, on, _| {
            let (next, previous) = neighbours(ranks);
            ranks.exchange_in_place(&mut on.block, next, previous)
        }),
        ("send and recv", None, |ranks, on, _| {
            // There and back, between a rank of an even number and the next.
            let peer = ranks.rank() ^ 1;
            if peer >= ranks.size() {
                return Ok(());
            }
            if ranks.rank() < peer {
                ranks.send(&on.block, peer)?;
                return ranks.recv(&mut on.result, peer);
            }
            ranks.recv(&mut on.result, peer)?;
            ranks.send(&on.block, peer)
        }),
    ]
}

fn neighbours(ranks: &Communicator) -> (usize, usize) {
    let (rank, size) = (ranks.rank(), ranks.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

/// Calls of an operation that are counted together, and the largest number of such rounds.
const CALLS: usize = 4;
const ROUNDS: usize = 20;

/// One test at a time: a rank that waits for more than a second has its calls compared, which allocates.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Panics when one of the `wanted` operations keeps allocating. Returns the number of operations checked.
fn check(
    communicator: &mut Communicator,
    counts: &[usize],
    wanted: impl Fn(&Communicator, Option<Collective>) -> bool,
) -> usize {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let root = ranks - 1;
    let mut checked = 0;
    for &count in counts {
        let mut buffers = Buffers::new(rank, ranks, count, 1.5_f32);
        for (name, collective, call) in operations() {
            if !wanted(communicator, collective) {
                continue;
            }
            checked += 1;
            call(communicator, &mut buffers, root).unwrap();
            // The number of messages in flight also depends on which ranks are late, and later calls reuse
            // what was allocated for them. Memory that every call allocates is allocated in every round.
            let mut least = u64::MAX;
            for round in 1.. {
                let before = allocations();
                (0..CALLS).for_each(|_| call(communicator, &mut buffers, root).unwrap());
                least = least.min(allocations() - before);
                let mut most = [least];
                communicator.all_reduce_in_place(&mut most, ReduceOp::Max).unwrap();
                if most == [0] {
                    break;
                }
                let way = communicator.describe();
                let what = format!("{name} of {count} elements, rank {rank} of {ranks}, {way}");
                assert!(round < ROUNDS, "{what}: at least {least} allocations in {CALLS} calls");
            }
        }
        assert!(buffers.block.iter().chain(&buffers.blocks).all(|&value| value == 1.5), "{count} elements");
        let results = buffers.result.iter().chain(&buffers.results);
        assert!(results.clone().all(|&value| value == 1.5 || value == 0.0), "{count} elements");
        assert!(checked == 0 || results.clone().any(|&value| value == 1.5), "{count} elements");
    }
    checked
}

/// A few bytes, a message of the shared segment, more than that, and several segments.
const COUNTS: [usize; 4] = [4, 3000, 40_000, 300_000];

#[test]
fn operations_after_the_first_allocate_nothing() {
    let _alone = alone();
    for provider in ["shm", "tcp"] {
        for ranks in [2, 4] {
            on_every_rank(ranks, &over(provider), |communicator| {
                assert_eq!(check(communicator, &COUNTS, |_, _| true), COUNTS.len() * 22);
            });
        }
    }
}

/// A rank compares its calls with the others' when one operation has waited for a second, not when many have
/// together.
#[test]
fn short_waits_are_not_added_up() {
    let _alone = alone();
    on_every_rank(2, &over("shm"), |communicator| {
        let mut values = [1.0_f32; 4];
        let mut least = u64::MAX;
        // Those calls are counted that begin after more than a second.
        for call in 0..25 {
            if communicator.rank() == 0 {
                thread::sleep(Duration::from_millis(100));
            }
            let before = allocations();
            communicator.all_reduce_in_place(&mut values, ReduceOp::Avg).unwrap();
            if call >= 15 {
                least = least.min(allocations() - before);
            }
        }
        assert_eq!(least, 0, "rank {}", communicator.rank());
    });
}

#[test]
fn no_algorithm_goes_on_allocating() {
    let _alone = alone();
    for (provider, ranks) in [("shm", 3), ("shm", 4), ("tcp", 3), ("tcp", 4)] {
        for algorithm in Algorithm::ALL {
            let mut options = over(provider);
            options.segment = Some(10_000);
            let serves = |collective: &Collective| serves(algorithm, *collective, provider, ranks);
            let collectives: Vec<Collective> = Collective::ALL.into_iter().filter(serves).collect();
            collectives.iter().for_each(|&collective| options.set_algorithm(collective, algorithm));
            if collectives.is_empty() {
                let elsewhere = algorithm == Algorithm::Hierarchical || provider == "tcp" || ranks == 3;
                assert!(elsewhere, "{algorithm} over {provider}");
                continue;
            }
            on_every_rank(ranks, &options, |communicator| {
                let wanted =
                    |_: &Communicator, of: Option<Collective>| of.is_some_and(|of| collectives.contains(&of));
                // Each in place too.
                assert_eq!(check(communicator, &COUNTS[1..3], wanted), 2 * 2 * collectives.len());
            });
        }
    }
}

/// Options with the hierarchical algorithm for the collectives that it serves, and these.
fn hierarchical() -> (Options, Vec<Collective>) {
    let mut options = Options::default();
    let serves = |collective: &Collective| Algorithm::Hierarchical.serves(*collective, 4);
    let collectives: Vec<Collective> = Collective::ALL.into_iter().filter(serves).collect();
    collectives.iter().for_each(|&collective| options.set_algorithm(collective, Algorithm::Hierarchical));
    (options, collectives)
}

/// Ranks that take each other for several hosts.
#[test]
fn operations_on_several_hosts_come_to_allocate_nothing() {
    let _alone = alone();
    for provider in [None, Some("tcp")] {
        let (mut options, collectives) = hierarchical();
        options.provider = provider.map(str::to_owned);
        on_hosts(&[0, 0, 1, 1, 1], &options, |communicator| {
            for &collective in &collectives {
                assert_eq!(communicator.plan(collective, 8).algorithm, Algorithm::Hierarchical);
            }
            assert_eq!(check(communicator, &COUNTS, |_, _| true), COUNTS.len() * 22);
        });
    }
}

#[test]
fn no_algorithm_between_hosts_goes_on_allocating() {
    let _alone = alone();
    for between in Algorithm::ALL {
        let (mut options, _) = hierarchical();
        options.between = Some(between);
        options.segment = Some(10_000);
        on_hosts(&[0, 1, 1, 0], &options, |communicator| {
            let wanted = |communicator: &Communicator, of: Option<Collective>| {
                of.is_some_and(|of| communicator.plan(of, 8).between == Some(between))
            };
            let checked = check(communicator, &COUNTS[1..3], wanted);
            let none = matches!(between, Algorithm::Board | Algorithm::Hierarchical);
            assert_eq!(checked == 0, none, "{between}");
        });
    }
}
