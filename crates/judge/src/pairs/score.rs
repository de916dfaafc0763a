//! Scores of the nodes and edges of a survey.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use record::statistics::find_median;

use super::measured::{ERROR_OF_MEDIAN, RelativePair, find_robust_deviation, find_upper_median};
use super::{NodeScore, Options, Pair, Purpose};

/// Smallest standard deviation, so that equal values have a score.
const LEAST_DEVIATION: f64 = 1e-4;
/// Score from which on a pair is far above the others.
const FAST_SCORE: f64 = 5.0;
/// Number of standard deviations of a pair beyond which a measurement contradicts.
const CONTRADICTION: f64 = 2.0;
/// Factor of the limit for edges of a suspected node.
const OF_SUSPECT: f64 = 2.5;
/// Two standard errors of a deviation from the median absolute deviation of one value, as a share.
const DEVIATION_ERROR: f64 = 1.65;
/// Number of outliers by chance from which on an outlier is not reported.
const LEAST_CHANCE: f64 = 0.02;
/// Most pairs of a node for which one slow edge would halve the median of an even number.
const FEW_PAIRS: usize = 4;

/// The scores of a survey.
#[derive(Debug)]
pub(super) struct Scores {
    /// Values of each node's pairs in the survey.
    pub(super) pairs: Vec<Vec<(Pair, f64)>>,
    /// Median of the nodes' values.
    pub(super) center: f64,
    /// Value of each node: the median of its pairs.
    values: Vec<Option<f64>>,
    /// Standard deviation of the nodes' values.
    node_deviation: f64,
    /// Standard deviation of a pair's value.
    pub(super) pair_noise: f64,
    /// Median of the edges' values, each relative to the lower value of its nodes.
    edge_center: f64,
    /// Value of each edge, relative to the lower value of its nodes.
    edges: BTreeMap<Pair, f64>,
}

impl Scores {
    /// `repeat_error` is the standard error of a pair's value that the scatter of the repeats explains.
    pub(super) fn new(nodes: usize, relative: &[RelativePair], repeat_error: f64) -> Self {
        let mut pairs = vec![Vec::new(); nodes];
        for each in relative.iter().filter(|each| each.purpose == Purpose::Survey) {
            for node in each.pair {
                pairs[node].push((each.pair, each.value));
            }
        }
        let values: Vec<Option<f64>> = pairs.iter().map(|pairs| find_node_value(pairs)).collect();
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let center = if known.len() <= FEW_PAIRS { find_upper_median(&known) } else { find_median(&known) };
        let center = center.unwrap_or(1.0);
        let surveyed = relative.iter().filter(|each| each.purpose == Purpose::Survey);
        let edges: BTreeMap<Pair, f64> = surveyed
            .filter_map(|each| Some((each.pair, each.value / find_lower_value(&pairs, each.pair)?)))
            .collect();
        let residuals: Vec<f64> = edges.values().copied().collect();
        let edge_center = find_median(&residuals).unwrap_or(1.0);
        let pair_noise =
            find_robust_deviation(&residuals, edge_center).max(repeat_error).max(LEAST_DEVIATION);
        let per_node = find_median(&pairs.iter().map(|pairs| pairs.len() as f64).collect::<Vec<_>>());
        let explained = ERROR_OF_MEDIAN * pair_noise / per_node.unwrap_or(1.0).max(1.0).sqrt();
        let node_deviation = find_robust_deviation(&known, center).max(explained);
        Self { pairs, center, values, node_deviation, pair_noise, edge_center, edges }
    }

    /// The value of a node.
    pub(super) fn node_value(&self, node: usize) -> Option<f64> {
        self.values[node]
    }

    /// Share by which a node's value is below the median of all nodes.
    pub(super) fn node_shortfall(&self, node: usize) -> Option<f64> {
        Some(1.0 - self.values[node]? / self.center)
    }

    /// Standard deviation of the values of a node's pairs.
    pub(super) fn node_scatter(&self, node: usize) -> f64 {
        let values: Vec<f64> = self.pairs[node].iter().map(|&(_, value)| value).collect();
        self.values[node].map_or(0.0, |center| find_robust_deviation(&values, center))
    }

    /// Modified z-score of a node.
    pub(super) fn node_score(&self, node: usize) -> Option<f64> {
        Some((self.values[node]? - self.center) / self.node_deviation)
    }

    /// Expected value of the pair of two nodes, without a slow edge.
    pub(super) fn expected_value(&self, pair: Pair) -> Option<f64> {
        Some(find_lower_value(&self.pairs, pair)? * self.edge_center)
    }

    /// Share by which a surveyed edge is below the expected value.
    pub(super) fn edge_shortfall(&self, pair: Pair) -> Option<f64> {
        Some(1.0 - self.edges.get(&pair)? / self.edge_center)
    }

    /// Modified z-score of a surveyed edge.
    pub(super) fn edge_score(&self, pair: Pair) -> Option<f64> {
        Some((self.edges.get(&pair)? - self.edge_center) / self.pair_noise)
    }

    /// Nodes that are outliers, the slowest first.
    pub(super) fn list_slow_nodes(&self, options: &Options) -> Vec<usize> {
        let is_slow = |&node: &usize| {
            self.node_score(node).is_some_and(|score| score <= -options.least_score)
                && self.node_shortfall(node).is_some_and(|share| share >= options.least_shortfall)
        };
        let mut slow: Vec<usize> = (0..self.values.len()).filter(is_slow).collect();
        slow.sort_by(|&one, &other| {
            let value = |node: usize| self.values[node].unwrap_or(f64::INFINITY);
            value(one).total_cmp(&value(other))
        });
        slow
    }

    /// Edges that are outliers, the slowest first. Those of the suspected nodes `nodes` must be slower than
    /// the node by more, since its value is less certain.
    pub(super) fn list_slow_edges(&self, options: &Options, nodes: &[usize]) -> Vec<Pair> {
        let is_slow = |pair: &Pair| {
            let of_suspect = pair.iter().any(|node| nodes.contains(node));
            let least = options.least_shortfall * if of_suspect { OF_SUSPECT } else { 1.0 };
            self.edge_score(*pair).is_some_and(|score| score <= -options.least_score)
                && self.edge_shortfall(*pair).is_some_and(|share| share >= least)
        };
        let mut slow: Vec<Pair> = self.edges.keys().copied().filter(is_slow).collect();
        slow.sort_by(|one, other| self.edges[one].total_cmp(&self.edges[other]));
        slow
    }

    /// Pairs far above the others, if they are more than a hundredth of all.
    pub(super) fn list_fast_pairs(&self, options: &Options) -> Vec<Pair> {
        let is_fast = |pair: &Pair| {
            self.edge_score(*pair).is_some_and(|score| score >= FAST_SCORE)
                && self.edge_shortfall(*pair).is_some_and(|share| share <= -options.least_shortfall)
        };
        let fast: Vec<Pair> = self.edges.keys().copied().filter(is_fast).collect();
        if fast.len() * 100 > self.edges.len() { fast } else { Vec::new() }
    }

    /// Returns true when noise alone is likely to give an outlier with this score among all nodes and edges.
    pub(super) fn is_chance(&self, score: f64) -> bool {
        let outcomes = (self.values.len() + self.edges.len()) as f64;
        // The deviation of few edges can be underestimated.
        let score = score / (1.0 + DEVIATION_ERROR / (self.edges.len() as f64).sqrt());
        // Bound of the normal distribution's tail.
        let tail = (-score * score / 2.0).exp() / (score.abs() * TAU.sqrt());
        tail * outcomes > LEAST_CHANCE
    }

    /// Returns true when the survey does not tell a slow node from slow edges: it has few pairs of the node,
    /// or one that is not slow.
    pub(super) fn is_mixed(&self, node: usize) -> bool {
        let Some(shortfall) = self.node_shortfall(node) else { return true };
        let shortfalls = self.pairs[node].iter().map(|&(_, value)| 1.0 - value / self.center);
        self.pairs[node].len() < FEW_PAIRS || self.is_contradicted(shortfalls, shortfall / 2.0)
    }

    /// Returns true when one of the shortfalls is below `least` by more than noise.
    pub(super) fn is_contradicted(&self, shortfalls: impl IntoIterator<Item = f64>, least: f64) -> bool {
        let least = least - CONTRADICTION * self.pair_noise;
        shortfalls.into_iter().any(|share| share < least)
    }

    /// Smallest share by which a node must be slower to be an outlier.
    pub(super) fn detectable_share(&self, options: &Options) -> f64 {
        options.least_shortfall.max(options.least_score * self.node_deviation / self.center)
    }

    /// The scores for a conclusion.
    pub(super) fn list_nodes(&self) -> Vec<NodeScore> {
        let score = |node: usize| NodeScore {
            node,
            pairs: self.pairs[node].len(),
            value: self.values[node].map(|value| value / self.center),
            score: self.node_score(node),
        };
        (0..self.values.len()).map(score).collect()
    }
}

/// Median of the pairs' values. Of few pairs it is the upper one: one slow edge does not make a node slow.
fn find_node_value(pairs: &[(Pair, f64)]) -> Option<f64> {
    let values: Vec<f64> = pairs.iter().map(|&(_, value)| value).collect();
    if values.len() <= FEW_PAIRS { find_upper_median(&values) } else { find_median(&values) }
}

/// The lower value of two nodes. It is the value of their other pairs, if these are enough: a median that the
/// pair itself is part of is too near to it.
fn find_lower_value(pairs: &[Vec<(Pair, f64)>], pair: Pair) -> Option<f64> {
    let value = |node: usize| {
        let others: Vec<(Pair, f64)> =
            pairs[node].iter().copied().filter(|&(other, _)| other != pair).collect();
        find_node_value(if others.len() < FEW_PAIRS { &pairs[node] } else { &others })
    };
    let [one, other] = pair.map(value);
    Some(one?.min(other?))
}
