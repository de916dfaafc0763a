//! Waiting for something that another thread makes true: first by spinning, then by yielding, then asleep.
//!
//! A barrier that puts its threads to sleep at once lets them leave tens of microseconds apart; one that only
//! spins starves the ranks that have not arrived when there are more ranks than cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a waiter spins when there is a core for it.
const SPIN: Duration = Duration::from_micros(50);
/// How long after that it gives its core to others but stays runnable.
const YIELD: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Gate {
    asleep: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Returns when `done` is true. Whoever makes it true calls [`Gate::notify`] afterwards, and both sides use
    /// sequentially consistent atomics (or a lock) for what `done` reads. `spin` is for when a core is free.
    pub(crate) fn wait(&self, spin: bool, done: impl Fn() -> bool) {
        self.wait_until(spin, None, done);
    }

    /// As [`Gate::wait`], but not beyond `deadline`; whether `done` was true.
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
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let mut ended = done();
        while !ended {
            guard = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => {
                    self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            ended = done();
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        ended
    }

    /// Wakes the waiters that sleep. The lock is taken so that a waiter between its check and its sleep is not
    /// missed.
    pub(crate) fn notify(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.lock));
            self.changed.notify_all();
        }
    }
}

/// Locks, also when a thread has panicked with the lock held: what it protects here stays consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many threads this process may run at once.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, std::num::NonZero::get))
}
