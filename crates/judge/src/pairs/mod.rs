//! The slow part of a cluster, found by measuring pairs of its nodes.
//!
//! A node is a host, or a rank. A [`Search`] hands out rounds of pairs that are measured at the same time,
//! and takes their bandwidths. It first surveys: each node in several pairs, by the circle method. A node's
//! value is the median of its pairs; an edge, the connection of two nodes, is compared with the lower value
//! of its nodes. Suspects are outliers by the modified z-score (Iglewicz and Hoaglin, 1993) that are also
//! well below the median. Rounds of confirmation then measure each suspect with good partners, and these
//! partners with other good nodes at the same time. Only what is slow again is named.
//!
//! The model: the bandwidth of a pair is the lower one of its nodes, times a factor of the edge. More than a
//! third of the nodes being slow, or slow as a group, gives no conclusion.
//!
//! ```
//! use judge::pairs::{Options, PairResult, Part, Search};
//!
//! let mut search = Search::new(8, Options::default())?;
//! while let Some(round) = search.next_round() {
//!     let measure = |&pair: &[usize; 2]| {
//!         let bandwidth = if pair.contains(&5) { 24.0 } else { 25.0 };
//!         PairResult { pair, bandwidths: vec![bandwidth; 3] }
//!     };
//!     search.record_round(&round.pairs.iter().map(measure).collect::<Vec<_>>())?;
//! }
//! let conclusion = search.conclude();
//! assert_eq!(conclusion.slow.len(), 1);
//! assert_eq!(conclusion.slow[0].part, Part::Node(5));
//! # Ok::<(), judge::pairs::PairsError>(())
//! ```

mod conclusion;
mod confirmation;
mod measured;
mod plan;
mod schedule;
mod score;
mod search;

use serde::{Deserialize, Serialize};

pub use conclusion::{Conclusion, Confirmation, Doubt, NodeScore, Part, Suspect, Verdict};
pub use measured::Statistic;
pub use search::{Options, PairsError, Search};

/// Two nodes, the lower one first.
pub type Pair = [usize; 2];

/// Pairs that are measured at the same time. A node is in one of them at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Reason of the round.
    pub purpose: Purpose,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// Reason of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Compares all nodes.
    Survey,
    /// Measures suspects again, with good partners.
    Confirmation,
}

/// Bandwidths of a pair in a round, one of each repeat, in any unit. Those that are not finite and above 0
/// are ignored; a pair without a usable one counts as not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct PairResult {
    /// The pair, as it was handed out.
    pub pair: Pair,
    /// The bandwidths.
    pub bandwidths: Vec<f64>,
}
