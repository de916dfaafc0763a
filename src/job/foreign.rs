//! Memory of other libraries as buffers of a group's operations.

use std::fmt;
use std::ptr::NonNull;

use super::buffer::{Buffer, Connection, on_host, operations};
use super::work::Work;
use crate::{Element, ReduceOp};

/// Host memory of another library, as a buffer that a [`Group`](super::Group)'s operations own while they run: for adapters,
/// whose tensors are no `Vec`. Nothing is copied.
pub struct Foreign<T> {
    address: NonNull<T>,
    len: usize,
    _owner: Box<dyn Send>,
}

impl<T: Element> Foreign<T> {
    /// Adopts `len` elements at `address`, which `owner` keeps allocated; `()` if something else does. For no elements, the
    /// address may be null.
    ///
    /// # Safety
    /// The elements are initialised and aligned, and stay allocated until `owner` is dropped; for `()`, until the buffer is
    /// dropped, which an operation does after its end if nothing waits for it. Until the buffer is dropped, nothing else writes
    /// them, or reads them while an operation writes them.
    #[must_use]
    pub unsafe fn host<O: Send + 'static>(address: *mut T, len: usize, owner: O) -> Self {
        let address = NonNull::new(address).filter(|_| len > 0).unwrap_or(NonNull::dangling());
        Self { address, len, _owner: Box::new(owner) }
    }
}

// SAFETY: the elements can be sent, and nothing else uses them while this exists; the owner can be sent.
unsafe impl<T: Element> Send for Foreign<T> {}

impl<T: Element> AsRef<[T]> for Foreign<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: the caller of `host` guarantees so many elements; a dangling address is that of none.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl<T: Element> AsMut<[T]> for Foreign<T> {
    fn as_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; nothing else uses the elements.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl<T: Element> Buffer for Foreign<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len
    }
}

impl<T: Element> operations::Operations for Foreign<T> {
    fn all_reduce(connection: &Connection, data: Self, op: ReduceOp) -> Work<Self> {
        on_host(connection, "all_reduce", |host| host.all_reduce::<T, _>(data, op))
    }

    fn broadcast(connection: &Connection, data: Self, root: usize) -> Work<Self> {
        on_host(connection, "broadcast", |host| host.broadcast::<T, _>(data, root))
    }

    fn all_gather(connection: &Connection, part: Self, whole: Self) -> Work<(Self, Self)> {
        on_host(connection, "all_gather", |host| host.all_gather::<T, _>(part, whole))
    }

    fn reduce_scatter(connection: &Connection, whole: Self, part: Self, op: ReduceOp) -> Work<(Self, Self)> {
        on_host(connection, "reduce_scatter", |host| host.reduce_scatter::<T, _>(whole, part, op))
    }

    fn all_reduce_list(connection: &Connection, data: Vec<Self>, op: ReduceOp) -> Work<Vec<Self>> {
        on_host(connection, "all_reduce_list", |host| host.all_reduce_list::<T, _>(data, op))
    }
}

impl<T> fmt::Debug for Foreign<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Foreign({} elements at {:?})", self.len, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Backend, Job};
    use crate::world;
    use std::sync::Arc;
    use std::thread;

    /// Elements of another library, and an owner whose drops can be seen.
    fn foreign<T: Element>(elements: &mut Vec<T>, owner: &Arc<()>) -> Foreign<T> {
        // SAFETY: the callers use the elements only once the operation has returned the buffer.
        unsafe { Foreign::host(elements.as_mut_ptr(), elements.len(), Arc::clone(owner)) }
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
            assert_eq!(group.broadcast(foreign(&mut root, &owner), 1).wait().unwrap().as_ref(), [1, 1]);
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
        let mut none = unsafe { Foreign::<f32>::host(std::ptr::null_mut(), 0, ()) };
        assert!(none.is_empty() && none.as_ref().is_empty() && none.as_mut().is_empty());
    }
}
