//! Ranks of several hosts.

use super::checks::CollectiveCheck;
use super::simulated::Traffic;
use super::*;
use crate::fabric::hosts::Hosts;

/// By rank, its host's number.
type Placement = Vec<usize>;

/// Places the ranks host by host, as many on each.
fn blocks(hosts: usize, each: usize) -> Placement {
    (0..hosts * each).map(|rank| rank / each).collect()
}

/// One rank on each host in turn.
pub(super) fn in_turn(hosts: usize, each: usize) -> Placement {
    (0..hosts * each).map(|rank| rank % hosts).collect()
}

/// Few and many hosts, with equal and unequal numbers of ranks, in order and mixed.
fn placements() -> Vec<Placement> {
    let mut placements = vec![
        vec![0, 0, 1],
        vec![0, 1, 0],
        vec![1, 0, 0],
        vec![0, 1, 2, 2],
        vec![0, 0, 1, 1, 1],
        vec![0, 1, 0, 2, 1, 0, 2],
        vec![0, 0, 0, 0, 0, 0, 0, 0, 1],
        vec![3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5],
        vec![0, 1, 1, 2, 2, 2, 3, 3, 3, 3],
    ];
    for (hosts, each) in [(2, 2), (3, 2), (2, 3), (4, 2), (2, 5), (5, 2), (4, 4)] {
        placements.push(blocks(hosts, each));
        placements.push(in_turn(hosts, each));
    }
    // More than the table has direct exchanges for.
    placements.push([blocks(9, 1), vec![8; 2]].concat());
    placements
}

const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// True when a case's count is the size of a rank's block, rather than of the vector.
fn has_blocks(collective: Collective) -> bool {
    use Collective::{AllReduce, Broadcast, Reduce};
    !matches!(collective, AllReduce | Broadcast | Reduce)
}

/// Algorithms between hosts.
fn between(collective: Collective) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.serves_between(collective))
}

fn check<T: Value>(case: &Case, collective: Collective, op: ReduceOp, root: usize) {
    match collective {
        Collective::AllReduce => check_all_reduce::<T>(case, op),
        Collective::AllGather => check_all_gather::<T>(case),
        _ => {
            let operation = CollectiveCheck { collective, count: case.count, seed: case.seed, op, root };
            case.on_every_rank(|_, collectives| operation.check::<T>(collectives));
        }
    }
}

#[test]
fn every_algorithm_between_hosts_in_every_placement() {
    for placement in placements() {
        let ranks = placement.len();
        for collective in COLLECTIVES {
            for between in between(collective) {
                // One lane, or all of them and some of it uneven; in one segment and in several.
                let cases = if has_blocks(collective) {
                    [(7, None), (501, Some(700))]
                } else {
                    [(1500, None), (9001, Some(20_000))]
                };
                for (count, segment) in cases {
                    let options = with_algorithm(collective, Some(Algorithm::Hierarchical), DEFAULTS);
                    let options =
                        SelectionOptions { between: Some(between), segment, in_flight: Some(3), ..options };
                    let hosts = Some((placement.clone(), Delivery::Any));
                    let case = Case { ranks, count, seed: count as u64, options, hosts };
                    let result = catch_unwind(|| {
                        check::<i32>(&case, collective, ReduceOp::Sum, (count + ranks / 2) % ranks);
                    });
                    assert!(result.is_ok(), "{collective}, {between} between hosts, {case:?}");
                }
            }
        }
    }
}

/// Many segments, on a network that blocks the messages behind an unexpected one.
#[test]
fn segments_in_flight_do_not_wait_for_each_other_in_a_circle() {
    for (placement, seed) in [(blocks(2, 2), 1), (in_turn(3, 2), 2), (vec![0, 0, 1, 1, 1], 3)] {
        let ranks = placement.len();
        for collective in COLLECTIVES {
            for between in between(collective) {
                let (count, segment) = if has_blocks(collective) { (1500, 300) } else { (40_000, 8192) };
                let options = with_algorithm(collective, Some(Algorithm::Hierarchical), DEFAULTS);
                let (segment, in_flight) = (Some(segment), Some(3));
                let options = SelectionOptions { between: Some(between), segment, in_flight, ..options };
                let hosts = Some((placement.clone(), Delivery::InOrder));
                let case = Case { ranks, count, seed, options, hosts };
                let result = catch_unwind(|| check::<i32>(&case, collective, ReduceOp::Sum, ranks - 1));
                assert!(result.is_ok(), "{collective}, {between} between hosts, {case:?}");
            }
        }
    }
}

/// The same for flat algorithms.
#[test]
fn nor_do_those_of_ranks_on_hosts_of_their_own() {
    for (ranks, seed) in [(4, 6), (5, 2), (8, 3), (9, 5)] {
        for collective in Collective::ALL {
            let segmented =
                |algorithm: &Algorithm| *algorithm != Algorithm::Board && algorithm.is_segmented(collective);
            for algorithm in flat(collective, ranks).filter(segmented) {
                let vector =
                    matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
                let (count, segment) = if vector { (40_000, 8192) } else { (1500, 300) };
                let options = with_algorithm(collective, Some(algorithm), DEFAULTS);
                let options = SelectionOptions { segment: Some(segment), in_flight: Some(3), ..options };
                let hosts = Some(((0..ranks).collect(), Delivery::InOrder));
                let case = Case { ranks, count, seed, options, hosts };
                let result = catch_unwind(|| check::<i32>(&case, collective, ReduceOp::Sum, ranks - 1));
                assert!(result.is_ok(), "{collective}, {algorithm}, {case:?}");
            }
        }
    }
}

/// Parts of different lengths: segments without bytes overtake others.
#[test]
fn segments_of_unequal_parts_do_not_wait_for_each_other_in_a_circle() {
    let collective = Collective::AllToAllV;
    for (ranks, segment, in_flight, seeds) in [(5, 100, 3, 20), (13, 4000, 4, 3), (17, 5500, 4, 3)] {
        for seed in 0..seeds {
            let options = with_algorithm(collective, Some(Algorithm::Pairwise), DEFAULTS);
            // The longest part of some ranks has fewer segments than are in flight.
            let options = SelectionOptions { segment: Some(segment), in_flight: Some(in_flight), ..options };
            for delivery in [Delivery::InOrder, Delivery::Any] {
                let hosts = Some(((0..ranks).collect(), delivery));
                let case = Case { ranks, count: 1500, seed, options, hosts };
                check::<i32>(&case, collective, ReduceOp::Sum, 0);
            }
        }
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let placement = prop::collection::vec(0_usize..4, 2..=12);
    let count = prop_oneof![0_usize..12, 0_usize..5000];
    let segment = prop_oneof![Just(None), (1_usize..20_000).prop_map(Some)];
    let in_flight = prop_oneof![Just(None), (1_usize..5).prop_map(Some)];
    let between = prop::option::of(prop::sample::select(&Algorithm::ALL[..]));
    (placement, count, any::<u64>(), between, segment, in_flight).prop_map(
        |(placement, count, seed, between, segment, in_flight)| {
            let options = SelectionOptions { between, segment, in_flight, ..DEFAULTS };
            Case { ranks: placement.len(), count, seed, options, hosts: Some((placement, Delivery::Any)) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wherever_ranks_are_they_get_their_results(
        case in cases(),
        collective in prop::sample::select(&Collective::ALL[..]),
        data_type in prop::sample::select(&DataType::ALL[..]),
        op in prop::sample::select(&ReduceOp::ALL[..]),
        root in any::<prop::sample::Index>(),
        asked in any::<bool>(),
    ) {
        // Sums of more than 8 values of 1 are not exact in this type: they depend on the order.
        prop_assume!(data_type != DataType::Float8E5M2 || case.ranks <= 8);
        let root = root.index(case.ranks);
        let mut case = case;
        let on_hosts = case.hosts.as_ref().is_some_and(|(hosts, _)| Hosts::new(hosts).is_hierarchical());
        if asked && on_hosts && Algorithm::Hierarchical.serves(collective, case.ranks) {
            case.options = with_algorithm(collective, Some(Algorithm::Hierarchical), case.options);
        }
        for_type!(data_type, check(&case, collective, op, root));
    }
}

/// Traffic of an operation between hosts.
fn traffic(
    placement: &Placement,
    options: SelectionOptions,
    collective: Collective,
    bytes: usize,
) -> Traffic {
    let ends = simulated::network_of(placement, Delivery::Any, 5);
    let (traffic, ranks) = (ends[0].traffic(), placement.len());
    on_transports(ends, placement.iter().map(|_| None).collect(), options, |_, collectives| {
        let (mut all, block) = (vec![1_u8; bytes], vec![1_u8; bytes / ranks]);
        let (op, root) = (ReduceOp::Max, ranks - 1);
        match collective {
            Collective::AllReduce => collectives.all_reduce_in_place(&mut all, op),
            Collective::AllGather => collectives.all_gather(&block, &mut all),
            Collective::ReduceScatter => collectives.reduce_scatter_in_place(&mut all, op),
            Collective::Broadcast => collectives.broadcast_in_place(&mut all, root),
            _ => collectives.reduce_in_place(&mut all, op, root),
        }
        .unwrap();
    });
    traffic()
}

/// With the algorithm between hosts; one segment.
fn hierarchical(collective: Collective, between: Algorithm) -> SelectionOptions {
    let options = with_algorithm(collective, Some(Algorithm::Hierarchical), DEFAULTS);
    SelectionOptions { between: Some(between), segment: Some(usize::MAX), ..options }
}

/// Documented traffic for `h` hosts with `q` ranks each and `n` bytes in all.
#[test]
fn hosts_exchange_as_little_as_promised() {
    use Algorithm::{
        Binomial, Bruck, Direct, Pairwise, Rabenseifner, RecursiveDoubling, RecursiveHalving, Ring,
    };
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    for (hosts, each) in [(2_usize, 2), (4, 2), (4, 4), (8, 3)] {
        let (h, q) = (hosts, each);
        let lg = h.ilog2() as usize;
        let n = h * q * (4 << 10);
        // Of all hosts together: messages in each lane, bytes; and messages on the critical path.
        for (collective, between, messages, bytes, hops) in [
            (AllReduce, Direct, h * (h - 1), h * (h - 1) * n, 1),
            (AllReduce, RecursiveDoubling, h * lg, h * lg * n, lg),
            (AllReduce, Pairwise, h * 2 * (h - 1), 2 * (h - 1) * n, 2),
            (AllReduce, Rabenseifner, h * 2 * lg, 2 * (h - 1) * n, 2 * lg),
            (AllReduce, Ring, h * 2 * (h - 1), 2 * (h - 1) * n, 2 * (h - 1)),
            (AllGather, Direct, h * (h - 1), (h - 1) * n, 1),
            (AllGather, Bruck, h * lg, (h - 1) * n, lg),
            (AllGather, Ring, h * (h - 1), (h - 1) * n, h - 1),
            (ReduceScatter, Pairwise, h * (h - 1), (h - 1) * n, 1),
            (ReduceScatter, RecursiveHalving, h * lg, (h - 1) * n, lg),
            (ReduceScatter, Ring, h * (h - 1), (h - 1) * n, h - 1),
            (Broadcast, Binomial, h - 1, (h - 1) * n, lg),
            (Reduce, Binomial, h - 1, (h - 1) * n, lg),
            (Reduce, Pairwise, (h + 1) * (h - 1), (h - 1) * n + (h - 1) * (n / h), 2),
        ] {
            for placement in [blocks(hosts, each), in_turn(hosts, each)] {
                let found = traffic(&placement, hierarchical(collective, between), collective, n);
                let expected = Traffic { messages: messages * q, bytes, hops };
                assert_eq!(found, expected, "{collective}, {between} between {h} hosts of {q}");
            }
        }
        // A rank with several chunks does not receive them again.
        let found = traffic(&in_turn(h, q), hierarchical(Broadcast, Ring), Broadcast, n);
        assert_eq!(found.bytes, (h - 1) * n);
        assert!(found.hops < lg + h, "{found:?}");
    }
}

/// Short messages cross between hosts once, with any placement, and from one rank of each host.
#[test]
fn short_messages_go_through_one_rank_of_each_host_and_wait_for_one_message() {
    for placement in placements() {
        let hosts = placement.iter().max().unwrap() + 1;
        let hosts = (0..hosts).filter(|host| placement.contains(host)).count();
        let collective = Collective::AllReduce;
        let found = traffic(&placement, hierarchical(collective, Algorithm::Direct), collective, 64);
        let messages = hosts * (hosts - 1);
        assert_eq!(found, Traffic { messages, bytes: 64 * messages, hops: 1 }, "{placement:?}");
    }
}

/// The rules for several ranks per host send no more between hosts than the rules for a network, and fewer
/// bytes or messages, or fewer dependent messages; short messages never have longer chains.
#[test]
fn the_table_spares_the_network_between_hosts() {
    for placement in [blocks(4, 2), in_turn(4, 2), in_turn(3, 3), blocks(3, 4), vec![0, 1, 0, 2, 1, 0, 2]] {
        let ranks = placement.len();
        for collective in COLLECTIVES {
            for bytes in [ranks * 8, ranks * (1 << 10), ranks * (16 << 10)] {
                let of_a_block = collective == Collective::AllGather;
                let size = if of_a_block { bytes / ranks } else { bytes };
                let hosts = Hosts::new(&placement).host_count();
                let topology = Topology { medium: Medium::Hosts, ranks, hosts, shared: false };
                let plan = selection::plan(collective, &topology, size, None);
                assert_eq!(plan.algorithm, Algorithm::Hierarchical, "{collective} {bytes} {placement:?}");
                let topology = Topology { medium: Medium::Network, ranks, hosts: ranks, shared: false };
                let other = selection::plan(collective, &topology, size, None);
                let options = with_algorithm(collective, Some(other.algorithm), DEFAULTS);
                let options =
                    SelectionOptions { segment: Some(other.segment), in_flight: Some(1), ..options };
                let flat = traffic(&placement, options, collective, bytes);
                let options = with_algorithm(collective, Some(Algorithm::Hierarchical), DEFAULTS);
                let two_levels = traffic(&placement, options, collective, bytes);
                let what = format!("{collective} of {bytes} on {placement:?}: {flat:?} {two_levels:?}");
                assert!(two_levels.hops <= flat.hops || bytes > ranks * 8, "{what}");
                assert!(two_levels.bytes <= flat.bytes, "{what}");
                // If ranks take hosts in turn, the tree of a network also reaches one rank of each host
                // first.
                let tree = collective == Collective::Broadcast && other.algorithm == Algorithm::Binomial;
                let as_good = tree && placement == in_turn(4, 2) && two_levels.hops == flat.hops;
                let fewer = has_blocks(collective) && two_levels.messages < flat.messages;
                let better = fewer || two_levels.hops < flat.hops || two_levels.bytes < flat.bytes;
                assert!(better || as_good, "{what}");
            }
        }
    }
}

#[test]
fn ranks_that_do_not_share_hosts_have_no_hierarchy() {
    let options = with_algorithm(Collective::AllReduce, Some(Algorithm::Hierarchical), DEFAULTS);
    let error = HostCollectives::new(simulated::network(3, 1).remove(0), None, options).err().unwrap();
    assert_eq!(
        error.to_string(),
        "all_reduce on 3 ranks: algorithm 'hierarchical' does not support it; choose one of direct, \
         recursive-doubling, pairwise, rabenseifner, ring, or none"
    );
    assert!(
        HostCollectives::new(simulated::network_of(&[0, 1, 1], Delivery::Any, 1).remove(0), None, options)
            .is_ok()
    );
}
