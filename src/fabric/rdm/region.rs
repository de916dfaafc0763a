//! Memory that peers read and write.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::Endpoint;
use crate::fabric::Error;

/// What the memory is aligned to: a page, or one of those that transparent huge pages make.
const PAGE: usize = 4096;
const LARGE_PAGE: usize = 2 << 20;

/// Zeroed memory at the begin of a page, accessed by atomic operations alone.
pub(super) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: it is memory, accessed by atomic operations.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn zeroed(len: usize) -> Option<Self> {
        let page = if len < LARGE_PAGE { PAGE } else { LARGE_PAGE };
        let layout = Layout::from_size_align(len.max(1), page).ok()?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { start, layout, len })
    }

    pub(super) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl Endpoint {
    /// Memory that peers may read and write (`fi_mr_regattr`), zeroed, as long as this endpoint is open.
    ///
    /// # Errors
    /// [`Error::Call`] when the provider does not register it; [`Error::Endpoint`] when there is not so much memory, or the
    /// endpoint was closed, or opened without [`Options::remote_memory`](super::Options).
    pub fn region(&mut self, len: usize) -> Result<Region, Error> {
        const NAME: &str = "fi_mr_regattr";
        self.asked_for(self.remote_memory, NAME, "remote_memory")?;
        let memory = Memory::zeroed(len).map(Arc::new);
        let memory =
            memory.ok_or_else(|| self.unusable(NAME, format!("there is no memory for {len} bytes")))?;
        let access = fabric_sys::FI_REMOTE_READ | fabric_sys::FI_REMOTE_WRITE;
        // Kept first, so that it outlives the registration.
        self.memories.push(Arc::clone(&memory));
        let host = (fabric_sys::FI_HMEM_SYSTEM, 0);
        // SAFETY: the memory lives longer than the objects, and nothing but atomic accesses is made to it from here.
        let registered = unsafe { self.objects_mut(NAME)?.register(memory.start(), len, access, host) };
        let (key, _) = registered.map_err(|code| self.failure(NAME, code, None))?;
        let base = if self.virtual_addresses { memory.start() as u64 } else { 0 };
        Ok(Region::new(memory, RemoteRegion::new(base, key, len as u64)))
    }
}

/// Memory that peers of an endpoint may read and write.
#[derive(Clone)]
pub struct Region {
    memory: Arc<Memory>,
    remote: RemoteRegion,
}

impl Region {
    pub(super) fn new(memory: Arc<Memory>, remote: RemoteRegion) -> Self {
        Self { memory, remote }
    }

    /// The bytes, which may change at any time.
    #[must_use]
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the memory lives as long as `self`, is zeroed when it is made, and every access to it here is atomic.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr().cast(), self.memory.len) }
    }

    /// What a peer needs to read and write it.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }
}

/// Where a peer's region is: to be sent to whoever shall read or write it, and to be used with the endpoint that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    base: u64,
    key: u64,
    len: u64,
}

impl RemoteRegion {
    /// Bytes of a description.
    pub const BYTES: usize = 24;

    pub(super) fn new(base: u64, key: u64, len: u64) -> Self {
        Self { base, key, len }
    }

    /// Address and key of its byte `offset`.
    pub(super) fn place(self, offset: u64) -> (u64, u64) {
        (self.base.wrapping_add(offset), self.key)
    }

    /// The description as bytes, to be sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.base, self.key, self.len]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// What a peer has sent.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let number = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * (index + 1)]);
            u64::from_le_bytes(word)
        };
        Self { base: number(0), key: number(1), len: number(2) }
    }

    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
