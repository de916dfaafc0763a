//! Waiting for a condition set by another thread: spin, then yield, then park.
//!
//! A barrier that parks its threads at once lets them leave tens of microseconds apart; a barrier that only
//! spins starves the missing ranks if there are more ranks than cores.

use crate::lock::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const SPIN: Duration = Duration::from_micros(50);
/// Time from the beginning of a wait until the thread parks; it yields after [`SPIN`].
const YIELD: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct SpinPark {
    parked: AtomicUsize,
    lock: Mutex<()>,
    condvar: Condvar,
}

impl SpinPark {
    /// Returns once `done` is true, or at `deadline`, with the last value of `done`. The thread that makes it
    /// true calls [`SpinPark::notify_waiters`] afterwards, and both use sequentially consistent atomics or a
    /// lock for the state read by `done`. Set `spin` if a core is free.
    pub(crate) fn wait_until(&self, spin: bool, deadline: Option<Instant>, done: impl Fn() -> bool) -> bool {
        if done() {
            return true;
        }
        let start = Instant::now();
        while spin && start.elapsed() < SPIN {
            for _ in 0..64 {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        while start.elapsed() < YIELD {
            if done() {
                return true;
            }
            thread::yield_now();
        }
        let mut guard = lock(&self.lock);
        self.parked.fetch_add(1, Ordering::SeqCst);
        let mut ended = done();
        while !ended {
            guard = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => {
                    self.condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            ended = done();
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        ended
    }

    /// Wakes the parked threads. Takes the lock, in order not to miss a waiter between its check and its
    /// wait.
    pub(crate) fn notify_waiters(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.lock));
            self.condvar.notify_all();
        }
    }
}

/// Returns the number of threads that this process may run in parallel.
pub(crate) fn core_count() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, std::num::NonZero::get))
}
