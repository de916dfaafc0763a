//! The whole result of a comparison, which all reports show.

use std::collections::BTreeSet;
use std::fmt;

use judge::versus::{LeftOut, Outcome, Side, SideComparison};
use record::matching::RunRows;
use serde::Serialize;

use super::side::ComparedSide;
use crate::command::starts::StartFailure;

/// Value of the first field of the JSON, by which the file is known.
pub(super) const REPORT: &str = "nccl-bench versus";

/// Version of the JSON.
const VERSION: u32 = 1;

/// A comparison of two sides.
#[derive(Debug, Serialize)]
pub(super) struct VersusReport {
    report: &'static str,
    version: u32,
    /// Program and version that compared.
    program: String,
    /// Requested starts of each side.
    pub(super) planned_starts: usize,
    /// End of the starts.
    pub(super) outcome: VersusEnd,
    /// True if the sides were started with different numbers of ranks.
    pub(super) ranks_differ: bool,
    /// The sides.
    pub(super) a: ReportedSide,
    /// Likewise.
    pub(super) b: ReportedSide,
    /// The comparison of the starts.
    pub(super) comparison: SideComparison,
}

/// End of the starts of a comparison.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum VersusEnd {
    /// All starts have results.
    Complete,
    /// A signal ended it.
    Interrupted {
        /// The signal's name.
        signal: String,
        /// Exit code.
        #[serde(skip)]
        code: u8,
    },
    /// A start has no usable results. No further one was begun.
    Failed {
        /// Number of the start, from 1 on.
        start: usize,
        /// Number of all starts.
        of: usize,
        /// Its side.
        side: Side,
        /// Reason.
        failure: StartFailure,
    },
}

/// One side in a report.
#[derive(Debug, Serialize)]
pub(super) struct ReportedSide {
    /// Words of the launcher.
    launcher: Vec<String>,
    /// Variables of the side.
    pub(super) variables: Vec<String>,
    /// The command line of a start, without the option for its results.
    pub(super) command_line: String,
    /// Starts with results.
    pub(super) starts: usize,
    /// Backends with the version and path of their library; several if starts differ.
    pub(super) libraries: BTreeSet<String>,
    /// Devices of the ranks: `8 x NVIDIA H200`.
    pub(super) devices: BTreeSet<String>,
    /// Numbers of ranks of each start; several if starts differ.
    ranks: BTreeSet<Vec<usize>>,
    /// Measurements whose data could be verified, and was not.
    pub(super) unverified: usize,
}

impl ReportedSide {
    fn new(side: &ComparedSide) -> Self {
        let library = |rows: &RunRows| {
            let used = &rows.run.provenance;
            let path = Some(&used.library_path).filter(|path| !path.is_empty());
            let path = path.map(|path| format!(" ({path})")).unwrap_or_default();
            format!("{} {}{path}", used.backend, used.library_version)
        };
        Self {
            launcher: side.command.launcher.clone(),
            variables: side.command.variables.clone(),
            command_line: side.command.command_line(),
            starts: side.runs.len(),
            libraries: side.runs.iter().map(library).collect(),
            devices: side.runs.iter().map(|rows| rows.run.devices_text()).collect(),
            ranks: side.runs.iter().flat_map(RunRows::count_ranks).collect(),
            unverified: side.runs.iter().map(|rows| rows.rows.unverified).sum(),
        }
    }
}

impl VersusReport {
    pub(super) fn new(
        planned_starts: usize,
        sides: &[ComparedSide; 2],
        comparison: SideComparison,
        outcome: VersusEnd,
    ) -> Self {
        let [a, b] = sides.each_ref().map(ReportedSide::new);
        Self {
            report: REPORT,
            version: VERSION,
            program: format!("nccl-bench {}", crate::build::VERSION),
            planned_starts,
            outcome,
            ranks_differ: a.ranks.union(&b.ranks).count() > 1,
            a,
            b,
            comparison,
        }
    }

    /// True if all starts have results, and both sides the same rows and ranks.
    pub(super) fn is_whole(&self) -> bool {
        let is_complete = matches!(self.outcome, VersusEnd::Complete);
        let lacks = self.comparison.left_out.iter().any(|row| row.reason != LeftOut::NeverTimed);
        is_complete && !self.ranks_differ && !lacks && self.comparison.overall.is_some()
    }

    /// The results of all rows and of the overall mean.
    pub(super) fn all_outcomes(&self) -> impl Iterator<Item = Outcome> {
        let rows = self.comparison.rows.iter().map(|row| row.difference.outcome);
        rows.chain(self.comparison.overall.iter().map(|overall| overall.outcome))
    }

    /// Both sides, with their letters.
    pub(super) fn both_sides(&self) -> [(Side, &ReportedSide); 2] {
        [(Side::A, &self.a), (Side::B, &self.b)]
    }
}

impl fmt::Display for VersusEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => formatter.write_str("all starts are complete"),
            Self::Interrupted { signal, .. } => write!(formatter, "ended by {signal}"),
            Self::Failed { start, of, side, failure } => {
                write!(formatter, "start {start} of {of}, side {}: {failure}", side.letter())
            }
        }
    }
}
