//! Sleep of a rank that has waited for messages for long.
//!
//! Where all endpoints have a descriptor (`tcp`), the rank sleeps on them, and a message wakes it. Others (`shm`) have
//! none that a message makes ready: they are polled between short sleeps.

use std::ptr;
use std::time::{Duration, Instant};

use super::endpoint::TaggedEndpoint;

/// Polls without a completion before the clock is read.
const POLLS_BEFORE_CLOCK: u32 = 32;
/// Time without a completion after which a rank sleeps: a multiple of the time that a wake-up takes.
const SPIN: Duration = Duration::from_micros(200);
/// The same on a host with more ranks than processors, where the peer may need this processor.
const SPIN_OVERSUBSCRIBED: Duration = Duration::from_micros(50);
/// Longest sleep on descriptors, between two checks of the other ranks.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// Sleep between two polls of endpoints without a descriptor.
const NAP: Duration = Duration::from_micros(30);
/// Wake-ups in a row by descriptors, without a completion, after which a rank does not rely on them for once: a
/// descriptor that is always ready would keep it from sleeping.
const MAX_FUTILE_WAKES: u32 = 64;

/// The rest of a rank between polls.
pub(super) struct Rest {
    /// Time of the first of the polls without a completion, or shortly after it.
    idle_since: Instant,
    spin: Duration,
    futile_wakes: u32,
    descriptors: Vec<libc::pollfd>,
}

impl Rest {
    pub(super) fn new() -> Self {
        Self { idle_since: Instant::now(), spin: SPIN, futile_wakes: 0, descriptors: Vec::new() }
    }

    /// Sleeps sooner from now on.
    pub(super) fn on_oversubscribed_host(&mut self) {
        self.spin = SPIN_OVERSUBSCRIBED;
    }

    /// True when the rank is to sleep, after `idle` polls without a completion.
    #[inline]
    pub(super) fn is_due(&mut self, idle: u32) -> bool {
        idle >= POLLS_BEFORE_CLOCK && self.is_due_by_clock(idle)
    }

    #[cold]
    fn is_due_by_clock(&mut self, idle: u32) -> bool {
        if idle == POLLS_BEFORE_CLOCK {
            self.idle_since = Instant::now();
            self.futile_wakes = 0;
        }
        self.idle_since.elapsed() >= self.spin
    }

    /// Sleeps until an endpoint has something to do, or for a short time. Each endpoint has been polled just now.
    pub(super) fn sleep(&mut self, endpoints: &[TaggedEndpoint]) {
        self.descriptors.clear();
        for descriptor in endpoints.iter().filter_map(TaggedEndpoint::descriptor) {
            self.descriptors.push(libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 });
        }
        let can_rely = self.descriptors.len() == endpoints.len() && self.futile_wakes < MAX_FUTILE_WAKES;
        if !can_rely {
            self.futile_wakes = 0;
            with_precise_timers(|| poll(&mut [], NAP));
        } else if endpoints.iter().all(TaggedEndpoint::may_sleep) {
            let woken = poll(&mut self.descriptors, LONGEST_SLEEP);
            self.futile_wakes = if woken { self.futile_wakes + 1 } else { 0 };
        }
    }
}

/// Sleeps until a descriptor is ready, at most for `limit`; true when one is.
fn poll(descriptors: &mut [libc::pollfd], limit: Duration) -> bool {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
    let (start, count) = (descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t);
    // SAFETY: this many descriptors, which the call writes to; no signal mask.
    unsafe { libc::ppoll(start, count, &raw const limit, ptr::null()) > 0 }
}

/// Runs a short sleep of this thread without the slack of its timers, which is 50 us by default.
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
