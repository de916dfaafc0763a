//! Host memory of other libraries as buffers of a group's operations: for adapters, whose tensors are no
//! `Vec`. Nothing is copied.

use std::fmt;
use std::ptr::NonNull;

use super::buffer::{Buffer, memory::GroupMemory};
use super::host::HostGroup;
use super::host_buffer::HostBuffer;
use crate::Element;

/// Host memory of another library, as a buffer of a [`Group`](super::Group)'s operations.
pub struct HostMemory<T> {
    address: NonNull<T>,
    len: usize,
    _owner: Box<dyn Send>,
}

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
unsafe impl<T: Element> Send for HostMemory<T> {}

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

impl<T> fmt::Debug for HostMemory<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HostMemory({} elements at {:?})", self.len, self.address)
    }
}

impl<T: Element> GroupMemory for Vec<T> {
    type Group = HostGroup;
}

impl<T: Element> GroupMemory for HostMemory<T> {
    type Group = HostGroup;
}

impl<T: Element> Buffer for Vec<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }
}

impl<T: Element> Buffer for HostMemory<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.elements().len()
    }
}

#[cfg(test)]
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
