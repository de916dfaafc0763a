//! The search: rounds out, results in, a conclusion at the end.

use std::collections::{BTreeMap, BTreeSet};

use super::confirmation::{Judged, judge_suspects};
use super::measured::{MeasuredPair, Statistic, find_relative_values, find_repeat_error};
use super::plan::Plan;
use super::schedule::make_survey;
use super::score::Scores;
use super::{Conclusion, Doubt, Pair, PairResult, Purpose, Round, Verdict};

/// Limits of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Rounds of the survey; with fewer nodes, all there are.
    pub rounds: usize,
    /// Share below the median from which on a part can be slow.
    pub least_shortfall: f64,
    /// Modified z-score from which on a part can be slow.
    pub least_score: f64,
    /// Share that a node may be slower without being an outlier before nothing is concluded.
    pub most_detectable: f64,
    /// The bandwidth of a pair from its repeats.
    pub statistic: Statistic,
    /// Host of each node, when nodes are ranks of several hosts: pairs inside a host are not measured. Empty:
    /// all are.
    pub hosts: Vec<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 7,
            least_shortfall: 0.02,
            least_score: 3.5,
            most_detectable: 0.1,
            statistic: Statistic::default(),
            hosts: Vec::new(),
        }
    }
}

/// A request or result that a search cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairsError {
    /// Fewer than two nodes.
    #[error("pairs need at least 2 nodes, and there are {0}")]
    TooFewNodes(usize),
    /// No rounds.
    #[error("a survey needs at least 1 round")]
    NoRounds,
    /// The list of hosts has another length than there are nodes.
    #[error("{hosts} hosts are given for {nodes} nodes")]
    WrongHosts {
        /// Length of the list.
        hosts: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A result of a pair that the current round does not have, or has had.
    #[error("the pair of {} and {} is not measured in this round", .0[0], .0[1])]
    UnexpectedPair(Pair),
}

/// A search for the slow part of a cluster.
#[derive(Debug)]
pub struct Search {
    nodes: usize,
    options: Options,
    survey: Vec<Vec<Pair>>,
    /// Present after the survey.
    found: Option<(Scores, Plan)>,
    /// Rounds with results.
    done: usize,
    measured: Vec<MeasuredPair>,
    unmeasured: BTreeSet<Pair>,
}

impl Search {
    /// A search among `nodes` nodes, numbered from 0 on.
    ///
    /// # Errors
    /// When there are too few nodes, or the options do not fit them.
    pub fn new(nodes: usize, options: Options) -> Result<Self, PairsError> {
        let hosts = options.hosts.len();
        if nodes < 2 {
            return Err(PairsError::TooFewNodes(nodes));
        } else if options.rounds == 0 {
            return Err(PairsError::NoRounds);
        } else if hosts != 0 && hosts != nodes {
            return Err(PairsError::WrongHosts { hosts, nodes });
        }
        Ok(Self {
            nodes,
            survey: make_survey(nodes, options.rounds, &options.hosts),
            options,
            found: None,
            done: 0,
            measured: Vec::new(),
            unmeasured: BTreeSet::new(),
        })
    }

    /// Number of rounds of the survey.
    pub fn survey_rounds(&self) -> usize {
        self.survey.len()
    }

    /// The next round to measure; `None` when the search has ended. The same until its results are recorded.
    pub fn next_round(&self) -> Option<Round> {
        let (purpose, pairs) = match (&self.found, self.done.checked_sub(self.survey.len())) {
            (Some((_, plan)), Some(done)) => (Purpose::Confirmation, plan.rounds.get(done)?),
            _ => (Purpose::Survey, self.survey.get(self.done)?),
        };
        Some(Round { purpose, pairs: pairs.clone() })
    }

    /// Takes the results of the round that [`Search::next_round`] returns. Pairs without a result count as
    /// not measured.
    ///
    /// # Errors
    /// When a pair is not one of the round, or is given twice. Nothing is recorded then.
    pub fn record_round(&mut self, results: &[PairResult]) -> Result<(), PairsError> {
        let Some(round) = self.next_round() else {
            return results.first().map_or(Ok(()), |first| Err(PairsError::UnexpectedPair(first.pair)));
        };
        let mut missing: BTreeSet<Pair> = round.pairs.iter().copied().collect();
        if let Some(foreign) = results.iter().find(|result| !missing.remove(&result.pair)) {
            return Err(PairsError::UnexpectedPair(foreign.pair));
        }
        let is_reference = |pair| match &self.found {
            Some((_, plan)) if round.purpose == Purpose::Confirmation => plan.is_reference(pair),
            _ => true,
        };
        for result in results {
            let is_reference = is_reference(result.pair);
            let statistic = self.options.statistic;
            match MeasuredPair::new(result, statistic, self.done, round.purpose, is_reference) {
                Some(measured) => self.measured.push(measured),
                None => {
                    missing.insert(result.pair);
                }
            }
        }
        self.unmeasured.extend(missing);
        self.done += 1;
        if self.done == self.survey.len() {
            self.judge_survey();
        }
        Ok(())
    }

    fn judge_survey(&mut self) {
        let relative = find_relative_values(&self.measured);
        let scores = Scores::new(self.nodes, &relative, find_repeat_error(&self.measured));
        let plan = Plan::new(&scores, &self.options.hosts, &self.options);
        self.found = Some((scores, plan));
    }

    /// Returns the conclusion, also of a search that has not ended.
    pub fn conclude(&self) -> Conclusion {
        let is_complete = self.next_round().is_none();
        let mut judged = Judged::default();
        if let Some((scores, plan)) = self.found.as_ref().filter(|_| is_complete)
            && !plan.is_too_large(self.nodes)
        {
            let relative = find_relative_values(&self.measured);
            judged = judge_suspects(scores, plan, &relative, &self.options);
        }
        let Judged { slow, seen_once } = judged;
        let doubts = self.list_doubts(is_complete, slow.is_empty() && seen_once.is_empty());
        let verdict = match () {
            () if !slow.is_empty() => Verdict::Slow,
            () if !doubts.is_empty() => Verdict::CannotTell,
            () if !seen_once.is_empty() => Verdict::SeenOnce,
            () => Verdict::Alike,
        };
        let different: BTreeSet<Pair> = self.measured.iter().map(|each| each.pair).collect();
        let scores = self.found.as_ref().map(|(scores, _)| scores);
        Conclusion {
            verdict,
            slow,
            seen_once,
            doubts,
            nodes: scores.map(Scores::list_nodes).unwrap_or_default(),
            pairs_measured: different.len(),
            pairs_possible: self.count_possible_pairs(),
            rounds: self.done,
            noise: scores.map(|scores| scores.pair_noise),
            detectable: scores.map(|scores| scores.detectable_share(&self.options)),
        }
    }

    fn count_possible_pairs(&self) -> usize {
        let mut of_host: BTreeMap<usize, usize> = BTreeMap::new();
        for &host in &self.options.hosts {
            *of_host.entry(host).or_default() += 1;
        }
        let pairs = |nodes: usize| nodes * nodes.saturating_sub(1) / 2;
        pairs(self.nodes) - of_host.values().map(|&nodes| pairs(nodes)).sum::<usize>()
    }

    /// `has_no_suspects`: no part is slow or was slow once.
    fn list_doubts(&self, is_complete: bool, has_no_suspects: bool) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        if !is_complete {
            let surveyed = self.done.min(self.survey.len());
            doubts.push(Doubt::Unfinished { surveyed, planned: self.survey.len() });
        } else if self.nodes == 2 {
            doubts.push(Doubt::OnePair);
        }
        if !self.unmeasured.is_empty() {
            doubts.push(Doubt::Unmeasured { pairs: self.unmeasured.iter().copied().collect() });
        }
        let is_survey_done = self.done >= self.survey.len();
        let paired: BTreeSet<usize> = self.survey.iter().flatten().flatten().copied().collect();
        if is_survey_done && paired.len() < self.nodes {
            let nodes = (0..self.nodes).filter(|node| !paired.contains(node)).collect();
            doubts.push(Doubt::WithoutPair { nodes });
        }
        if let Some((scores, plan)) = &self.found {
            if plan.is_too_large(self.nodes) {
                let (nodes, edges) = (plan.nodes.len(), plan.edges.len());
                doubts.push(Doubt::TooManySuspects { nodes, edges });
            }
            let detectable = scores.detectable_share(&self.options);
            if detectable > self.options.most_detectable {
                doubts.push(Doubt::TooNoisy { detectable });
            }
            let fast = scores.list_fast_pairs(&self.options);
            if has_no_suspects && !fast.is_empty() {
                doubts.push(Doubt::FastPairs { pairs: fast });
            }
        }
        doubts
    }
}
