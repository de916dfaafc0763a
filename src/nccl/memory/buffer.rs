//! The buffers that collectives read and write: device memory with a length, a type, and a stream that it belongs to.

use std::{ops::Range, sync::Arc};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop};

use crate::Element;
use crate::nccl::{allocation::Owner, communicator::Communicator, cuda, error::Error};

/// The address of a buffer for work on one stream, valid as long as this object lives.
#[derive(Debug)]
pub struct Access<'a> {
    address: CUdeviceptr,
    /// Tells the buffer's owner, when dropped, that the work is queued.
    queued: Option<SyncOnDrop<'a>>,
}

impl<'a> Access<'a> {
    /// `queued` is dropped once the work is queued; buffers that need no notice and wait for no events pass `None`.
    #[must_use]
    pub fn new(address: CUdeviceptr, queued: Option<SyncOnDrop<'a>>) -> Self {
        Self { address, queued }
    }

    /// True when the stream may have been made to wait for events of the buffer. A buffer of cudarc without events has nothing to
    /// wait for.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !matches!(self.queued, None | Some(SyncOnDrop::Record(None)))
    }

    /// The address on the device.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

/// Device memory that a collective can read: cudarc's slices and views, [`Memory`](super::Memory) and its views, and what other
/// libraries implement it for.
///
/// # Safety
/// - [`read`](Self::read) answers with the address of [`len`](Self::len) initialised elements in device memory of the context of
///   [`stream`](Self::stream).
/// - They stay allocated at least until `self` is dropped, and after that until all work is done that was queued on
///   [`stream`](Self::stream) before: memory is freed in the order of that stream.
/// - NCCL older than 2.23: ranks on other GPUs of this process can reach the memory, where the hardware allows it. Memory of
///   `cuMemAlloc` and of the device's pool is; memory of `cuMemCreate` only with `cuMemSetAccess`.
/// - `len`, `stream` and the address do not change while `self` is borrowed.
/// - The memory stays allocated as long as an [`owner`](Self::owner) lives, where there is one.
pub unsafe trait DeviceBuffer {
    /// The type of the elements.
    type Element: Element;

    /// Elements.
    fn len(&self) -> usize;

    /// True when there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stream in whose order the memory is used and freed.
    fn stream(&self) -> &Arc<CudaStream>;

    /// The address, for work on `stream` that reads. That work is ordered after what is queued on [`stream`](Self::stream), by
    /// the caller, and after anything else that this buffer knows of, by this method, whose answer then has a `queued`: the
    /// caller has to look whether waiting has drawn `stream` into a graph.
    fn read<'a>(&'a self, stream: &'a CudaStream) -> Access<'a>;

    /// Keeps the memory allocated without this object: registrations, windows and graphs need one.
    fn owner(&self) -> Option<Owner> {
        None
    }
}

/// Device memory that a collective can write.
///
/// # Safety
/// In addition to the contract of [`DeviceBuffer`], nothing else can reach the elements while `self` is mutably borrowed, and
/// [`write`](Self::write) has the address of [`read`](DeviceBuffer::read).
pub unsafe trait DeviceBufferMut: DeviceBuffer {
    /// The address, for work on `stream` that reads and writes. Otherwise as [`read`](DeviceBuffer::read).
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a>;
}

macro_rules! cudarc_buffer {
    ($($type:ty),*) => {$(
        // SAFETY: cudarc's buffers hold `len` elements in the context of their stream, on which they are freed; their views
        // borrow them. That a buffer from CudaStream::alloc is initialised was vouched for there.
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

macro_rules! cudarc_buffer_mut {
    ($($type:ty),*) => {$(
        // SAFETY: as above; a mutable borrow of the buffer, or a mutable view, is exclusive.
        unsafe impl<T: Element> DeviceBufferMut for $type {
            #[inline]
            fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a> {
                let (address, queued) = self.device_ptr_mut(stream);
                Access::new(address, Some(queued))
            }
        }
    )*};
}

cudarc_buffer!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);
cudarc_buffer_mut!(CudaSlice<T>, CudaViewMut<'_, T>);

/// A buffer that is used longer than it is borrowed. It has an owner, and so no events that work would have to wait for.
#[derive(Clone, Debug)]
pub(crate) struct OwnedBuffer {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) owner: Owner,
    pub(crate) addresses: Range<u64>,
    pub(crate) is_written: bool,
}

impl OwnedBuffer {
    /// A buffer that is read. `name` is for errors.
    pub(crate) fn new<B: DeviceBuffer + ?Sized>(
        communicator: &Communicator,
        operation: &'static str,
        name: &'static str,
        buffer: &B,
    ) -> Result<Self, Error> {
        let stream = Arc::clone(buffer.stream());
        communicator.expect_device(operation, name, &stream)?;
        cuda::refuse_per_thread(operation, &stream)?;
        let owner = buffer.owner().ok_or(Error::NotOwned { operation })?;
        let start = buffer.read(&stream).address();
        let addresses = start..start + (buffer.len() * size_of::<B::Element>()) as u64;
        Ok(Self { stream, owner, addresses, is_written: false })
    }
}
