//! Device memory with shared ownership.

mod copies;

use std::sync::{Arc, Mutex};
use std::{any::Any, ffi::c_void, mem, ptr, thread};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DriverError, SyncOnDrop, result};

use self::copies::Copies;
use super::{cuda, error::Error, library::Library};
use crate::log;

/// Keeps memory allocated while it lives.
pub type Owner = Arc<dyn Any + Send + Sync>;

const ALLOC: &str = "ncclMemAlloc";
const FREE: &str = "ncclMemFree";

/// Device memory of one stream. Freed by its last owner: the [`Memory`](super::Memory), a registration, a
/// window, a graph or prepared operations.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) address: CUdeviceptr,
    pub(crate) bytes: usize,
    /// Copies on other streams.
    copies: Copies,
    pub(crate) stream: Arc<CudaStream>,
    source: MemorySource,
}

#[derive(Debug)]
enum MemorySource {
    /// `ncclMemAlloc`.
    Nccl(Library),
    /// `cuMemAlloc`.
    Cuda,
    /// Another allocator: dropping the owner frees it. The mutex is never locked; it provides `Sync`.
    Owned(Mutex<Box<dyn Any + Send>>),
    /// Nothing to free.
    Borrowed,
}

impl Allocation {
    /// See [`Memory::alloc`](super::Memory::alloc).
    pub(crate) fn new(library: Library, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Error> {
        cuda::refuse_per_thread(ALLOC, stream)?;
        cuda::bind_context(stream.context())?;
        // A captured memset would zero the memory in every launch.
        cuda::refuse_captured(ALLOC, stream)?;
        // NCCL's allocator requires at least one byte.
        let room = bytes.max(1);
        let (address, source) = if library.raw().has(ALLOC) {
            let mut address: *mut c_void = ptr::null_mut();
            // SAFETY: writes one pointer; the right device is current.
            let code = cuda::call_relaxed(|| Ok(unsafe { library.raw().ncclMemAlloc(&mut address, room) }?))?;
            library.check_code(ALLOC, code)?;
            (address as CUdeviceptr, MemorySource::Nccl(library))
        } else {
            (cuda_memory(room)?, MemorySource::Cuda)
        };
        let allocation = Self::with_source(address, bytes, Arc::clone(stream), source);
        // SAFETY: the memory was just allocated with at least this size, in the stream's context.
        unsafe { result::memset_d8_async(address, 0, room, stream.cu_stream()) }
            .map_err(Error::of_cuda("cuMemsetD8Async"))?;
        Ok(allocation)
    }

    /// Allocates one uninitialised byte. The stream's context is current.
    pub(crate) fn scratch_byte(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        Ok(Self::with_source(cuda_memory(1)?, 1, Arc::clone(stream), MemorySource::Cuda))
    }

    /// Adopts memory, allocated until `owner` is dropped.
    pub(crate) fn adopt_memory<O: Send + 'static>(
        address: CUdeviceptr,
        bytes: usize,
        stream: Arc<CudaStream>,
        owner: O,
    ) -> Self {
        let owned = mem::needs_drop::<O>();
        let source =
            if owned { MemorySource::Owned(Mutex::new(Box::new(owner))) } else { MemorySource::Borrowed };
        Self::with_source(address, bytes, stream, source)
    }

    fn with_source(
        address: CUdeviceptr,
        bytes: usize,
        stream: Arc<CudaStream>,
        source: MemorySource,
    ) -> Self {
        Self { address, bytes, copies: Copies::default(), stream, source }
    }

    /// Orders a copy on any stream with the work of the memory's own stream. cudarc queues the copy before it
    /// drops the result.
    ///
    /// # Errors
    /// If the copy cannot be ordered: then it must not be queued. This includes a captured stream: a graph
    /// would have the address of memory without keeping it.
    pub(crate) fn begin_copy<'a>(&'a self, stream: &'a CudaStream) -> Result<SyncOnDrop<'a>, DriverError> {
        if *self.stream == *stream {
            self.copies.refuse_pending()?;
            cuda::refuse_captured_copy(stream)?;
            return Ok(SyncOnDrop::Sync(None));
        }
        self.copies.begin_copy(&self.stream, stream)
    }

    /// Fails if a copy may still be under way because a wait for it has failed.
    ///
    /// # Errors
    /// [`Error::Stream`].
    #[inline]
    pub(crate) fn check_copies(&self, operation: &'static str) -> Result<(), Error> {
        const REASON: &str =
            "a copy of the memory on another stream could not be waited for, and may still be under way";
        self.copies.refuse_pending().map_err(|_| Error::Stream { operation, reason: REASON })
    }

    /// Frees the memory, or checks that its owner may be dropped.
    fn free_memory(&self, source: &MemorySource) -> Result<(), Error> {
        if matches!(source, MemorySource::Borrowed) {
            return Ok(());
        }
        self.copies.refuse_pending().map_err(Error::of_cuda("waiting for a copy on another stream"))?;
        cuda::bind_context(self.stream.context())?;
        // A captured stream cannot be waited for, and earlier work may still use the memory.
        cuda::refuse_captured(FREE, &self.stream)?;
        // With a memory pool, the owner's free is work of the stream.
        let is_owned = matches!(source, MemorySource::Owned(_));
        if is_owned && self.stream.context().has_async_alloc() {
            return Ok(());
        }
        if !thread::panicking() {
            cuda::wait_for_stream(&self.stream)?;
        } else if !cuda::is_idle(&self.stream)? {
            // The work may be a collective without an end.
            let reason = "the thread panics, and does not wait for the work of the memory's stream";
            return Err(Error::Stream { operation: FREE, reason });
        }
        if is_owned {
            return Ok(());
        }
        // SAFETY: allocated by the same allocator, freed once, and no work of its stream uses it any more.
        cuda::call_relaxed(|| unsafe {
            let MemorySource::Nccl(library) = source else {
                return result::free_sync(self.address).map_err(Error::of_cuda("cuMemFree"));
            };
            library.check_code(FREE, library.raw().ncclMemFree(self.address as *mut c_void)?)
        })
    }
}

fn cuda_memory(bytes: usize) -> Result<CUdeviceptr, Error> {
    // SAFETY: the callers write the memory before it is read.
    cuda::call_relaxed(|| unsafe { result::malloc_sync(bytes) }.map_err(Error::of_cuda("cuMemAlloc")))
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let source = mem::replace(&mut self.source, MemorySource::Borrowed);
        if let Err(error) = self.free_memory(&source) {
            log::warn(format_args!("device memory is not freed: {error}"));
            // Dropping the owner would free it.
            mem::forget(source);
        } else if let MemorySource::Owned(owner) = source {
            drop(owner);
        }
    }
}
