//! A segment of shared memory for messages between the ranks of one host: each rank writes its message once,
//! and all others read it there.
//!
//! A short message costs less than in any queue between two processes: the writer's cache line goes to the
//! readers. Longer messages are cut into pieces.
//!
//! # Protocol
//! Each rank has slots, used by one operation after the other, and a few long buffers for messages longer
//! than a slot. In an operation a rank writes its message into its slot or its next long buffer, then stores
//! the operation's number in the slot; readers wait for this number. A rank also publishes its current
//! operation; by then it has finished all reads of the operation before. It begins operation `k + SLOTS`, and
//! so overwrites its message of operation `k`, only when every rank has begun `k + 1`; the same holds for a
//! long buffer last used in operation `k`. A rank that reads nothing, such as the root of a broadcast, can
//! thus be many short operations ahead of the others, or a few long ones.
//!
//! A rank claims its memory in the segment before it writes there: a world of the program's could give two
//! ranks the same number.
//!
//! Each message carries the [signature](CallSignature) of the call. A rank counts its operations without the
//! segment there as well: a rank waiting for its message thus sees if the sender has passed the operation
//! without writing it.
//!
//! # Memory ordering
//! Three words of each rank order the non-atomic memory. They are stored with `Release` and loaded with
//! `Acquire`:
//!
//! - `sequence` of a slot: the message is written before it;
//! - `started`: all reads of the previous operation are done before it is stored;
//! - `skipped`: all messages of earlier operations in the segment are written before it.
//!
//! The other words are only read after one of these. Failures need two fences: a failed rank stores `failed`,
//! and reuses its buffers only after a fence; after a read of such a buffer (by cross-memory attach), a rank
//! checks `failed` after a fence, before it uses the data. Strongly ordered processors (x86-64) guarantee
//! more and hide errors; `make loom` runs this file under a model of memory that guarantees only the
//! requested orderings (`model`).

use std::fs::File;
#[cfg(not(loom))]
use std::hint::spin_loop;
use std::io;
use std::ptr;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

#[cfg(not(loom))]
use self::layout::Mapping;
use self::layout::{LONG_BUFFERS, MessageSlot, RankArea, SLOT_CAPACITY, SLOTS, segment_len};
#[cfg(loom)]
use self::model::{Mapping, fence, spin_loop};
use crate::fabric::Error;
use crate::fabric::calls::{CallHash, CallSignature};
use crate::fabric::spin::{Next, Spin};
use crate::world::{self, World};

mod file;
mod layout;
mod sleepers;

/// Longest message of one rank, in bytes. Of 8, 16 and 32 KiB, the last was the fastest for most long
/// vectors.
pub(crate) const CAPACITY: usize = if cfg!(loom) { 64 } else { 32 << 10 };
/// Largest number of ranks: each of them reads all the others' slots.
const MAX_RANKS: usize = 64;
/// Time limit for ranks with different earlier calls to find the difference, or the failed rank.
pub(crate) const COMPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// Polls between two calls of the caller's `progress`.
const POLLS: u32 = if cfg!(loom) { 1 } else { 64 };
/// The same on a host with more ranks than processors, where the peer may be waiting for this processor.
const POLLS_OVERSUBSCRIBED: u32 = 8;

/// A rank's message about its mapping of the segment: it has none, has one, or another rank has claimed its
/// area.
const NOT_MAPPED: u8 = 0;
const MAPPED: u8 = 1;
const CLAIMED: u8 = 2;

/// Longest sleep between two checks of the other ranks; also the delay when a wake-up is missed (see
/// `sleepers`).
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// State of a waiting rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It polls, and calls often.
    Polling,
    /// It sleeps between two calls.
    Sleeping,
}

/// Function called by a waiting rank: makes progress elsewhere, and checks the other ranks, from time to time
/// when polling, and every time when sleeping.
pub(crate) type ProgressCall<'a> = &'a mut dyn FnMut(Waiting) -> Result<(), Error>;

/// One rank's view of the segment.
pub(crate) struct SharedSegment {
    memory: Mapping,
    rank: usize,
    ranks: usize,
    /// Number of the current operation, from 1 on.
    sequence: u64,
    /// Last operation known to have begun on all other ranks.
    started: u64,
    /// Last operation with each long buffer.
    last_used: [u64; LONG_BUFFERS],
    next_buffer: usize,
    call: CallSignature,
    /// Hash of the calls before.
    history: CallHash,
    /// Number of operations begun by this rank without the segment.
    skipped: u64,
    /// True with more ranks than processors: waiting ranks yield.
    oversubscribed: bool,
}

// SAFETY: the mapping is bound to no thread.
unsafe impl Send for SharedSegment {}

impl SharedSegment {
    /// Creates a segment for the ranks of a world, all on this host. Collective. Returns `None`, on all
    /// ranks, with too many ranks or without shared memory. `oversubscribed`: there are more ranks than
    /// processors.
    ///
    /// # Errors
    /// The errors of the world; [`world::Error::Mismatch`] if another rank has this rank's number.
    pub(crate) fn create(world: &dyn World, oversubscribed: bool) -> Result<Option<Self>, world::Error> {
        let (rank, ranks) = (world.rank(), world.size());
        if !(2..=MAX_RANKS).contains(&ranks) {
            return Ok(None);
        }
        let made = if rank == 0 { file::create_file(ranks).ok() } else { None };
        let name = made.as_ref().map_or("", |(name, _)| name);
        let met = world.all_gather(name.as_bytes()).and_then(|names| {
            let mapped = match &made {
                Some((name, file)) => Self::map_file(name, file, rank, ranks, oversubscribed),
                None => {
                    let name = names.first().map(|name| String::from_utf8_lossy(name)).unwrap_or_default();
                    file::open_file(&name)
                        .and_then(|file| Self::map_file(&name, &file, rank, ranks, oversubscribed))
                }
            };
            let result = match &mapped {
                Ok(_) => MAPPED,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => CLAIMED,
                Err(_) => NOT_MAPPED,
            };
            let all = world.all_gather(&[result])?;
            let twice =
                if result == CLAIMED { Some(rank) } else { all.iter().position(|one| one == &[CLAIMED]) };
            if let Some(rank) = twice {
                return Err(world::Error::Mismatch(format!(
                    "two ranks of a world of {ranks} ranks report that they are rank {rank}"
                )));
            }
            Ok(mapped.ok().filter(|_| all.iter().all(|one| one == &[MAPPED])))
        });
        if let Some((name, _)) = made {
            // All have it open, or do without it. Leftover names are removed by `shm::remove_leftovers`.
            file::remove_name(&name);
        }
        met
    }

    /// Maps the file of a segment, and claims this rank's area in it. Any program can implement `World`, so
    /// its answers are checked: the rank, the file's name and length, and that no other rank has the area
    /// ([`AlreadyExists`](io::ErrorKind::AlreadyExists)).
    fn map_file(
        name: &str,
        file: &File,
        rank: usize,
        ranks: usize,
        oversubscribed: bool,
    ) -> io::Result<Self> {
        let number = file::number_in(name)?;
        if rank >= ranks || file.metadata()?.len() != segment_len(ranks) as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Mapping::new(file, ranks)?;
        memory.area(rank).state.claim(number)?;
        Ok(Self::new(memory, rank, ranks, oversubscribed))
    }

    fn new(memory: Mapping, rank: usize, ranks: usize, oversubscribed: bool) -> Self {
        Self {
            memory,
            rank,
            ranks,
            sequence: 0,
            started: 0,
            last_used: [0; LONG_BUFFERS],
            next_buffer: 0,
            call: CallSignature::BARRIER,
            history: CallHash::default(),
            skipped: 0,
            oversubscribed,
        }
    }

    /// Number of ranks, at least 2.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// A rank's area. Non-atomic memory in it has one writer at a time: see the head of this file.
    fn area(&self, rank: usize) -> &RankArea {
        self.memory.area(rank)
    }

    /// A rank's slot for an operation.
    fn slot(&self, rank: usize, operation: u64) -> &MessageSlot {
        &self.area(rank).slots[(operation % SLOTS) as usize]
    }

    /// Publishes the start of an operation of this rank without the segment.
    pub(crate) fn skip(&mut self, call: CallSignature) {
        self.skipped += 1;
        let own = &self.area(self.rank).state;
        own.call.store(call.signature_word(), Ordering::Relaxed);
        own.skipped.store(self.skipped, Ordering::Release);
        own.sleepers.wake();
    }

    /// Publishes the failure of an operation of this rank; its buffers may be reused afterwards. Ranks still
    /// reading them by cross-memory attach discard the data.
    pub(crate) fn fail(&self) {
        self.area(self.rank).state.failed.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// True when an operation of another rank has failed. If false, all data read from its memory before is
    /// valid.
    pub(crate) fn others_failed(&self) -> bool {
        fence(Ordering::SeqCst);
        (0..self.ranks).any(|rank| self.area(rank).state.failed.load(Ordering::Relaxed) != 0)
    }

    /// Sets the call of the next messages, and the hash of earlier calls.
    pub(crate) fn begin_call(&mut self, call: CallSignature, history: CallHash) {
        (self.call, self.history) = (call, history);
    }

    /// Begins an operation with this rank's message. Waits for ranks too far behind, and calls `progress`
    /// meanwhile.
    ///
    /// # Safety
    /// `len` bytes of `data` are readable, and at most [`CAPACITY`].
    pub(crate) unsafe fn write(
        &mut self,
        data: *const u8,
        len: usize,
        progress: ProgressCall<'_>,
    ) -> Result<(), Error> {
        // SAFETY: `len` bytes are readable, as the caller promises, and writable there.
        let fill = |message| unsafe { ptr::copy_nonoverlapping(non_null(data), message, len) };
        // SAFETY: as promised by the caller.
        unsafe { self.write_with(len, fill, progress) }
    }

    /// Begins an operation, as [`write`](Self::write), with a message written in place by `fill`.
    ///
    /// # Safety
    /// The message has at most [`CAPACITY`] bytes, and `fill` writes no more.
    pub(crate) unsafe fn write_with(
        &mut self,
        len: usize,
        fill: impl FnOnce(*mut u8),
        progress: ProgressCall<'_>,
    ) -> Result<(), Error> {
        debug_assert!(len <= CAPACITY);
        let operation = self.sequence + 1;
        self.area(self.rank).state.started.store(operation, Ordering::Release);
        let long_buffer = (len > SLOT_CAPACITY).then_some(self.next_buffer);
        let last = long_buffer
            .map_or(0, |long_buffer| self.last_used[long_buffer])
            .max(operation.saturating_sub(SLOTS));
        if last > 0 {
            self.wait_for_all(last + 1, progress)?;
        }
        self.sequence = operation;
        if let Some(long_buffer) = long_buffer {
            self.last_used[long_buffer] = operation;
            self.next_buffer = (long_buffer + 1) % LONG_BUFFERS;
        }
        let slot = self.slot(self.rank, operation);
        let message = long_buffer.map_or_else(
            || slot.message.write_ptr(),
            |long_buffer| self.area(self.rank).long_buffers[long_buffer].0.write_ptr(),
        );
        // No other rank reads this: see the head of this file.
        fill(message);
        slot.call.store(self.call.signature_word(), Ordering::Relaxed);
        slot.history.store(self.history.hash_word(), Ordering::Relaxed);
        slot.long_buffer.store(long_buffer.unwrap_or(LONG_BUFFERS) as u64, Ordering::Relaxed);
        slot.sequence.store(operation, Ordering::Release);
        // Also ranks waiting for the start of this operation.
        self.area(self.rank).state.sleepers.wake();
        Ok(())
    }

    /// Waits for a rank's message in the current operation, and calls `progress` meanwhile. The message has
    /// the length implied by the call, stays unchanged until this rank begins the next operation, and is
    /// aligned to 16 bytes.
    pub(crate) fn read(&mut self, rank: usize, progress: ProgressCall<'_>) -> Result<*const u8, Error> {
        self.wait_for(
            rank,
            self.sequence,
            |area, slot| area.slots[slot].sequence.load(Ordering::Acquire),
            progress,
        )?;
        let slot = self.slot(rank, self.sequence);
        let (call, history) = (slot.call.load(Ordering::Relaxed), slot.history.load(Ordering::Relaxed));
        if (call, history) != (self.call.signature_word(), self.history.hash_word()) {
            return Err(self.mismatch_error(rank, call, history, progress));
        }
        let long_buffer = self.area(rank).long_buffers.get(slot.long_buffer.load(Ordering::Relaxed) as usize);
        Ok(long_buffer.map_or_else(|| slot.message.read_ptr(), |long_buffer| long_buffer.0.read_ptr()))
    }

    /// Waits until all other ranks have begun an operation.
    fn wait_for_all(&mut self, operation: u64, progress: ProgressCall<'_>) -> Result<(), Error> {
        if self.started >= operation {
            return Ok(());
        }
        // They may wait for the operation begun by this rank.
        self.area(self.rank).state.sleepers.wake();
        let mut all = u64::MAX;
        for rank in (0..self.ranks).filter(|&rank| rank != self.rank) {
            let started = |area: &RankArea, _| area.state.started.load(Ordering::Acquire);
            all = all.min(self.wait_for(rank, operation, started, progress)?);
        }
        self.started = all;
        Ok(())
    }

    /// Waits until `reached`, given a rank's area and the index of the operation's slot, returns `operation`
    /// or later; returns its result.
    fn wait_for(
        &self,
        rank: usize,
        operation: u64,
        reached: impl Fn(&RankArea, usize) -> u64,
        progress: ProgressCall<'_>,
    ) -> Result<u64, Error> {
        let (area, slot) = (self.area(rank), (operation % SLOTS) as usize);
        let reached = || reached(area, slot);
        let now = reached();
        if now >= operation { Ok(now) } else { self.poll_until(rank, operation, &reached, progress) }
    }

    /// Continues [`wait_for`](Self::wait_for) for a rank not there yet.
    #[inline(never)]
    fn poll_until(
        &self,
        rank: usize,
        operation: u64,
        reached: &dyn Fn() -> u64,
        progress: ProgressCall<'_>,
    ) -> Result<u64, Error> {
        let most = if self.oversubscribed { POLLS_OVERSUBSCRIBED } else { POLLS };
        let mut polls: u32 = 0;
        let mut spin = Spin::new(self.oversubscribed);
        loop {
            let now = reached();
            if now >= operation {
                return Ok(now);
            }
            polls += 1;
            if polls == most {
                polls = 0;
                progress(Waiting::Polling)?;
                self.check_skipped(rank, operation, reached)?;
                match spin.next_step() {
                    Next::Poll => {}
                    Next::Yield => std::thread::yield_now(),
                    Next::Sleep => return self.sleep_until(rank, operation, reached, progress),
                }
            }
            spin_loop();
        }
    }

    /// Continues [`poll_until`](Self::poll_until) asleep.
    #[cold]
    fn sleep_until(
        &self,
        rank: usize,
        operation: u64,
        reached: &dyn Fn() -> u64,
        progress: ProgressCall<'_>,
    ) -> Result<u64, Error> {
        let state = &self.area(rank).state;
        let sleeper = state.sleepers.enter();
        loop {
            let now = reached();
            if now >= operation {
                return Ok(now);
            }
            progress(Waiting::Sleeping)?;
            self.check_skipped(rank, operation, reached)?;
            let has_skipped = || state.skipped.load(Ordering::Acquire) > self.skipped;
            sleeper.sleep(LONGEST_SLEEP, || reached() >= operation || has_skipped());
        }
    }

    /// Fails when an awaited rank has begun a later operation without the segment.
    fn check_skipped(&self, rank: usize, operation: u64, reached: &dyn Fn() -> u64) -> Result<(), Error> {
        let state = &self.area(rank).state;
        // A rank that calls the same operations skips the segment again only after this operation.
        if state.skipped.load(Ordering::Acquire) > self.skipped && reached() < operation {
            let call = CallSignature::of_word(state.call.load(Ordering::Relaxed));
            return Err(self.mismatch_with(rank, Some(call)));
        }
        Ok(())
    }

    /// Returns the error for a rank with different current or earlier calls. Different earlier calls are
    /// found by comparing calls; this takes time.
    #[cold]
    fn mismatch_error(&self, peer: usize, call: u64, history: u64, progress: ProgressCall<'_>) -> Error {
        if history == self.history.hash_word() {
            return self.mismatch_with(peer, Some(CallSignature::of_word(call)));
        }
        let since = Instant::now();
        while since.elapsed() < COMPARE_TIMEOUT {
            if let Err(error) = progress(Waiting::Sleeping) {
                return error;
            }
            std::thread::sleep(LONGEST_SLEEP);
        }
        self.mismatch_with(peer, None)
    }

    #[cold]
    fn mismatch_with(&self, peer: usize, peer_called: Option<CallSignature>) -> Error {
        Error::Mismatch {
            rank: self.rank,
            called: self.call.to_string(),
            peer,
            peer_called: peer_called.map(|call| call.to_string()),
        }
    }
}

/// Replaces a null pointer, allowed for messages of no bytes.
fn non_null(data: *const u8) -> *const u8 {
    if data.is_null() { ptr::dangling() } else { data }
}

#[cfg(loom)]
mod model;
#[cfg(loom)]
pub(crate) use model::shared_segments;

/// Segments for ranks in threads of a test.
#[cfg(not(loom))]
#[cfg(test)]
pub(crate) fn shared_segments(ranks: usize) -> Vec<SharedSegment> {
    let (name, file) = file::create_file(ranks).unwrap();
    file::remove_name(&name);
    (0..ranks).map(|rank| SharedSegment::map_file(&name, &file, rank, ranks, true).unwrap()).collect()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
