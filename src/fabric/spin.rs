//! Polling and sleep of a waiting rank.

use std::time::{Duration, Instant};

/// Waiting time before a rank yields between polls.
const BEFORE_YIELD: Duration = Duration::from_micros(20);
/// Waiting time before a rank sleeps: a multiple of the duration of a wake-up, about 50 us on a virtual
/// machine.
const BEFORE_SLEEP: Duration = Duration::from_micros(200);
/// The same on a host with more ranks than processors.
const BEFORE_SLEEP_OVERSUBSCRIBED: Duration = Duration::from_micros(50);

/// The next step of a waiting rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Poll,
    /// To yield, and poll: another thread, perhaps the awaited rank, may need this processor. The kernel
    /// often puts a woken rank on its waker's processor.
    Yield,
    /// To sleep, and poll.
    Sleep,
}

/// A wait for another rank.
pub(crate) struct Spin {
    since: Option<Instant>,
    oversubscribed: bool,
}

impl Spin {
    /// `oversubscribed`: the host has more ranks than processors.
    pub(crate) fn new(oversubscribed: bool) -> Self {
        Self { since: None, oversubscribed }
    }

    /// Time since the first step; zero before the clock runs.
    pub(crate) fn waited_time(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the step after some polls. The first call starts the clock: short waits do not read it.
    pub(crate) fn next_step(&mut self) -> Next {
        let Some(since) = self.since else {
            // The model of the shared segment's memory has no time, and no sleep.
            self.since = (!cfg!(loom)).then(Instant::now);
            return if self.oversubscribed { Next::Yield } else { Next::Poll };
        };
        let limit = if self.oversubscribed { BEFORE_SLEEP_OVERSUBSCRIBED } else { BEFORE_SLEEP };
        match since.elapsed() {
            waited if waited >= limit => Next::Sleep,
            waited if self.oversubscribed || waited >= BEFORE_YIELD => Next::Yield,
            _ => Next::Poll,
        }
    }
}
