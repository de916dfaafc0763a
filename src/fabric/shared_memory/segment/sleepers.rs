//! Sleep of ranks after a long wait, and their wake-up by the awaited rank.
//!
//! Before it sleeps, a rank counts itself at the awaited rank. The awaited rank wakes the counted ranks
//! whenever it has published something. It stores the published word and loads the counter without a fence
//! between the two: a fence would cost every operation 20 cycles or more. So a rank may be overlooked if it
//! counts itself in the nanoseconds between store and load; it then sleeps for its time limit,
//! [`LONGEST_SLEEP`](super::LONGEST_SLEEP). This happens once in a wait at most, because the rank stays
//! counted until the wait ends. (`membarrier` in the sleeper would close the gap, but would interrupt the
//! computation of the ranks on all their processors.)
//!
//! Once a rank is counted, no wake-up is missed: it loads the epoch (`Acquire`) before its last look at the
//! awaited word, and sleeps only if the epoch is still the same (compared by the kernel); the other rank
//! publishes before it changes the epoch (`Release`).

#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(loom)]
use super::model::AtomicU32;

/// The sleeping ranks that wait for a rank, in the area of that rank. All zeros is a valid value.
#[repr(C)]
pub(super) struct Sleepers {
    /// Number of ranks asleep or about to sleep. A killed process leaves it too large: other ranks then make
    /// calls of the kernel that wake nobody.
    count: AtomicU32,
    /// Changed before the ranks are woken; the word of their futex.
    epoch: AtomicU32,
}

impl Sleepers {
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self { count: AtomicU32::new("count"), epoch: AtomicU32::new("epoch") }
    }

    #[cfg(all(loom, test))]
    pub(super) fn is_asleep(&self) -> bool {
        futex::is_asleep(&self.epoch)
    }

    /// Wakes all sleeping ranks. To be called after something was published.
    #[inline]
    pub(super) fn wake(&self) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.epoch);
    }

    /// Counts this rank until the result is dropped.
    pub(super) fn enter(&self) -> Sleeper<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        Sleeper(self)
    }
}

/// A counted rank.
pub(super) struct Sleeper<'a>(&'a Sleepers);

impl Sleeper<'_> {
    /// Sleeps until woken, at most for `limit`, unless `is_ready`. It may also return without cause.
    pub(super) fn sleep(&self, limit: Duration, is_ready: impl FnOnce() -> bool) {
        let epoch = self.0.epoch.load(Ordering::Acquire);
        if !is_ready() {
            futex::wait(&self.0.epoch, epoch, limit);
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(loom)]
use super::model::futex;

/// Linux' futex(2), among processes.
#[cfg(not(loom))]
mod futex {
    use std::ptr;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while the word has the expected value, at most for `limit`.
    pub(super) fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos() as libc::c_long,
        };
        // SAFETY: the word and the limit are read during the call. Every result is a reason to look again.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const limit)
        };
    }

    pub(super) fn wake_all(word: &AtomicU32) {
        // SAFETY: only the word's address is used.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
                ptr::null::<libc::timespec>(),
            )
        };
    }
}
