//! GPU memory of other libraries as buffers of a group's operations: for adapters, whose tensors are no
//! `CudaSlice`. Nothing is copied.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys::CUdeviceptr};

use super::buffer::{Buffer, memory::GroupMemory};
use super::gpu::GpuGroup;
use crate::Element;
use crate::nccl::{Access, DeviceBuffer, DeviceBufferMut, cuda};

/// Memory of a GPU that another library has allocated, as a buffer of a [`Group`](super::Group)'s operations.
pub struct DeviceMemory<T> {
    address: CUdeviceptr,
    len: usize,
    stream: Arc<CudaStream>,
    _owner: Box<dyn Send>,
    elements: PhantomData<fn() -> T>,
}

impl<T: Element> DeviceMemory<T> {
    /// `len` elements at the device address `address`, used in the order of `stream`. `owner` keeps them
    /// allocated; pass `()` if something else does.
    ///
    /// An operation waits for the work that is queued on `stream`, and work that is queued there later waits
    /// for the operation. If `stream` is the group's own, order other streams yourself: before the operation,
    /// let the group's stream wait for the work that writes the elements; afterwards, let the streams that
    /// use them wait for the operation ([`Work::wait_on`](super::Work::wait_on)).
    ///
    /// # Safety
    /// - The elements are initialised, aligned, and in the stream's context.
    /// - They stay allocated until `owner` is dropped (for `()`, until this is dropped), and then until the
    ///   work that is queued on `stream` at that time is done.
    /// - Nothing else writes them, or reads them while an operation writes them.
    #[must_use]
    pub unsafe fn from_raw<O: Send + 'static>(
        address: u64,
        len: usize,
        stream: Arc<CudaStream>,
        owner: O,
    ) -> Self {
        Self { address, len, stream, _owner: Box::new(owner), elements: PhantomData }
    }
}

// SAFETY: the caller of `from_raw` guarantees so many initialised elements in the stream's context, which
// stay allocated as long as this, and until the stream's work is done.
unsafe impl<T: Element> DeviceBuffer for DeviceMemory<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn read<'a>(&'a self, _: &'a CudaStream) -> Access<'a> {
        Access::new(self.address, None)
    }

    #[inline]
    fn may_have_events(&self) -> bool {
        false
    }
}

// SAFETY: nothing else uses the elements.
unsafe impl<T: Element> DeviceBufferMut for DeviceMemory<T> {
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a> {
        self.read(stream)
    }
}

impl<T> fmt::Debug for DeviceMemory<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceMemory({} elements at {:#x})", self.len, self.address)
    }
}

impl<T: Element> GroupMemory for CudaSlice<T> {
    type Group = GpuGroup;

    fn context(&self) -> Option<Arc<CudaContext>> {
        Some(Arc::clone(self.context()))
    }

    fn release(self) {
        cuda::release_slice(self);
    }
}

impl<T: Element> GroupMemory for DeviceMemory<T> {
    type Group = GpuGroup;

    /// The owner may have slices.
    fn release(self) {
        cuda::drop_in_order(&Arc::clone(self.stream.context()), self);
    }
}

impl<T: Element> Buffer for CudaSlice<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }
}

impl<T: Element> Buffer for DeviceMemory<T> {
    type Element = T;

    fn len(&self) -> usize {
        DeviceBuffer::len(self)
    }
}
