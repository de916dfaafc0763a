//! Device memory with shared ownership: freed when nobody can use it any more.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use super::cuda;
use super::error::Error;
use super::library::Library;

/// Keeps memory allocated as long as it lives.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// Device memory of one stream. Owned by a [`Memory`](super::Memory), and by registrations, windows and graphs that NCCL uses
/// it for; the last of them frees it.
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
    /// Frees it when dropped.
    Other(Mutex<Option<Box<dyn Any + Send>>>),
}

impl Allocation {
    /// Zeroed memory from `ncclMemAlloc`, or `cuMemAlloc` where the library is older. The zeroes are written in the order of the
    /// stream.
    pub(crate) fn new(library: Library, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Error> {
        cuda::refuse_per_thread("ncclMemAlloc", stream)?;
        cuda::bind(stream.context())?;
        // A graph would write the zeroes again whenever it is launched.
        cuda::refuse_captured("ncclMemAlloc", stream)?;
        // NCCL's allocator wants at least one byte.
        let room = bytes.max(1);
        let (address, source) = if library.raw().has("ncclMemAlloc") {
            let mut address: *mut c_void = ptr::null_mut();
            // SAFETY: writes one pointer; the right device is current.
            let code = unsafe { library.raw().ncclMemAlloc(&mut address, room) }?;
            library.check("ncclMemAlloc", code)?;
            (address as CUdeviceptr, Source::Nccl(library))
        } else {
            // SAFETY: the right context is current; the memory is zeroed before anything reads it.
            (unsafe { result::malloc_sync(room) }.map_err(Error::cuda("cuMemAlloc"))?, Source::Cuda)
        };
        let allocation = Self { address, bytes, stream: Arc::clone(stream), source };
        // SAFETY: the memory was just allocated with at least so many bytes, in the stream's context.
        unsafe { result::memset_d8_async(address, 0, room, stream.cu_stream()) }
            .map_err(Error::cuda("cuMemsetD8Async"))?;
        Ok(allocation)
    }

    /// One byte that is not initialised.
    pub(crate) fn scratch(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        // SAFETY: nobody reads it; the caller has made the right context current.
        let address = unsafe { result::malloc_sync(1) }.map_err(Error::cuda("cuMemAlloc"))?;
        Ok(Self { address, bytes: 1, stream: Arc::clone(stream), source: Source::Cuda })
    }

    /// Memory that is allocated until `owner` is dropped, which happens in the order of `stream`.
    pub(crate) fn adopt(
        address: CUdeviceptr,
        bytes: usize,
        stream: Arc<CudaStream>,
        owner: Box<dyn Any + Send>,
    ) -> Self {
        Self { address, bytes, stream, source: Source::Other(Mutex::new(Some(owner))) }
    }

    fn free(&mut self) -> Result<(), Error> {
        cuda::bind(self.stream.context())?;
        // The stream cannot be waited for while it is captured, and work from before may still use the memory.
        cuda::refuse_captured("ncclMemFree", &self.stream)?;
        match &mut self.source {
            Source::Other(owner) => drop(owner.get_mut().unwrap_or_else(PoisonError::into_inner).take()),
            Source::Nccl(library) => {
                cuda::wait(&self.stream)?;
                // SAFETY: allocated by ncclMemAlloc, freed once, and no work of its stream uses it any more.
                let code = unsafe { library.raw().ncclMemFree(self.address as *mut c_void) }?;
                library.check("ncclMemFree", code)?;
            }
            Source::Cuda => {
                cuda::wait(&self.stream)?;
                // SAFETY: allocated by cuMemAlloc, freed once, and no work of its stream uses it any more.
                unsafe { result::free_sync(self.address) }.map_err(Error::cuda("cuMemFree"))?;
            }
        }
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Err(error) = self.free() {
            tracing::warn!("device memory is not freed: {error}");
            if let Source::Other(owner) = &mut self.source {
                // Its drop would free the memory.
                std::mem::forget(owner.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            }
        }
    }
}
