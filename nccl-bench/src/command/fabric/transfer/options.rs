//! The test and its options.

use std::time::Duration;

use super::{Bandwidth, Messages, PingPong, Remote, Until};

/// Default interval, in nanoseconds, between polls with several messages in flight: over `shm`, short messages took two
/// thirds of the time with it.
const PAUSE_NS: u64 = 2000;

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
pub(in super::super) struct TestOptions {
    pub(super) test: Test,
    /// Number of transfers in flight.
    pub(super) window: usize,
    pub(super) messages: Messages,
    /// Both ranks access the other's memory.
    pub(super) both_ways: bool,
    /// The end of the timed interval of writes.
    pub(super) until: Until,
    /// Time between two polls of a rank that waits.
    pub(super) pause: Duration,
}

impl TestOptions {
    fn new(test: Test, window: u64) -> Self {
        Self {
            test,
            window: window as usize,
            messages: Messages::Tagged,
            both_ways: false,
            until: Until::Arrived,
            pause: Duration::ZERO,
        }
    }
}

impl From<&PingPong> for TestOptions {
    fn from(asked: &PingPong) -> Self {
        Self { messages: asked.messages, ..Self::new(Test::PingPong, 1) }
    }
}

impl From<&Bandwidth> for TestOptions {
    fn from(asked: &Bandwidth) -> Self {
        let window = asked.windowed.window;
        let pause = Duration::from_nanos(asked.pause.unwrap_or(if window > 1 { PAUSE_NS } else { 0 }));
        Self { messages: asked.messages, pause, ..Self::new(Test::Bandwidth, window) }
    }
}

impl From<&Remote> for TestOptions {
    fn from(asked: &Remote) -> Self {
        let test = if asked.read { Test::Read } else { Test::Write };
        Self { both_ways: asked.both_ways, until: asked.until, ..Self::new(test, asked.windowed.window) }
    }
}
