//! Why a run ends early, and what the process then says.

use collectives::world::World;
use collectives::{fabric, nccl, world};

use super::Signal;

/// Exit code when something failed while running.
pub const FAILED: u8 = 1;
/// Exit code for bad arguments, or when something is missing.
pub const REFUSED: u8 = 2;
/// Exit code when a limit of time has passed, as in nccl-tests.
pub const TIMED_OUT: u8 = 4;
/// Exit code for wrong data, as in nccl-tests.
pub const WRONG_DATA: u8 = 7;
/// Exit code when the reader of standard output has gone: what a shell says of a program that SIGPIPE ended.
pub const CLOSED_PIPE: u8 = 141;

/// How a run came to its end, as far as all ranks know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that was verified was right.
    Good,
    /// Something was wrong.
    Wrong,
    /// A signal ended it.
    Stopped(Signal),
}

impl Verdict {
    /// The code that the process ends with.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Wrong => WRONG_DATA,
            Self::Stopped(signal) => signal.exit_code(),
        }
    }
}

/// Waits for `world` to learn which rank's end an error of NCCL comes from: NCCL notices a lost peer before the world does.
/// Communicators over libfabric have waited themselves.
pub fn await_cause(error: &anyhow::Error, world: &dyn World) {
    if let Some(nccl::Error::Nccl { .. }) = error.downcast_ref() {
        world::cause(world);
    }
}

/// Why a run ended early.
#[derive(Debug)]
pub enum Stop {
    /// What was asked for cannot be done. Every process says so; one of them prints it.
    Refused(String),
    /// Something failed while running.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Stop {
    /// The code that the process ends with.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Refused(_) => REFUSED,
            Self::Failed(error) => {
                let late = matches!(error.downcast_ref(), Some(world::Error::TimedOut(_)))
                    || matches!(error.downcast_ref(), Some(fabric::Error::TimedOut { .. }));
                if late { TIMED_OUT } else { FAILED }
            }
        }
    }
}
