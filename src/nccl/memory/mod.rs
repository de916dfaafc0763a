//! Device memory: buffers of collectives, registrations and windows.

mod buffer;
mod reads;
mod registered;
mod view;
mod window;

use std::{ops::RangeBounds, sync::Arc};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream};

use super::allocation::Allocation;
use super::{cuda, error::Error, library::Library};
use crate::Element;

pub use super::allocation::Owner;
pub(crate) use buffer::OwnedBuffer;
pub use buffer::{Access, DeviceBuffer, DeviceBufferMut};
pub(crate) use reads::{begin_write, queue_read};
pub use registered::Registration;
pub(crate) use view::checked_range;
pub use view::{MemoryView, MemoryViewMut};
pub use window::{Signal, Window, WindowKind, windows};

/// Device memory of one stream, with shared ownership: registrations, windows, graphs and prepared operations
/// own it together with this object. From NCCL's allocator ([`alloc`](Self::alloc)), for direct use by NCCL's
/// fastest algorithms; or adopted, from a slice of cudarc (`Memory::try_from(slice)`) or any other allocator
/// ([`from_raw`](Self::from_raw)).
///
/// Typed views of any part of it are buffers of collectives and of cudarc's copies. The memory itself is a
/// buffer of bytes. A copy on another stream than the memory's makes the host wait for both streams. It fails
/// while one of them is being captured into a CUDA graph, or a capture elsewhere forbids this thread to wait.
///
/// It is freed once this object and all its other owners are dropped, in the order of its stream; for memory
/// of [`alloc`](Self::alloc), the last owner waits for the release. If it cannot wait, the memory is leaked
/// with a warning: while its stream is being captured into a CUDA graph, and in a panicking thread while the
/// stream has work.
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
    /// Allocates zeroed memory on the stream's device (`ncclMemAlloc`, NCCL 2.19; `cuMemAlloc` if the library
    /// is older). The zeroes are written in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`], usually for lack of memory; [`Error::Stream`] for a per-thread
    /// default stream, and while the stream is being captured into a CUDA graph.
    pub fn alloc(library: Library, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Error> {
        Ok(Self { allocation: Arc::new(Allocation::new(library, stream, bytes)?) })
    }

    /// Adopts memory of another allocator: `bytes` at `address`, used in the order of `stream`, and freed by
    /// dropping `owner`, or `()` if something else frees it.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error, Memory}};
    /// # fn example(communicator: &Communicator, tensor: u64, len: usize) -> Result<(), Error> {
    /// // SAFETY: the tensor of another library has `len` numbers, is used in the order of this stream only,
    /// // and is freed after the work that is queued there, and after its registrations, windows, graphs and
    /// // prepared operations.
    /// let mut tensor = unsafe { Memory::from_raw(tensor, len * 4, Arc::clone(communicator.stream()), ()) };
    /// communicator.all_reduce_in_place(&mut tensor.slice_mut::<f32>(..)?, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// - The memory is initialised, in the stream's context, and aligned for all elements of its views.
    /// - `stream` is not a per-thread default stream: this is another stream on every thread.
    /// - It stays allocated until `owner` is dropped (for `()`, as long as this object, its registrations,
    ///   windows, graphs or prepared operations exist), and then until the work queued on `stream` at this
    ///   time is done.
    /// - Nothing else writes it, or reads it while a collective writes it.
    #[must_use]
    pub unsafe fn from_raw<O: Send + 'static>(
        address: u64,
        bytes: usize,
        stream: Arc<CudaStream>,
        owner: O,
    ) -> Self {
        Self { allocation: Arc::new(Allocation::adopt_memory(address, bytes, stream, owner)) }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// Stream in whose order it is used and freed.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.allocation.stream
    }

    /// Returns a read-only view. The range counts elements of type `T` from the beginning of the memory:
    /// `slice::<f32>(1..3)` begins at byte 4.
    ///
    /// # Errors
    /// [`Error::View`] if it would reach past the end.
    pub fn slice<T: Element>(&self, range: impl RangeBounds<usize>) -> Result<MemoryView<'_, T>, Error> {
        MemoryView::new(&self.allocation, range)
    }

    /// Returns a mutable view. The range counts elements of type `T` from the beginning of the memory.
    ///
    /// # Errors
    /// [`Error::View`] if it would reach past the end.
    pub fn slice_mut<T: Element>(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<MemoryViewMut<'_, T>, Error> {
        self.slice(range).map(MemoryViewMut)
    }
}

// SAFETY: all bytes are initialised, and stay allocated as long as an owner, in the order of its stream.
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

    #[inline]
    fn may_have_events(&self) -> bool {
        false
    }

    #[inline]
    fn check_copies(&self, operation: &'static str) -> Result<(), Error> {
        self.allocation.check_copies(operation)
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

const ADOPT: &str = "Memory::try_from";

/// Adopts a slice. Its events are discarded: from now on the memory is used in the order of the slice's
/// stream.
///
/// # Errors
/// [`Error::Cuda`] if the stream cannot be ordered after earlier uses of the slice; [`Error::Argument`] for a
/// slice not aligned to 8 bytes; [`Error::Stream`] for a slice of a per-thread default stream, or of a
/// context other than the device's primary one.
impl<T: Element> TryFrom<CudaSlice<T>> for Memory {
    type Error = Error;

    fn try_from(mut slice: CudaSlice<T>) -> Result<Self, Error> {
        let stream = Arc::clone(slice.stream());
        let bytes = slice.num_bytes();
        match adopted_address(&mut slice, &stream) {
            Ok(address) => {
                Ok(Self { allocation: Arc::new(Allocation::adopt_memory(address, bytes, stream, slice)) })
            }
            Err(error) => {
                // The noted error of a lost record, or that of a wait, may concern the slice.
                if matches!(error, Error::Cuda { .. }) {
                    cuda::leak_memory(slice, &error);
                } else {
                    cuda::release_slice(slice);
                }
                Err(error)
            }
        }
    }
}

/// The address of a slice whose stream is ordered after its earlier uses.
fn adopted_address<T: Element>(
    slice: &mut CudaSlice<T>,
    stream: &Arc<CudaStream>,
) -> Result<CUdeviceptr, Error> {
    cuda::check_stream(ADOPT, stream)?;
    cuda::bind_context(stream.context())?;
    // The slice may be memory of the capture's graph.
    cuda::refuse_captured(ADOPT, stream)?;
    // An error noted by cudarc may mean a lost record of an earlier use.
    stream.context().check_err().map_err(Error::of_cuda("an earlier operation of cudarc's"))?;
    // cudarc waits for the events of earlier uses only while it counts a stream.
    let tracks = stream.context().is_event_tracking();
    let _counted = tracks.then(|| cuda::track_events(stream.context())).transpose()?;
    let address = cuda::wait_for_uses(ADOPT, slice, stream)?;
    if !address.is_multiple_of(8) {
        let reason = format!(
            "memory at address {address:#x} cannot be adopted: it must begin at a multiple of 8 bytes"
        );
        return Err(Error::bad_argument(ADOPT, reason));
    }
    Ok(address)
}
