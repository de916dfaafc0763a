//! Device memory that NCCL allocates: registered with network and NVLink where it can be.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, result};

use super::buffer::{Access, DeviceBuffer, DeviceBufferMut};
use super::cuda;
use super::error::Error;
use super::inside;
use super::library::Library;
use crate::Element;

/// Device memory from NCCL's allocator (`ncclMemAlloc`, NCCL 2.19), which its fastest algorithms can use directly;
/// from `cuMemAlloc` where the library is older. Zeroed. Typed views of any part of it go into collectives, and into
/// cudarc's copies.
///
/// It belongs to one stream: dropping it waits for that stream, then frees it. Memory is never freed, with a warning,
/// that is dropped while that stream is being captured into a CUDA graph, since nobody can wait for it then; or whose
/// [`Registration`](super::Registration) or [`Window`](super::Window) was forgotten (`mem::forget`), since NCCL still
/// knows it.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{Communicator, Error, Memory}};
/// # fn example(communicator: &Communicator) -> Result<(), Error> {
/// // 1024 numbers of 4 bytes, and a flag of 4 bytes behind them.
/// let mut memory = Memory::alloc(communicator.library(), communicator.stream(), 4096 + 4)?;
/// communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 1024)?, ReduceOp::Sum)?;
/// communicator.all_reduce_in_place(&mut memory.slice_mut::<u32>(4096, 1)?, ReduceOp::Max)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Memory {
    allocation: Allocation,
    bytes: usize,
    /// NCCL knows it: a registration or a window borrows it, was forgotten, or could not be taken back.
    known: Arc<AtomicBool>,
}

impl Memory {
    /// Allocates on the stream's device. The zeroes are written in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`], most often because the device has no room for it; [`Error::Stream`] for a
    /// per-thread default stream, and while the stream is being captured into a CUDA graph.
    pub fn alloc(library: Library, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Error> {
        cuda::refuse_per_thread("ncclMemAlloc", stream)?;
        cuda::bind(stream.context())?;
        // A graph would write the zeroes again whenever it is launched.
        cuda::refuse_captured("ncclMemAlloc", stream)?;
        // NCCL's allocator wants at least one byte.
        let room = bytes.max(1);
        let by_nccl = library.raw().has("ncclMemAlloc");
        let address = if by_nccl {
            let mut address: *mut c_void = ptr::null_mut();
            // SAFETY: writes one pointer; the right device is current.
            let code = unsafe { library.raw().ncclMemAlloc(&mut address, room) }?;
            library.check("ncclMemAlloc", code)?;
            address as CUdeviceptr
        } else {
            // SAFETY: the right context is current; the memory is zeroed before anything reads it.
            unsafe { result::malloc_sync(room) }.map_err(Error::cuda("cuMemAlloc"))?
        };
        let allocation = Allocation { library, address, stream: Arc::clone(stream), by_nccl };
        let memory = Self { allocation, bytes, known: Arc::default() };
        // SAFETY: the memory was just allocated with at least so many bytes, in the stream's context.
        unsafe { result::memset_d8_async(address, 0, room, stream.cu_stream()) }
            .map_err(Error::cuda("cuMemsetD8Async"))?;
        Ok(memory)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The stream in whose order it is used and freed.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.allocation.stream
    }

    /// A view of `len` elements from byte `offset` on, to read.
    ///
    /// # Errors
    /// [`Error::View`] when it would reach past the end, or `offset` is no multiple of the element's size.
    pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<MemoryView<'_, T>, Error> {
        let address = self.address_of::<T>(offset, len)?;
        Ok(MemoryView { address, len, stream: self.stream(), elements: PhantomData })
    }

    /// A view of `len` elements from byte `offset` on, to read and write.
    ///
    /// # Errors
    /// As [`Memory::slice`].
    pub fn slice_mut<T: Element>(
        &mut self,
        offset: usize,
        len: usize,
    ) -> Result<MemoryViewMut<'_, T>, Error> {
        let address = self.address_of::<T>(offset, len)?;
        Ok(MemoryViewMut { address, len, stream: self.stream(), elements: PhantomData })
    }

    fn address_of<T: Element>(&self, offset: usize, len: usize) -> Result<CUdeviceptr, Error> {
        let size = size_of::<T>();
        let end = len.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if !offset.is_multiple_of(size) || end.is_none_or(|end| end > self.bytes) {
            return Err(Error::View { offset, len, size, bytes: self.bytes });
        }
        Ok(self.address() + offset as CUdeviceptr)
    }

    /// From now on, or no longer, NCCL may reach it without being asked to.
    pub(crate) fn set_known(&mut self, known: bool) {
        self.known.store(known, Ordering::Relaxed);
    }

    /// Whether NCCL may, for whoever takes it back later.
    pub(crate) fn known(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.known)
    }

    /// The address of its first byte on the device.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.allocation.address
    }
}

/// What there is to free.
#[derive(Clone, Debug)]
struct Allocation {
    library: Library,
    address: CUdeviceptr,
    stream: Arc<CudaStream>,
    by_nccl: bool,
}

impl Allocation {
    fn free(&self) -> Result<(), Error> {
        cuda::bind(self.stream.context())?;
        // The stream cannot be waited for while it is captured, and work from before may still use the memory.
        cuda::refuse_captured("ncclMemFree", &self.stream)?;
        cuda::wait(&self.stream)?;
        if self.by_nccl {
            // SAFETY: allocated by ncclMemAlloc, freed once, and no work of its stream uses it any more.
            let code = unsafe { self.library.raw().ncclMemFree(self.address as *mut c_void) }?;
            self.library.check("ncclMemFree", code)?;
        } else {
            // SAFETY: allocated by cuMemAlloc, freed once, and no work of its stream uses it any more.
            unsafe { result::free_sync(self.address) }.map_err(Error::cuda("cuMemFree"))?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    /// Inside a group after that: a registration of it that was dropped there is taken back then, too.
    fn drop(&mut self) {
        let (allocation, known) = (self.allocation.clone(), self.known());
        inside::after(move || {
            if known.load(Ordering::Relaxed) {
                tracing::warn!("device memory is not freed: its registration or window was not taken back");
            } else if let Err(error) = allocation.free() {
                tracing::warn!("freeing device memory: {error}");
            }
        });
    }
}

/// A part of a [`Memory`], to read.
#[derive(Clone, Copy, Debug)]
pub struct MemoryView<'a, T> {
    address: CUdeviceptr,
    len: usize,
    stream: &'a Arc<CudaStream>,
    elements: PhantomData<&'a [T]>,
}

/// A part of a [`Memory`], to read and write.
#[derive(Debug)]
pub struct MemoryViewMut<'a, T> {
    address: CUdeviceptr,
    len: usize,
    stream: &'a Arc<CudaStream>,
    elements: PhantomData<&'a mut [T]>,
}

impl<T: Element> MemoryViewMut<'_, T> {
    /// The same part, to read.
    #[must_use]
    pub fn as_view(&self) -> MemoryView<'_, T> {
        MemoryView { address: self.address, len: self.len, stream: self.stream, elements: PhantomData }
    }
}

/// cudarc's copies on another stream: it waits for the memory's stream first, and the host for it afterwards.
fn borrowed<'a>(home: &CudaStream, stream: &'a CudaStream) -> SyncOnDrop<'a> {
    if home == stream {
        return SyncOnDrop::Sync(None);
    }
    home.context().record_err(stream.join(home));
    SyncOnDrop::sync_stream(stream)
}

macro_rules! memory_view {
    ($($type:ident),*) => {$(
        impl<T: Element> $type<'_, T> {
            /// The address of the first element on the device: to pass to kernels.
            #[must_use]
            pub fn address(&self) -> CUdeviceptr {
                self.address
            }
        }

        // SAFETY: made by Memory with checked bounds and alignment; the borrow keeps the memory allocated, and Memory
        // waits for its stream before it frees. All bytes were zeroed, and every bit pattern is an Element.
        unsafe impl<T: Element> DeviceBuffer for $type<'_, T> {
            type Element = T;

            #[inline]
            fn len(&self) -> usize {
                self.len
            }

            #[inline]
            fn stream(&self) -> &Arc<CudaStream> {
                self.stream
            }

            #[inline]
            fn read<'a>(&'a self, _: &'a CudaStream) -> Access<'a> {
                Access::new(self.address, None)
            }
        }

        impl<T: Element> DeviceSlice<T> for $type<'_, T> {
            fn len(&self) -> usize {
                self.len
            }

            fn stream(&self) -> &Arc<CudaStream> {
                self.stream
            }
        }

        impl<T: Element> DevicePtr<T> for $type<'_, T> {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
                (self.address, borrowed(self.stream, stream))
            }
        }
    )*};
}

memory_view!(MemoryView, MemoryViewMut);

// SAFETY: as above; the view borrows the memory mutably.
unsafe impl<T: Element> DeviceBufferMut for MemoryViewMut<'_, T> {
    #[inline]
    fn write<'a>(&'a mut self, _: &'a CudaStream) -> Access<'a> {
        Access::new(self.address, None)
    }
}

impl<T: Element> DevicePtrMut<T> for MemoryViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, borrowed(self.stream, stream))
    }
}
