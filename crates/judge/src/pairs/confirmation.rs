//! The judgement of suspects after the rounds of confirmation.

use std::collections::BTreeMap;

use record::statistics::find_median;

use super::measured::{ERROR_OF_MEDIAN, RelativePair};
use super::plan::Plan;
use super::score::Scores;
use super::{Confirmation, Options, Pair, Part, Purpose, Suspect};

/// Number of standard deviations of a pair within which it counts as normal.
const NORMAL: f64 = 3.0;
/// Number of standard errors of a median that a slow edge is below the expected value.
const EDGE_ERRORS: f64 = 3.5;
/// Minimum number of measurements of a suspected part.
const LEAST_MEASUREMENTS: usize = 2;
/// Number of nodes with which one slow node and two slow edges look the same.
const AMBIGUOUS_NODES: usize = 3;

/// The judged suspects.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The slow parts.
    pub(super) slow: Vec<Suspect>,
    /// The parts that were slow in the survey only.
    pub(super) seen_once: Vec<Suspect>,
}

impl Judged {
    /// Keeps a suspect that was not slow again, unless it was an outlier by chance.
    fn add_unconfirmed(&mut self, suspect: Suspect, scores: &Scores) {
        if !suspect.score.is_some_and(|score| scores.is_chance(score)) {
            self.seen_once.push(suspect);
        }
    }
}

/// Judges the suspects of a plan whose rounds have been measured.
pub(super) fn judge_suspects(
    scores: &Scores,
    plan: &Plan,
    relative: &[RelativePair],
    options: &Options,
) -> Judged {
    let mut judge = Judge { scores, plan, options, confirmed: BTreeMap::new() };
    for each in relative.iter().filter(|each| each.purpose == Purpose::Confirmation) {
        judge.confirmed.entry(each.pair).or_default().push(each.value);
    }
    let mut judged = Judged::default();
    for &node in &plan.nodes {
        let (suspect, is_slow) = judge.judge_node(node);
        if is_slow {
            judged.slow.push(suspect);
            continue;
        }
        let edges = if scores.is_mixed(node) { judge.find_slow_edges_of(node) } else { Vec::new() };
        if edges.is_empty() {
            judged.add_unconfirmed(suspect, scores);
        }
        judged.slow.extend(edges);
    }
    for &edge in &plan.edges {
        let (suspect, is_slow) = judge.judge_edge(edge, &judged.slow);
        if judged.slow.iter().any(|other| other.part == suspect.part) {
            continue;
        }
        if is_slow { judged.slow.push(suspect) } else { judged.add_unconfirmed(suspect, scores) }
    }
    judged.slow.sort_by(|one, other| other.shortfall.total_cmp(&one.shortfall));
    judged.slow.dedup_by_key(|suspect| suspect.part);
    judged
}

struct Judge<'a> {
    scores: &'a Scores,
    plan: &'a Plan,
    options: &'a Options,
    /// Values of each pair in the confirmation.
    confirmed: BTreeMap<Pair, Vec<f64>>,
}

impl Judge<'_> {
    /// Judges a node. It is slow when most of its pairs with good partners are slow again, none of them is
    /// normal, and survey and confirmation together are below the limit.
    fn judge_node(&self, node: usize) -> (Suspect, bool) {
        let surveyed = self.scores.node_shortfall(node).unwrap_or(0.0);
        let shortfall = |value: f64| 1.0 - value / self.scores.center;
        let again: Vec<f64> = self
            .pairs_of(node)
            .filter(|&(pair, _)| self.is_normal(partner_of(pair, node), self.scores.center))
            .flat_map(|(_, values)| values.iter().map(|&value| shortfall(value)))
            .collect();
        let survey: Vec<f64> = self.scores.pairs[node].iter().map(|&(_, value)| shortfall(value)).collect();
        let both: Vec<f64> = survey.iter().chain(&again).copied().collect();
        let combined = find_median(&both).unwrap_or(0.0);
        let needed = self.needed_shortfall(surveyed, again.len());
        let confirmation = Confirmation::new(&again, needed);
        let is_slow = confirmation.as_ref().is_some_and(|found| {
            found.shortfall >= needed
                && found.slow_pairs * 3 >= found.pairs * 2
                && combined >= self.options.least_shortfall
                && !self.scores.is_contradicted(again.iter().copied(), needed)
        });
        let suspect = Suspect {
            part: Part::Node(node),
            shortfall: if is_slow { combined } else { surveyed },
            score: self.scores.node_score(node),
            slow_pairs: count_slow(&survey, surveyed / 2.0),
            pairs: survey.len(),
            confirmation,
            is_ambiguous: self.scores.pairs.len() <= AMBIGUOUS_NODES,
        };
        (suspect, is_slow)
    }

    /// Judges a suspected edge. All its measurements must be slow, by more than the errors of their median
    /// and of the expected value explain, and both of its nodes as fast as in the survey in other pairs. A
    /// node that is below the others, and not named itself, may be the cause.
    fn judge_edge(&self, edge: Pair, named: &[Suspect]) -> (Suspect, bool) {
        let surveyed = self.scores.edge_shortfall(edge).unwrap_or(0.0);
        let expected = self.scores.expected_value(edge).unwrap_or(f64::NAN);
        let again: Vec<f64> =
            self.confirmed.get(&edge).into_iter().flatten().map(|value| 1.0 - value / expected).collect();
        let confirmation = Confirmation::new(&again, surveyed / 2.0);
        let is_slow = confirmation.as_ref().is_some_and(|found| {
            let of_nodes = edge.iter().map(|&node| self.scores.pairs[node].len()).min().unwrap_or(1);
            let variance = 1.0 / found.pairs as f64 + 1.0 / of_nodes.max(1) as f64;
            let error = ERROR_OF_MEDIAN * self.scores.pair_noise * variance.sqrt();
            let least = self.options.least_shortfall.max(EDGE_ERRORS * error);
            found.shortfall >= (surveyed / 2.0).max(least) && found.slow_pairs == found.pairs
        }) && edge.iter().all(|&node| {
            let is_below =
                self.scores.node_shortfall(node).is_none_or(|share| share >= self.options.least_shortfall);
            let is_named = named.iter().any(|suspect| suspect.part == Part::Node(node));
            // The pairs of a named node can scatter more than those of the others.
            let least = if is_named { EDGE_ERRORS * self.scores.node_scatter(node) } else { 0.0 };
            let is_clear = confirmation.as_ref().is_some_and(|found| found.shortfall >= least);
            (!is_below || is_named) && is_clear && self.is_normal_beside(node, edge, expected)
        });
        (self.describe_edge(edge, surveyed, self.scores.edge_score(edge), confirmation), is_slow)
    }

    /// Shortfall that `count` measurements must have to confirm a node: half of what the survey found, or
    /// less if that is certain.
    fn needed_shortfall(&self, surveyed: f64, count: usize) -> f64 {
        let error = ERROR_OF_MEDIAN * self.scores.pair_noise / (count.max(1) as f64).sqrt();
        (surveyed / 2.0).min(self.options.least_shortfall.max(NORMAL * error))
    }

    /// Finds the edges of a node that were slow in the survey and again, although the node is not slow.
    fn find_slow_edges_of(&self, node: usize) -> Vec<Suspect> {
        let limit = self.options.least_shortfall.max(NORMAL * self.scores.pair_noise);
        let slow_again = |&(pair, value): &(Pair, f64)| {
            let partner = partner_of(pair, node);
            let expected = self.scores.node_value(partner).filter(|_| !self.plan.nodes.contains(&partner))?;
            let surveyed = 1.0 - value / expected;
            let again: Vec<f64> =
                self.confirmed.get(&pair)?.iter().map(|value| 1.0 - value / expected).collect();
            let is_slow = surveyed >= limit
                && again.len() >= LEAST_MEASUREMENTS
                && again.iter().all(|&share| share >= limit)
                && self.is_normal_beside(partner, pair, expected)
                && self.is_normal_beside(node, pair, expected);
            let confirmation = Confirmation::new(&again, surveyed / 2.0);
            is_slow.then(|| self.describe_edge(pair, surveyed, None, confirmation))
        };
        self.scores.pairs[node].iter().filter_map(slow_again).collect()
    }

    fn describe_edge(
        &self,
        edge: Pair,
        surveyed: f64,
        score: Option<f64>,
        confirmation: Option<Confirmation>,
    ) -> Suspect {
        let again = confirmation.as_ref().map_or(surveyed, |found| found.shortfall);
        let shortfall = (surveyed + again) / 2.0;
        Suspect {
            part: Part::Edge(edge),
            shortfall,
            score,
            slow_pairs: 1,
            pairs: 1,
            confirmation,
            is_ambiguous: false,
        }
    }

    /// Pairs of a node in the confirmation, without suspected edges.
    fn pairs_of(&self, node: usize) -> impl Iterator<Item = (Pair, &Vec<f64>)> {
        self.confirmed
            .iter()
            .map(|(&pair, values)| (pair, values))
            .filter(move |(pair, _)| pair.contains(&node) && !self.plan.edges.contains(pair))
    }

    /// Returns true when a partner of a suspected node was normal in a pair without a suspect.
    fn is_normal(&self, partner: usize, expected: f64) -> bool {
        let values = self.pairs_of(partner).filter(|&(pair, _)| self.plan.is_reference(pair));
        self.has_normal(values.flat_map(|(_, values)| values), expected)
    }

    /// Returns true when a node of a suspected edge was normal in another pair.
    fn is_normal_beside(&self, node: usize, edge: Pair, expected: f64) -> bool {
        let is_other = |pair: Pair| pair != edge && !self.plan.nodes.contains(&partner_of(pair, node));
        let values = self.pairs_of(node).filter(|&(pair, _)| is_other(pair));
        self.has_normal(values.flat_map(|(_, values)| values), expected)
    }

    /// Returns true when one of the values is normal: the best one shows what a node can do, and other work
    /// can slow the rest.
    fn has_normal<'v>(&self, mut values: impl Iterator<Item = &'v f64>, expected: f64) -> bool {
        let limit = self.options.least_shortfall.max(NORMAL * self.scores.pair_noise);
        values.any(|value| 1.0 - value / expected < limit)
    }
}

impl Confirmation {
    /// Returns `None` for too few measurements. A measurement is slow from the shortfall `least` on.
    fn new(shortfalls: &[f64], least: f64) -> Option<Self> {
        let shortfall = find_median(shortfalls).filter(|_| shortfalls.len() >= LEAST_MEASUREMENTS)?;
        Some(Self { shortfall, slow_pairs: count_slow(shortfalls, least), pairs: shortfalls.len() })
    }
}

/// Number of shortfalls of at least `least`.
fn count_slow(shortfalls: &[f64], least: f64) -> usize {
    shortfalls.iter().filter(|&&each| each >= least).count()
}

fn partner_of([one, other]: Pair, node: usize) -> usize {
    if one == node { other } else { one }
}
