//! The pairs of a confirmation.

use std::collections::BTreeSet;

use super::schedule::{is_free, is_inside_host, ordered, pack_rounds};
use super::score::Scores;
use super::{Options, Pair};

/// Partners with which a suspected node is measured again.
const PARTNERS: usize = 3;
/// Slowest pairs of a suspected node that are measured again, if they may be slow edges.
const SLOWEST: usize = 2;
/// Repetitions of a suspected edge.
const EDGE_REPETITIONS: usize = 3;
/// Other pairs of each node of a suspected edge.
const EDGE_CONTROLS: usize = 2;
/// Pairs of good nodes that a round of confirmation has at least, if there are as many.
const REFERENCE_PAIRS: usize = 6;

/// The suspects of a survey, and the rounds that measure them again.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Suspected nodes, the slowest first.
    pub(super) nodes: Vec<usize>,
    /// Suspected edges, the slowest first.
    pub(super) edges: Vec<Pair>,
    /// The rounds.
    pub(super) rounds: Vec<Vec<Pair>>,
}

impl Plan {
    /// Plans the rounds. They are empty without suspects, and for more suspects than can be compared with the
    /// rest.
    pub(super) fn new(scores: &Scores, hosts: &[usize], options: &Options) -> Self {
        let nodes = scores.list_slow_nodes(options);
        let edges = scores.list_slow_edges(options, &nodes);
        let count = scores.pairs.len();
        let mut plan = Self { nodes, edges, rounds: Vec::new() };
        if plan.is_too_large(count) || (plan.nodes.is_empty() && plan.edges.is_empty()) {
            return plan;
        }
        let pool = Pool::new(scores, &plan, hosts);
        let wanted = pool.list_pairs(scores, &plan);
        plan.rounds = pack_rounds(&wanted);
        for round in &mut plan.rounds {
            pool.fill_round(round);
        }
        plan
    }

    /// Returns true when the suspects are too many for `count` nodes: the rest may not be what is normal.
    pub(super) fn is_too_large(&self, count: usize) -> bool {
        self.nodes.len() > (count / 3).max(1) || self.edges.len() > (count / 2).max(1)
    }

    /// Returns true for a pair of two nodes without any suspicion.
    pub(super) fn is_reference(&self, pair: Pair) -> bool {
        !self.edges.contains(&pair) && !pair.iter().any(|node| self.nodes.contains(node))
    }
}

/// The nodes for comparison, the fastest first.
struct Pool<'a> {
    good: Vec<usize>,
    hosts: &'a [usize],
}

impl<'a> Pool<'a> {
    /// Takes the nodes without a suspected edge; with fewer than three of them, all but the suspected nodes.
    fn new(scores: &Scores, plan: &Plan, hosts: &'a [usize]) -> Self {
        let at_edges: BTreeSet<usize> = plan.edges.iter().flatten().copied().collect();
        let suspects: BTreeSet<usize> = plan.nodes.iter().copied().collect();
        let mut good: Vec<usize> = (0..scores.pairs.len())
            .filter(|node| scores.node_value(*node).is_some() && !suspects.contains(node))
            .collect();
        let value = |node: usize| scores.node_value(node).unwrap_or(0.0);
        good.sort_by(|&one, &other| value(other).total_cmp(&value(one)));
        let strict: Vec<usize> = good.iter().copied().filter(|node| !at_edges.contains(node)).collect();
        Self { good: if strict.len() >= PARTNERS { strict } else { good }, hosts }
    }

    /// All pairs to measure. Partners of different suspects differ while there are enough nodes.
    fn list_pairs(&self, scores: &Scores, plan: &Plan) -> Vec<Pair> {
        let mut turn = 0;
        let (mut suspected, mut controls) = (Vec::new(), Vec::new());
        for &node in &plan.nodes {
            let partners = self.take_partners(&mut turn, node, PARTNERS, &[]);
            suspected.extend(partners.iter().map(|&partner| ordered(node, partner)));
            for &partner in &partners {
                let good = self.take_partners(&mut turn, partner, 1, &partners);
                controls.extend(good.iter().map(|&good| ordered(partner, good)));
            }
            if scores.is_mixed(node) {
                let mut slowest = scores.pairs[node].clone();
                slowest.sort_by(|(_, one), (_, other)| one.total_cmp(other));
                let slowest = slowest.iter().map(|&(pair, _)| pair).take(SLOWEST);
                suspected.extend(slowest.flat_map(|pair| [pair; 2]));
            }
        }
        for &edge in &plan.edges {
            suspected.extend([edge; EDGE_REPETITIONS]);
            for node in edge {
                let good = self.take_partners(&mut turn, node, EDGE_CONTROLS, &edge);
                controls.extend(good.iter().map(|&good| ordered(node, good)));
            }
        }
        suspected.extend(controls);
        suspected
    }

    /// The next `count` nodes for pairs with `node`. Nodes of `avoided` are taken if there are no others.
    fn take_partners(&self, turn: &mut usize, node: usize, count: usize, avoided: &[usize]) -> Vec<usize> {
        let good = self.good.len();
        let in_turn = (0..good).map(|step| self.good[(*turn + step) % good]);
        let mut candidates: Vec<usize> = in_turn.filter(|&other| self.can_pair(node, other)).collect();
        // The sort keeps the order of equal ones.
        candidates.sort_by_key(|other| avoided.contains(other));
        candidates.truncate(count);
        *turn += candidates.len();
        candidates
    }

    fn can_pair(&self, one: usize, other: usize) -> bool {
        one != other && !is_inside_host([one, other], self.hosts)
    }

    /// Adds pairs of idle good nodes, for comparison at the same time.
    fn fill_round(&self, round: &mut Vec<Pair>) {
        let is_good = |pair: &&Pair| pair.iter().all(|node| self.good.contains(node));
        let mut missing = REFERENCE_PAIRS.saturating_sub(round.iter().filter(is_good).count());
        let mut left: Vec<usize> = self.good.iter().copied().filter(|&node| is_free(round, node)).collect();
        while missing > 0
            && let Some((&node, rest)) = left.split_first()
        {
            let Some(other) = rest.iter().position(|&other| self.can_pair(node, other)) else {
                left.remove(0);
                continue;
            };
            round.push(ordered(node, rest[other]));
            left.remove(other + 1);
            left.remove(0);
            missing -= 1;
        }
    }
}
