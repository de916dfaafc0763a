//! Errors of reading a result file.

use std::io;
use std::path::PathBuf;

/// A file that is no result to go on with.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ReadError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub problem: ReadProblem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum ReadProblem {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is neither a file nor a pipe.
    #[error("it is a device; name a file, or a pipe as in <(zcat run.json.gz)")]
    Device,
    /// It is no plain text.
    #[error("{0}")]
    Encoded(&'static str),
    /// It is something else.
    #[error(
        "it is no result file: expected JSON or JSON Lines of nccl-bench (--output), or JSON of nccl-tests (-J); {0}"
    )]
    NotOurs(String),
    /// Its end is missing.
    #[error("it ends in the middle; {0}")]
    EndMissing(&'static str),
    /// A later program wrote it.
    #[error(
        "it has version {found} of the format, and this program knows {known}; read it with a newer nccl-bench"
    )]
    Newer {
        /// The file's version.
        found: u64,
        /// The newest that can be read.
        known: u32,
    },
    /// A part is not as it should be.
    #[error("{0}")]
    Damaged(String),
    /// There is nothing in it to show.
    #[error("it has no measurement: {0}")]
    NoMeasurement(String),
}
