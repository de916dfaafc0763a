//! Typed parts of a [`Memory`](super::Memory).

use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

use super::Memory;
use super::buffer::{Access, DeviceBuffer, DeviceBufferMut};
use crate::Element;
use crate::nccl::allocation::{Allocation, Owner};
use crate::nccl::error::Error;

/// A part of a [`Memory`], to read.
#[derive(Debug)]
pub struct MemoryView<'a, T> {
    allocation: &'a Arc<Allocation>,
    address: CUdeviceptr,
    len: usize,
    elements: PhantomData<&'a [T]>,
}

/// A part of a [`Memory`], to read and write.
#[derive(Debug)]
pub struct MemoryViewMut<'a, T> {
    allocation: &'a Arc<Allocation>,
    address: CUdeviceptr,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

impl<T> Clone for MemoryView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for MemoryView<'_, T> {}

impl<'a, T: Element> MemoryView<'a, T> {
    pub(crate) fn whole(allocation: &'a Arc<Allocation>) -> Self {
        let (address, len) = (allocation.address, allocation.bytes / size_of::<T>());
        Self { allocation, address, len, elements: PhantomData }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::View`] when it would reach past the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let range = within(range, self.len)?;
        Ok(self.part(range))
    }

    /// The elements before `mid`, and the others.
    ///
    /// # Errors
    /// [`Error::View`] when `mid` is past the end.
    pub fn split_at(&self, mid: usize) -> Result<(Self, Self), Error> {
        Ok((self.slice(..mid)?, self.slice(mid..)?))
    }

    fn part(&self, range: Range<usize>) -> Self {
        let address = self.address + (range.start * size_of::<T>()) as CUdeviceptr;
        Self { address, len: range.len(), ..*self }
    }
}

impl<'a, T: Element> MemoryViewMut<'a, T> {
    pub(crate) fn whole(allocation: &'a mut Arc<Allocation>) -> Self {
        let (address, len) = (allocation.address, allocation.bytes / size_of::<T>());
        Self { allocation, address, len, elements: PhantomData }
    }

    /// The same part, to read.
    #[must_use]
    pub fn as_view(&self) -> MemoryView<'_, T> {
        MemoryView {
            allocation: self.allocation,
            address: self.address,
            len: self.len,
            elements: PhantomData,
        }
    }

    /// A part of it, to read.
    ///
    /// # Errors
    /// [`Error::View`] when it would reach past the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MemoryView<'_, T>, Error> {
        self.as_view().slice(range)
    }

    /// A part of it, to read and write.
    ///
    /// # Errors
    /// [`Error::View`] when it would reach past the end.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<MemoryViewMut<'_, T>, Error> {
        let range = within(range, self.len)?;
        Ok(self.part(range))
    }

    /// The elements before `mid`, and the others: both can be written at the same time.
    ///
    /// # Errors
    /// [`Error::View`] when `mid` is past the end.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(MemoryViewMut<'_, T>, MemoryViewMut<'_, T>), Error> {
        let (before, after) = (within(..mid, self.len)?, within(mid.., self.len)?);
        Ok((self.part(before), self.part(after)))
    }

    pub(crate) fn into_slice(self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let range = within(range, self.len)?;
        let address = self.address + (range.start * size_of::<T>()) as CUdeviceptr;
        Ok(Self { address, len: range.len(), ..self })
    }

    /// The caller sees to it that parts which live at the same time do not overlap.
    fn part(&self, range: Range<usize>) -> MemoryViewMut<'_, T> {
        let address = self.address + (range.start * size_of::<T>()) as CUdeviceptr;
        MemoryViewMut { allocation: self.allocation, address, len: range.len(), elements: PhantomData }
    }
}

/// The range of elements, if there are so many.
pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok(start..end),
        (start, end) => {
            Err(Error::View { start: start.unwrap_or(usize::MAX), end: end.unwrap_or(usize::MAX), len })
        }
    }
}

/// Orders a copy of cudarc's on another stream: it waits for the memory's stream first, and the host for it afterwards.
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

        // SAFETY: made by Memory with checked bounds and alignment; the borrow keeps the memory allocated, as does its owner,
        // and it is freed in the order of its stream. All bytes are initialised, and every bit pattern is an Element.
        unsafe impl<T: Element> DeviceBuffer for $type<'_, T> {
            type Element = T;

            #[inline]
            fn len(&self) -> usize {
                self.len
            }

            #[inline]
            fn stream(&self) -> &Arc<CudaStream> {
                &self.allocation.stream
            }

            #[inline]
            fn read<'a>(&'a self, _: &'a CudaStream) -> Access<'a> {
                Access::new(self.address, None)
            }

            fn owner(&self) -> Option<Owner> {
                Some(Arc::clone(self.allocation) as Owner)
            }
        }

        impl<T: Element> DeviceSlice<T> for $type<'_, T> {
            fn len(&self) -> usize {
                self.len
            }

            fn stream(&self) -> &Arc<CudaStream> {
                &self.allocation.stream
            }
        }

        impl<T: Element> DevicePtr<T> for $type<'_, T> {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
                (self.address, borrowed(&self.allocation.stream, stream))
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
        (self.address, borrowed(&self.allocation.stream, stream))
    }
}

// SAFETY: a view of all of its bytes.
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
    fn write<'a>(&'a mut self, _: &'a CudaStream) -> Access<'a> {
        Access::new(self.allocation.address, None)
    }
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn ranges_end_within_the_elements() {
        assert_eq!(within(.., 4).unwrap(), 0..4);
        assert_eq!(within(1..=3, 4).unwrap(), 1..4);
        assert_eq!(within(4..4, 4).unwrap(), 4..4);
        assert!(within(..5, 4).is_err() && within(..=4, 4).is_err() && within(5.., 4).is_err());
        let backwards = within(std::ops::Range { start: 3, end: 2 }, 4).unwrap_err();
        assert_eq!(backwards.to_string(), "a view of elements 3..2: the memory has 4");
        assert!(within(..=usize::MAX, 4).is_err());
    }
}
