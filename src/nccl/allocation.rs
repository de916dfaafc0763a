//! Device memory with shared ownership: freed when nobody can use it any more.

use std::sync::{Arc, Mutex};
use std::{any::Any, ffi::c_void, mem, ptr, thread};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use super::{cuda, error::Error, library::Library};

/// Keeps memory allocated as long as it lives.
pub type Owner = Arc<dyn Any + Send + Sync>;

const ALLOC: &str = "ncclMemAlloc";
const FREE: &str = "ncclMemFree";

/// Device memory of one stream. The last of the [`Memory`](super::Memory), its registrations, windows and graphs frees it.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) address: CUdeviceptr,
    pub(crate) bytes: usize,
    pub(crate) stream: Arc<CudaStream>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// `ncclMemAlloc`.
    Nccl(Library),
    /// `cuMemAlloc`.
    Cuda,
    /// Another allocator: dropping the owner frees it. Nobody locks the mutex, which is there for `Sync`.
    Owned(Mutex<Box<dyn Any + Send>>),
    /// Nothing to free.
    Borrowed,
}

impl Allocation {
    /// Memory from `ncclMemAlloc`, or `cuMemAlloc` where the library is older, with zeroes written in the order of the stream.
    pub(crate) fn new(library: Library, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Error> {
        cuda::refuse_per_thread(ALLOC, stream)?;
        cuda::bind(stream.context())?;
        // A graph would write the zeroes again whenever it is launched.
        cuda::refuse_captured(ALLOC, stream)?;
        // NCCL's allocator wants at least one byte.
        let room = bytes.max(1);
        let (address, source) = if library.raw().has(ALLOC) {
            let mut address: *mut c_void = ptr::null_mut();
            // SAFETY: writes one pointer; the right device is current.
            let code = cuda::relaxed(|| Ok(unsafe { library.raw().ncclMemAlloc(&mut address, room) }?))?;
            library.check(ALLOC, code)?;
            (address as CUdeviceptr, Source::Nccl(library))
        } else {
            (cuda_memory(room)?, Source::Cuda)
        };
        let allocation = Self { address, bytes, stream: Arc::clone(stream), source };
        // SAFETY: the memory was just allocated with at least so many bytes, in the stream's context.
        unsafe { result::memset_d8_async(address, 0, room, stream.cu_stream()) }
            .map_err(Error::cuda("cuMemsetD8Async"))?;
        Ok(allocation)
    }

    /// One byte that is not initialised. The stream's context is current.
    pub(crate) fn scratch(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        Ok(Self { address: cuda_memory(1)?, bytes: 1, stream: Arc::clone(stream), source: Source::Cuda })
    }

    /// Memory that is allocated until `owner` is dropped, which happens in the order of `stream`.
    pub(crate) fn adopt<O: Send + 'static>(
        address: CUdeviceptr,
        bytes: usize,
        stream: Arc<CudaStream>,
        owner: O,
    ) -> Self {
        let owned = mem::needs_drop::<O>();
        let source = if owned { Source::Owned(Mutex::new(Box::new(owner))) } else { Source::Borrowed };
        Self { address, bytes, stream, source }
    }

    /// Frees the memory, or finds that its owner may now be dropped.
    fn free(&self, source: &Source) -> Result<(), Error> {
        if matches!(source, Source::Borrowed) {
            return Ok(());
        }
        cuda::bind(self.stream.context())?;
        // The stream cannot be waited for while it is captured, and work from before may still use the memory.
        cuda::refuse_captured(FREE, &self.stream)?;
        if matches!(source, Source::Owned(_)) {
            return Ok(());
        }
        if !thread::panicking() {
            cuda::wait(&self.stream)?;
        } else if !cuda::is_idle(&self.stream)? {
            // The work may be a collective that never ends.
            let reason = "the thread panics, and does not wait for the work of the memory's stream";
            return Err(Error::Stream { operation: FREE, reason });
        }
        // SAFETY: allocated by the same allocator, freed once, and no work of its stream uses it any more.
        cuda::relaxed(|| unsafe {
            let Source::Nccl(library) = source else {
                return result::free_sync(self.address).map_err(Error::cuda("cuMemFree"));
            };
            library.check(FREE, library.raw().ncclMemFree(self.address as *mut c_void)?)
        })
    }
}

/// Memory of the current context.
fn cuda_memory(bytes: usize) -> Result<CUdeviceptr, Error> {
    // SAFETY: the callers let nobody read it before it is written.
    cuda::relaxed(|| unsafe { result::malloc_sync(bytes) }.map_err(Error::cuda("cuMemAlloc")))
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let source = mem::replace(&mut self.source, Source::Borrowed);
        if let Err(error) = self.free(&source) {
            tracing::warn!("device memory is not freed: {error}");
            // Dropping the owner would free it.
            mem::forget(source);
        } else if let Source::Owned(owner) = source {
            drop(owner);
        }
    }
}
