//! Errors that end a run early, and exit codes.

use collectives::world::World;
use collectives::{fabric, nccl, world};

use super::{Signal, signal_code};

/// Exit code of a failure while running.
pub const FAILED: u8 = 1;
/// Exit code for bad arguments or missing requirements.
pub const REFUSED: u8 = 2;
/// Exit code of a timeout, as in nccl-tests.
pub const TIMED_OUT: u8 = 4;
/// Exit code for wrong data, as in nccl-tests.
pub const WRONG_DATA: u8 = 7;
/// Exit code when the reader of standard output has gone: that of a program that SIGPIPE ends.
pub const CLOSED_PIPE: u8 = 141;

/// Result of a run, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All verified data is right.
    Good,
    /// Data is wrong, or the bandwidth is below the requested minimum.
    Wrong,
    /// A signal has stopped the run.
    Stopped(Signal),
}

impl Verdict {
    /// Exit code of the process.
    pub fn verdict_code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Wrong => WRONG_DATA,
            Self::Stopped(signal) => signal_code(signal),
        }
    }
}

/// Waits for `world` to learn which failed rank has caused an error of NCCL, because NCCL notices a lost peer
/// first. Communicators over libfabric have waited already.
pub fn await_cause(error: &anyhow::Error, world: &dyn World) {
    if let Some(nccl::Error::Nccl { .. }) = error.downcast_ref() {
        world::cause(world);
    }
}

/// Error that ends a run early.
#[derive(Debug)]
pub enum Stop {
    /// The request cannot be carried out. Every process has the same text; one of them prints it.
    Refused(String),
    /// NCCL was asked for, and a process has no GPU that NCCL can use.
    NoGpus {
        /// The options that ask for NCCL.
        asked_by: String,
        /// The first such process, and its reason.
        reason: String,
    },
    /// A failure while running.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Stop {
    /// The text of a refusal, [`Refused`](Self::Refused) or [`NoGpus`](Self::NoGpus); `None` after a failure.
    pub fn refusal_text(&self) -> Option<String> {
        match self {
            Self::Refused(text) => Some(text.clone()),
            Self::NoGpus { asked_by, reason } => Some(format!("{asked_by} cannot run: {reason}")),
            Self::Failed(_) => None,
        }
    }

    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Self::Refused(_) | Self::NoGpus { .. } => REFUSED,
            Self::Failed(error) => Self::code_of(error),
        }
    }

    /// Exit code of a failure.
    pub fn code_of(error: &anyhow::Error) -> u8 {
        let late = matches!(error.downcast_ref(), Some(world::Error::TimedOut(_)))
            || matches!(error.downcast_ref(), Some(fabric::Error::TimedOut { .. }));
        if late { TIMED_OUT } else { FAILED }
    }
}
