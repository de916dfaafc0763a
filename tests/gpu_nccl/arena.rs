//! Memory of the cases: of NCCL, windows and cudarc.

use std::ops::Range;
use std::sync::Arc;

use collectives::nccl::{
    Communicator, DeviceBuffer, DeviceBufferMut, Library, Memory, MemoryView, MemoryViewMut, Window,
};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut};

use crate::reference::Value;

/// Maximum number of elements of a buffer in a case of this length.
pub(crate) fn elements(len: usize, size: usize) -> usize {
    size * len + size + 1 + 2 * GUARDS
}

/// Elements before and after each view that must not change.
pub(crate) const GUARDS: usize = 17;

/// Memory with room for views of one type.
pub(crate) trait Arena<T: Value> {
    /// True if it may be a symmetric window.
    const WINDOW: bool = false;
    type View<'a>: DeviceBuffer<Element = T> + DevicePtr<T>
    where
        Self: 'a;
    type ViewMut<'a>: DeviceBufferMut<Element = T> + DevicePtrMut<T>
    where
        Self: 'a;
    fn view(&self, range: Range<usize>) -> Self::View<'_>;
    fn view_mut(&mut self, range: Range<usize>) -> Self::ViewMut<'_>;
}

impl<T: Value> Arena<T> for Memory {
    type View<'a> = MemoryView<'a, T>;
    type ViewMut<'a> = MemoryViewMut<'a, T>;
    fn view(&self, range: Range<usize>) -> MemoryView<'_, T> {
        self.slice(range).unwrap()
    }
    fn view_mut(&mut self, range: Range<usize>) -> MemoryViewMut<'_, T> {
        self.slice_mut(range).unwrap()
    }
}

/// Memory that is a window.
impl<T: Value> Arena<T> for (Memory, Window) {
    const WINDOW: bool = true;
    type View<'a> = MemoryView<'a, T>;
    type ViewMut<'a> = MemoryViewMut<'a, T>;
    fn view(&self, range: Range<usize>) -> MemoryView<'_, T> {
        self.0.slice(range).unwrap()
    }
    fn view_mut(&mut self, range: Range<usize>) -> MemoryViewMut<'_, T> {
        self.0.slice_mut(range).unwrap()
    }
}

impl<T: Value> Arena<T> for CudaSlice<T> {
    type View<'a> = CudaView<'a, T>;
    type ViewMut<'a> = CudaViewMut<'a, T>;
    fn view(&self, range: Range<usize>) -> CudaView<'_, T> {
        self.slice(range)
    }
    fn view_mut(&mut self, range: Range<usize>) -> CudaViewMut<'_, T> {
        self.slice_mut(range)
    }
}

/// A rank's memory.
pub(crate) struct Room<A> {
    pub(crate) send: A,
    pub(crate) receive: A,
}

/// Size of the memory for cases up to this length, for all types, in bytes.
pub(crate) fn bytes(len: usize, size: usize) -> usize {
    elements(len, size) * size_of::<u64>()
}

impl Room<Memory> {
    pub(crate) fn new(library: Library, stream: &Arc<CudaStream>, len: usize, size: usize) -> Self {
        let memory = || Memory::alloc(library, stream, bytes(len, size)).unwrap();
        Self { send: memory(), receive: memory() }
    }

    /// Memory of the communicators' streams.
    pub(crate) fn of(party: &[Communicator], len: usize) -> Vec<Self> {
        let room = |member: &Communicator| Self::new(member.library(), member.stream(), len, member.size());
        party.iter().map(room).collect()
    }
}

impl<T: Value> Room<CudaSlice<T>> {
    /// cudarc's memory, on any stream.
    pub(crate) fn of_cudarc(stream: &Arc<CudaStream>, len: usize, size: usize) -> Self {
        let slice = || stream.alloc_zeros(elements(len, size)).unwrap();
        Self { send: slice(), receive: slice() }
    }
}

/// The same memory with an owner, for graphs.
pub(crate) fn adopted<T: Value>(rooms: Vec<Room<CudaSlice<T>>>) -> Vec<Room<Memory>> {
    let adopt = |slice| Memory::try_from(slice).unwrap();
    rooms
        .into_iter()
        .map(|Room { send, receive }| Room { send: adopt(send), receive: adopt(receive) })
        .collect()
}
