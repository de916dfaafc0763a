//! Sleep of a rank after a long wait for messages.
//!
//! If all endpoints have a descriptor made ready by a message (`tcp` of libfabric 1.19 and later), the rank
//! sleeps on their descriptors. Otherwise (`shm`) it polls between short sleeps.

use std::ptr;
use std::time::Duration;

use super::endpoint::TaggedEndpoint;
use crate::fabric::spin::{Next, Spin};

/// Polls without a completion before the clock is read.
const POLLS_BEFORE_CLOCK: u32 = 32;
/// A sleep on descriptors, between two checks of the other ranks, relative to the rank's waiting time so far.
const SLEEP: Share = Share { part: 20, least: Duration::from_millis(1), most: Duration::from_millis(10) };
/// A sleep between two polls of endpoints without a descriptor. A poll and the timer take some 20 us.
const NAP: Share = Share { part: 200, least: Duration::from_micros(30), most: Duration::from_micros(500) };
/// Wake-ups in a row by descriptors without a completion, before a rank sleeps once without them: an always
/// ready descriptor would prevent its sleep.
const MAX_FUTILE_WAKES: u32 = 64;

/// A part of a time, within limits.
struct Share {
    part: u32,
    least: Duration,
    most: Duration,
}

impl Share {
    fn share_of(&self, time: Duration) -> Duration {
        (time / self.part).clamp(self.least, self.most)
    }
}

/// The waiting of a rank between polls.
pub(super) struct Rest {
    spin: Spin,
    oversubscribed: bool,
    futile_wakes: u32,
    descriptors: Vec<libc::pollfd>,
}

impl Rest {
    pub(super) fn new(oversubscribed: bool) -> Self {
        let (spin, descriptors) = (Spin::new(oversubscribed), Vec::new());
        Self { spin, oversubscribed, futile_wakes: 0, descriptors }
    }

    /// The next step, after `idle` polls without a completion.
    #[inline]
    pub(super) fn next_step(&mut self, idle: u32) -> Next {
        if idle < POLLS_BEFORE_CLOCK { Next::Poll } else { self.next_by_clock(idle) }
    }

    #[cold]
    fn next_by_clock(&mut self, idle: u32) -> Next {
        if idle == POLLS_BEFORE_CLOCK {
            self.spin = Spin::new(self.oversubscribed);
            self.futile_wakes = 0;
        }
        self.spin.next_step()
    }

    /// Sleeps until an endpoint has something to do, or for a short time. Each endpoint has been polled just
    /// now.
    pub(super) fn sleep_on(&mut self, endpoints: &[TaggedEndpoint]) {
        self.descriptors.clear();
        for descriptor in endpoints.iter().filter_map(TaggedEndpoint::wait_descriptor) {
            self.descriptors.push(libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 });
        }
        let can_rely = self.descriptors.len() == endpoints.len() && self.futile_wakes < MAX_FUTILE_WAKES;
        if !can_rely {
            self.futile_wakes = 0;
            let nap = NAP.share_of(self.spin.waited_time());
            with_precise_timers(|| poll_descriptors(&mut [], nap));
        } else if endpoints.iter().all(TaggedEndpoint::may_sleep) {
            let woken = poll_descriptors(&mut self.descriptors, SLEEP.share_of(self.spin.waited_time()));
            self.futile_wakes = if woken { self.futile_wakes + 1 } else { 0 };
        }
    }
}

/// Sleeps until a descriptor is ready, at most for `limit`; true when one is.
fn poll_descriptors(descriptors: &mut [libc::pollfd], limit: Duration) -> bool {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
    let (start, count) = (descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t);
    // SAFETY: this many descriptors, which the call writes to; no signal mask.
    unsafe { libc::ppoll(start, count, &raw const limit, ptr::null()) > 0 }
}

/// Runs a short sleep of this thread without the slack of its timers, 50 us by default.
fn with_precise_timers<T>(sleep: impl FnOnce() -> T) -> T {
    // SAFETY: reads and sets a number of this thread.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    // SAFETY: as above.
    let set = |slack: libc::c_int| unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack as libc::c_ulong) };
    set(1);
    let slept = sleep();
    // Zero would set the default.
    if slack > 0 {
        set(slack);
    }
    slept
}
