//! Reasons for which a rank fails, as values. Worlds carry them from rank to rank.

use std::fmt;

use super::{Error, Mismatch, Timeout};

/// The reason for which a rank has failed ([`World::fail`](super::World::fail), [`Error::RankFailed`]). It is
/// displayed as a verb phrase: `failed: the loss is NaN`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A failure that the rank has reported: `the loss is NaN`.
    Reported(String),
    /// Two ranks called different operations.
    Mismatch(Mismatch),
    /// An operation has waited for other ranks for too long.
    TimedOut(Timeout),
    /// Any other reason, as a verb phrase: `died: its connection closed`.
    Other(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(text) => write!(formatter, "failed: {text}"),
            Self::Mismatch(mismatch) => write!(formatter, "failed: {mismatch}"),
            Self::TimedOut(timeout) => write!(formatter, "failed: {timeout}"),
            Self::Other(text) => formatter.write_str(text),
        }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self::Reported(text.to_owned())
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self::Reported(text)
    }
}

impl From<&Error> for Reason {
    /// Keeps the values of a mismatch and of a timeout.
    fn from(error: &Error) -> Self {
        match error {
            Error::CallMismatch(mismatch) => Self::Mismatch(mismatch.clone()),
            Error::RankFailed { reason: reason @ (Self::Mismatch(_) | Self::TimedOut(_)), .. } => {
                reason.clone()
            }
            other => Self::Reported(other.to_string()),
        }
    }
}

impl Reason {
    /// The reason of a rank that has left while others wait for it.
    pub(crate) fn left() -> Self {
        Self::Other("has left the job: it will not come to this barrier or all_gather".to_owned())
    }

    /// Replaces ranks of a group by ranks of its job. Timeouts name ranks of the job already.
    #[cfg(any(feature = "fabric", feature = "nccl"))]
    pub(crate) fn renumber(self, rank_in_job: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::Mismatch(mismatch) => Self::Mismatch(mismatch.renumber(rank_in_job)),
            other => other,
        }
    }

    /// Adds words to the text of a reason that names no ranks.
    pub(crate) fn with_suffix(self, suffix: &str) -> Self {
        match self {
            Self::Reported(text) => Self::Reported(text + suffix),
            Self::Other(text) => Self::Other(text + suffix),
            other => other,
        }
    }

    /// Names the rank that failed, for a world that names processes only.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        match self {
            Self::Reported(text) => Self::Reported(format!("rank {rank}: {text}")),
            Self::Other(text) => Self::Other(format!("rank {rank}: {text}")),
            other => other,
        }
    }
}
