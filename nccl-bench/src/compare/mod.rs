//! `nccl-bench compare`: several runs side by side, each against the first, and whether one is slower.
//!
//! Measurements of the same collective, type, operator, root, placement and size belong together; of several cycles
//! the median counts. A ratio above 1 means a longer time, or a higher bandwidth, than in the first file. The sides of a run
//! with `--vs` can be compared as if each was in a file of its own.
//!
//! Files are read one measurement at a time, and only the compared value is kept (`measured`), so that files
//! of any length fit into memory.

mod matching;
mod measured;
mod report;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::files::ReadError;
use crate::sides::Side;
use matching::Comparison;

/// What to compare, and how.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Result files of nccl-bench (.json, .jsonl) or nccl-tests (-J); the first is what the others are compared with
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Of results of --vs, which side; both: each as a file of its own
    #[arg(long, value_enum, default_value_t = Side::Own)]
    pub side: Side,

    /// A row may be slower by so much before the comparison fails
    #[arg(long, value_name = "PERCENT", default_value = "5%", allow_hyphen_values = true)]
    pub threshold: Threshold,

    /// What to compare: the time per operation, or the bus bandwidth
    #[arg(long, value_enum, default_value_t = Metric::Time)]
    pub metric: Metric,

    /// Compare what there is of runs that have not ended, or lack measurements; without it, such a comparison fails
    #[arg(long)]
    pub partial: bool,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// A share of a value: `5%` is 0.05.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Threshold(pub f64);

/// A text that is no threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no share in percent; write it as in 5% or 0.5%")]
pub struct InvalidThreshold(String);

impl FromStr for Threshold {
    type Err = InvalidThreshold;

    fn from_str(text: &str) -> Result<Self, InvalidThreshold> {
        let trimmed = text.trim();
        let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
        let percent = number.parse::<f64>().ok().filter(|percent| percent.is_finite() && *percent >= 0.0);
        percent.map(|percent| Self(percent / 100.0)).ok_or_else(|| InvalidThreshold(text.to_owned()))
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0.07 * 100 is 7.000000000000001.
        write!(formatter, "{}%", (self.0 * 1e8).round() / 1e6)
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Microseconds per operation; more is slower
    Time,
    /// Bus bandwidth in GB/s; less is slower
    Busbw,
}

impl Metric {
    /// By how much longer the operation took, as a factor, when its value is `ratio` times that of the first file.
    fn slowdown(self, ratio: f64) -> f64 {
        match self {
            Self::Time => ratio,
            Self::Busbw => ratio.recip(),
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Time => "us",
            Self::Busbw => "GB/s",
        }
    }
}

/// How a comparison is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for a terminal
    Text,
    /// Tables of Markdown
    Markdown,
    /// A line per row and file, with a head
    Csv,
    /// All of it
    Json,
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No run is slower than the first by more than the threshold, none had wrong data, and all are complete
    /// (except with [`--partial`](Arguments::partial)).
    Pass,
    /// A run is slower, had wrong data, has not ended well, or lacks measurements.
    Fail,
}

impl Verdict {
    /// The exit code of the program: 0 or 1.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 1,
        }
    }
}

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Files that are no results.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Unreadable(Vec<ReadError>),
    /// Less than two files.
    #[error("a comparison needs two files or more, or with --side both one that was measured with --vs")]
    TooFew,
    /// There is no other side in a file.
    #[error("{} has no other side: it was not measured with --vs", .0.display())]
    OneSide(PathBuf),
    /// Nothing of a file is in the first one, too.
    #[error(
        "{} and {} have no measurement in common (same collective, type, operator, root, placement and size): \
         the first has {in_first}, the second {in_other}",
        first.display(), other.display()
    )]
    NothingInCommon {
        /// The first file.
        first: PathBuf,
        /// The other one.
        other: PathBuf,
        /// What is in the first.
        in_first: String,
        /// What is in the other.
        in_other: String,
    },
    /// What they have in common has no values above 0.
    #[error("{} and {} have no {} above 0 in common{}", first.display(), other.display(), metric_name(*.metric), hint(*.metric))]
    NoValues {
        /// The first file.
        first: PathBuf,
        /// The other one.
        other: PathBuf,
        /// What was to be compared.
        metric: Metric,
    },
    /// The output is closed or full.
    #[error("the comparison cannot be written: {0}")]
    Output(#[from] io::Error),
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

impl Error {
    /// The exit code of the program: 2 for what was given to it, 1 when its output failed.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Unreadable(_)
            | Self::TooFew
            | Self::OneSide(_)
            | Self::NothingInCommon { .. }
            | Self::NoValues { .. } => 2,
            Self::Output(_) => 1,
        }
    }
}

/// Compares each file with the first one, and prints it to `out`.
///
/// # Errors
/// When a file is no result, has nothing in common with the first, or `out` is closed or full.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> Result<Verdict, Error> {
    let (mut sources, mut unreadable) = (Vec::new(), Vec::new());
    for path in &arguments.files {
        match measured::read(path, arguments.side, arguments.metric, arguments.partial) {
            Ok(sides) if sides.is_empty() => return Err(Error::OneSide(path.clone())),
            Ok(sides) => sources.extend(sides),
            Err(error) => unreadable.push(error),
        }
    }
    if !unreadable.is_empty() {
        return Err(Error::Unreadable(unreadable));
    }
    let comparison = Comparison::of(&sources, arguments.metric, arguments.threshold, arguments.partial)?;
    match arguments.format {
        Format::Text => report::text(&comparison, out)?,
        Format::Markdown => report::markdown(&comparison, out)?,
        Format::Csv => report::csv(&comparison, out)?,
        Format::Json => report::json(&comparison, out)?,
    }
    out.flush()?;
    Ok(if comparison.passes() { Verdict::Pass } else { Verdict::Fail })
}

#[cfg(test)]
mod tests;
