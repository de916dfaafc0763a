//! Buffers of collectives: device memory with a length, an element type, and a stream.

use std::{ops::Range, sync::Arc};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop};

use super::reads;
use crate::Element;
use crate::nccl::{allocation::Owner, communicator::Communicator, cuda, error::Error};

/// Address of a buffer for work on one stream, valid while this object lives.
#[derive(Debug)]
pub struct Access<'a> {
    address: CUdeviceptr,
    /// Dropped to inform the buffer's owner of the queued work.
    queued: Option<SyncOnDrop<'a>>,
    /// True if no other stream can have used the buffer since this one has waited for it.
    is_exclusive: bool,
}

impl<'a> Access<'a> {
    /// `queued` is dropped once the work is queued; `None` for buffers that need no notice and wait for no
    /// events.
    #[must_use]
    pub fn new(address: CUdeviceptr, queued: Option<SyncOnDrop<'a>>) -> Self {
        Self { address, queued, is_exclusive: false }
    }

    /// The access to a mutably borrowed buffer, after the stream has waited for its earlier uses.
    #[inline]
    fn new_exclusive(address: CUdeviceptr, queued: SyncOnDrop<'a>) -> Self {
        Self { address, queued: Some(queued), is_exclusive: true }
    }

    /// True if the stream may wait for events of the buffer. A buffer of cudarc without events does not wait.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !matches!(self.queued, None | Some(SyncOnDrop::Record(None)))
    }

    /// Device address.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for Access<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.queued.take() {
            Some(queued) if !self.is_exclusive => reads::record_access(queued),
            queued => drop(queued),
        }
    }
}

/// Device memory that a collective can read: cudarc's slices and views, [`Memory`](super::Memory) and its
/// views, and types of other libraries.
///
/// # Safety
/// - [`read`](Self::read) returns the address of [`len`](Self::len) initialised elements in device memory of
///   the context of [`stream`](Self::stream).
/// - They stay allocated at least until `self` is dropped, and until all work queued on
///   [`stream`](Self::stream) before is done: memory is freed in the order of this stream.
/// - Before NCCL 2.23: ranks on other GPUs of this process can access the memory, if the hardware allows it.
///   This holds for memory of `cuMemAlloc` and of the device's pool; memory of `cuMemCreate` needs
///   `cuMemSetAccess`.
/// - `len`, `stream` and the address do not change while `self` is borrowed.
/// - The memory stays allocated as long as an [`owner`](Self::owner) lives, if it has one.
/// - If [`may_have_events`](Self::may_have_events) returns false, neither `read` nor `write` returns an
///   access with a `queued`.
pub unsafe trait DeviceBuffer {
    /// Element type.
    type Element: Element;

    /// Number of elements.
    fn len(&self) -> usize;

    /// True if there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stream in whose order the memory is used and freed.
    fn stream(&self) -> &Arc<CudaStream>;

    /// Returns the address for reading work on `stream`. The caller orders this work after the queued work of
    /// [`stream`](Self::stream). The method orders it after all other writes known to the buffer; it then
    /// returns a `queued`, and the caller must check that `stream` has not become part of a capture.
    fn read<'a>(&'a self, stream: &'a CudaStream) -> Access<'a>;

    /// False if [`read`](Self::read) and `write` never order work by events of cudarc.
    #[inline]
    fn may_have_events(&self) -> bool {
        true
    }

    /// Fails if a copy of the memory may still be under way because a wait for it has failed.
    ///
    /// # Errors
    /// [`Error::Stream`], before anything is queued.
    #[doc(hidden)]
    #[inline]
    fn check_copies(&self, _operation: &'static str) -> Result<(), Error> {
        Ok(())
    }

    /// Owner to keep the memory allocated without this object, for registrations, windows, graphs and
    /// prepared operations.
    fn owner(&self) -> Option<Owner> {
        None
    }
}

/// Device memory that a collective can write.
///
/// # Safety
/// In addition to the contract of [`DeviceBuffer`], nothing else can access the elements while `self` is
/// mutably borrowed, and [`write`](Self::write) returns the address of [`read`](DeviceBuffer::read).
pub unsafe trait DeviceBufferMut: DeviceBuffer {
    /// Returns the address for reading and writing work on `stream`. Otherwise like
    /// [`read`](DeviceBuffer::read).
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a>;
}

macro_rules! cudarc_buffer {
    ($($type:ty),*) => {$(
        // SAFETY: cudarc's buffers hold `len` elements in the context of their stream, and are freed on it;
        // their views borrow them. The caller of CudaStream::alloc guarantees an initialised buffer.
        unsafe impl<T: Element> DeviceBuffer for $type {
            type Element = T;

            #[inline]
            fn len(&self) -> usize {
                cudarc::driver::DeviceSlice::len(self)
            }

            #[inline]
            fn stream(&self) -> &Arc<CudaStream> {
                cudarc::driver::DeviceSlice::stream(self)
            }

            #[inline]
            fn read<'a>(&'a self, stream: &'a CudaStream) -> Access<'a> {
                let (address, queued) = self.device_ptr(stream);
                Access::new(address, Some(queued))
            }
        }
    )*};
}

cudarc_buffer!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);

// SAFETY: as above; a mutable borrow of the buffer is exclusive.
unsafe impl<T: Element> DeviceBufferMut for CudaSlice<T> {
    #[inline]
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a> {
        let (address, queued) = self.device_ptr_mut(stream);
        Access::new_exclusive(address, queued)
    }
}

// SAFETY: as above; a mutable view is exclusive.
unsafe impl<T: Element> DeviceBufferMut for CudaViewMut<'_, T> {
    #[inline]
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a> {
        let (address, queued) = self.device_ptr_mut(stream);
        // Views of other parts of the slice have the same event.
        Access::new(address, Some(queued))
    }
}

/// A buffer used for longer than its borrow. It has an owner, and therefore no events to wait for.
#[derive(Clone, Debug)]
pub(crate) struct OwnedBuffer {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) owner: Owner,
    pub(crate) addresses: Range<u64>,
    pub(crate) is_written: bool,
}

impl OwnedBuffer {
    /// Takes a buffer to read.
    pub(crate) fn new<B: DeviceBuffer + ?Sized>(
        communicator: &Communicator,
        operation: &'static str,
        name: &'static str,
        buffer: &B,
    ) -> Result<Self, Error> {
        let stream = Arc::clone(buffer.stream());
        communicator.expect_device(operation, name, &stream)?;
        cuda::refuse_per_thread(operation, &stream)?;
        buffer.check_copies(operation)?;
        let owner = buffer.owner().ok_or(Error::NotOwned { operation })?;
        let start = buffer.read(&stream).address();
        let addresses = start..start + (buffer.len() * size_of::<B::Element>()) as u64;
        Ok(Self { stream, owner, addresses, is_written: false })
    }
}
