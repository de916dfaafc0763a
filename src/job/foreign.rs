//! Memory of other libraries as buffers of a group's operations: for adapters, whose tensors are neither a
//! `Vec` nor a `CudaSlice`. Nothing is copied.

use std::fmt;
#[cfg(feature = "fabric")]
use std::ptr::NonNull;
#[cfg(feature = "nccl")]
use std::{marker::PhantomData, sync::Arc};

#[cfg(feature = "nccl")]
use cudarc::driver::{CudaStream, sys::CUdeviceptr};

#[cfg(feature = "fabric")]
use super::host_buffer::HostBuffer;
use crate::Element;
#[cfg(feature = "nccl")]
use crate::nccl::{Access, DeviceBuffer, DeviceBufferMut};

/// Host memory of another library, as a buffer of a [`Group`](super::Group)'s operations.
#[cfg(feature = "fabric")]
pub struct HostMemory<T> {
    address: NonNull<T>,
    len: usize,
    _owner: Box<dyn Send>,
}

#[cfg(feature = "fabric")]
impl<T: Element> HostMemory<T> {
    /// `len` elements at `address`. `owner` keeps them allocated; pass `()` if something else does. If `len`
    /// is 0, `address` may be null.
    ///
    /// # Safety
    /// The elements are initialised and aligned, and stay allocated until `owner` is dropped; for `()`, until
    /// this value is dropped. If the [`Work`](super::Work) of an operation is dropped, the operation drops
    /// this value at its end. Until then, nothing else writes the elements, or reads them while an operation
    /// writes them.
    #[must_use]
    pub unsafe fn from_raw<O: Send + 'static>(address: *mut T, len: usize, owner: O) -> Self {
        let address = NonNull::new(address).filter(|_| len > 0).unwrap_or(NonNull::dangling());
        Self { address, len, _owner: Box::new(owner) }
    }
}

// SAFETY: the elements can be sent, and nothing else uses them while this exists; the owner can be sent.
#[cfg(feature = "fabric")]
unsafe impl<T: Element> Send for HostMemory<T> {}

#[cfg(feature = "fabric")]
impl<T: Element> HostBuffer for HostMemory<T> {
    type Element = T;

    fn elements(&self) -> &[T] {
        // SAFETY: the caller of `from_raw` guarantees so many elements; a dangling address is that of none.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    fn elements_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; nothing else uses the elements.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

#[cfg(feature = "fabric")]
impl<T> fmt::Debug for HostMemory<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HostMemory({} elements at {:?})", self.len, self.address)
    }
}

/// Memory of a GPU that another library has allocated, as a buffer of a [`Group`](super::Group)'s operations.
#[cfg(feature = "nccl")]
pub struct DeviceMemory<T> {
    address: CUdeviceptr,
    len: usize,
    stream: Arc<CudaStream>,
    _owner: Box<dyn Send>,
    elements: PhantomData<fn() -> T>,
}

#[cfg(feature = "nccl")]
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
#[cfg(feature = "nccl")]
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
#[cfg(feature = "nccl")]
unsafe impl<T: Element> DeviceBufferMut for DeviceMemory<T> {
    fn write<'a>(&'a mut self, stream: &'a CudaStream) -> Access<'a> {
        self.read(stream)
    }
}

#[cfg(feature = "nccl")]
impl<T> fmt::Debug for DeviceMemory<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceMemory({} elements at {:#x})", self.len, self.address)
    }
}

#[cfg(all(test, feature = "fabric"))]
mod tests {
    use super::*;
    use crate::job::{Backend, Buffer, Job};
    use crate::{ReduceOp, world};
    use std::sync::Arc;
    use std::thread;

    /// Elements of another library, and an owner whose drops can be seen.
    fn foreign<T: Element>(elements: &mut Vec<T>, owner: &Arc<()>) -> HostMemory<T> {
        // SAFETY: the callers use the elements only once the operation has returned the buffer.
        unsafe { HostMemory::from_raw(elements.as_mut_ptr(), elements.len(), Arc::clone(owner)) }
    }

    #[test]
    fn operations_work_on_the_memory_itself() {
        let jobs = Job::new(world::single()).threads(2).unwrap();
        let one = |job: Job| {
            let (group, owner) = (job.group(Backend::Host).unwrap(), Arc::new(()));
            let rank = group.rank() as i32;
            let (mut sum, mut root) = (vec![rank + 1; 3], vec![rank; 2]);
            let (mut part, mut whole) = (vec![rank], vec![9; 2]);
            let (mut block, mut list) = (vec![0.0], [vec![rank; 1], vec![], vec![10 * rank; 5]]);
            let buffers = list.iter_mut().map(|each| foreign(each, &owner)).collect();
            let reduced = group.all_reduce_list(buffers, ReduceOp::Sum);
            group.all_reduce(foreign(&mut sum, &owner), ReduceOp::Sum).wait().unwrap();
            assert_eq!(group.broadcast(foreign(&mut root, &owner), 1).wait().unwrap().elements(), [1, 1]);
            drop(group.all_gather(foreign(&mut part, &owner), foreign(&mut whole, &owner)).wait().unwrap());
            let mut halves = vec![1.0, 2.0];
            let scattered = group.reduce_scatter(
                foreign(&mut halves, &owner),
                foreign(&mut block, &owner),
                ReduceOp::Sum,
            );
            assert_eq!(scattered.wait().unwrap().1.len(), 1);
            assert_eq!(reduced.wait().unwrap().iter().map(Buffer::len).collect::<Vec<_>>(), [1, 0, 5]);
            assert_eq!((sum, root, whole), (vec![3; 3], vec![1; 2], vec![0, 1]));
            assert_eq!((block, list), (vec![2.0 * f64::from(rank + 1)], [vec![1], vec![], vec![10; 5]]));
            assert_eq!(Arc::strong_count(&owner), 1);
        };
        thread::scope(|scope| jobs.into_iter().for_each(|job| drop(scope.spawn(|| one(job)))));
    }

    #[test]
    fn no_elements_need_no_address() {
        // SAFETY: there are no elements.
        let mut none = unsafe { HostMemory::<f32>::from_raw(std::ptr::null_mut(), 0, ()) };
        assert!(none.is_empty() && none.elements().is_empty() && none.elements_mut().is_empty());
    }
}
