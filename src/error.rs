//! The error of [`Job`](crate::job::Job), its groups, and training.

use std::fmt;
use std::time::Duration;

use crate::world::{self, Mismatch, Reason, Timeout};

#[cfg(feature = "fabric")]
use crate::fabric;
#[cfg(feature = "nccl")]
use crate::nccl;

/// An error of a [`Job`](crate::job::Job), of its groups, or of training.
///
/// From a [`Group`](crate::job::Group), [`Error::Job`] and [`Error::Buffer`] are refusals of this rank:
/// nothing was sent, and the group remains usable. After any other error, every later operation of the group
/// returns the same error. The documentation of [`Reducer`](crate::train::Reducer) and
/// [`Zero1`](crate::train::Zero1) names the refusals that end a step on all ranks.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks could not be connected, or the job cannot continue.
    #[error(transparent)]
    World(world::Error),
    /// The host backend has failed.
    #[cfg(feature = "fabric")]
    #[error(transparent)]
    Fabric(fabric::Error),
    /// NCCL has failed.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    Nccl(nccl::Error),
    /// The CUDA driver has failed.
    #[cfg(feature = "nccl")]
    #[error("the CUDA driver failed: {0}; see nvidia-smi and the kernel's log (dmesg)")]
    Cuda(cudarc::driver::DriverError),
    /// Another rank has failed.
    #[error("rank {rank} on host {host} {reason}")]
    RankFailed {
        /// The failed rank of the job.
        rank: usize,
        /// Name of its host.
        host: String,
        /// The rank's own reason, displayed as a verb phrase: `failed: step 7: the loss is NaN`.
        reason: Reason,
    },
    /// Two ranks called different operations.
    #[error("{}", Mismatch::mismatch_text(*rank, called, *peer, peer_called.as_deref()))]
    Mismatch {
        /// A rank of the job.
        rank: usize,
        /// Its call: `all_reduce of 100 float, sum`.
        called: String,
        /// Another rank.
        peer: usize,
        /// The other rank's call; `None` if it is unknown, because an earlier call differs.
        peer_called: Option<String>,
    },
    /// An operation has not finished within the group's timeout
    /// ([`Group::set_timeout`](crate::job::Group::set_timeout)). All ranks return this error, and the first
    /// rank with a timeout is not at fault. But if ranks of MPI's launcher do not monitor each other, or if
    /// rank 0 does not answer, only ranks with a timeout of their own return it.
    #[error("{operation} has not finished within {} s{}", limit.as_secs_f64(), names_or_advice(late))]
    TimedOut {
        /// The operation: `all_reduce`, on GPUs `all_reduce of 100 float, sum`.
        operation: String,
        /// The timeout.
        limit: Duration,
        /// The late ranks of the job, with their hosts. The operation waited for them, and when asked they
        /// did not report that they wait in it: they have not called it, are busy, or have continued. At most
        /// 32, in rank order. Empty if all have reported, as in an operation that is only slow, and if nobody
        /// could ask.
        late: Vec<(usize, String)>,
    },
    /// A call that is not possible here or in this order.
    #[error("{0}")]
    Job(String),
    /// A buffer that does not fit the operation or the group.
    #[error("{0}")]
    Buffer(String),
}

/// Prints the variant and the text, for a `main` that returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variant = match self {
            Self::World(_) => "World",
            #[cfg(feature = "fabric")]
            Self::Fabric(_) => "Fabric",
            #[cfg(feature = "nccl")]
            Self::Nccl(_) => "Nccl",
            #[cfg(feature = "nccl")]
            Self::Cuda(_) => "Cuda",
            Self::RankFailed { .. } => "RankFailed",
            Self::Mismatch { .. } => "Mismatch",
            Self::TimedOut { .. } => "TimedOut",
            Self::Job(_) => "Job",
            Self::Buffer(_) => "Buffer",
        };
        write!(formatter, "{variant}: {self}")
    }
}

#[cfg(any(feature = "fabric", feature = "nccl"))]
impl Error {
    /// Returns the error of an operation after its result was taken.
    pub(crate) fn result_taken() -> Self {
        Self::Job("this operation has returned its result before: do not poll it again".to_owned())
    }

    /// Returns true for refusals of this rank. The group can still be used after them.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Job(_) | Self::Buffer(_))
    }

    /// Replaces ranks of a group, as numbered by its backend, by ranks of the job.
    pub(crate) fn in_job(self, ranks: &[usize]) -> Self {
        let of_job = |rank: usize| ranks.get(rank).copied().unwrap_or(rank);
        match self {
            Self::Mismatch { rank, called, peer, peer_called } => {
                Self::Mismatch { rank: of_job(rank), called, peer: of_job(peer), peer_called }
            }
            other => other,
        }
    }
}

/// Returns the end of the text of a timeout.
fn names_or_advice(late: &[(usize, String)]) -> String {
    match late {
        [] => ": a rank has not called it, or is slow; look at the other ranks".to_owned(),
        late => Timeout::late_names(late),
    }
}

impl From<Mismatch> for Error {
    fn from(Mismatch { rank, called, peer, peer_called }: Mismatch) -> Self {
        Self::Mismatch { rank, called, peer, peer_called }
    }
}

impl From<Timeout> for Error {
    fn from(timeout: Timeout) -> Self {
        let Timeout { operation, limit, late } = timeout;
        Self::TimedOut { operation, limit, late }
    }
}

impl From<world::Error> for Error {
    fn from(error: world::Error) -> Self {
        match error {
            world::Error::RankFailed { reason: Reason::Mismatch(mismatch), .. }
            | world::Error::CallMismatch(mismatch) => mismatch.into(),
            world::Error::RankFailed { reason: Reason::TimedOut(timeout), .. } => timeout.into(),
            world::Error::RankFailed { rank, host, reason } => Self::RankFailed { rank, host, reason },
            other => Self::World(other),
        }
    }
}

/// For the parts of a split, which connect over their parent group as over a world.
impl From<Error> for world::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::World(error) => error,
            Error::RankFailed { rank, host, reason } => Self::RankFailed { rank, host, reason },
            Error::Mismatch { rank, called, peer, peer_called } => {
                Self::CallMismatch(Mismatch { rank, called, peer, peer_called })
            }
            other => Self::Mismatch(other.to_string()),
        }
    }
}

impl From<&Error> for Reason {
    /// Keeps the values of a mismatch and of a timeout.
    fn from(error: &Error) -> Self {
        match error.clone() {
            Error::World(error) => Self::from(&error),
            Error::Mismatch { rank, called, peer, peer_called } => {
                Self::Mismatch(Mismatch { rank, called, peer, peer_called })
            }
            Error::TimedOut { operation, limit, late } => Self::TimedOut(Timeout { operation, limit, late }),
            other => Self::Reported(other.to_string()),
        }
    }
}

#[cfg(feature = "fabric")]
impl From<fabric::Error> for Error {
    fn from(error: fabric::Error) -> Self {
        match error {
            fabric::Error::World(error) => error.into(),
            fabric::Error::Mismatch { rank, called, peer, peer_called } => {
                Self::Mismatch { rank, called, peer, peer_called }
            }
            fabric::Error::Length { operation, problem } | fabric::Error::Rank { operation, problem } => {
                Self::Buffer(format!("{operation}: {problem}"))
            }
            fabric::Error::TimedOut { operation, limit, late } => Self::TimedOut { operation, limit, late },
            other => Self::Fabric(other),
        }
    }
}

#[cfg(feature = "nccl")]
impl From<nccl::Error> for Error {
    fn from(error: nccl::Error) -> Self {
        Self::Nccl(error)
    }
}

#[cfg(feature = "nccl")]
impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::Cuda(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: Reason) -> world::Error {
        world::Error::RankFailed { rank: 3, host: "b".to_owned(), reason }
    }

    #[cfg(any(feature = "fabric", feature = "nccl"))]
    #[test]
    fn a_mismatch_keeps_its_parts_on_every_way() {
        let mismatch = Mismatch {
            rank: 0,
            called: "barrier".to_owned(),
            peer: 2,
            peer_called: Some("all_reduce of 5 float, sum".to_owned()),
        };
        for error in
            [failed(Reason::Mismatch(mismatch.clone())), world::Error::CallMismatch(mismatch.clone())]
        {
            let error = Error::from(error);
            assert_eq!(error.to_string(), mismatch.to_string());
            assert_eq!(Reason::from(&error), Reason::Mismatch(mismatch.clone()));
            assert_eq!(world::Error::from(error.clone()), world::Error::CallMismatch(mismatch.clone()));
            let Error::Mismatch { rank, called, peer, peer_called: Some(other) } = error.in_job(&[4, 6, 9])
            else {
                panic!()
            };
            assert_eq!((rank, called.as_str(), peer), (4, "barrier", 9));
            assert_eq!(other, "all_reduce of 5 float, sum");
        }
    }

    #[test]
    fn a_timeout_of_another_rank_does_not_blame_it() {
        let late = vec![(0, "a".to_owned())];
        let timeout =
            Timeout { operation: "all_reduce".to_owned(), limit: Duration::from_millis(1500), late };
        let error = Error::from(failed(Reason::TimedOut(timeout.clone())));
        assert_eq!(Reason::from(&error), Reason::TimedOut(timeout));
        assert_eq!(
            error.to_string(),
            "all_reduce has not finished within 1.5 s; these ranks have not called it, are busy, or have \
             continued: rank 0 on host a"
        );
    }

    /// A text is only printed, whatever it says.
    #[test]
    fn a_failed_rank_keeps_its_reason() {
        for text in [
            "no space",
            "rank 0 called barrier while rank 2 called x; all ranks call the same operations in the same \
             order with the same lengths",
            "lost: not complete after 1 s, the timeout",
        ] {
            let failed = failed(text.into());
            let error = Error::from(failed.clone());
            assert_eq!(error.to_string(), format!("rank 3 on host b failed: {text}"));
            assert_eq!(format!("{error:?}"), format!("RankFailed: rank 3 on host b failed: {text}"));
            assert_eq!(world::Error::from(error), failed);
        }
    }
}
