//! The conclusion of a search.

use serde::{Deserialize, Serialize};

use super::Pair;

/// Conclusion of a search, complete or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// The conclusion in a word.
    pub verdict: Verdict,
    /// The slow parts, each confirmed, the slowest first.
    pub slow: Vec<Suspect>,
    /// Parts that were slow in the survey and not in the confirmation, or could not be confirmed.
    pub seen_once: Vec<Suspect>,
    /// Reasons against a conclusion about all nodes.
    pub doubts: Vec<Doubt>,
    /// The nodes in order.
    pub nodes: Vec<NodeScore>,
    /// Number of different pairs with a result.
    pub pairs_measured: usize,
    /// Number of all pairs of the nodes.
    pub pairs_possible: usize,
    /// Rounds with results.
    pub rounds: usize,
    /// Standard deviation of a pair's bandwidth, as a share; absent before the end of the survey.
    pub noise: Option<f64>,
    /// Smallest share by which a node must be slower to be suspected; absent before the end of the survey.
    pub detectable: Option<f64>,
}

/// The conclusion in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No part differs from the others by more than [`Conclusion::detectable`].
    Alike,
    /// Slow parts are named.
    Slow,
    /// A part was slow once, and not again.
    SeenOnce,
    /// There are doubts, and no slow part is named.
    CannotTell,
}

/// A part of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A node.
    Node(usize),
    /// The connection of two nodes.
    Edge(Pair),
}

/// A part that was slow in the survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// The part.
    pub part: Part,
    /// Share by which it is below the median of the others; of an edge, below the slower of its nodes.
    pub shortfall: f64,
    /// Modified z-score in the survey, negative; absent when the part was no outlier of the survey.
    pub score: Option<f64>,
    /// Pairs of the survey that were slow by at least half of the shortfall.
    pub slow_pairs: usize,
    /// Pairs of the survey.
    pub pairs: usize,
    /// Result of the confirmation; absent when none was possible.
    pub confirmation: Option<Confirmation>,
    /// True when the measurements of three nodes fit two slow edges as well.
    pub is_ambiguous: bool,
}

/// Result of the rounds of confirmation for a suspect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    /// Median share by which it was slow.
    pub shortfall: f64,
    /// Measurements that were slow by at least half of the survey's shortfall, or significantly.
    pub slow_pairs: usize,
    /// Measurements whose other node was good in other pairs.
    pub pairs: usize,
}

/// A reason against a conclusion about all nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Doubt {
    /// Two nodes have one pair, which cannot be compared.
    OnePair,
    /// The search has not ended.
    Unfinished {
        /// Rounds of the survey with results.
        surveyed: usize,
        /// Rounds of the survey.
        planned: usize,
    },
    /// Pairs of the schedule without a result.
    Unmeasured {
        /// The pairs.
        pairs: Vec<Pair>,
    },
    /// Nodes that the rounds have in no pair.
    WithoutPair {
        /// The nodes.
        nodes: Vec<usize>,
    },
    /// More nodes or edges are outliers than can be compared with the rest.
    TooManySuspects {
        /// Number of nodes.
        nodes: usize,
        /// Number of edges.
        edges: usize,
    },
    /// The measurements scatter so much that only a much slower node would be an outlier.
    TooNoisy {
        /// Smallest share by which a node must be slower to be suspected.
        detectable: f64,
    },
    /// Pairs far above the others: more than half of the nodes may be slow.
    FastPairs {
        /// The pairs.
        pairs: Vec<Pair>,
    },
}

/// Result of a node in the survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeScore {
    /// The node.
    pub node: usize,
    /// Number of its pairs.
    pub pairs: usize,
    /// Median bandwidth of its pairs, relative to the median of all nodes; absent without a pair.
    pub value: Option<f64>,
    /// Modified z-score; absent without a pair.
    pub score: Option<f64>,
}
