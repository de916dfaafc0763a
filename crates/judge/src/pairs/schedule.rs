//! The schedule of a survey, and the distribution of pairs over rounds.

use super::Pair;

/// Number of rounds in which each of `nodes` nodes meets each other node once.
pub(super) fn count_all_rounds(nodes: usize) -> usize {
    if nodes.is_multiple_of(2) { nodes.saturating_sub(1) } else { nodes }
}

/// Rounds of the circle method, at most `rounds` of them, spread evenly over all. With an odd number of
/// nodes, one node rests in each round. Pairs inside a host are left out; `hosts` has the host of each node,
/// or is empty.
pub(super) fn make_survey(nodes: usize, rounds: usize, hosts: &[usize]) -> Vec<Vec<Pair>> {
    let all = count_all_rounds(nodes);
    let rounds = rounds.min(all);
    let make_round = |round: usize| {
        let mut pairs = make_circle_round(nodes, round * all / rounds);
        pairs.retain(|&pair| !is_inside_host(pair, hosts));
        pairs
    };
    (0..rounds).map(make_round).filter(|pairs| !pairs.is_empty()).collect()
}

/// Returns true when both nodes are on one host.
pub(super) fn is_inside_host([one, other]: Pair, hosts: &[usize]) -> bool {
    hosts.get(one).is_some() && hosts.get(one) == hosts.get(other)
}

/// One round of the circle method: nodes on a circle meet opposite their mirror image, and the node at the
/// axis meets the one in the centre, which does not exist for an odd number.
fn make_circle_round(nodes: usize, round: usize) -> Vec<Pair> {
    let circle = count_all_rounds(nodes);
    let mut pairs = Vec::with_capacity(nodes / 2);
    if nodes.is_multiple_of(2) {
        pairs.push(ordered(round, nodes - 1));
    }
    for distance in 1..=(circle - 1) / 2 {
        pairs.push(ordered((round + distance) % circle, (round + circle - distance) % circle));
    }
    pairs
}

/// The pair of two nodes.
pub(super) fn ordered(one: usize, other: usize) -> Pair {
    [one.min(other), one.max(other)]
}

/// Distributes pairs over as few rounds as the order allows: each goes into the first round in which both
/// nodes are free.
pub(super) fn pack_rounds(pairs: &[Pair]) -> Vec<Vec<Pair>> {
    let mut rounds: Vec<Vec<Pair>> = Vec::new();
    for &pair in pairs {
        match rounds.iter_mut().find(|round| is_free(round, pair[0]) && is_free(round, pair[1])) {
            Some(round) => round.push(pair),
            None => rounds.push(vec![pair]),
        }
    }
    rounds
}

/// Returns true when a node has no pair in a round.
pub(super) fn is_free(round: &[Pair], node: usize) -> bool {
    !round.iter().any(|pair| pair.contains(&node))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_rounds_have_every_pair_once() {
        for nodes in [2, 3, 4, 7, 8, 33] {
            let rounds = make_survey(nodes, usize::MAX, &[]);
            let mut pairs = BTreeSet::new();
            for round in &rounds {
                let members: BTreeSet<usize> = round.iter().flatten().copied().collect();
                assert_eq!((round.len(), members.len()), (nodes / 2, nodes / 2 * 2), "{nodes}: {round:?}");
                pairs.extend(round.iter().copied());
            }
            assert_eq!(pairs.len(), nodes * (nodes - 1) / 2);
            assert_eq!(rounds.len(), if nodes.is_multiple_of(2) { nodes - 1 } else { nodes });
        }
    }

    #[test]
    fn a_part_of_the_rounds_is_spread() {
        let rounds = make_survey(64, 7, &[]);
        let partners_of_63: Vec<usize> = rounds.iter().map(|round| round[0][0]).collect();
        assert_eq!(partners_of_63, [0, 9, 18, 27, 36, 45, 54]);
    }

    #[test]
    fn pairs_inside_a_host_are_left_out() {
        let rounds = make_survey(4, 7, &[0, 0, 1, 1]);
        let mut pairs: Vec<Pair> = rounds.concat();
        pairs.sort_unstable();
        assert_eq!((rounds.len(), pairs), (2, vec![[0, 2], [0, 3], [1, 2], [1, 3]]));
    }

    #[test]
    fn pairs_with_a_common_node_are_in_different_rounds() {
        assert_eq!(
            pack_rounds(&[[0, 1], [0, 2], [1, 2], [3, 4], [0, 1]]),
            [vec![[0, 1], [3, 4]], vec![[0, 2]], vec![[1, 2]], vec![[0, 1]]]
        );
    }
}
