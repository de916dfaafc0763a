//! The collectives beside all_reduce and all_gather, and messages between two ranks.

use std::sync::Arc;
use std::time::Duration;

use super::checks::{CollectiveCheck, Rank};
use super::*;

const OTHERS: [Collective; 7] = [
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::AllToAllV,
    Collective::Gather,
    Collective::Scatter,
];

fn has_root(collective: Collective) -> bool {
    use Collective::{Broadcast, Gather, Reduce, Scatter};
    matches!(collective, Broadcast | Reduce | Gather | Scatter)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_collective_gives_every_rank_its_result(
        collective in prop::sample::select(&OTHERS[..]),
        ranks in 1_usize..=9,
        count in prop_oneof![0_usize..12, 0_usize..3000],
        seed in any::<u64>(),
        medium in prop_oneof![Just(Medium::SharedMemory), Just(Medium::Network)],
        algorithm in prop::option::weighted(0.9, prop::sample::select(&Algorithm::ALL[..])),
        segment in prop_oneof![Just(None), (1_usize..5000).prop_map(Some)],
        in_flight in prop_oneof![Just(None), (1_usize..5).prop_map(Some)],
        data_type in prop::sample::select(&DataType::ALL[..]),
        op in prop::sample::select(&ReduceOp::ALL[..]),
    ) {
        let is_flat = |wanted: &Algorithm| flat(collective, ranks).any(|algorithm| algorithm == *wanted);
        let algorithm = algorithm.filter(is_flat);
        let options = SelectionOptions { segment, in_flight, ..SelectionOptions::new(medium) };
        let operation = CollectiveCheck { collective, count, seed, op, root: seed as usize % ranks };
        on_every_rank(ranks, seed, with_algorithm(collective, algorithm, options), |_, collectives| {
            let check = |operation: &CollectiveCheck, collectives: Rank<'_>| {
                for_type!(data_type, check(operation, collectives))
            };
            check(&operation, collectives);
            // Early ranks do not disturb the others.
            let root = (seed >> 8) as usize % ranks;
            check(&CollectiveCheck { seed: seed ^ 1, root, ..operation }, collectives);
        });
    }
}

fn check<T: Value>(operation: &CollectiveCheck, collectives: Rank<'_>) {
    operation.check::<T>(collectives);
}

/// Cases possibly missing among random ones: every algorithm on every number of ranks, with different roots.
#[test]
fn every_other_algorithm_on_every_number_of_ranks() {
    for ranks in (1..=9).chain([12, 16]) {
        for collective in OTHERS {
            for algorithm in flat(collective, ranks) {
                let options = SelectionOptions { segment: Some(1024), ..DEFAULTS };
                let mut roots = vec![0, 1 % ranks, ranks / 2, ranks - 1];
                roots.dedup();
                roots.truncate(if has_root(collective) { roots.len() } else { 1 });
                on_every_rank(
                    ranks,
                    7,
                    with_algorithm(collective, Some(algorithm), options),
                    |_, collectives| {
                        for &root in &roots {
                            for count in [0, 1, ranks - 1, 300] {
                                let seed = (root + count) as u64;
                                CollectiveCheck { collective, count, seed, op: ReduceOp::Sum, root }
                                    .check::<i32>(collectives);
                            }
                        }
                    },
                );
            }
        }
    }
}

#[test]
fn every_type_and_operator_reduces_exactly() {
    for collective in [Collective::ReduceScatter, Collective::Reduce] {
        for algorithm in flat(collective, 4) {
            on_every_rank(4, 3, with_algorithm(collective, Some(algorithm), DEFAULTS), |_, collectives| {
                for data_type in DataType::ALL {
                    for op in ReduceOp::ALL {
                        let operation = CollectiveCheck { collective, count: 83, seed: 3, op, root: 2 };
                        for_type!(data_type, check(&operation, collectives));
                    }
                }
            });
        }
    }
}

/// Number of messages sent and received by a rank in an operation, as documented.
#[test]
fn ranks_send_as_few_messages_as_promised() {
    use Algorithm::{Binomial, Bruck, Direct, Pairwise, RecursiveHalving, Ring};
    use Collective::{AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    const RANKS: usize = 8;
    for (collective, algorithm, at_root, at_leaf) in [
        (ReduceScatter, RecursiveHalving, 6, 6),
        (ReduceScatter, Pairwise, 14, 14),
        (ReduceScatter, Ring, 14, 14),
        (Broadcast, Direct, 7, 1),
        (Broadcast, Binomial, 3, 1),
        // The root scatters to 3, and passes the 7 remaining chunks to its neighbour; the leaf, number 7,
        // gets its own chunk from the scatter, and the 7 others from its neighbour.
        (Broadcast, Ring, 3 + 7, 1 + 7),
        (Reduce, Binomial, 3, 1),
        (Reduce, Pairwise, 14 + 7, 14 + 1),
        (AllToAll, Bruck, 6, 6),
        (AllToAll, Direct, 14, 14),
        (AllToAll, Pairwise, 14, 14),
        (Gather, Binomial, 3, 1),
        (Gather, Direct, 7, 1),
        (Scatter, Binomial, 3, 1),
        (Scatter, Direct, 7, 1),
        (AllToAllV, Pairwise, 14, 14),
    ] {
        let options = with_algorithm(collective, Some(algorithm), DEFAULTS);
        let ends = simulated::network(RANKS, 1);
        let posted: Vec<_> = ends.iter().map(|end| Arc::clone(&end.posted)).collect();
        let root = 3;
        thread::scope(|scope| {
            for end in ends {
                scope.spawn(move || {
                    let mut collectives = HostCollectives::new(end, None, options).unwrap();
                    let (rank, mut all, mut one) = (collectives.own_rank(), [1_i32; 80], [1_i32; 10]);
                    let parts: Vec<_> = (0..RANKS).map(|rank| 10 * rank..10 * rank + 10).collect();
                    let op = ReduceOp::Sum;
                    match collective {
                        ReduceScatter => collectives.reduce_scatter(&all, &mut one, op),
                        Broadcast => collectives.broadcast_in_place(&mut all, root),
                        Reduce => collectives.reduce_in_place(&mut all, op, root),
                        AllToAll => collectives.all_to_all(&[1; 80], &mut all),
                        AllToAllV => collectives.all_to_all_v(&[1; 80], &parts, &mut all, &parts),
                        Gather => {
                            collectives.gather_to_root(&one, (rank == root).then_some(&mut all[..]), root)
                        }
                        _ => collectives.scatter_from_root(Some(&all), &mut one, root),
                    }
                    .unwrap();
                });
            }
        });
        let posted = |rank: usize| posted[rank].load(Ordering::SeqCst);
        let found = (posted(root), posted((root + RANKS - 1) % RANKS));
        assert_eq!(found, (at_root, at_leaf), "{collective} {algorithm}");
    }
}

/// Messages between two ranks do not mix with messages of collectives. The pairs have different numbers of
/// messages.
#[test]
fn pairs_exchange_messages_between_collectives() {
    for ranks in 1..=5 {
        on_every_rank(ranks, 9, DEFAULTS, |rank, collectives| {
            let value = |from: usize, step: usize| (from * 100 + step) as i64;
            for (step, count) in [0, 1, 100, 3000].into_iter().enumerate() {
                let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                let mut data = vec![value(rank, step); count];
                let mut received = vec![0; count];
                collectives.exchange_elements(&data, next, &mut received, previous).unwrap();
                assert_same(&received, &vec![value(previous, step); count]);
                collectives.exchange_in_place(&mut data, previous, next).unwrap();
                assert_same(&data, &vec![value(next, step); count]);
                // From each rank to the next, but for the last.
                if rank > 0 {
                    collectives.receive_elements(&mut data, rank - 1).unwrap();
                    assert_same(&data, &vec![value(0, step) + rank as i64 - 1; count]);
                }
                if rank + 1 < ranks {
                    collectives.send_elements(&vec![value(0, step) + rank as i64; count], rank + 1).unwrap();
                }
                let mut sum = [1];
                collectives.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [ranks as i64]);
                collectives.run_barrier().unwrap();
            }
            // In the order of the sends, although all are there before the first is received.
            if ranks > 1 && rank == 0 {
                (0..5_i64).for_each(|number| collectives.send_elements(&[number], 1).unwrap());
            }
            collectives.run_barrier().unwrap();
            if rank == 1 {
                for number in 0..5_i64 {
                    let mut received = [0];
                    collectives.receive_elements(&mut received, 0).unwrap();
                    assert_eq!(received, [number]);
                }
            }
        });
    }
}

/// A root that reads nothing may be ahead of the others: messages not yet read must stay, in the shared
/// segment and between operations without it.
#[test]
fn roots_in_shared_memory_do_not_overtake_readers() {
    let options = with_algorithm(
        Collective::Broadcast,
        Some(Algorithm::Board),
        SelectionOptions::new(Medium::SharedMemory),
    );
    let options = with_algorithm(Collective::AllReduce, Some(Algorithm::Ring), options);
    for (ranks, segment) in [(2, 1), (3, 64), (5, 32 << 10)] {
        let options = SelectionOptions { segment: Some(segment), ..options };
        on_every_rank(ranks, 5, options, |rank, collectives| {
            for seed in 0..60 {
                let root = seed as usize / 20 % ranks;
                for count in [1, 0, 7, if segment == 1 { 300 } else { 40_000 }] {
                    let operation = CollectiveCheck {
                        collective: Collective::Broadcast,
                        count,
                        seed,
                        op: ReduceOp::Sum,
                        root,
                    };
                    if count < 100 || seed % 20 == 3 {
                        operation.check::<u8>(collectives);
                    }
                }
                if rank != root && seed % 7 == rank as u64 {
                    thread::sleep(Duration::from_micros(200));
                }
                if seed % 9 == 4 {
                    // Not in the shared segment.
                    let mut sum = vec![1_i64; 10_000];
                    collectives.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                    assert_same(&sum, &vec![ranks as i64; 10_000]);
                }
            }
        });
    }
}
