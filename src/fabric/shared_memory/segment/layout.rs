//! Layout of the segment, and its mapping.

#[cfg(not(loom))]
use std::cell::UnsafeCell;
#[cfg(not(loom))]
use std::fs::File;
use std::io;
#[cfg(not(loom))]
use std::os::fd::AsRawFd;
#[cfg(not(loom))]
use std::ptr::{self, NonNull};
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::CAPACITY;
#[cfg(loom)]
use super::model::{AtomicU64, MessageCell};
use super::sleepers::Sleepers;

/// Longest message in a slot, in bytes: with the header nine cache lines, to spread slots over the sets of a
/// cache.
pub(super) const SLOT_CAPACITY: usize = if cfg!(loom) { 8 } else { 9 * 64 - 32 };
/// Slots of each rank.
pub(super) const SLOTS: u64 = if cfg!(loom) { 1 } else { 64 };
/// Buffers of each rank for messages too long for a slot.
pub(super) const LONG_BUFFERS: usize = if cfg!(loom) { 1 } else { 4 };

/// A rank's message in one operation.
#[repr(C, align(64))]
pub(super) struct MessageSlot {
    /// Number of the operation, written after everything else.
    pub(super) sequence: AtomicU64,
    /// Signature of the call; it implies the message's length.
    pub(super) call: AtomicU64,
    /// Hash of the calls before.
    pub(super) history: AtomicU64,
    /// Index of the long buffer with the message; [`LONG_BUFFERS`] if it is in the slot.
    pub(super) long_buffer: AtomicU64,
    pub(super) message: MessageCell<SLOT_CAPACITY>,
}

#[repr(C, align(64))]
pub(super) struct LongBuffer(pub(super) MessageCell<CAPACITY>);

/// Memory for a message: one rank writes it, the others read it once it is complete.
#[cfg(not(loom))]
#[repr(transparent)]
pub(super) struct MessageCell<const LEN: usize>(UnsafeCell<[u8; LEN]>);

#[cfg(not(loom))]
impl<const LEN: usize> MessageCell<LEN> {
    /// Pointer for the writing rank.
    pub(super) fn write_ptr(&self) -> *mut u8 {
        self.0.get().cast()
    }

    /// Pointer for the reading ranks.
    pub(super) fn read_ptr(&self) -> *const u8 {
        self.0.get().cast_const().cast()
    }
}

/// Progress of a rank. It is written in every operation and seldom read, so it has a pair of cache lines to
/// itself (prefetchers load lines in pairs).
#[repr(C, align(128))]
pub(super) struct RankState {
    /// Last operation begun in the segment.
    pub(super) started: AtomicU64,
    /// Number of operations begun without the segment.
    pub(super) skipped: AtomicU64,
    /// Signature of the last operation without the segment.
    pub(super) call: AtomicU64,
    /// 1 once an operation has failed.
    pub(super) failed: AtomicU64,
    /// The segment's number, or [`CLAIMED`] once a rank has the area.
    claim: AtomicU64,
    /// Ranks asleep until this one publishes something.
    pub(super) sleepers: Sleepers,
}

/// Different from the odd numbers of segments, and from the zero of other files.
const CLAIMED: u64 = 2;

impl RankState {
    #[cfg(loom)]
    pub(super) fn new(word: fn(&'static str) -> AtomicU64) -> Self {
        let [started, skipped, call, failed, claim] =
            ["started", "skipped", "call", "failed", "claim"].map(word);
        Self { started, skipped, call, failed, claim, sleepers: Sleepers::new() }
    }

    /// Lets a rank claim the area by the segment's number.
    pub(super) fn offer(&self, number: u64) {
        self.claim.store(number, Ordering::Relaxed);
    }

    /// Claims the area of the segment with this number for its only writer.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if another rank has claimed it;
    /// [`InvalidData`](io::ErrorKind::InvalidData) in any other memory.
    pub(super) fn claim(&self, number: u64) -> io::Result<()> {
        // Exclusive with any ordering. The area is all zeros before, and read only after an exchange of the
        // world.
        let (new, relaxed) = (CLAIMED, Ordering::Relaxed);
        match self.claim.compare_exchange(number, new, relaxed, relaxed) {
            Ok(_) => Ok(()),
            Err(CLAIMED) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A rank's part of the segment. All zeros is a valid value.
#[repr(C)]
pub(super) struct RankArea {
    pub(super) slots: [MessageSlot; SLOTS as usize],
    pub(super) long_buffers: [LongBuffer; LONG_BUFFERS],
    pub(super) state: RankState,
}

/// Bytes of a segment.
pub(super) fn segment_len(ranks: usize) -> usize {
    ranks * size_of::<RankArea>()
}

/// A mapped segment.
#[cfg(not(loom))]
pub(super) struct Mapping {
    start: NonNull<RankArea>,
    ranks: usize,
}

#[cfg(not(loom))]
impl Mapping {
    /// Maps a file. It must be as long as the segment for this number of ranks.
    pub(super) fn new(file: &File, ranks: usize) -> io::Result<Self> {
        // SAFETY: a new mapping of a file of this length, at an address of the system's choice.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // The pages are allocated already: mapping them here avoids page faults in the first operations.
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            libc::mmap(ptr::null_mut(), segment_len(ranks), access, flags, file.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, ranks })
    }

    pub(super) fn area(&self, rank: usize) -> &RankArea {
        debug_assert!(rank < self.ranks);
        // SAFETY: the mapping begins at a page, has an area for each rank, and lives as long as this;
        // everything in it is an atomic or in a cell.
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
