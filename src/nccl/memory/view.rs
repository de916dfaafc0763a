//! Typed views of memory.

use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

use super::buffer::{Access, DeviceBuffer, DeviceBufferMut};
use crate::Element;
use crate::nccl::allocation::{Allocation, Owner};
use crate::nccl::error::Error;

/// Address of no memory: the driver refuses a copy from or to it. Other libraries may not: see limits.md.
const NO_ADDRESS: CUdeviceptr = 0;

/// A read-only part of a [`Memory`](super::Memory). Its methods refuse to reach past its end
/// ([`Error::View`]).
#[derive(Clone, Copy, Debug)]
pub struct MemoryView<'a, T> {
    allocation: &'a Arc<Allocation>,
    address: CUdeviceptr,
    len: usize,
    elements: PhantomData<&'a [T]>,
}

/// A part of a [`Memory`](super::Memory), to read and write. Its methods refuse to reach past its end
/// ([`Error::View`]).
// The view inside can be copied. It must not be given away beyond the borrow of `self`, since its memory is
// borrowed mutably.
#[derive(Debug)]
pub struct MemoryViewMut<'a, T>(pub(super) MemoryView<'a, T>);

impl<'a, T: Element> MemoryView<'a, T> {
    pub(super) fn new(
        allocation: &'a Arc<Allocation>,
        range: impl RangeBounds<usize>,
    ) -> Result<Self, Error> {
        let (address, len) = (allocation.address, allocation.bytes / size_of::<T>());
        Self { allocation, address, len, elements: PhantomData }.slice(range)
    }

    /// A subrange.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let range = checked_range(range, self.len)?;
        let address = self.address + (range.start * size_of::<T>()) as CUdeviceptr;
        Ok(Self { address, len: range.len(), ..*self })
    }

    /// Splits it into the elements before `mid` and the rest.
    pub fn split_at(&self, mid: usize) -> Result<(Self, Self), Error> {
        Ok((self.slice(..mid)?, self.slice(mid..)?))
    }
}

impl<T: Element> MemoryViewMut<'_, T> {
    /// A read-only view of the same part.
    pub fn as_view(&self) -> MemoryView<'_, T> {
        self.0
    }

    /// A read-only subrange.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MemoryView<'_, T>, Error> {
        self.0.slice(range)
    }

    /// A mutable subrange.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<MemoryViewMut<'_, T>, Error> {
        self.0.slice(range).map(MemoryViewMut)
    }

    /// Splits it into the elements before `mid` and the rest. Both can be written at the same time.
    pub fn split_at_mut(self, mid: usize) -> Result<(Self, Self), Error> {
        let (before, after) = self.0.split_at(mid)?;
        Ok((Self(before), Self(after)))
    }
}

pub(crate) fn checked_range(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len { Ok(start..end) } else { Err(Error::View { start, end, len }) }
}

macro_rules! memory_view {
    ($($type:ident $(. $view:tt)?),*) => {$(
        impl<T: Element> $type<'_, T> {
            /// Device address of the first element, for kernels.
            pub fn address(&self) -> CUdeviceptr {
                self$(.$view)?.address
            }
        }

        // SAFETY: made by Memory with checked bounds and alignment; the borrow keeps the memory allocated, as
        // does its owner, and it is freed in the order of its stream. All bytes are initialised, and every
        // bit pattern is an Element.
        unsafe impl<T: Element> DeviceBuffer for $type<'_, T> {
            type Element = T;

            #[inline]
            fn len(&self) -> usize {
                self$(.$view)?.len
            }

            #[inline]
            fn stream(&self) -> &Arc<CudaStream> {
                &self$(.$view)?.allocation.stream
            }

            #[inline]
            fn read<'a>(&'a self, _: &'a CudaStream) -> Access<'a> {
                Access::new(self.address(), None)
            }

            #[inline]
            fn may_have_events(&self) -> bool {
                false
            }

            #[inline]
            fn check_copies(&self, operation: &'static str) -> Result<(), Error> {
                self$(.$view)?.allocation.check_copies(operation)
            }

            fn owner(&self) -> Option<Owner> {
                Some(Arc::clone(self$(.$view)?.allocation) as Owner)
            }
        }

        impl<T: Element> DeviceSlice<T> for $type<'_, T> {
            fn len(&self) -> usize {
                DeviceBuffer::len(self)
            }

            fn stream(&self) -> &Arc<CudaStream> {
                DeviceBuffer::stream(self)
            }
        }

        impl<T: Element> DevicePtr<T> for $type<'_, T> {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
                match self$(.$view)?.allocation.begin_copy(stream) {
                    Ok(queued) => (self.address(), queued),
                    Err(error) => {
                        stream.context().record_err::<()>(Err(error));
                        (NO_ADDRESS, SyncOnDrop::Sync(None))
                    }
                }
            }
        }
    )*};
}

memory_view!(MemoryView, MemoryViewMut.0);

// SAFETY: as above; the view borrows the memory mutably.
unsafe impl<T: Element> DeviceBufferMut for MemoryViewMut<'_, T> {
    #[inline]
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a> {
        self.read(stream)
    }
}

impl<T: Element> DevicePtrMut<T> for MemoryViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.device_ptr(stream)
    }
}
