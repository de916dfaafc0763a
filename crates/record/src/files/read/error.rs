//! Errors of reading a result file.

use std::io;
use std::path::PathBuf;

/// A file that is not a readable result.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ReadError {
    /// Path of the file.
    pub path: PathBuf,
    /// The problem, part of the message.
    pub problem: ReadProblem,
}

/// Problem of a file.
#[derive(Debug, thiserror::Error)]
pub enum ReadProblem {
    /// Reading has failed.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is neither a file nor a pipe.
    #[error("it is a device; name a file, a pipe, or - for standard input")]
    Device,
    /// It is standard input from a terminal.
    #[error("standard input is a terminal; pipe a result file into it")]
    Terminal,
    /// It is standard input, named a second time in the same list.
    #[error("standard input is named twice, and can be read once")]
    NamedTwice,
    /// Its encoding is not UTF-8.
    #[error("{0}")]
    Encoded(&'static str),
    /// It is not a result file.
    #[error(
        "it is not a result file: expected JSON or JSON Lines of nccl-bench (--output), JSON of nccl-tests \
         (-J), or text with a table of nccl-tests, rccl-tests or the OSU benchmarks; {0}"
    )]
    NotOurs(String),
    /// It ends in the middle.
    #[error("it ends in the middle; {0}")]
    EndMissing(&'static str),
    /// It was written by a newer program.
    #[error(
        "it has version {found} of the format, but this program knows {known}; read it with a newer \
         nccl-bench"
    )]
    Newer {
        /// The file's version.
        found: u64,
        /// The newest readable version.
        known: u32,
    },
    /// It is damaged.
    #[error("{0}")]
    Damaged(String),
    /// It has several runs, where one is expected.
    #[error("it has {0} runs, and one is expected: give each a file of its own")]
    SeveralRuns(usize),
    /// A row is in two of its runs.
    #[error(
        "{row} is in its runs {} and {}: give each run a file of its own, as for --before and --after",
        runs[0], runs[1]
    )]
    RepeatedRow {
        /// The row.
        row: String,
        /// Numbers of the runs, from 1 on.
        runs: [usize; 2],
    },
    /// Its runs were made in different circumstances.
    #[error("its runs differ in {what} ({}; {}): give each run a file of its own", values[0], values[1])]
    RunsDiffer {
        /// Name of the setting or circumstance.
        what: String,
        /// The two values.
        values: [String; 2],
    },
    /// The collective of a table is not known.
    #[error(
        "its text does not name the collective of a table: write a line with the program above it, as in $ \
         all_gather_perf"
    )]
    UnknownCollective,
    /// It has no measurement.
    #[error("it has no measurement: {0}")]
    NoMeasurement(String),
}

// No `#[from]`: the message contains the error, and a source would be printed again.
impl From<io::Error> for ReadProblem {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}
