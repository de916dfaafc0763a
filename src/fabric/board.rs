//! A board in shared memory, on which the ranks of one host write short messages for all the others to read.
//!
//! A short message costs less than any queue between two processes: the writer's cache line goes to the readers.
//!
//! Every rank has a few slots, for one operation after the other. In an operation every rank writes its message into its
//! slot, then the operation's number, and reads those messages that it needs once they have that number. A rank begins
//! operation `k + SLOTS`, and so overwrites what it wrote in operation `k`, only when it has seen every rank begin `k +
//! 1`, which each does when it has read all that it needs of operation `k`. So a rank that needs nothing of the others,
//! as the root of a broadcast, can be some operations ahead of them.
//!
//! Each rank also writes what it has called ([`Call`]). Some operations do not use the board: each rank counts there those
//! that it has begun, so that one that waits for a message sees when the other has gone past the place where it should
//! have written it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::calls::{Call, History};
use super::{Error, shm};
use crate::world::{self, World};

/// The longest message of one rank.
pub(crate) const CAPACITY: usize = (32 << 10) - size_of::<Header>();
/// More ranks have no board: each reads all the others' slots.
const MOST_RANKS: usize = 64;
const SLOT: usize = size_of::<Header>() + CAPACITY;
/// Slots of each rank.
const SLOTS: u64 = 4;
const _: () = assert!(SLOT.is_multiple_of(align_of::<Elsewhere>()));
/// How long ranks that called different things before have to find out what.
const COMPARING: Duration = Duration::from_secs(10);
/// How often a slot is looked at before something else is done meanwhile.
const LOOKS: u32 = 64;

/// The start of a slot.
#[repr(C, align(16))]
struct Header {
    /// The number of the operation that the message is of, written last.
    sequence: AtomicU64,
    /// What the rank has called, from which follows how long the message is.
    call: AtomicU64,
    /// The calls before.
    history: AtomicU64,
}

/// A rank's count of the operations that it has begun without the board, on a cache line of its own, and the last.
#[repr(C, align(64))]
struct Elsewhere {
    count: AtomicU64,
    call: AtomicU64,
}

/// One rank's view of the board.
pub(crate) struct Board {
    memory: NonNull<u8>,
    rank: usize,
    ranks: usize,
    /// The operation's number: the first is 1.
    sequence: u64,
    /// The last operation that each rank is known to have begun.
    begun: Vec<u64>,
    /// What this rank calls.
    call: Call,
    /// The calls before.
    history: History,
    /// How many operations this rank has begun without the board.
    elsewhere: u64,
    /// Whether there are more ranks than processors: one that waits then lets another work.
    crowded: bool,
}

// SAFETY: the mapping is bound to no thread.
unsafe impl Send for Board {}

impl Board {
    /// Makes a board for the ranks of a world, which must all be on this host. Collective. None when there are too
    /// many ranks, or shared memory cannot be had: on all ranks then.
    pub(crate) fn meet(world: &dyn World) -> Result<Option<Self>, world::Error> {
        let (rank, ranks) = (world.rank(), world.size());
        if !(2..=MOST_RANKS).contains(&ranks) {
            return Ok(None);
        }
        let made = if rank == 0 { create(ranks).ok() } else { None };
        let name = made.as_ref().map_or(&[][..], |(path, _)| path.as_os_str().as_encoded_bytes());
        let met = world.all_gather(name).and_then(|names| {
            let path = names.first().map(|name| String::from_utf8_lossy(name).into_owned());
            let board = match &made {
                Some((_, file)) => Self::map(file, rank, ranks),
                None => OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(path.unwrap_or_default())
                    .and_then(|file| Self::map(&file, rank, ranks)),
            };
            let everyone = world.all_gather(&[u8::from(board.is_ok())])?.iter().all(|has| has == &[1]);
            Ok(board.ok().filter(|_| everyone))
        });
        if let Some((path, _)) = made {
            // All have it open, or go without. A name that cannot be removed goes with the process's leftovers.
            let _ = fs::remove_file(path);
        }
        met
    }

    fn map(file: &File, rank: usize, ranks: usize) -> io::Result<Self> {
        let len = total(ranks);
        if file.metadata()?.len() != len as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a new mapping of a file of this length, at an address of the system's choice.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (begun, call, history) = (vec![0; ranks], Call::BARRIER, History::default());
        let crowded = ranks > processors;
        Ok(Self { memory, rank, ranks, sequence: 0, begun, call, history, elsewhere: 0, crowded })
    }

    /// How many ranks there are: two or more.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// The slot of a rank for an operation.
    fn slot(&self, rank: usize, operation: u64) -> NonNull<u8> {
        let index = rank * SLOTS as usize + (operation % SLOTS) as usize;
        // SAFETY: the mapping has this many slots for each rank.
        unsafe { self.memory.add(index * SLOT) }
    }

    fn header(&self, rank: usize, operation: u64) -> &Header {
        // SAFETY: a slot begins with a header, of atomics, and is aligned for it: the mapping to a page, the slot's
        // length to the header.
        unsafe { self.slot(rank, operation).cast().as_ref() }
    }

    fn elsewhere(&self, rank: usize) -> &Elsewhere {
        // SAFETY: the mapping, which begins at a page, has a count of each rank behind all slots, whose length is a
        // multiple of the count's alignment.
        let counts = unsafe { self.memory.add(self.ranks * SLOTS as usize * SLOT).cast::<Elsewhere>() };
        // SAFETY: as above; all in it is atomic.
        unsafe { counts.add(rank).as_ref() }
    }

    /// Says that this rank begins an operation without the board.
    pub(crate) fn pass(&mut self, call: Call) {
        self.elsewhere += 1;
        let own = self.elsewhere(self.rank);
        own.call.store(call.word(), Ordering::Relaxed);
        own.count.store(self.elsewhere, Ordering::Release);
    }

    /// Says what this rank calls next on the board, and after which other calls.
    pub(crate) fn begin(&mut self, call: Call, history: History) {
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
        meanwhile: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        debug_assert!(len <= CAPACITY);
        let operation = self.sequence + 1;
        let (own, ranks) = (self.rank, self.ranks);
        for rank in (0..ranks).filter(|&rank| rank != own) {
            self.wait(rank, (operation + 1).saturating_sub(SLOTS), meanwhile)?;
        }
        self.sequence = operation;
        // SAFETY: the slot has room for the message, and no other rank reads it: see the head of this file.
        unsafe {
            let message = self.slot(self.rank, operation).add(size_of::<Header>());
            message.copy_from_nonoverlapping(constant(data), len);
        }
        let header = self.header(self.rank, operation);
        header.call.store(self.call.word(), Ordering::Relaxed);
        header.history.store(self.history.word(), Ordering::Relaxed);
        header.sequence.store(operation, Ordering::Release);
        Ok(())
    }

    /// Waits for the message of a rank in the current operation, and calls `meanwhile` now and then. The message is as
    /// long as that rank's are in this call, stays as it is until this rank begins the next operation, and is aligned to
    /// 16 bytes.
    pub(crate) fn read(
        &mut self,
        rank: usize,
        meanwhile: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<*const u8, Error> {
        self.wait(rank, self.sequence, meanwhile)?;
        let header = self.header(rank, self.sequence);
        let (call, history) = (header.call.load(Ordering::Relaxed), header.history.load(Ordering::Relaxed));
        if (call, history) != (self.call.word(), self.history.word()) {
            return Err(self.differs(rank, call, history, meanwhile));
        }
        // SAFETY: a slot is longer than its header.
        Ok(unsafe { self.slot(rank, self.sequence).add(size_of::<Header>()) }.as_ptr().cast_const())
    }

    /// Waits until a rank has begun an operation: this rank's current one, or one of the few before.
    fn wait(
        &mut self,
        rank: usize,
        operation: u64,
        meanwhile: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.begun.get(rank).is_some_and(|&begun| begun >= operation) {
            return Ok(());
        }
        let mut looks: u32 = 0;
        let begun = loop {
            let header = self.header(rank, operation);
            let begun = header.sequence.load(Ordering::Acquire);
            if begun >= operation {
                break begun;
            }
            looks += 1;
            if looks == LOOKS {
                looks = 0;
                meanwhile()?;
                // A rank that is in order goes elsewhere again only after it has written this message.
                let other = self.elsewhere(rank);
                if other.count.load(Ordering::Acquire) > self.elsewhere
                    && header.sequence.load(Ordering::Acquire) < operation
                {
                    let call = Call::of_word(other.call.load(Ordering::Relaxed));
                    return Err(self.other(rank, Some(call)));
                }
                if self.crowded {
                    std::thread::yield_now();
                }
            }
            std::hint::spin_loop();
        };
        if let Some(known) = self.begun.get_mut(rank) {
            *known = begun;
        }
        Ok(())
    }

    /// Another rank has called something else now, or before: what, the ranks find out when they have waited for long.
    #[cold]
    fn differs(
        &self,
        peer: usize,
        call: u64,
        history: u64,
        meanwhile: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Error {
        if history == self.history.word() {
            return self.other(peer, Some(Call::of_word(call)));
        }
        let since = Instant::now();
        while since.elapsed() < COMPARING {
            if let Err(error) = meanwhile() {
                return error;
            }
            std::thread::yield_now();
        }
        self.other(peer, None)
    }

    #[cold]
    fn other(&self, peer: usize, peer_called: Option<Call>) -> Error {
        Error::OtherOperation {
            rank: self.rank,
            called: self.call.to_string(),
            peer,
            peer_called: peer_called.map(|call| call.to_string()),
        }
    }
}

fn constant(data: *const u8) -> NonNull<u8> {
    NonNull::new(data.cast_mut()).unwrap_or(NonNull::dangling())
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: this type's own mapping, of this length; nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), total(self.ranks)) };
    }
}

fn total(ranks: usize) -> usize {
    ranks * (SLOTS as usize * SLOT + size_of::<Elsewhere>())
}

/// Makes a file for a board that this user alone can open.
fn create(ranks: usize) -> io::Result<(PathBuf, File)> {
    let path = Path::new(shm::FOLDER).join(shm::new_name());
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    // SAFETY: an open file; reserves its memory, so that no later write finds none left.
    let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, total(ranks) as libc::off_t) };
    if result != 0 {
        let _ = fs::remove_file(&path);
        return Err(io::Error::from_raw_os_error(result));
    }
    Ok((path, file))
}

/// Boards for ranks that are threads of a test.
#[cfg(test)]
pub(crate) fn boards(ranks: usize) -> Vec<Board> {
    let (path, file) = create(ranks).unwrap();
    fs::remove_file(path).unwrap();
    (0..ranks).map(|rank| Board::map(&file, rank, ranks).unwrap()).collect()
}
