//! `nccl-bench compare`: compares runs with the first one, and fails if one is slower.
//!
//! A ratio above 1 means a longer time, or a higher bandwidth, than in the first file. The two sides of a run
//! with `--vs` are compared as if each was in its own file. [`record::matching`] reads and matches; this
//! module prints.

mod report;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches as _, ValueEnum};
use record::matching::{self, Comparison, Criteria, Metric, RunRows, Threshold};
use record::sides::SelectedSide;

use super::{Command, Context};
use crate::exit::ExitError;

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Compare;

impl Command for Compare {
    fn define_command(&self) -> clap::Command {
        CompareArguments::augment_args(clap::Command::new("compare"))
            .after_help(after_help())
            .about("Compare result files, ours or nccl-tests', and fail if one is slower")
    }

    fn run_command(&self, matches: &ArgMatches, _context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = CompareArguments::from_arg_matches(matches)?;
        let passes = compare_files(&arguments, &mut io::stdout().lock())?;
        // See `EXIT_CODES`.
        Ok(u8::from(!passes))
    }
}

/// The exit codes, as in docs/results.md.
const EXIT_CODES: [(u8, &str); 4] = [
    (
        0,
        "all runs are complete, none has wrong data, and none is slower than the first by more than the \
         threshold (of several runs: significantly)",
    ),
    (
        1,
        "a run is slower, has wrong data or another number of ranks, was interrupted, failed, has not ended, \
         lacks rows that the other has, or with --require-verified has rows that were not verified; there \
         are too few runs for a test; or the comparison cannot be written",
    ),
    (
        2,
        "wrong arguments, or a file cannot be read, ends in the middle (JSON), contradicts itself, is named \
         twice, or has nothing in common with the first",
    ),
    (141, "nobody reads the output any more"),
];

/// Columns of the help before the text of an exit code.
const INDENT: &str = "       ";

/// Returns the help below the options.
fn after_help() -> String {
    let line = |(code, text): (u8, &str)| {
        let first = format!("  {code:>3}  ");
        let options = textwrap::Options::new(100).initial_indent(&first).subsequent_indent(INDENT);
        textwrap::fill(text, options)
    };
    format!("Exit codes:\n{}", EXIT_CODES.map(line).join("\n"))
}

/// The arguments of `nccl-bench compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareArguments {
    /// Result files of nccl-bench (.json, .jsonl) or nccl-tests (-J), or logs with tables of nccl-tests, also
    /// compressed (.gz, .zst), or - for standard input; the first is what the others are compared with
    #[arg(value_name = "FILE", required_unless_present_any = ["before", "after"],
          conflicts_with_all = ["before", "after"])]
    pub files: Vec<PathBuf>,

    /// Several runs of one side, with --after; the medians of the sides are compared, and only a difference
    /// that is significant by the Mann-Whitney U test (p < 0.05) counts; with at least 4 runs each
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "after")]
    pub before: Vec<PathBuf>,

    /// The runs of the other side
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "before")]
    pub after: Vec<PathBuf>,

    /// For results of --vs, which side; both: each as a file of its own
    #[arg(long, value_enum, default_value_t = SelectedSide::Own)]
    pub side: SelectedSide,

    /// A row may be slower by so much before the comparison fails
    #[arg(long, value_name = "PERCENT%", default_value = "5%", allow_hyphen_values = true)]
    pub threshold: Threshold,

    /// Compared value: time per operation, or bus bandwidth
    #[arg(long, value_enum, default_value_t = Metric::Time)]
    pub metric: Metric,

    /// Compare what there is of runs that have not ended, or lack measurements; without it, such a comparison
    /// fails
    #[arg(long)]
    pub partial: bool,

    /// Fail unless the data of all rows was verified that can be: not without an element, nor in place in
    /// alltoall and sendrecv
    #[arg(long)]
    pub require_verified: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t = ComparisonFormat::Text)]
    pub format: ComparisonFormat,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ComparisonFormat {
    /// Columns for a terminal
    Text,
    /// Tables of Markdown
    Markdown,
    /// A line per row and file, with a head
    Csv,
    /// All of it
    Json,
}

/// Reason for a missing comparison or output.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The files cannot be compared.
    #[error(transparent)]
    Matching(#[from] matching::MatchError),
    /// The output is closed or full.
    #[error("the comparison cannot be written: {0}")]
    Output(#[from] io::Error),
}

impl From<CompareError> for ExitError {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Output(error) => Self::Output(error),
            CompareError::Matching(error) => Self::refused(error.to_string()),
        }
    }
}

/// Compares each file with the first one, and prints the comparison to `out`. Returns true when all files
/// pass.
///
/// # Errors
/// When a file is not a result, has nothing in common with the first, or `out` is closed or full.
pub fn compare_files(arguments: &CompareArguments, out: &mut impl Write) -> Result<bool, CompareError> {
    let is_repeated = arguments.files.is_empty();
    let all: Vec<PathBuf> =
        arguments.files.iter().chain(&arguments.before).chain(&arguments.after).cloned().collect();
    record::files::check_names(&all).map_err(|error| matching::MatchError::Unreadable(vec![error]))?;
    if is_repeated && arguments.side == SelectedSide::Both {
        return Err(matching::MatchError::BothSides.into());
    }
    let mut sources = read_sources(&all, arguments)?;
    if is_repeated {
        let after = sources.split_off(arguments.before.len());
        matching::check_runs(&sources, &after)?;
        sources = vec![matching::merge_runs(sources)?, matching::merge_runs(after)?];
    } else if arguments.side != SelectedSide::Both {
        matching::refuse_repeated(&sources.iter().collect::<Vec<_>>())?;
    }
    let criteria = Criteria {
        metric: arguments.metric,
        threshold: arguments.threshold,
        partial: arguments.partial,
        require_verified: arguments.require_verified,
    };
    let comparison = Comparison::from_runs(&sources, criteria)?;
    match arguments.format {
        ComparisonFormat::Text => report::write_text_report(&comparison, out)?,
        ComparisonFormat::Markdown => report::write_markdown_report(&comparison, out)?,
        ComparisonFormat::Csv => report::write_csv_report(&comparison, out)?,
        ComparisonFormat::Json => report::write_json_report(&comparison, out)?,
    }
    out.flush()?;
    Ok(comparison.has_passed())
}

/// Reads files; with `--side both` each gives two sources.
fn read_sources(
    paths: &[PathBuf],
    arguments: &CompareArguments,
) -> Result<Vec<RunRows>, matching::MatchError> {
    let (mut sources, mut unreadable) = (Vec::new(), Vec::new());
    for path in paths {
        match matching::read_rows(path, arguments.side, arguments.metric, arguments.partial) {
            Ok(sides) if sides.is_empty() => return Err(matching::MatchError::OneSide(path.clone())),
            Ok(sides) => sources.extend(sides),
            Err(error) => unreadable.push(error),
        }
    }
    if unreadable.is_empty() { Ok(sources) } else { Err(matching::MatchError::Unreadable(unreadable)) }
}

#[cfg(test)]
mod tests;
