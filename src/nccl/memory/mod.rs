//! Device memory: what collectives read and write, and what NCCL knows of it beforehand.

mod buffer;
mod registered;
mod view;
mod window;

use std::ops::RangeBounds;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};

use super::error::Error;
use super::library::Library;
use crate::Element;

pub(crate) use super::allocation::Allocation;
pub use super::allocation::Owner;
pub use buffer::{Access, DeviceBuffer, DeviceBufferMut, RawBuffer};
pub use registered::Registration;
pub use view::{MemoryView, MemoryViewMut};
pub use window::{Signal, Window, WindowKind, windows};

/// Device memory of one stream, which registrations, windows and graphs can own together with this object. From NCCL's
/// allocator ([`alloc`](Self::alloc)), which its fastest algorithms can use directly; or adopted, from a slice of cudarc
/// (`Memory::try_from(slice)`) or any other allocator ([`from_raw`](Self::from_raw)).
///
/// Typed views of any part of it go into collectives, and into cudarc's copies. It is itself a buffer of bytes.
///
/// It is freed when this object and all registrations, windows and graphs of it are gone, in the order of its stream; for memory
/// of [`alloc`](Self::alloc) the last one waits for that. Memory is never freed, with a warning, that is dropped last while its stream is being captured into a CUDA
/// graph, since nobody can wait for it then.
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
    pub(crate) allocation: Arc<Allocation>,
}

impl Memory {
    /// Zeroed memory on the stream's device (`ncclMemAlloc`, NCCL 2.19; `cuMemAlloc` where the library is older). The zeroes
    /// are written in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`], most often because the device has no room for it; [`Error::Stream`] for a
    /// per-thread default stream, and while the stream is being captured into a CUDA graph.
    pub fn alloc(library: Library, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Error> {
        Ok(Self { allocation: Arc::new(Allocation::new(library, stream, bytes)?) })
    }

    /// Memory of another allocator: `bytes` at `address`, used in the order of `stream`, and freed by dropping `owner`.
    ///
    /// # Safety
    /// The memory is initialised memory of the stream's context, aligned for every element that views of it have; it stays
    /// allocated until `owner` is dropped and, after that, until the work is done that is queued on `stream` then; and nothing
    /// else writes it, or reads it while a collective writes it.
    #[must_use]
    pub unsafe fn from_raw<O: Send + 'static>(
        address: u64,
        bytes: usize,
        stream: Arc<CudaStream>,
        owner: O,
    ) -> Self {
        Self { allocation: Arc::new(Allocation::adopt(address, bytes, stream, Box::new(owner))) }
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
        MemoryView::whole(&self.allocation).slice(range)
    }

    /// A view to read and write. The range counts elements of type `T` from the beginning of the memory.
    ///
    /// # Errors
    /// [`Error::View`] when it would reach past the end.
    pub fn slice_mut<T: Element>(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<MemoryViewMut<'_, T>, Error> {
        MemoryViewMut::whole(&mut self.allocation).into_slice(range)
    }
}

/// Of the largest element.
const ALIGNMENT: u64 = 8;

/// Its events are given up: from now on the memory is used in the order of the slice's stream.
///
/// # Errors
/// [`Error::Cuda`] when the stream cannot be ordered after the slice's earlier uses; [`Error::Unaligned`].
impl<T: Element> TryFrom<CudaSlice<T>> for Memory {
    type Error = Error;

    fn try_from(mut slice: CudaSlice<T>) -> Result<Self, Error> {
        use cudarc::driver::{DevicePtrMut, DeviceSlice};
        let stream = Arc::clone(DeviceSlice::stream(&slice));
        let bytes = DeviceSlice::num_bytes(&slice);
        let (address, used) = slice.device_ptr_mut(&stream);
        drop(used);
        if !address.is_multiple_of(ALIGNMENT) {
            return Err(Error::Unaligned { address });
        }
        stream.context().check_err().map_err(Error::cuda("cuStreamWaitEvent"))?;
        Ok(Self { allocation: Arc::new(Allocation::adopt(address, bytes, stream, Box::new(slice))) })
    }
}
