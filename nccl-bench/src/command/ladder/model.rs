//! The data of a ladder: its facts, its rungs, and the steps that rank 0 sends.

use judge::Grade;
use record::{RunOutcome, StartPhase};
use serde::{Deserialize, Serialize};

use crate::command::pairs::Unit;

/// The next step, which rank 0 sends to all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// Measures over these ranks.
    Measure(Vec<usize>),
    /// Ends with this refusal.
    Refuse(String),
    /// Ends with this exit code.
    End(u8),
}

/// The end of a rung.
#[derive(Clone, Debug)]
pub(super) enum RungEnd {
    /// All was measured.
    Measured,
    /// It failed with this message.
    Failed(String),
}

/// Facts about the ladder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) program: String,
    pub(super) command: Vec<String>,
    pub(super) started_at: String,
    pub(super) collective: String,
    pub(super) backend: String,
    /// libfabric provider, as it was asked for.
    pub(super) provider: String,
    /// Timed operations of each size.
    pub(super) iterations: usize,
    /// The small size, for the latency.
    pub(super) small_bytes: u64,
    /// The large size.
    pub(super) bytes: u64,
    /// Unit of the rungs.
    pub(super) unit: Unit,
    /// Ranks of each unit.
    pub(super) unit_ranks: usize,
    /// Names of all hosts, or numbers of all ranks, in order.
    pub(super) units: Vec<String>,
}

/// The file of a ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LadderFile {
    pub(super) mark: String,
    #[serde(flatten)]
    pub(super) facts: Facts,
    pub(super) rungs: Vec<Rung>,
    pub(super) outcome: RunOutcome,
}

/// A rung.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rung {
    /// Number of hosts or ranks that it counts.
    pub(super) units: usize,
    /// Number of ranks.
    pub(super) ranks: usize,
    /// Reason of a rung that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
    /// Times of the start.
    #[serde(default)]
    pub(super) start_phases: Vec<StartPhase>,
    /// The rank that all others waited for, and its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) late_rank: Option<LateRank>,
    /// Time of the small size, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) latency_us: Option<f64>,
    /// Bus bandwidth of the large size, in GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) busbw_gbps: Option<f64>,
    /// Wrong elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wrong: Option<u64>,
    /// The grade.
    #[serde(default)]
    pub(super) grade: Grade,
    /// Typical bus bandwidth of equal machines, in GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) typical_gbps: Option<f64>,
    /// The highest bus bandwidth that the links permit, in GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_gbps: Option<f64>,
}

/// A rank that took clearly longer than the median to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LateRank {
    /// Its number among the ranks of the rung.
    pub(super) rank: usize,
    /// Its host.
    pub(super) host: String,
}

impl Rung {
    /// Returns true for a rung that ends a ladder.
    pub(super) fn is_failed(&self) -> bool {
        self.failure.is_some() || self.is_wrong() || self.grade == Grade::Fail
    }

    /// Returns true for wrong data.
    pub(super) fn is_wrong(&self) -> bool {
        self.wrong.is_some_and(|wrong| wrong > 0)
    }
}
