//! The test and its options.

use std::time::Duration;

/// A test between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// A message there and back.
    PingPong,
    /// Messages one way.
    Bandwidth,
    /// Writes to remote memory.
    Write,
    /// Reads of remote memory.
    Read,
}

impl Test {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "pingpong",
            Self::Bandwidth => "bw",
            Self::Write => "rma write",
            Self::Read => "rma read",
        }
    }

    /// True for remote memory access.
    pub(super) const fn is_remote(self) -> bool {
        matches!(self, Self::Write | Self::Read)
    }
}

/// A test with its options.
#[derive(Clone, Copy, Debug)]
pub(super) struct TestOptions {
    pub(super) test: Test,
    /// Number of transfers in flight.
    pub(super) window: usize,
    /// Messages have no tags.
    pub(super) plain: bool,
    /// Both ranks access the other's memory.
    pub(super) both_ways: bool,
    /// The clock of writes stops at their local completion, not at the other rank's answer.
    pub(super) completed: bool,
    /// Time between two polls of a rank that waits.
    pub(super) pause: Duration,
}

impl TestOptions {
    pub(super) fn new(test: Test, window: u64) -> Self {
        Self {
            test,
            window: window as usize,
            plain: false,
            both_ways: false,
            completed: false,
            pause: Duration::ZERO,
        }
    }
}
