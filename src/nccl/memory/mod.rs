//! Device memory: what collectives read and write, registrations and windows.

mod buffer;
mod registered;
mod view;
mod window;

use std::{ops::RangeBounds, sync::Arc};

use cudarc::driver::{CudaSlice, CudaStream};

use super::allocation::Allocation;
use super::{error::Error, library::Library};
use crate::Element;

pub use super::allocation::Owner;
pub(crate) use buffer::OwnedBuffer;
pub use buffer::{Access, DeviceBuffer, DeviceBufferMut};
pub use registered::Registration;
pub use view::{MemoryView, MemoryViewMut};
pub use window::{Signal, Window, WindowKind, windows};

/// Device memory of one stream, which registrations, windows and graphs can own together with this object. From NCCL's allocator
/// ([`alloc`](Self::alloc)), which its fastest algorithms can use directly; or adopted, from a slice of cudarc
/// (`Memory::try_from(slice)`) or any other allocator ([`from_raw`](Self::from_raw)).
///
/// Typed views of any part of it go into collectives, and into cudarc's copies. It is itself a buffer of bytes.
///
/// It is freed when this object and all registrations, windows and graphs of it are gone, in the order of its stream; the last of
/// them waits for that, for memory of [`alloc`](Self::alloc). Where it cannot wait, the memory is never freed, with a warning:
/// while its stream is being captured into a CUDA graph, and in a thread that panics while the stream is at work.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error, Memory}};
/// # fn example(communicator: &Communicator) -> Result<(), Error> {
/// // 1024 numbers of 4 bytes, and a flag of 4 bytes behind them.
/// let mut memory = Memory::alloc(communicator.library(), communicator.stream(), 4096 + 4)?;
/// communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..1024)?, ReduceOp::Sum)?;
/// communicator.all_reduce_in_place(&mut memory.slice_mut::<u32>(1024..1025)?, ReduceOp::Max)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Memory {
    allocation: Arc<Allocation>,
}

impl Memory {
    /// Zeroed memory on the stream's device (`ncclMemAlloc`, NCCL 2.19; `cuMemAlloc` where the library is older). The zeroes are
    /// written in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`], most often because the device has no room for it; [`Error::Stream`] for a per-thread
    /// default stream, and while the stream is being captured into a CUDA graph.
    pub fn alloc(library: Library, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Error> {
        Ok(Self { allocation: Arc::new(Allocation::new(library, stream, bytes)?) })
    }

    /// Memory of another allocator: `bytes` at `address`, used in the order of `stream`, and freed by dropping `owner`, which is
    /// `()` where something else frees it.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error, Memory}};
    /// # fn example(communicator: &Communicator, tensor: u64, len: usize) -> Result<(), Error> {
    /// // SAFETY: the tensor of another library has so many numbers, is used in the order of this stream only,
    /// // and is freed after the work that is queued there, and after its registrations, windows and graphs.
    /// let mut tensor = unsafe { Memory::from_raw(tensor, len * 4, Arc::clone(communicator.stream()), ()) };
    /// communicator.all_reduce_in_place(&mut tensor.slice_mut::<f32>(..)?, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The memory is initialised memory of the stream's context, aligned for every element that views of it have; it stays
    /// allocated until `owner` is dropped (for `()`, as long as this object or a registration, a window or a graph of it exists)
    /// and, after that, until the work is done that is queued on `stream` then; and nothing else writes it, or reads it while a
    /// collective writes it.
    #[must_use]
    pub unsafe fn from_raw<O: Send + 'static>(
        address: u64,
        bytes: usize,
        stream: Arc<CudaStream>,
        owner: O,
    ) -> Self {
        Self { allocation: Arc::new(Allocation::adopt(address, bytes, stream, owner)) }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// The stream in whose order it is used and freed.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.allocation.stream
    }

    /// A view to read. The range counts elements of type `T` from the beginning of the memory: `slice::<f32>(1..3)` begins at
    /// byte 4.
    ///
    /// # Errors
    /// [`Error::View`] when it would reach past the end.
    pub fn slice<T: Element>(&self, range: impl RangeBounds<usize>) -> Result<MemoryView<'_, T>, Error> {
        MemoryView::new(&self.allocation, range)
    }

    /// A view to read and write. The range counts elements of type `T` from the beginning of the memory.
    ///
    /// # Errors
    /// [`Error::View`] when it would reach past the end.
    pub fn slice_mut<T: Element>(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<MemoryViewMut<'_, T>, Error> {
        self.slice(range).map(MemoryViewMut)
    }
}

// SAFETY: all of its bytes are initialised, and stay allocated as long as an owner, in the order of its stream.
unsafe impl DeviceBuffer for Memory {
    type Element = u8;

    fn len(&self) -> usize {
        self.bytes()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }

    fn read<'a>(&'a self, _: &'a CudaStream) -> Access<'a> {
        Access::new(self.allocation.address, None)
    }

    fn owner(&self) -> Option<Owner> {
        Some(Arc::clone(&self.allocation) as Owner)
    }
}

// SAFETY: the memory is borrowed mutably.
unsafe impl DeviceBufferMut for Memory {
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a> {
        self.read(stream)
    }
}

/// The alignment of the largest element.
const ALIGNMENT: u64 = 8;

/// Its events are given up: from now on the memory is used in the order of the slice's stream.
///
/// # Errors
/// [`Error::Cuda`] when the stream cannot be ordered after the slice's earlier uses; [`Error::Argument`] for one that begins in
/// the middle of an element.
impl<T: Element> TryFrom<CudaSlice<T>> for Memory {
    type Error = Error;

    fn try_from(mut slice: CudaSlice<T>) -> Result<Self, Error> {
        use cudarc::driver::{DevicePtrMut, DeviceSlice};
        let stream = Arc::clone(DeviceSlice::stream(&slice));
        let bytes = DeviceSlice::num_bytes(&slice);
        let (address, used) = slice.device_ptr_mut(&stream);
        drop(used);
        if !address.is_multiple_of(ALIGNMENT) {
            let reason = format!(
                "memory at address {address:#x} cannot be adopted: it must begin at a multiple of 8 bytes"
            );
            return Err(Error::argument("Memory::try_from", reason));
        }
        stream.context().check_err().map_err(Error::cuda("cuStreamWaitEvent"))?;
        Ok(Self { allocation: Arc::new(Allocation::adopt(address, bytes, stream, slice)) })
    }
}
