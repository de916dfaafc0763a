//! Matching of the measurements of several runs, each against the first, and their ratios.
//!
//! Measurements of the same collective, type, operator, root, placement and size are one row; of several
//! cycles the median counts. Files are read one measurement at a time, and only the compared value is kept
//! (`measured`), so that files of any length fit into memory. The runs of a text are one source (`joined`).

mod circumstances;
mod comparison;
mod joined;
mod key;
mod measured;
mod repeated;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;

use crate::files::ReadError;

pub use comparison::{
    ComparedFile, ComparedRow, Comparison, Criteria, Difference, FileVerdict, MeanRatio, file_letter,
};
pub use joined::read_joined_run;
pub use key::{Key, TableKey};
pub use measured::{Rows, RunRows, read_rows};
pub use repeated::{MAX_RUNS, Test, check_runs, merge_runs, refuse_repeated};

/// A share of a value: `5%` is 0.05.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Threshold(pub f64);

/// A text that is no share in percent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidShare {
    /// A number without a sign could be meant in percent or as a share of 1.
    #[error("'{text}' has no percent sign: write 5% for 5 of 100")]
    NoSign {
        /// The number.
        text: String,
    },
    /// No number, or one below 0.
    #[error("'{text}' is not a share in percent; write it as in 5% or 0.5%")]
    NoShare {
        /// The text.
        text: String,
    },
}

impl FromStr for Threshold {
    type Err = InvalidShare;

    fn from_str(text: &str) -> Result<Self, InvalidShare> {
        let trimmed = text.trim();
        let (number, has_sign) = match trimmed.strip_suffix('%') {
            Some(number) => (number.trim_end(), true),
            None => (trimmed, false),
        };
        let percent = number.parse::<f64>().ok().filter(|percent| percent.is_finite() && *percent >= 0.0);
        match percent {
            Some(percent) if has_sign => Ok(Self(percent / 100.0)),
            Some(_) => Err(InvalidShare::NoSign { text: trimmed.to_owned() }),
            None => Err(InvalidShare::NoShare { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0.07 * 100 is 7.000000000000001.
        write!(formatter, "{}%", (self.0 * 1e8).round() / 1e6)
    }
}

/// The compared value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Microseconds per operation; more is slower
    Time,
    /// Bus bandwidth in GB/s; less is slower
    Busbw,
}

impl Metric {
    /// Factor by which the operation took longer, when its value is `ratio` times that of the first file.
    pub(crate) fn slowdown_factor(self, ratio: f64) -> f64 {
        match self {
            Self::Time => ratio,
            Self::Busbw => ratio.recip(),
        }
    }

    /// Unit of the values: `us` or `GB/s`.
    pub const fn unit_name(self) -> &'static str {
        match self {
            Self::Time => "us",
            Self::Busbw => "GB/s",
        }
    }
}

/// Reason for which runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum MatchError {
    /// Files that are no results.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Unreadable(Vec<ReadError>),
    /// Less than two files.
    #[error("a comparison needs two files or more, or one file measured with --vs and --side both")]
    TooFew,
    /// A file has no baseline.
    #[error("{} has no other side: it was not measured with --vs", .0.display())]
    OneSide(PathBuf),
    /// Both sides of files that are runs of one side.
    #[error(
        "--side both has two sides for each file; with --before and --after take one: --side own or --side \
         other"
    )]
    BothSides,
    /// More runs on a side than the test takes.
    #[error("at most {MAX_RUNS} runs can be on each side: the exact test is too slow for more")]
    TooManyRuns,
    /// Two files of one run.
    #[error("{} and {} are of the same run: each run counts once; remove \
             one", first.display(), other.display())]
    SameRun {
        /// The first file.
        first: PathBuf,
        /// The file after it.
        other: PathBuf,
    },
    /// A run is named twice.
    #[error("{} is named twice: each run counts once; name another file", .0.display())]
    NamedTwice(PathBuf),
    /// A file has no row in common with the first one.
    #[error(
        "{} and {} have no measurement in common (same collective, type, operator, root, placement and \
         size): the first has {in_first}, the second {in_other}",
        first.display(), other.display()
    )]
    NothingInCommon {
        /// The first file.
        first: PathBuf,
        /// The other one.
        other: PathBuf,
        /// Rows of the first file.
        in_first: String,
        /// Rows of the other file.
        in_other: String,
    },
    /// No common row has a value above 0 in both.
    #[error(
        "{} and {} have no {} above 0 in common{}",
        first.display(), other.display(), metric_name(*.metric), hint(*.metric)
    )]
    NoValues {
        /// The first file.
        first: PathBuf,
        /// The other one.
        other: PathBuf,
        /// The compared value.
        metric: Metric,
    },
}

const fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::Time => "time",
        Metric::Busbw => "bus bandwidth",
    }
}

const fn hint(metric: Metric) -> &'static str {
    match metric {
        Metric::Time => "",
        Metric::Busbw => "; for a single rank it is 0: use --metric time",
    }
}
