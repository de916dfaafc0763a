//! Reasons for the failure of a rank, as values. Worlds carry them from rank to rank.

use std::fmt;

use super::{Error, Mismatch, Timeout};

/// The reason for the failure of a rank ([`World::fail`](super::World::fail), [`Error::RankFailed`]). It is
/// displayed as a verb phrase: `failed: the loss is NaN`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A failure reported by the rank: `the loss is NaN`.
    Reported(String),
    /// Two ranks called different operations.
    Mismatch(Mismatch),
    /// An operation has waited for other ranks for too long.
    TimedOut(Timeout),
    /// Its process or thread has ended without leaving the job, or is silent: `its connection closed`.
    Died(String),
    /// Its process has ended the job ([`World::abort`](super::World::abort)).
    Aborted {
        /// The exit code.
        code: i32,
        /// The message.
        message: String,
    },
    /// It has left the job, and will not come to a call begun by others.
    Left(String),
    /// It did not come to a call within the limit ([`World::set_limit`](super::World::set_limit)): `a barrier
    /// within 3 s`, with its note and the further ranks.
    Late(String),
    /// Any other reason, as a verb phrase: `sent a frame that is too long`.
    Other(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(text) => write!(formatter, "failed: {text}"),
            Self::Mismatch(mismatch) => write!(formatter, "failed: {mismatch}"),
            Self::TimedOut(timeout) => write!(formatter, "failed: {timeout}"),
            Self::Died(text) => write!(formatter, "died: {text}"),
            Self::Aborted { code, message } => write!(formatter, "aborted with exit code {code}: {message}"),
            Self::Left(text) => write!(formatter, "has left the job: {text}"),
            Self::Late(text) => write!(formatter, "did not come to {text}"),
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
    /// Returns the reason of a rank that has left while others wait for it.
    pub(crate) fn left_early() -> Self {
        Self::Left("it will not come to this barrier or all_gather".to_owned())
    }

    /// Replaces ranks of a group by ranks of its job. Timeouts name ranks of the job already.
    #[cfg(any(feature = "fabric", feature = "nccl"))]
    pub(crate) fn renumber_ranks(self, rank_in_job: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::Mismatch(mismatch) => Self::Mismatch(mismatch.renumber_ranks(rank_in_job)),
            other => other,
        }
    }

    /// Adds words to the text of a reason without ranks.
    pub(crate) fn with_suffix(self, suffix: &str) -> Self {
        match self {
            Self::Reported(text) => Self::Reported(text + suffix),
            Self::Died(text) => Self::Died(text + suffix),
            Self::Aborted { code, message } => Self::Aborted { code, message: message + suffix },
            Self::Left(text) => Self::Left(text + suffix),
            Self::Late(text) => Self::Late(text + suffix),
            Self::Other(text) => Self::Other(text + suffix),
            other => other,
        }
    }

    /// Names the failed rank, for a world that names processes only.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        match self {
            Self::Reported(text) => Self::Reported(format!("rank {rank}: {text}")),
            Self::Died(text) => Self::Died(format!("rank {rank}: {text}")),
            Self::Left(text) => Self::Left(format!("rank {rank}: {text}")),
            Self::Late(text) => Self::Late(format!("rank {rank}: {text}")),
            Self::Other(text) => Self::Other(format!("rank {rank}: {text}")),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_keeps_its_kind_when_a_world_of_processes_names_the_rank() {
        let panicked = || Reason::Died("its thread panicked".to_owned());
        assert_eq!(panicked().of_rank(3), Reason::Died("rank 3: its thread panicked".to_owned()));
        assert_eq!(panicked().of_rank(3).to_string(), "died: rank 3: its thread panicked");
        assert!(
            Reason::left_early().of_rank(3).to_string().starts_with("has left the job: rank 3: it will not")
        );
    }
}
