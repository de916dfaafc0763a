//! Registered memory for remote access.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Endpoint, Peer};
use crate::fabric::Error;

/// Size of a transparent huge page on systems with pages of 4 KiB. It is a multiple of pages of 16 and 64 KiB
/// as well.
const LARGE_PAGE: usize = 2 << 20;
/// Size of the largest page in the kernels of x86-64 and aarch64.
const PAGE: usize = 64 << 10;

/// Memory of dropped regions of `shm`, reused for later regions only: a late peer writes there by address
/// alone, whatever has become of the region. Sizes are powers of two, so at most about twice the peak use of
/// each size is kept.
static REUSABLE: Mutex<Vec<RegionMemory>> = Mutex::new(Vec::new());

/// Takes memory with this layout from [`REUSABLE`].
fn reuse_memory(layout: Layout) -> Option<RegionMemory> {
    let mut blocks = REUSABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let index = blocks.iter().position(|block| block.layout == layout)?;
    Some(blocks.swap_remove(index))
}

/// Zeroed, page-aligned memory, accessed by atomic operations only.
pub(super) struct RegionMemory {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
    /// True when it is never returned to the allocator.
    reusable: bool,
}

// SAFETY: it is memory, accessed by atomic operations.
unsafe impl Send for RegionMemory {}
// SAFETY: as above.
unsafe impl Sync for RegionMemory {}

impl RegionMemory {
    /// `reusable`: peers may write late, so the memory is kept for other regions. Memory of [`LARGE_PAGE`] or
    /// more is aligned to large pages.
    fn zeroed_memory(len: usize, reusable: bool) -> Option<Self> {
        // A power of two, if enough memory is available.
        let sizes =
            [if reusable { len.max(PAGE).checked_next_power_of_two() } else { None }, Some(len.max(1))];
        let mut memory = sizes.into_iter().flatten().find_map(|size| {
            let alignment = if size < LARGE_PAGE { PAGE } else { LARGE_PAGE };
            let layout = Layout::from_size_align(size, alignment).ok()?;
            let reuse = if reusable { reuse_memory(layout) } else { None };
            // SAFETY: the layout is not empty.
            let new = || NonNull::new(unsafe { alloc::alloc(layout) });
            reuse.or_else(|| new().map(|start| Self { start, layout, len, reusable }))
        })?;
        memory.len = len;
        // SAFETY: the memory is at least this long, and used by nothing else in this process: a late peer in
        // another one may overwrite it, as it may write to a region.
        unsafe { ptr::write_bytes(memory.start.as_ptr(), 0, len) };
        Some(memory)
    }

    fn start_pointer(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        if self.reusable {
            let block = Self { ..*self };
            return REUSABLE.lock().unwrap_or_else(PoisonError::into_inner).push(block);
        }
        // SAFETY: allocated in `zeroed_memory` with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl Endpoint {
    /// Registers zeroed memory that peers may read and write (`fi_mr_regattr`), as long as this endpoint is
    /// open, or any other of its domain. Over `shm` a late peer may write even afterwards: such memory is
    /// reused only for regions until the process ends.
    ///
    /// # Errors
    /// [`Error::Call`] when the provider does not register it; [`Error::Endpoint`] when there is not enough
    /// memory, or the endpoint was closed, or opened without [`Options::remote_memory`](super::Options).
    pub fn region(&mut self, len: usize) -> Result<Region, Error> {
        const NAME: &str = "fi_mr_regattr";
        self.require_option(self.options.remote_memory, NAME, "remote_memory")?;
        let memory = RegionMemory::zeroed_memory(len, self.provider == "shm").map(Arc::new);
        let memory = memory
            .ok_or_else(|| self.endpoint_error(NAME, format!("{len} bytes of memory cannot be allocated")))?;
        let access = fabric_sys::FI_REMOTE_READ | fabric_sys::FI_REMOTE_WRITE;
        let host = (fabric_sys::FI_HMEM_SYSTEM, 0);
        let objects = self.objects_mut(NAME)?;
        // First, to outlive the registration.
        objects.keep_alive(Arc::clone(&memory) as Arc<_>);
        // SAFETY: the memory lives longer than the objects, and nothing but atomic accesses is made to it
        // from here.
        let registered = unsafe { objects.register_memory(memory.start_pointer(), len, access, host) };
        let (key, _) = registered.map_err(|code| self.call_failure(NAME, code, None))?;
        let base = if self.virtual_addresses { memory.start_pointer() as u64 } else { 0 };
        Ok(Region { memory, description: describe_region(base, key, len as u64) })
    }
}

/// Memory that peers of an endpoint may read and write.
#[derive(Clone)]
pub struct Region {
    memory: Arc<RegionMemory>,
    description: [u8; RemoteRegion::BYTES],
}

impl Region {
    /// The bytes. They may change at any time.
    #[must_use]
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the memory lives as long as `self`, is zeroed when it is made, and every access to it here
        // is atomic.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr().cast(), self.memory.len) }
    }

    #[cfg(test)]
    pub(super) fn memory_of_test(&self) -> std::sync::Weak<RegionMemory> {
        Arc::downgrade(&self.memory)
    }

    /// Returns the description to send to peers: see [`RemoteRegion::from_bytes`].
    #[must_use]
    pub fn description(&self) -> [u8; RemoteRegion::BYTES] {
        self.description
    }
}

/// A peer's region, for [`Scope::write`](super::Scope::write) and [`Scope::read`](super::Scope::read). It is
/// bound to the peer: endpoints refuse a region of a peer inserted into another endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    pub(super) peer: Peer,
    base: u64,
    key: u64,
    len: u64,
}

impl RemoteRegion {
    /// Length of a description, in bytes.
    pub const BYTES: usize = 24;

    /// Address and key of its byte `offset`.
    pub(super) fn address_of(self, offset: u64) -> (u64, u64) {
        (self.base.wrapping_add(offset), self.key)
    }

    /// Reads the description of a peer's region, sent by the peer.
    ///
    /// # Safety
    /// The bytes must be from [`Region::description`] or
    /// [`DeviceMemory::description`](super::DeviceMemory::description), for memory registered with the
    /// endpoint [inserted](Endpoint::insert) as `peer`. Over `shm` nothing checks it: long transfers go
    /// directly to the described address in the peer's process, whatever is there. So only accept
    /// descriptions from peers trusted like processes of the same user; these could do the same without a
    /// region.
    #[must_use]
    pub unsafe fn from_bytes(bytes: [u8; Self::BYTES], peer: Peer) -> Self {
        let number = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * (index + 1)]);
            u64::from_le_bytes(word)
        };
        Self { peer, base: number(0), key: number(1), len: number(2) }
    }

    /// Length of the region, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a region of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The description of a region in this process, for [`RemoteRegion::from_bytes`].
pub(super) fn describe_region(base: u64, key: u64, len: u64) -> [u8; RemoteRegion::BYTES] {
    let mut bytes = [0; RemoteRegion::BYTES];
    for (place, number) in bytes.chunks_exact_mut(8).zip([base, key, len]) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_that_peers_may_write_late_becomes_memory_of_regions_alone() {
        // No other test has regions of this size.
        let len = 5 << 20;
        let region = |len, reusable| {
            let memory = Arc::new(RegionMemory::zeroed_memory(len, reusable).unwrap());
            Region { memory, description: describe_region(0, 0, len as u64) }
        };
        let first = region(len, true);
        let start = first.memory.start_pointer();
        assert!(start.addr().is_multiple_of(LARGE_PAGE));
        first.bytes().iter().for_each(|byte| byte.store(7, Ordering::Relaxed));
        drop(first);
        // Others do not get it.
        let others = [region(len, false), region(2 * len, true), region(len / 4, true)];
        assert!(others.iter().all(|other| other.memory.start_pointer() != start));
        let reuse = region(len - 100, true);
        assert_eq!((reuse.memory.start_pointer(), reuse.bytes().len()), (start, len - 100));
        assert!(reuse.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
        let beside = region(len, true);
        assert_ne!(beside.memory.start_pointer(), start);
        assert!(RegionMemory::zeroed_memory(usize::MAX, true).is_none());
    }

    #[test]
    fn memory_begins_at_a_page() {
        for (len, reusable) in
            [(0, false), (1, false), (100_000, false), (1, true), (PAGE + 1, true), (5 << 20, false)]
        {
            // Two at a time: by chance, one may begin at a page without being aligned, but hardly both.
            let both = [0; 2].map(|_| RegionMemory::zeroed_memory(len, reusable).unwrap());
            for memory in &both {
                let alignment = if len > LARGE_PAGE { LARGE_PAGE } else { PAGE };
                assert!(memory.start_pointer().addr().is_multiple_of(alignment), "{len} bytes");
                assert!(memory.layout.size() >= if reusable { len.max(PAGE) } else { len });
            }
        }
    }
}
