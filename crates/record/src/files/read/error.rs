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
        "it is not a result file: expected JSON or JSON Lines of nccl-bench (--output), or JSON of \
         nccl-tests (-J); {0}"
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
