//! A board in shared memory, on which the ranks of one host write messages for all the others to read.
//!
//! A short message costs less than any queue between two processes: the writer's cache line goes to the readers. Longer ones
//! go piece by piece.
//!
//! Every rank has slots, for one operation after the other, and a few places for messages that are too long for a slot. In
//! an operation every rank writes its message into its slot, or into the next of its places, then the operation's number
//! into the slot; and it reads those messages that it needs once they have that number. Beside its slots it says which
//! operation it has begun, which it does when it has read all that it needs of the one before. A rank begins operation
//! `k + SLOTS`, and so overwrites what it wrote in operation `k`, only when it has seen every rank begin `k + 1`; so also
//! for a place that it used last in operation `k`. A rank that needs nothing of the others, as the root of a broadcast, can
//! thus be many short operations ahead of them, or a few long ones.
//!
//! Each rank also writes what it has called ([`Call`]). Some operations do not use the board: each rank counts there those
//! that it has begun, so that one that waits for a message sees when the other has gone past the place where it should
//! have written it.
//!
//! Memory that is not atomic is ordered by three words of each rank, stored with `Release` and loaded with
//! `Acquire`:
//!
//! - the sequence of a slot: the message is written before it;
//! - the operation that the rank has begun: all reads of the operation before are done when it is stored;
//! - the number of operations without the board: all messages of earlier operations on the board are written
//!   before it.
//!
//! The other words are only read after one of these. Failures need two fences: a rank that fails says so, and
//! reuses its buffers only after a fence; a rank that has read from such a buffer looks for failures after a
//! fence, before it uses what it read. Strongly ordered processors (x86-64) guarantee more than that, and
//! hide errors; `make loom` runs this file under a model of memory that guarantees only what is asked for
//! (`model`).

#[cfg(not(loom))]
use std::cell::UnsafeCell;
use std::fs::{self, File, OpenOptions};
#[cfg(not(loom))]
use std::hint::spin_loop;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
#[cfg(not(loom))]
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, fence};
use std::time::{Duration, Instant};

#[cfg(loom)]
use self::model::{AtomicU64, Mapping, MessageCell, fence, spin_loop};
use crate::fabric::Error;
use crate::fabric::calls::{CallHash, CallSignature};
use crate::fabric::shared_memory::shm;
use crate::world::{self, World};

/// The longest message of one rank; of 8, 16 and 32 KiB, the last was measured to be the fastest for most long ones.
pub(crate) const CAPACITY: usize = if cfg!(loom) { 64 } else { 32 << 10 };
/// The longest message that lies in a slot: with the header nine cache lines, so that slots do not all fall into the same
/// few sets of a cache.
const SLOT_CAPACITY: usize = if cfg!(loom) { 8 } else { 9 * 64 - 32 };
/// More ranks have no board: each reads all the others' slots.
const MAX_RANKS: usize = 64;
/// Slots of each rank.
const SLOTS: u64 = if cfg!(loom) { 1 } else { 64 };
/// Places of each rank for messages that are too long for a slot.
const LONG_BUFFERS: usize = if cfg!(loom) { 1 } else { 4 };
/// How long ranks that called different things before have to find out what, or which one of them has failed.
pub(crate) const COMPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a rank looks before it does something else meanwhile.
const POLLS: u32 = if cfg!(loom) { 1 } else { 64 };
/// The same where a host has more ranks than processors: the other may be waiting for this one's processor.
const POLLS_OVERSUBSCRIBED: u32 = 8;

/// What a rank writes in an operation.
#[repr(C, align(64))]
struct MessageSlot {
    /// The number of the operation that the message is of, written last.
    sequence: AtomicU64,
    /// What the rank has called, from which follows how long the message is.
    call: AtomicU64,
    /// The calls before.
    history: AtomicU64,
    /// The place where the message is; [`PLACES`] if it is here.
    long_buffer: AtomicU64,
    message: MessageCell<SLOT_CAPACITY>,
}

/// Room for a long message.
#[repr(C, align(64))]
struct LongBuffer(MessageCell<CAPACITY>);

/// Memory for a message: one rank writes it, the others read it once it is complete.
#[cfg(not(loom))]
#[repr(transparent)]
struct MessageCell<const LEN: usize>(UnsafeCell<[u8; LEN]>);

#[cfg(not(loom))]
impl<const LEN: usize> MessageCell<LEN> {
    /// Pointer for the rank that writes.
    fn write_ptr(&self) -> *mut u8 {
        self.0.get().cast()
    }

    /// Pointer for the ranks that read.
    fn read_ptr(&self) -> *const u8 {
        self.0.get().cast_const().cast()
    }
}

/// How far a rank is. On lines of its own, which also no prefetcher fetches with others: it is written in every operation and
/// seldom read.
#[repr(C, align(128))]
struct RankState {
    /// The last operation that it has begun on the board.
    started: AtomicU64,
    /// How many operations it has begun without the board.
    skipped: AtomicU64,
    /// The last of those.
    call: AtomicU64,
    /// 1 once an operation has failed.
    failed: AtomicU64,
}

/// A rank's part of the board. Memory of zeros is one.
#[repr(C)]
struct RankArea {
    slots: [MessageSlot; SLOTS as usize],
    long_buffers: [LongBuffer; LONG_BUFFERS],
    state: RankState,
}

/// The memory of the board.
#[cfg(not(loom))]
struct Mapping {
    start: NonNull<RankArea>,
    ranks: usize,
}

#[cfg(not(loom))]
impl Mapping {
    /// Maps a file that has the length for this number of ranks.
    fn new(file: &File, ranks: usize) -> io::Result<Self> {
        // SAFETY: a new mapping of a file of this length, at an address of the system's choice.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), segment_len(ranks), access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, ranks })
    }

    fn area(&self, rank: usize) -> &RankArea {
        debug_assert!(rank < self.ranks);
        // SAFETY: the mapping, which begins at a page, has a part for each rank, and lives as long as this; everything in it
        // is an atomic or in a cell.
        unsafe { self.start.add(rank).as_ref() }
    }
}

#[cfg(not(loom))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this type's own mapping, of this length; nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), segment_len(self.ranks)) };
    }
}

/// One rank's view of the board.
pub(crate) struct SharedSegment {
    memory: Mapping,
    rank: usize,
    ranks: usize,
    /// The operation's number: the first is 1.
    sequence: u64,
    /// The last operation that all other ranks are known to have begun.
    started: u64,
    /// The operations in which this rank's places were used last, and which is next.
    last_used: [u64; LONG_BUFFERS],
    next_buffer: usize,
    /// What this rank calls.
    call: CallSignature,
    /// The calls before.
    history: CallHash,
    /// How many operations this rank has begun without the board.
    skipped: u64,
    /// Whether there are more ranks than processors: one that waits then lets another work.
    oversubscribed: bool,
}

// SAFETY: the mapping is bound to no thread.
unsafe impl Send for SharedSegment {}

impl SharedSegment {
    /// Makes a board for the ranks of a world, which must all be on this host. Collective. None when there are too
    /// many ranks, or shared memory cannot be had: on all ranks then. `crowded` says whether there are more ranks than
    /// processors.
    pub(crate) fn create(world: &dyn World, oversubscribed: bool) -> Result<Option<Self>, world::Error> {
        let (rank, ranks) = (world.rank(), world.size());
        if !(2..=MAX_RANKS).contains(&ranks) {
            return Ok(None);
        }
        let made = if rank == 0 { create_file(ranks).ok() } else { None };
        let name = made.as_ref().map_or(&[][..], |(path, _)| path.as_os_str().as_encoded_bytes());
        let met = world.all_gather(name).and_then(|names| {
            let path = names.first().map(|name| String::from_utf8_lossy(name).into_owned());
            let shared = match &made {
                Some((_, file)) => Self::map(file, rank, ranks, oversubscribed),
                None => OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(path.unwrap_or_default())
                    .and_then(|file| Self::map(&file, rank, ranks, oversubscribed)),
            };
            let everyone = world.all_gather(&[u8::from(shared.is_ok())])?.iter().all(|has| has == &[1]);
            Ok(shared.ok().filter(|_| everyone))
        });
        if let Some((path, _)) = made {
            // All have it open, or go without. A name that cannot be removed goes with the process's leftovers.
            let _ = fs::remove_file(path);
        }
        met
    }

    fn map(file: &File, rank: usize, ranks: usize, oversubscribed: bool) -> io::Result<Self> {
        // A world is anybody's, and may say what it likes.
        if rank >= ranks || file.metadata()?.len() != segment_len(ranks) as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self::new(Mapping::new(file, ranks)?, rank, ranks, oversubscribed))
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

    /// How many ranks there are: two or more.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// A rank's part. What is not atomic in it has one writer at a time: see the head of this file.
    fn area(&self, rank: usize) -> &RankArea {
        self.memory.area(rank)
    }

    /// The slot of a rank for an operation.
    fn slot(&self, rank: usize, operation: u64) -> &MessageSlot {
        &self.area(rank).slots[(operation % SLOTS) as usize]
    }

    /// Says that this rank begins an operation without the board.
    pub(crate) fn skip(&mut self, call: CallSignature) {
        self.skipped += 1;
        let own = &self.area(self.rank).state;
        own.call.store(call.word(), Ordering::Relaxed);
        own.skipped.store(self.skipped, Ordering::Release);
    }

    /// Says that an operation of this rank has failed, and gives its buffers back. Other ranks may yet read them, as messages
    /// that they have from this one, but will not trust them.
    pub(crate) fn fail(&self) {
        self.area(self.rank).state.failed.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether an operation of another rank has failed. If not, all that was read of its memory until now was right.
    pub(crate) fn others_failed(&self) -> bool {
        fence(Ordering::SeqCst);
        (0..self.ranks).any(|rank| self.area(rank).state.failed.load(Ordering::Relaxed) != 0)
    }

    /// Says what this rank calls next on the board, and after which other calls.
    pub(crate) fn begin_call(&mut self, call: CallSignature, history: CallHash) {
        (self.call, self.history) = (call, history);
    }

    /// Begins an operation with this rank's message. Waits for ranks that are too far behind, and calls `meanwhile` now and
    /// then.
    ///
    /// # Safety
    /// `len` bytes of `data` are readable, and at most [`CAPACITY`].
    pub(crate) unsafe fn write(
        &mut self,
        data: *const u8,
        len: usize,
        progress: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        // SAFETY: there are so many bytes here, says the caller, and room for as many there.
        let fill = |message| unsafe { ptr::copy_nonoverlapping(non_null(data), message, len) };
        // SAFETY: as promised by the caller.
        unsafe { self.write_with(len, fill, progress) }
    }

    /// As [`write`](Self::write), of a message that `fill` puts together where it is given room for it.
    ///
    /// # Safety
    /// The message has at most [`CAPACITY`] bytes, and `fill` writes no more.
    pub(crate) unsafe fn write_with(
        &mut self,
        len: usize,
        fill: impl FnOnce(*mut u8),
        progress: &mut dyn FnMut() -> Result<(), Error>,
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
        slot.call.store(self.call.word(), Ordering::Relaxed);
        slot.history.store(self.history.word(), Ordering::Relaxed);
        slot.long_buffer.store(long_buffer.unwrap_or(LONG_BUFFERS) as u64, Ordering::Relaxed);
        slot.sequence.store(operation, Ordering::Release);
        Ok(())
    }

    /// Waits for the message of a rank in the current operation, and calls `meanwhile` now and then. The message is as
    /// long as that rank's are in this call, stays as it is until this rank begins the next operation, and is aligned to
    /// 16 bytes.
    pub(crate) fn read(
        &mut self,
        rank: usize,
        progress: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<*const u8, Error> {
        self.wait_for(
            rank,
            self.sequence,
            |area, slot| area.slots[slot].sequence.load(Ordering::Acquire),
            progress,
        )?;
        let slot = self.slot(rank, self.sequence);
        let (call, history) = (slot.call.load(Ordering::Relaxed), slot.history.load(Ordering::Relaxed));
        if (call, history) != (self.call.word(), self.history.word()) {
            return Err(self.mismatch(rank, call, history, progress));
        }
        let long_buffer = self.area(rank).long_buffers.get(slot.long_buffer.load(Ordering::Relaxed) as usize);
        Ok(long_buffer.map_or_else(|| slot.message.read_ptr(), |long_buffer| long_buffer.0.read_ptr()))
    }

    /// Waits until all other ranks have begun an operation.
    fn wait_for_all(
        &mut self,
        operation: u64,
        progress: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.started >= operation {
            return Ok(());
        }
        let mut all = u64::MAX;
        for rank in (0..self.ranks).filter(|&rank| rank != self.rank) {
            let started = |area: &RankArea, _| area.state.started.load(Ordering::Acquire);
            all = all.min(self.wait_for(rank, operation, started, progress)?);
        }
        self.started = all;
        Ok(())
    }

    /// Waits until `reached` of a rank's part, and of the index of an operation's slot in it, is that operation or a later
    /// one, and says which.
    fn wait_for(
        &self,
        rank: usize,
        operation: u64,
        reached: impl Fn(&RankArea, usize) -> u64,
        progress: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let (area, slot) = (self.area(rank), (operation % SLOTS) as usize);
        let most = if self.oversubscribed { POLLS_OVERSUBSCRIBED } else { POLLS };
        let mut polls: u32 = 0;
        loop {
            let now = reached(area, slot);
            if now >= operation {
                return Ok(now);
            }
            polls += 1;
            if polls == most {
                polls = 0;
                progress()?;
                // A rank that is in order goes elsewhere again only after it has got this far.
                if area.state.skipped.load(Ordering::Acquire) > self.skipped
                    && reached(area, slot) < operation
                {
                    let call = CallSignature::of_word(area.state.call.load(Ordering::Relaxed));
                    return Err(self.other_operation(rank, Some(call)));
                }
                if self.oversubscribed {
                    std::thread::yield_now();
                }
            }
            spin_loop();
        }
    }

    /// Another rank has called something else now, or before: what, the ranks find out when they have waited for long.
    #[cold]
    fn mismatch(
        &self,
        peer: usize,
        call: u64,
        history: u64,
        progress: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Error {
        if history == self.history.word() {
            return self.other_operation(peer, Some(CallSignature::of_word(call)));
        }
        let since = Instant::now();
        while since.elapsed() < COMPARE_TIMEOUT {
            if let Err(error) = progress() {
                return error;
            }
            std::thread::yield_now();
        }
        self.other_operation(peer, None)
    }

    #[cold]
    fn other_operation(&self, peer: usize, peer_called: Option<CallSignature>) -> Error {
        Error::OtherOperation {
            rank: self.rank,
            called: self.call.to_string(),
            peer,
            peer_called: peer_called.map(|call| call.to_string()),
        }
    }
}

/// What may be the null pointer of no bytes.
fn non_null(data: *const u8) -> *const u8 {
    if data.is_null() { ptr::dangling() } else { data }
}

fn segment_len(ranks: usize) -> usize {
    ranks * size_of::<RankArea>()
}

/// Makes a file for a board that this user alone can open.
fn create_file(ranks: usize) -> io::Result<(PathBuf, File)> {
    let path = Path::new(shm::DIRECTORY).join(shm::new_name());
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    // SAFETY: an open file; reserves its memory, so that no later write finds none left.
    let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, segment_len(ranks) as libc::off_t) };
    if result != 0 {
        let _ = fs::remove_file(&path);
        return Err(io::Error::from_raw_os_error(result));
    }
    Ok((path, file))
}

#[cfg(loom)]
mod model;
#[cfg(loom)]
pub(crate) use model::shared_segments;

/// Boards for ranks that are threads of a test.
#[cfg(not(loom))]
#[cfg(test)]
pub(crate) fn shared_segments(ranks: usize) -> Vec<SharedSegment> {
    let (path, file) = create_file(ranks).unwrap();
    fs::remove_file(path).unwrap();
    (0..ranks).map(|rank| SharedSegment::map(&file, rank, ranks, true).unwrap()).collect()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
