//! The segment under loom, a model checker: its memory guarantees only the requested orderings, and it tries
//! every interleaving of the threads (with a bounded number of preemptions). Run by `make loom`.
//!
//! Words and messages are loom's instead of shared memory; the rest is the segment's code. Each test also
//! runs with one ordering removed, and must then fail: all of them are needed.

use std::cell::{Cell, UnsafeCell};
use std::fs::File;
use std::io;
use std::sync::Arc;

pub(super) use loom::hint::spin_loop;
use loom::sync::atomic::Ordering;

use super::layout::{LONG_BUFFERS, LongBuffer, MessageSlot, RankArea, RankState, SLOT_CAPACITY, SLOTS};
use super::sleepers::Sleepers;
use super::{CAPACITY, SharedSegment};

thread_local! {
    /// The removed ordering of this run: the name of the word, or "fence", and the ordering. Thread-local, as
    /// loom runs all threads of a model in one thread of the system.
    static REMOVED: Cell<Option<(&'static str, Ordering)>> = const { Cell::new(None) };
}

/// A word of the segment.
pub(super) struct AtomicU64 {
    name: &'static str,
    word: loom::sync::atomic::AtomicU64,
}

impl AtomicU64 {
    fn new(name: &'static str) -> Self {
        Self { name, word: loom::sync::atomic::AtomicU64::new(0) }
    }

    fn effective(&self, ordering: Ordering) -> Ordering {
        if REMOVED.get() == Some((self.name, ordering)) { Ordering::Relaxed } else { ordering }
    }

    pub(super) fn load(&self, ordering: Ordering) -> u64 {
        self.word.load(self.effective(ordering))
    }

    pub(super) fn store(&self, value: u64, ordering: Ordering) {
        self.word.store(value, self.effective(ordering));
    }

    pub(super) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.word.compare_exchange(current, new, self.effective(success), self.effective(failure))
    }
}

/// A word for sleeping ranks.
pub(super) struct AtomicU32 {
    name: &'static str,
    word: loom::sync::atomic::AtomicU32,
    /// True while a thread sleeps. The lock is the kernel's, held while it compares the word.
    asleep: loom::sync::Mutex<bool>,
}

impl AtomicU32 {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, word: loom::sync::atomic::AtomicU32::new(0), asleep: loom::sync::Mutex::new(false) }
    }

    fn effective(&self, ordering: Ordering) -> Ordering {
        if REMOVED.get() == Some((self.name, ordering)) { Ordering::Relaxed } else { ordering }
    }

    pub(super) fn load(&self, ordering: Ordering) -> u32 {
        self.word.load(self.effective(ordering))
    }

    pub(super) fn fetch_add(&self, value: u32, ordering: Ordering) -> u32 {
        self.word.fetch_add(value, self.effective(ordering))
    }

    pub(super) fn fetch_sub(&self, value: u32, ordering: Ordering) -> u32 {
        self.word.fetch_sub(value, self.effective(ordering))
    }
}

/// The kernel's futex. A sleeping thread is only marked, to detect a missed wake-up at the end.
pub(super) mod futex {
    use std::time::Duration;

    use super::{AtomicU32, Ordering};

    pub(in super::super) fn wait(word: &AtomicU32, expected: u32, _limit: Duration) {
        let mut asleep = word.asleep.lock().unwrap();
        *asleep = word.word.load(Ordering::Relaxed) == expected;
    }

    pub(in super::super) fn wake_all(word: &AtomicU32) {
        *word.asleep.lock().unwrap() = false;
    }

    #[cfg(test)]
    pub(in super::super) fn is_asleep(word: &AtomicU32) -> bool {
        *word.asleep.lock().unwrap()
    }
}

pub(super) fn fence(ordering: Ordering) {
    if REMOVED.get() != Some(("fence", ordering)) {
        loom::sync::atomic::fence(ordering);
    }
}

/// Memory for a message. Loom checks accesses to it for data races.
pub(super) struct MessageCell<const LEN: usize> {
    accesses: loom::cell::UnsafeCell<()>,
    message: UnsafeCell<[u8; LEN]>,
}

impl<const LEN: usize> MessageCell<LEN> {
    fn new() -> Self {
        Self { accesses: loom::cell::UnsafeCell::new(()), message: UnsafeCell::new([0; LEN]) }
    }

    pub(super) fn write_ptr(&self) -> *mut u8 {
        self.accesses.with_mut(|_| ());
        self.message.get().cast()
    }

    pub(super) fn read_ptr(&self) -> *const u8 {
        self.accesses.with(|_| ());
        self.message.get().cast_const().cast()
    }
}

/// The memory of the segment.
pub(super) struct Mapping(Arc<[RankArea]>);

impl Mapping {
    pub(super) fn new(_: &File, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn area(&self, rank: usize) -> &RankArea {
        &self.0[rank]
    }
}

fn area() -> RankArea {
    let word = AtomicU64::new;
    let slot = |_| MessageSlot {
        sequence: word("sequence"),
        call: word("call"),
        history: word("history"),
        long_buffer: word("long_buffer"),
        message: MessageCell::<SLOT_CAPACITY>::new(),
    };
    RankArea {
        slots: std::array::from_fn::<_, { SLOTS as usize }, _>(slot),
        long_buffers: std::array::from_fn::<_, LONG_BUFFERS, _>(|_| {
            LongBuffer(MessageCell::<CAPACITY>::new())
        }),
        state: RankState::new(word),
    }
}

/// Segments for ranks in threads of a model.
pub(crate) fn shared_segments(ranks: usize) -> Vec<SharedSegment> {
    let parts: Arc<[RankArea]> = (0..ranks).map(|_| area()).collect();
    (0..ranks).map(|rank| SharedSegment::new(Mapping(Arc::clone(&parts)), rank, ranks, false)).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

    use super::*;
    use crate::fabric::calls::{CallHash, CallSignature};

    /// Loom's limit of preemptions. With fewer, tests pass although an ordering is missing.
    const PREEMPTION_BOUND: usize = 3;

    fn check(body: fn()) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(PREEMPTION_BOUND);
        model.check(body);
    }

    /// Checks that the protocol holds, and that it fails without any one of `needed`.
    fn check_orderings(body: fn(), needed: &[(&'static str, Ordering)]) {
        check(body);
        for &ordering in needed {
            REMOVED.set(Some(ordering));
            let checked = catch_unwind(AssertUnwindSafe(|| check(body)));
            REMOVED.set(None);
            assert!(checked.is_err(), "{ordering:?} is not needed, or this test does not see that it is");
        }
    }

    /// Takes part in two operations; the second overwrites the message of the first.
    fn operate(shared: &mut SharedSegment, len: usize) {
        let other = 1 - shared.rank;
        for operation in 1..=2 {
            shared.begin_call(CallSignature::BARRIER, CallHash::default());
            let message = vec![10 * shared.rank as u8 + operation; len];
            // SAFETY: both messages have this many bytes.
            let received = unsafe {
                shared.write(message.as_ptr(), len, &mut |_| Ok(())).unwrap();
                std::slice::from_raw_parts(shared.read(other, &mut |_| Ok(())).unwrap(), len)
            };
            assert!(received.iter().all(|&byte| byte == 10 * other as u8 + operation), "{received:?}");
        }
    }

    fn exchange(len: usize) {
        let [mut first, mut second] = <[SharedSegment; 2]>::try_from(shared_segments(2)).ok().unwrap();
        let thread = loom::thread::spawn(move || operate(&mut first, len));
        operate(&mut second, len);
        thread.join().unwrap();
    }

    const OF_MESSAGES: [(&str, Ordering); 4] =
        [("sequence", Release), ("sequence", Acquire), ("started", Release), ("started", Acquire)];

    #[test]
    fn short_messages_are_read_when_they_are_there_and_before_they_are_overwritten() {
        check_orderings(|| exchange(SLOT_CAPACITY), &OF_MESSAGES);
    }

    #[test]
    fn long_messages_are_read_when_they_are_there_and_before_they_are_overwritten() {
        check_orderings(|| exchange(CAPACITY), &OF_MESSAGES);
    }

    #[test]
    fn a_rank_that_skips_the_segment_later_is_no_mismatch() {
        let body = || {
            let [mut first, mut second] = <[SharedSegment; 2]>::try_from(shared_segments(2)).ok().unwrap();
            let thread = loom::thread::spawn(move || {
                first.begin_call(CallSignature::BARRIER, CallHash::default());
                // SAFETY: a message without bytes.
                unsafe { first.write(std::ptr::null(), 0, &mut |_| Ok(())).unwrap() };
                first.skip(CallSignature::BARRIER);
            });
            second.begin_call(CallSignature::BARRIER, CallHash::default());
            // SAFETY: a message without bytes.
            unsafe { second.write(std::ptr::null(), 0, &mut |_| Ok(())).unwrap() };
            second.read(0, &mut |_| Ok(())).unwrap();
            thread.join().unwrap();
        };
        check_orderings(body, &[("skipped", Release), ("skipped", Acquire)]);
    }

    /// The other rank sees the counter, as it does after the first nanoseconds of a wait.
    #[test]
    fn a_rank_that_is_counted_is_woken() {
        let body = || {
            let sleepers = loom::sync::Arc::new(Sleepers::new());
            let published = loom::sync::Arc::new(loom::sync::atomic::AtomicU64::new(0));
            let sleeper = sleepers.enter();
            let thread = loom::thread::spawn({
                let (sleepers, published) = (sleepers.clone(), published.clone());
                move || {
                    published.store(1, Relaxed);
                    sleepers.wake();
                }
            });
            sleeper.sleep(std::time::Duration::MAX, || published.load(Relaxed) != 0);
            thread.join().unwrap();
            assert!(!sleepers.is_asleep());
        };
        check_orderings(body, &[("epoch", Acquire), ("epoch", Release)]);
    }

    #[test]
    fn one_of_two_ranks_gets_an_area() {
        check(|| {
            let area = loom::sync::Arc::new(area());
            area.state.offer(7);
            let other = area.clone();
            let thread = loom::thread::spawn(move || other.state.claim(7).is_ok());
            assert_ne!(area.state.claim(7).is_ok(), thread.join().unwrap());
            assert_eq!(area.state.claim(7).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        });
    }

    #[test]
    fn what_was_read_of_a_rank_that_failed_meanwhile_is_not_trusted() {
        let body = || {
            let [first, second] = <[SharedSegment; 2]>::try_from(shared_segments(2)).ok().unwrap();
            // A buffer read by another rank through cross-memory attach. Its owner reuses it after a failure.
            let buffer = loom::sync::Arc::new(loom::sync::atomic::AtomicU64::new(1));
            let owned = buffer.clone();
            let thread = loom::thread::spawn(move || {
                first.fail();
                owned.store(2, Relaxed);
            });
            let read = buffer.load(Relaxed);
            assert!(second.others_failed() || read == 1);
            thread.join().unwrap();
        };
        check_orderings(body, &[("fence", SeqCst)]);
    }
}
