//! Searches in small and simulated clusters.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../examples/simulate/cluster.rs"]
mod cluster;

use cluster::Cluster;
use judge::pairs::{
    Conclusion, Doubt, Options, Pair, PairResult, PairsError, Part, Purpose, Round, Search, Statistic,
    Verdict,
};

/// Searches of each kind of cluster.
const SEEDS: u64 = 20;

fn named(conclusion: &Conclusion) -> Vec<Part> {
    let mut parts: Vec<Part> = conclusion.slow.iter().map(|suspect| suspect.part).collect();
    parts.sort();
    parts
}

/// Searches all rounds with a function of the bandwidth.
fn search(nodes: usize, options: Options, bandwidth: impl Fn(&Round, Pair, usize) -> f64) -> Conclusion {
    let mut search = Search::new(nodes, options).unwrap();
    let mut number = 0;
    while let Some(round) = search.next_round() {
        let result = |&pair: &Pair| PairResult { pair, bandwidths: vec![bandwidth(&round, pair, number)] };
        search.record_round(&round.pairs.iter().map(result).collect::<Vec<_>>()).unwrap();
        number += 1;
    }
    search.conclude()
}

/// Searches without noise. `slow` are the slow pairs.
fn search_exactly(nodes: usize, slow: impl Fn(Pair) -> bool) -> Conclusion {
    search(nodes, Options::default(), |_, pair, _| if slow(pair) { 23.5 } else { 25.0 })
}

#[test]
fn slow_parts_and_nothing_else_are_named() {
    for nodes in [8, 16, 64] {
        let last = nodes - 1;
        for (slow_nodes, slow_edges) in [
            (vec![], vec![]),
            (vec![(5, 0.05)], vec![]),
            (vec![(5, 0.03)], vec![]),
            (vec![(last, 0.4)], vec![]),
            (vec![(3, 0.05), (6, 0.05)], vec![]),
            (vec![(3, 0.03), (6, 0.3)], vec![]),
            (vec![], vec![([0, last], 0.05)]),
            (vec![(5, 0.05)], vec![([0, last], 0.1)]),
            (vec![(last, 0.05)], vec![([0, last], 0.1)]),
        ] {
            let cluster =
                Cluster { nodes, slow_nodes, slow_edges, noise: 0.003, rounds: 7, ..Cluster::default() };
            for seed in 0..SEEDS {
                let conclusion = cluster.search(seed).conclusion;
                let mut expected = cluster.slow_parts();
                expected.sort();
                assert_eq!(named(&conclusion), expected, "{cluster:?} {seed}: {conclusion:?}");
                let verdict = if expected.is_empty() { Verdict::Alike } else { Verdict::Slow };
                assert_eq!(conclusion.verdict, verdict, "{cluster:?} {seed}: {conclusion:?}");
            }
        }
    }
}

#[test]
fn a_node_that_recovers_is_seen_once() {
    let slow_nodes = vec![(5, 0.05)];
    let cluster =
        Cluster { nodes: 16, slow_nodes, noise: 0.003, rounds: 7, recovers: true, ..Cluster::default() };
    for seed in 0..SEEDS {
        let conclusion = cluster.search(seed).conclusion;
        assert_eq!((conclusion.verdict, conclusion.seen_once.len()), (Verdict::SeenOnce, 1));
        assert_eq!(conclusion.seen_once[0].part, Part::Node(5));
    }
}

#[test]
fn confirmation_costs_few_pairs() {
    let healthy = Cluster { nodes: 64, noise: 0.003, rounds: 7, ..Cluster::default() };
    let costs = |cluster: &Cluster| {
        let simulated = cluster.search(1);
        (simulated.rounds, simulated.pairs)
    };
    assert_eq!(costs(&healthy), (7, 7 * 32));
    let (rounds, pairs) = costs(&Cluster { slow_nodes: vec![(5, 0.05)], ..healthy });
    assert!(rounds <= 11 && pairs <= 8 * 32, "{rounds} rounds, {pairs} pairs");
}

#[test]
fn one_round_is_enough_with_its_confirmation() {
    let options = Options { rounds: 1, ..Options::default() };
    let conclusion = search(16, options, |_, pair, _| if pair.contains(&5) { 23.5 } else { 25.0 });
    assert_eq!(named(&conclusion), [Part::Node(5)], "{conclusion:?}");
    assert_eq!(conclusion.pairs_possible, 120);
}

#[test]
fn few_nodes_are_told_apart_as_far_as_possible() {
    let two = search_exactly(2, |_| false);
    assert_eq!((two.verdict, two.doubts), (Verdict::CannotTell, vec![Doubt::OnePair]));

    let three = search_exactly(3, |pair| pair.contains(&0));
    assert_eq!(named(&three), [Part::Node(0)], "{three:?}");
    assert!(three.slow[0].is_ambiguous);
    let edge_of_three = search_exactly(3, |pair| pair == [0, 1]);
    assert_eq!(named(&edge_of_three), [Part::Edge([0, 1])], "{edge_of_three:?}");

    let four = search_exactly(4, |pair| pair.contains(&2));
    assert_eq!(named(&four), [Part::Node(2)], "{four:?}");
    assert!(!four.slow[0].is_ambiguous);
    let edge_of_four = search_exactly(4, |pair| pair == [1, 3]);
    assert_eq!(named(&edge_of_four), [Part::Edge([1, 3])], "{edge_of_four:?}");
    let edges_of_four = search_exactly(4, |pair| pair == [0, 1] || pair == [0, 2]);
    assert_eq!(named(&edges_of_four), [Part::Edge([0, 1]), Part::Edge([0, 2])], "{edges_of_four:?}");
}

#[test]
fn a_slow_majority_gives_no_conclusion() {
    for (nodes, slow) in [(4, 2), (5, 3), (8, 5), (16, 9)] {
        let conclusion = search_exactly(nodes, |pair| pair[0] < slow);
        assert_eq!(conclusion.verdict, Verdict::CannotTell, "{nodes} {slow}: {conclusion:?}");
    }
    let all = search_exactly(8, |_| true);
    assert_eq!(all.verdict, Verdict::Alike, "all nodes are equally slow");
}

#[test]
fn a_slow_round_accuses_nobody() {
    let conclusion = search(16, Options::default(), |_, _, round| if round == 3 { 12.0 } else { 25.0 });
    assert_eq!(conclusion.verdict, Verdict::Alike, "{conclusion:?}");
    let confirmation = search(16, Options::default(), |round, pair, _| {
        let rate = if pair.contains(&5) { 0.95 } else { 1.0 };
        if round.purpose == Purpose::Confirmation { rate * 31.0 } else { rate * 25.0 }
    });
    assert_eq!(named(&confirmation), [Part::Node(5)], "{confirmation:?}");
}

#[test]
fn pairs_inside_a_host_are_not_measured() {
    // Two ranks on each of eight hosts.
    let hosts: Vec<usize> = (0..16).map(|rank| rank / 2).collect();
    let options = Options { rounds: 15, hosts: hosts.clone(), ..Options::default() };
    let rate = |pair: Pair| if hosts[pair[0]] == hosts[pair[1]] { 300.0 } else { 25.0 };
    let healthy = search(16, options.clone(), |_, pair, _| rate(pair));
    assert_eq!((healthy.verdict, healthy.pairs_measured), (Verdict::Alike, 112), "{healthy:?}");
    let slow = search(16, options, |_, pair, _| rate(pair) * if pair.contains(&9) { 0.95 } else { 1.0 });
    assert_eq!((named(&slow), slow.pairs_possible), (vec![Part::Node(9)], 112), "{slow:?}");
    // All on one host, or no pair of two ranks in the only round.
    let one = search(4, Options { hosts: vec![0; 4], ..Options::default() }, |_, _, _| 1.0);
    assert_eq!(one.doubts, [Doubt::WithoutPair { nodes: vec![0, 1, 2, 3] }]);
    let few = Options { rounds: 1, hosts: vec![0, 1, 1, 0], ..Options::default() };
    assert_eq!(search(4, few, |_, _, _| 1.0).verdict, Verdict::CannotTell);
}

#[test]
fn repeats_that_other_work_slows_do_not_count() {
    let repeats = [20.0, 25.1, 25.0, 12.0, 25.2];
    assert_eq!(Statistic::UpperQuartile.find_bandwidth(&repeats), Some(25.1));
    assert_eq!(Statistic::Median.find_bandwidth(&repeats), Some(25.0));
    assert_eq!(Statistic::Median.find_bandwidth(&[0.0, f64::NAN]), None);
}

#[test]
fn too_much_noise_gives_no_conclusion() {
    let cluster = Cluster { nodes: 16, noise: 0.2, rounds: 7, ..Cluster::default() };
    let conclusion = cluster.search(1).conclusion;
    assert_eq!((conclusion.verdict, conclusion.slow.len()), (Verdict::CannotTell, 0), "{conclusion:?}");
    assert!(
        conclusion
            .doubts
            .iter()
            .any(|doubt| matches!(doubt, Doubt::TooNoisy { detectable } if *detectable > 0.1))
    );
}

#[test]
fn an_unfinished_search_concludes_nothing() {
    let mut search = Search::new(8, Options::default()).unwrap();
    assert_eq!(search.conclude().verdict, Verdict::CannotTell);
    for surveyed in 1..=7 {
        let round = search.next_round().unwrap();
        let result = |&pair: &Pair| {
            let bandwidth = if pair.contains(&5) { 20.0 } else { 25.0 };
            PairResult { pair, bandwidths: vec![bandwidth; 2] }
        };
        search.record_round(&round.pairs.iter().map(result).collect::<Vec<_>>()).unwrap();
        let conclusion = search.conclude();
        assert_eq!(conclusion.doubts, [Doubt::Unfinished { surveyed, planned: 7 }]);
        assert_eq!((conclusion.verdict, conclusion.slow.len()), (Verdict::CannotTell, 0));
    }
    assert_eq!(search.next_round().unwrap().purpose, Purpose::Confirmation);
}

#[test]
fn a_pair_without_a_number_is_not_measured() {
    for wrong in [vec![], vec![f64::NAN], vec![0.0], vec![-1.0, f64::INFINITY]] {
        let mut search = Search::new(4, Options::default()).unwrap();
        while let Some(round) = search.next_round() {
            let result = |&pair: &Pair| {
                let bandwidths = if pair == [0, 2] { wrong.clone() } else { vec![25.0] };
                PairResult { pair, bandwidths }
            };
            search.record_round(&round.pairs.iter().map(result).collect::<Vec<_>>()).unwrap();
        }
        let conclusion = search.conclude();
        assert_eq!(conclusion.doubts, [Doubt::Unmeasured { pairs: vec![[0, 2]] }]);
        assert_eq!((conclusion.verdict, conclusion.pairs_measured), (Verdict::CannotTell, 5));
    }
    // Nothing at all.
    let mut search = Search::new(8, Options::default()).unwrap();
    while search.next_round().is_some() {
        search.record_round(&[]).unwrap();
    }
    assert_eq!(search.conclude().verdict, Verdict::CannotTell);
}

#[test]
fn extreme_numbers_do_not_panic() {
    for extreme in [f64::MIN_POSITIVE, 1e-300, 1e300, f64::MAX] {
        for nodes in [2, 3, 8] {
            let rate = |pair: Pair| if pair[0] == 0 { extreme } else { 25.0 };
            let conclusion = search(nodes, Options::default(), |_, pair, _| rate(pair));
            let wrong = conclusion.slow.iter().any(|suspect| suspect.part != Part::Node(0));
            assert!(!wrong || nodes == 3, "{extreme} {nodes}: {conclusion:?}");
        }
    }
}

#[test]
fn requests_and_results_that_do_not_fit_are_refused() {
    let new = |nodes, rounds, hosts: usize| {
        Search::new(nodes, Options { rounds, hosts: vec![0; hosts], ..Options::default() }).map(|_| ())
    };
    assert_eq!(new(1, 7, 0), Err(PairsError::TooFewNodes(1)));
    assert_eq!(new(4, 0, 0), Err(PairsError::NoRounds));
    assert_eq!(new(4, 7, 3), Err(PairsError::WrongHosts { hosts: 3, nodes: 4 }));
    let mut search = Search::new(4, Options::default()).unwrap();
    let pair = search.next_round().unwrap().pairs[0];
    let result = PairResult { pair, bandwidths: vec![1.0] };
    let foreign = PairResult { pair: [9, 10], ..result.clone() };
    assert_eq!(search.record_round(&[foreign]), Err(PairsError::UnexpectedPair([9, 10])));
    assert_eq!(search.record_round(&[result.clone(), result]), Err(PairsError::UnexpectedPair(pair)));
    assert_eq!(search.next_round().unwrap().pairs.len(), 2, "nothing was recorded");
}
