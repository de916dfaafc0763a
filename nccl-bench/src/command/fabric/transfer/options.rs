//! The test and its options.

use std::time::Duration;

use super::{Arguments, Bandwidth, Completion, Messages, PingPong, Remote, Until, Windowed};

/// Default interval, in nanoseconds, between polls with several messages in flight: over `shm`, short
/// messages took two thirds of the time with it.
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
pub(in super::super) struct TestOptions<'a> {
    pub(super) arguments: &'a Arguments,
    /// Number of endpoints of each rank.
    pub(super) endpoints: usize,
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

impl<'a> TestOptions<'a> {
    fn new(arguments: &'a Arguments, test: Test, window: u64) -> Self {
        let endpoints = arguments.endpoints.map_or(arguments.domains.len().max(1), |count| count as usize);
        Self {
            arguments,
            endpoints,
            test,
            window: window as usize,
            messages: Messages::Tagged,
            both_ways: false,
            until: Until::Arrived,
            pause: Duration::ZERO,
        }
    }
}

impl<'a> From<&'a PingPong> for TestOptions<'a> {
    fn from(asked: &'a PingPong) -> Self {
        Self { messages: asked.messages, ..Self::new(&asked.arguments, Test::PingPong, 1) }
    }
}

impl<'a> From<&'a Bandwidth> for TestOptions<'a> {
    fn from(asked: &'a Bandwidth) -> Self {
        let Windowed { ref arguments, window } = asked.windowed;
        let polls = arguments.completion == Completion::Poll;
        let usual = if polls && window > 1 { PAUSE_NS } else { 0 };
        let pause = Duration::from_nanos(asked.pause.unwrap_or(usual));
        Self { messages: asked.messages, pause, ..Self::new(arguments, Test::Bandwidth, window) }
    }
}

impl<'a> From<&'a Remote> for TestOptions<'a> {
    fn from(asked: &'a Remote) -> Self {
        let Windowed { ref arguments, window } = asked.windowed;
        let test = if asked.read { Test::Read } else { Test::Write };
        Self { both_ways: asked.both_ways, until: asked.until, ..Self::new(arguments, test, window) }
    }
}
