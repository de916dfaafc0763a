//! The collectives beside all_reduce and all_gather, and messages between two ranks.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::*;

/// What one check is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct CollectiveCheck {
    pub(super) collective: Collective,
    /// Elements of a vector, block or part.
    pub(super) count: usize,
    pub(super) seed: u64,
    pub(super) op: ReduceOp,
    pub(super) root: usize,
}

type Rank<'a> = &'a mut HostCollectives<Simulated>;

impl CollectiveCheck {
    fn input<T: Value>(&self, rank: usize, count: usize) -> Vec<T> {
        (0..count).map(|index| T::exact(random(self.seed, rank, index), self.op)).collect()
    }

    fn reduced<T: Value>(&self, ranks: usize, count: usize) -> Vec<T> {
        let inputs: Vec<Vec<T>> = (0..ranks).map(|rank| self.input(rank, count)).collect();
        let values = |index: usize| inputs.iter().map(|input| input[index]).collect::<Vec<_>>();
        (0..count).map(|index| T::reduced(&values(index), self.op)).collect()
    }

    /// Runs it out of place and in place and checks all that it may and may not write.
    pub(super) fn check<T: Value>(&self, collectives: Rank<'_>) {
        match self.collective {
            Collective::ReduceScatter => self.check_reduce_scatter::<T>(collectives),
            Collective::Broadcast => self.check_broadcast::<T>(collectives),
            Collective::Reduce => self.check_reduce::<T>(collectives),
            Collective::AllToAll => self.check_all_to_all::<T>(collectives),
            Collective::AllToAllV => self.check_all_to_all_v::<T>(collectives),
            Collective::Gather => self.check_gather::<T>(collectives),
            Collective::Scatter => self.check_scatter::<T>(collectives),
            Collective::AllReduce | Collective::AllGather => panic!("checked elsewhere"),
        }
    }

    fn check_reduce_scatter<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.rank(), collectives.size(), self.count);
        let mut data = self.input::<T>(rank, count * ranks);
        let mut expected = data.clone();
        let own = rank * count..(rank + 1) * count;
        expected[own.clone()].copy_from_slice(&self.reduced(ranks, count * ranks)[own.clone()]);
        let mut received = vec![T::default(); count];
        collectives.reduce_scatter(&data, &mut received, self.op).unwrap();
        assert_same(&received, &expected[own]);
        collectives.reduce_scatter_in_place(&mut data, self.op).unwrap();
        assert_same(&data, &expected);
    }

    fn check_broadcast<T: Value>(&self, collectives: Rank<'_>) {
        let expected = self.input::<T>(self.root, self.count);
        let own = self.input::<T>(collectives.rank(), self.count);
        let send = (collectives.rank() == self.root || self.count.is_multiple_of(2)).then_some(&own[..]);
        let mut received = vec![T::default(); self.count];
        collectives.broadcast(send, &mut received, self.root).unwrap();
        assert_same(&received, &expected);
        let mut data = own.clone();
        collectives.broadcast_in_place(&mut data, self.root).unwrap();
        assert_same(&data, &expected);
    }

    fn check_reduce<T: Value>(&self, collectives: Rank<'_>) {
        let (own, is_root) =
            (self.input::<T>(collectives.rank(), self.count), collectives.rank() == self.root);
        let expected = if is_root { self.reduced(collectives.size(), self.count) } else { own.clone() };
        let mut received = own.clone();
        let receive = (is_root || self.count.is_multiple_of(2)).then_some(&mut received[..]);
        collectives.reduce(&own, receive, self.op, self.root).unwrap();
        assert_same(&received, &expected);
        let mut data = own;
        collectives.reduce_in_place(&mut data, self.op, self.root).unwrap();
        assert_same(&data, &expected);
    }

    fn check_all_to_all<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.rank(), collectives.size(), self.count);
        let part = |from: usize| self.input::<T>(from, ranks * count)[rank * count..][..count].to_vec();
        let expected = (0..ranks).flat_map(part).collect::<Vec<_>>();
        let mut data = self.input::<T>(rank, ranks * count);
        let mut received = vec![T::default(); ranks * count];
        collectives.all_to_all(&data, &mut received).unwrap();
        assert_same(&received, &expected);
        collectives.all_to_all_in_place(&mut data).unwrap();
        assert_same(&data, &expected);
    }

    /// How much one rank sends another: often nothing.
    fn length(&self, from: usize, to: usize) -> usize {
        let random = random(self.seed, from * 64 + to, self.count) as usize;
        if random.is_multiple_of(3) { 0 } else { random % (2 * self.count + 1) }
    }

    /// Ranges of these lengths with gaps between them, in an order that depends on the seed; and the end of the last.
    fn ranges(&self, lengths: &[usize]) -> (Vec<Range<usize>>, usize) {
        let mut ranges = vec![0..0; lengths.len()];
        let mut end = 0;
        for index in 0..lengths.len() {
            let rank = if self.seed.is_multiple_of(2) { index } else { lengths.len() - 1 - index };
            ranges[rank] = end..end + lengths[rank];
            end += lengths[rank] + index % 3;
        }
        (ranges, end)
    }

    fn check_all_to_all_v<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks) = (collectives.rank(), collectives.size());
        let sent = |from: usize| -> Vec<usize> { (0..ranks).map(|to| self.length(from, to)).collect() };
        let (send_parts, send_len) = self.ranges(&sent(rank));
        let received: Vec<usize> = (0..ranks).map(|from| self.length(from, rank)).collect();
        let (receive_parts, receive_len) = self.ranges(&received);
        let len = send_len.max(receive_len);
        let mut data = self.input::<T>(rank, len);
        let expect = |mut buffer: Vec<T>| {
            for from in 0..ranks {
                let (parts, len) = self.ranges(&sent(from));
                let part = &self.input::<T>(from, len)[parts[rank].clone()];
                buffer[receive_parts[from].clone()].copy_from_slice(part);
            }
            buffer
        };
        let mut received = vec![T::default(); receive_len];
        let expected = expect(received.clone());
        collectives.all_to_all_v(&data[..send_len], &send_parts, &mut received, &receive_parts).unwrap();
        assert_same(&received, &expected);
        let expected = expect(data.clone());
        collectives.all_to_all_v_in_place(&mut data, &send_parts, &receive_parts).unwrap();
        assert_same(&data, &expected);
    }

    fn check_gather<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.rank(), collectives.size(), self.count);
        let own = self.input::<T>(rank, count);
        let all = (0..ranks).flat_map(|rank| self.input::<T>(rank, count)).collect::<Vec<_>>();
        let mut received = vec![T::default(); ranks * count];
        let expected = if rank == self.root { all.clone() } else { received.clone() };
        let receive = (rank == self.root || count.is_multiple_of(2)).then_some(&mut received[..]);
        collectives.gather(&own, receive, self.root).unwrap();
        assert_same(&received, &expected);
        let mut data = vec![T::default(); ranks * count];
        data[rank * count..][..count].copy_from_slice(&own);
        let expected = if rank == self.root { all } else { data.clone() };
        collectives.gather_in_place(&mut data, self.root).unwrap();
        assert_same(&data, &expected);
    }

    fn check_scatter<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.rank(), collectives.size(), self.count);
        let part = |rank: usize| rank * count..(rank + 1) * count;
        let all = self.input::<T>(self.root, ranks * count);
        let mut data = self.input::<T>(rank, ranks * count);
        let mut received = vec![T::default(); count];
        let send = (rank == self.root || count.is_multiple_of(2)).then_some(&data[..]);
        collectives.scatter(send, &mut received, self.root).unwrap();
        assert_same(&received, &all[part(rank)]);
        let mut expected = data.clone();
        expected[part(rank)].copy_from_slice(&all[part(rank)]);
        collectives.scatter_in_place(&mut data, self.root).unwrap();
        assert_same(&data, &expected);
    }
}

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
        let algorithm = algorithm.filter(|wanted| flat(collective, ranks).any(|algorithm| algorithm == *wanted));
        let options = SelectionOptions { segment, in_flight, ..SelectionOptions::new(medium) };
        let operation = CollectiveCheck { collective, count, seed, op, root: seed as usize % ranks };
        on_every_rank(ranks, seed, with_algorithm(collective, algorithm, options), |_, collectives| {
            let check = |operation: &CollectiveCheck, collectives: Rank<'_>| for_type!(data_type, check(operation, collectives));
            check(&operation, collectives);
            // Whoever is early does not disturb what the others still do.
            check(&CollectiveCheck { seed: seed ^ 1, root: (seed >> 8) as usize % ranks, ..operation }, collectives);
        });
    }
}

fn check<T: Value>(operation: &CollectiveCheck, collectives: Rank<'_>) {
    operation.check::<T>(collectives);
}

/// What random cases could leave out: every algorithm on every number of ranks, with roots all over.
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

/// How many messages a rank sends and receives in an operation: what the algorithms' documentation promises.
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
        // The root scatters to 3 and passes its neighbour the 7 chunks that this one does not get so; the leaf, number
        // 7, gets its own chunk so, and the 7 others from its neighbour.
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
                    let (rank, mut all, mut one) = (collectives.rank(), [1_i32; 80], [1_i32; 10]);
                    let parts: Vec<_> = (0..RANKS).map(|rank| 10 * rank..10 * rank + 10).collect();
                    let op = ReduceOp::Sum;
                    match collective {
                        ReduceScatter => collectives.reduce_scatter(&all, &mut one, op),
                        Broadcast => collectives.broadcast_in_place(&mut all, root),
                        Reduce => collectives.reduce_in_place(&mut all, op, root),
                        AllToAll => collectives.all_to_all(&[1; 80], &mut all),
                        AllToAllV => collectives.all_to_all_v(&[1; 80], &parts, &mut all, &parts),
                        Gather => collectives.gather(&one, (rank == root).then_some(&mut all[..]), root),
                        _ => collectives.scatter(Some(&all), &mut one, root),
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

/// Messages between two ranks, of which there are not as many between any others, do not mix with those of collectives.
#[test]
fn pairs_exchange_messages_between_collectives() {
    for ranks in 1..=5 {
        on_every_rank(ranks, 9, DEFAULTS, |rank, collectives| {
            let value = |from: usize, step: usize| (from * 100 + step) as i64;
            for (step, count) in [0, 1, 100, 3000].into_iter().enumerate() {
                let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                let mut data = vec![value(rank, step); count];
                let mut received = vec![0; count];
                collectives.exchange(&data, next, &mut received, previous).unwrap();
                assert_same(&received, &vec![value(previous, step); count]);
                collectives.exchange_in_place(&mut data, previous, next).unwrap();
                assert_same(&data, &vec![value(next, step); count]);
                // From each rank to the next, but for the last.
                if rank > 0 {
                    collectives.recv(&mut data, rank - 1).unwrap();
                    assert_same(&data, &vec![value(0, step) + rank as i64 - 1; count]);
                }
                if rank + 1 < ranks {
                    collectives.send(&vec![value(0, step) + rank as i64; count], rank + 1).unwrap();
                }
                let mut sum = [1];
                collectives.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [ranks as i64]);
                collectives.barrier().unwrap();
            }
            // In the order in which they were sent, though all are there before the first is received.
            if ranks > 1 && rank == 0 {
                (0..5_i64).for_each(|number| collectives.send(&[number], 1).unwrap());
            }
            collectives.barrier().unwrap();
            if rank == 1 {
                for number in 0..5_i64 {
                    let mut received = [0];
                    collectives.recv(&mut received, 0).unwrap();
                    assert_eq!(received, [number]);
                }
            }
        });
    }
}

#[test]
fn buffers_and_ranks_that_do_not_fit_are_refused_before_anything_is_sent() {
    on_every_rank(3, 1, DEFAULTS, |rank, collectives| {
        let op = ReduceOp::Sum;
        let text = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert_eq!(
            text(collectives.reduce_scatter(&[1_i32; 7], &mut [0; 2], op)),
            "reduce_scatter: the receive buffer has 2 elements and there are 3 ranks, but the send buffer has 7 \
             elements; it must have as many as all receive buffers together"
        );
        let multiple = "7 elements, which is no multiple of the number of ranks, 3";
        for error in [
            text(collectives.reduce_scatter_in_place(&mut [1_i32; 7], op)),
            text(collectives.all_to_all(&[1_i32; 7], &mut [1; 7])),
            text(collectives.all_to_all_in_place(&mut [1_i32; 7])),
            text(collectives.gather_in_place(&mut [1_i32; 7], 0)),
            text(collectives.scatter_in_place(&mut [1_i32; 7], 0)),
        ] {
            assert!(error.contains(multiple), "{error}");
        }
        assert!(
            text(collectives.all_to_all(&[1_i32; 3], &mut [1; 6]))
                .contains("3 elements and the receive buffer 6")
        );
        // The root's own mistakes; the others have nothing to check them by.
        let mut data = [1_i32; 3];
        for error in [
            text(collectives.broadcast(None, &mut data, rank)),
            text(collectives.reduce(&[1], None, op, rank)),
            text(collectives.gather(&[1], None, rank)),
            text(collectives.scatter(None, &mut data, rank)),
        ] {
            assert!(error.contains(&format!("rank {rank} is the root and has no ")), "{error}");
        }
        for error in [
            text(collectives.broadcast(Some(&[1; 2]), &mut data, rank)),
            text(collectives.reduce(&[1; 2], Some(&mut data), op, rank)),
            text(collectives.gather(&[1; 2], Some(&mut data), rank)),
            text(collectives.scatter(Some(&[1; 2]), &mut data, rank)),
        ] {
            assert!(error.contains("buffer has 2 elements"), "{error}");
        }
        for error in [
            text(collectives.broadcast_in_place(&mut data, 3)),
            text(collectives.broadcast(Some(&[1; 3]), &mut data, 3)),
            text(collectives.reduce(&[1], None, op, 3)),
            text(collectives.reduce_in_place(&mut data, op, 3)),
            text(collectives.gather(&[1], None, 3)),
            text(collectives.gather_in_place(&mut data, 3)),
            text(collectives.scatter(None, &mut data, 3)),
            text(collectives.scatter_in_place(&mut data, 3)),
        ] {
            assert!(error.ends_with("the root is rank 3, but the ranks are 0 to 2"), "{error}");
        }
        let problem = "the peer is rank 3, but the ranks are 0 to 2";
        assert_eq!(text(collectives.send(&data, 3)), format!("send: {problem}"));
        assert_eq!(text(collectives.recv(&mut data, 3)), format!("recv: {problem}"));
        assert_eq!(
            text(collectives.exchange(&[1; 3], (rank + 1) % 3, &mut data, 3)),
            format!("exchange: {problem}")
        );
        assert!(text(collectives.send(&data, rank)).contains("itself"));
        assert!(text(collectives.exchange(&[1; 3], rank, &mut data, (rank + 1) % 3)).contains("itself"));
        assert!(text(collectives.exchange(&[1; 2], rank, &mut data, rank)).contains("must have as many"));

        let three = |parts: [Range<usize>; 3]| parts;
        let (good, mut buffer) = (three([0..1, 1..2, 2..3]), [0_i32; 4]);
        let mut refused = |send: &[Range<usize>], receive: &[Range<usize>], problem: &str| {
            let error = text(collectives.all_to_all_v(&[1; 4], send, &mut buffer, receive));
            assert!(error.contains(problem), "{error}");
            let error = text(collectives.all_to_all_v_in_place(&mut buffer, send, receive));
            assert!(error.contains(problem), "{error}");
        };
        refused(&good[..2], &good, "there are 2 parts of the send buffer for 3 ranks");
        refused(&good, &[], "there are 0 parts of the receive buffer for 3 ranks");
        let outside = three([0..1, 4..5, 1..2]);
        refused(&outside, &good, "rank 1's part of the send buffer is 4..5, but the buffer has 4 elements");
        let backwards = three([0..1, Range { start: 2, end: 1 }, 1..2]);
        refused(&good, &backwards, "rank 1's part of the receive buffer is 2..1");
        let overlapping = three([2..3, 0..1, 0..1]);
        refused(
            &good,
            &overlapping,
            "the parts 0..1 of rank 1 and 0..1 of rank 2 of the receive buffer overlap",
        );
        let mut longer = good.clone();
        longer[rank] = 0..2;
        refused(&longer, &good, "sends itself 2 elements and receives 1");

        // Nothing of all this was sent.
        let mut data = [1_i32; 3];
        collectives.reduce_in_place(&mut data, op, 1).unwrap();
        assert_eq!(data, if rank == 1 { [3; 3] } else { [1; 3] });
    });
}

/// Where ranks disagree about the length, the one that receives is given nothing of it.
#[test]
fn ranks_that_disagree_about_the_length_find_out_and_keep_their_memory() {
    const BYTES: [usize; 2] = [100, 60];
    type Disagreement = (&'static str, fn(Rank<'_>, &mut [u8]) -> Result<(), Error>);
    let cases: [Disagreement; 8] = [
        ("reduce_scatter", |collectives, data| collectives.reduce_scatter_in_place(data, ReduceOp::Sum)),
        ("broadcast", |collectives, data| collectives.broadcast_in_place(data, 0)),
        ("reduce", |collectives, data| collectives.reduce_in_place(data, ReduceOp::Sum, 1)),
        ("all_to_all", |collectives, data| collectives.all_to_all_in_place(data)),
        ("all_to_all_v", |collectives, data| {
            let half = data.len() / 2;
            let parts =
                if collectives.rank() == 0 { [0..half, half..2 * half] } else { [half..2 * half, 0..half] };
            collectives.all_to_all_v_in_place(data, &parts, &parts)
        }),
        ("gather", |collectives, data| collectives.gather_in_place(data, 1)),
        ("scatter", |collectives, data| collectives.scatter_in_place(data, 0)),
        ("exchange", |collectives, data| {
            let peer = 1 - collectives.rank();
            collectives.exchange_in_place(data, peer, peer)
        }),
    ];
    for (name, operation) in cases {
        // Without a board, which has a test of its own.
        let ends = simulated::network(2, 1);
        thread::scope(|scope| {
            for (rank, mut end) in ends.into_iter().enumerate() {
                scope.spawn(move || {
                    end.patience = Duration::from_millis(300);
                    let mut collectives = HostCollectives::new(end, None, DEFAULTS).unwrap();
                    let mut memory = [7_u8; 200];
                    let result = operation(&mut collectives, &mut memory[..BYTES[rank]]);
                    // Rank 1 receives in every one of them. What ranks call does not say how long parts are.
                    if rank == 1 {
                        let error = result.unwrap_err().to_string();
                        let expected = match name {
                            "all_to_all_v" => "bytes sent to a receive of",
                            _ => "nothing arrived",
                        };
                        assert!(error.contains(expected), "{name}: {error}");
                    }
                    assert!(memory[BYTES[rank]..].iter().all(|&byte| byte == 7), "{name}");
                });
            }
        });
    }
    // On the board every rank reads what every other says about its length.
    let cases = cases.into_iter().filter(|(name, _)| !matches!(*name, "all_to_all_v" | "exchange"));
    for (name, operation) in cases {
        let shared_segments = shared::shared_segments(2);
        let ends = simulated::network(2, 1);
        thread::scope(|scope| {
            for (rank, (end, shared)) in ends.into_iter().zip(shared_segments).enumerate() {
                scope.spawn(move || {
                    let options = SelectionOptions::new(Medium::SharedMemory);
                    let mut collectives = HostCollectives::new(end, Some(shared), options).unwrap();
                    let mut memory = [7_u8; 200];
                    let result = operation(&mut collectives, &mut memory[..BYTES[rank]]);
                    if rank == 1 {
                        let error = result.unwrap_err();
                        assert!(matches!(error, Error::OtherOperation { rank: 1, .. }), "{name}: {error}");
                        let error = error.to_string();
                        let told = format!("rank 1 called {name} of ");
                        assert!(
                            error.starts_with(&told) && error.contains(" while rank 0 called "),
                            "{error}"
                        );
                    }
                    assert!(memory[BYTES[rank]..].iter().all(|&byte| byte == 7), "{name}");
                });
            }
        });
    }
}

/// A root that needs nothing of the others may be ahead of them: what they have not read yet must stay, on the board and
/// between operations that do without it.
#[test]
fn roots_on_the_board_do_not_overtake_those_who_read() {
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
                    // Not on the board.
                    let mut sum = vec![1_i64; 10_000];
                    collectives.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                    assert_same(&sum, &vec![ranks as i64; 10_000]);
                }
            }
        });
    }
}
