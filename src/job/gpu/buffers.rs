//! Operations of a group over GPUs on host memory, which is copied to the GPU and back.

use std::{mem, slice};

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};

use super::GpuGroup;
use crate::job::buffer::pair_memory;
use crate::job::gather::{gather_messages, make_length_error};
use crate::job::gpu_operation::of_driver;
use crate::job::group_backend::{GroupBackend as _, Operations as _};
use crate::log;
use crate::nccl::{self, Communicator, cuda};
use crate::purpose::Purpose;
use crate::{Element, Error};

impl GpuGroup {
    /// Runs an operation on a copy of `data` on the GPU. The copies use memory of their own, which can be
    /// leaked: `data` is borrowed only until the call returns.
    pub(super) fn in_place<T: Element>(
        &self,
        operation: String,
        data: &mut [T],
        call: impl FnOnce(&Communicator, &mut CudaSlice<u8>, usize) -> Result<(), nccl::Error>,
    ) -> Result<(), Error> {
        let length = data.len();
        if length == 0 {
            // There is no empty device memory, and nothing to send.
            return self.rank.watch.stop_error().map_or(Ok(()), Err);
        }
        self.refuse_captured("an operation on host memory")?;
        // SAFETY: an element type is a number, of which every bit pattern is a value, and which has no
        // padding.
        let bytes = unsafe { slice::from_raw_parts_mut(data.as_mut_ptr().cast::<u8>(), size_of_val(data)) };
        let mut host = host_memory(bytes.len())?;
        host.copy_from_slice(bytes);
        let reduced = self.make_slice(|stream| stream.clone_htod(&host)).and_then(|copy| {
            self.start_ordered(operation, copy, |communicator, copy| call(communicator, copy, length)).wait()
        });
        match reduced {
            // The copy to the GPU came before.
            Ok(reduced) => bytes.copy_from_slice(&self.read_result(reduced, host)?),
            Err(error) => _ = self.end_copies(&self.rank.stream, Err(error), host)?,
        }
        Ok(())
    }

    /// Copies the result of an operation that has ended to host memory. Does not wait for operations of other
    /// threads, which may follow on the group's stream.
    fn read_result(&self, result: CudaSlice<u8>, mut host: Vec<u8>) -> Result<Vec<u8>, Error> {
        let stream = self.rank.watch.stop_on_error(self.reading_stream())?;
        let copied = cuda::own_result(stream.context(), || stream.memcpy_dtoh(&result, &mut host));
        let copied = self.rank.watch.stop_on_error(copied);
        self.end_copies(&stream, copied, (result, host)).map(|(_, host)| host)
    }

    /// Waits for the copies of host memory on a stream, also after an error. Returns the memory; leaks it if
    /// it cannot wait, since the copies may still use it.
    fn end_copies<M>(&self, stream: &CudaStream, result: Result<(), Error>, memory: M) -> Result<M, Error> {
        match cuda::bind_context(stream.context()).and_then(|()| cuda::wait_for_stream(stream)) {
            Ok(()) => result.map(|()| memory),
            Err(error) => {
                log::warn(format_args!(
                    "host memory is leaked, since the end of its copies is not known: {error}"
                ));
                mem::forget(memory);
                result.and(self.rank.watch.stop_on_error(Err(of_driver(error))))
            }
        }
    }

    /// Gathers messages of any lengths in memory of the GPU.
    pub(super) fn gather_in_memory(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let group = self.with_default_purpose(Purpose::Messages);
        let mut has_begun = false;
        let gather = |part: &[u8]| {
            let gathered = group.gather_parts(part);
            // The other ranks wait in the second operation: a refusal of it is a failure.
            let is_failure = mem::replace(&mut has_begun, true);
            if is_failure { self.rank.watch.stop_on_error(gathered) } else { gathered }
        };
        gather_messages(mine, gather)?.ok_or_else(make_length_error)
    }

    /// Gathers parts of the same length, which is not 0.
    fn gather_parts(&self, mine: &[u8]) -> Result<Vec<u8>, Error> {
        self.refuse_captured("all_gather_bytes")?;
        let (own, all) = (mine.to_vec(), host_memory(mine.len() * self.rank.size)?);
        let gathered = self.make_slice(|stream| stream.clone_htod(&own)).and_then(|part| {
            let (part, whole) =
                pair_memory(part, self.make_slice(|stream| stream.alloc_zeros::<u8>(all.len())))?;
            self.all_gather(part, whole).wait()
        });
        match gathered {
            Ok((_, whole)) => self.read_result(whole, all),
            Err(error) => self.end_copies(&self.rank.stream, Err(error), own).map(|_| all),
        }
    }
}

/// Host memory of an operation's copies.
fn host_memory(bytes: usize) -> Result<Vec<u8>, Error> {
    let mut memory = Vec::new();
    let reserved = memory.try_reserve_exact(bytes);
    reserved.map_err(|_| Error::Job(format!("{bytes} bytes of memory for a copy cannot be allocated")))?;
    memory.resize(bytes, 0);
    Ok(memory)
}

/// The bytes of a copy as its elements.
pub(super) fn elements_view<T: Element>(
    copy: &mut CudaSlice<u8>,
    length: usize,
) -> Result<CudaViewMut<'_, T>, nccl::Error> {
    let bytes = copy.len();
    // SAFETY: device memory is aligned for all element types, and holds a copy of `length` elements.
    let view = unsafe { copy.transmute_mut::<T>(length) };
    view.ok_or(nccl::Error::View { start: 0, end: length, len: bytes / size_of::<T>() })
}
