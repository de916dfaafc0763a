//! Operations of a group over GPUs on host memory, which is copied to the GPU and back.

use std::slice;

use cudarc::driver::{CudaSlice, CudaViewMut};

use super::{GpuGroup, describe, with_op};
use crate::job::gather::gather_messages;
use crate::nccl::{self, Collectives, Communicator};
use crate::purpose::Purpose;
use crate::{Element, Error, ReduceOp};

impl GpuGroup {
    pub(crate) fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.in_place(
            describe::<T>("all_reduce", data.len(), with_op(op)),
            data,
            |communicator, data, length| communicator.all_reduce_in_place(&mut view::<T>(data, length)?, op),
        )
    }

    pub(crate) fn broadcast_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let operation = describe::<T>("broadcast", data.len(), format_args!(", root {root}"));
        self.in_place(operation, data, |communicator, data, length| {
            communicator.broadcast_in_place(&mut view::<T>(data, length)?, root)
        })
    }

    fn in_place<T: Element>(
        &self,
        operation: String,
        data: &mut [T],
        call: impl FnOnce(&Communicator, &mut CudaSlice<u8>, usize) -> Result<(), nccl::Error>,
    ) -> Result<(), Error> {
        let length = data.len();
        if length == 0 {
            // There is no empty device memory, and nothing to send.
            return self.rank.watch.failure().map_or(Ok(()), Err);
        }
        // SAFETY: an element type is a number, of which every bit pattern is a value, and which has no padding.
        let bytes = unsafe { slice::from_raw_parts_mut(data.as_mut_ptr().cast::<u8>(), size_of_val(data)) };
        let reduced = self.cuda(|stream| stream.clone_htod(&*bytes)).and_then(|copy| {
            let work = self.start(operation, copy, |communicator, copy| call(communicator, copy, length));
            let reduced = work.wait()?;
            self.cuda(|stream| stream.memcpy_dtoh(&reduced, bytes))
        });
        self.end_copies(reduced)
    }

    /// Waits for the stream, also after an error: copies of host memory may be under way, which is borrowed until the call
    /// returns.
    fn end_copies<R>(&self, result: Result<R, Error>) -> Result<R, Error> {
        let ended = self.cuda(|stream| stream.synchronize());
        let value = result?;
        ended.map(|()| value)
    }

    /// Gathers messages of any lengths in memory of the GPU.
    pub(crate) fn all_gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let group = self.with_default_purpose(Purpose::Messages);
        gather_messages(mine, |part| group.gather(part))
    }

    /// Gathers parts of the same length, which is not 0.
    fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, Error> {
        let gathered = self.cuda(|stream| stream.clone_htod(mine)).and_then(|part| {
            let whole = self.cuda(|stream| stream.alloc_zeros::<u8>(mine.len() * self.rank.size))?;
            let (_, whole) = self.all_gather(part, whole).wait()?;
            self.cuda(|stream| stream.clone_dtoh(&whole))
        });
        self.end_copies(gathered)
    }
}

/// The bytes of a copy as its elements.
fn view<T: Element>(copy: &mut CudaSlice<u8>, length: usize) -> Result<CudaViewMut<'_, T>, nccl::Error> {
    let bytes = copy.len();
    // SAFETY: device memory is aligned for all element types, and holds a copy of `length` elements.
    let view = unsafe { copy.transmute_mut::<T>(length) };
    view.ok_or(nccl::Error::View { start: 0, end: length, len: bytes / size_of::<T>() })
}
