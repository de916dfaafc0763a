//! The collectives of a communicator, one at a time.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::{Nccl, cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::buffer::{Access, DeviceBuffer, DeviceBufferMut};
use super::communicator::Communicator;
use super::cuda;
use super::error::{Error, Needed};
use super::group;
use crate::{DataType, Element, ReduceOp};

pub(crate) const ALL_REDUCE: &str = "ncclAllReduce";
pub(crate) const ALL_GATHER: &str = "ncclAllGather";
const SEND: &str = "send buffer";
const RECEIVE: &str = "receive buffer";
const IN_PLACE: &str = "buffer";

/// NCCL's number of a type.
pub(crate) const fn raw_type(data_type: DataType) -> ncclDataType_t {
    match data_type {
        DataType::Int8 => ncclDataType_t::ncclInt8,
        DataType::Uint8 => ncclDataType_t::ncclUint8,
        DataType::Int32 => ncclDataType_t::ncclInt32,
        DataType::Uint32 => ncclDataType_t::ncclUint32,
        DataType::Int64 => ncclDataType_t::ncclInt64,
        DataType::Uint64 => ncclDataType_t::ncclUint64,
        DataType::Float16 => ncclDataType_t::ncclFloat16,
        DataType::Float32 => ncclDataType_t::ncclFloat32,
        DataType::Float64 => ncclDataType_t::ncclFloat64,
        DataType::Bfloat16 => ncclDataType_t::ncclBfloat16,
        DataType::Float8E4M3 => ncclDataType_t::ncclFloat8e4m3,
        DataType::Float8E5M2 => ncclDataType_t::ncclFloat8e5m2,
    }
}

/// NCCL's number of an operator.
pub(crate) const fn raw_op(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Prod => ncclRedOp_t::ncclProd,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Avg => ncclRedOp_t::ncclAvg,
    }
}

/// The stream of a buffer, when it is not the communicator's.
pub(crate) type Foreign = Option<Arc<CudaStream>>;

/// A checked operation on addresses: everything of a collective but its buffers' lifetimes.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    kind: Kind,
    count: usize,
    data_type: ncclDataType_t,
}

#[derive(Clone, Copy)]
enum Kind {
    AllReduce(ncclRedOp_t),
    AllGather,
}

impl Operation {
    /// Calls NCCL.
    ///
    /// # Safety
    /// The addresses are those of the checked buffers, the handle is alive, and no other thread uses it.
    #[inline]
    pub(crate) unsafe fn call(
        self,
        raw: &Nccl,
        source: u64,
        target: u64,
        handle: ncclComm_t,
        stream: &CudaStream,
    ) -> ncclResult_t {
        let (source, target) = (source as *const c_void, target as *mut c_void);
        let (count, data_type, stream) = (self.count, self.data_type, stream.cu_stream() as cudaStream_t);
        // SAFETY: by the contract above.
        unsafe {
            match self.kind {
                Kind::AllReduce(op) => {
                    raw.ncclAllReduce(source, target, count, data_type, op, handle, stream)
                }
                Kind::AllGather => raw.ncclAllGather(source, target, count, data_type, handle, stream),
            }
        }
    }
}

// The checks of each collective: lengths, and whether a buffer is on the right device.
impl Communicator {
    #[inline]
    pub(crate) fn all_reduce_operation<T: Element>(
        &self,
        send: usize,
        receive: usize,
        op: ReduceOp,
    ) -> Result<Operation, Error> {
        expect(ALL_REDUCE, RECEIVE, Some(send), receive)?;
        Ok(Operation {
            name: ALL_REDUCE,
            kind: Kind::AllReduce(raw_op(op)),
            count: send,
            data_type: const { raw_type(T::DATA_TYPE) },
        })
    }

    #[inline]
    pub(crate) fn all_gather_operation<T: Element>(
        &self,
        send: usize,
        receive: usize,
    ) -> Result<Operation, Error> {
        expect(ALL_GATHER, RECEIVE, send.checked_mul(self.size()), receive)?;
        Ok(Operation {
            name: ALL_GATHER,
            kind: Kind::AllGather,
            count: send,
            data_type: const { raw_type(T::DATA_TYPE) },
        })
    }

    /// The number of elements of each rank's part in a buffer that holds one part for each rank.
    #[inline]
    pub(crate) fn part(&self, operation: &'static str, len: usize) -> Result<usize, Error> {
        if len.is_multiple_of(self.size()) {
            return Ok(len / self.size());
        }
        let needed = Needed::MultipleOf(self.size());
        Err(Error::Length { operation, buffer: IN_PLACE, needed, found: len })
    }

    /// The byte offset of this rank's part.
    #[inline]
    pub(crate) fn own_part<T>(&self, part: usize) -> u64 {
        (self.rank() * part * size_of::<T>()) as u64
    }

    /// Checks that the buffer is on this communicator's device, and makes NCCL's stream wait for the buffer's.
    #[inline]
    pub(crate) fn admit<B: DeviceBuffer + ?Sized>(
        &self,
        operation: &'static str,
        name: &'static str,
        buffer: &B,
    ) -> Result<Foreign, Error> {
        let home = buffer.stream();
        if Arc::ptr_eq(home, &self.stream) { Ok(None) } else { self.admit_other(operation, name, home) }
    }

    fn admit_other(
        &self,
        operation: &'static str,
        name: &'static str,
        home: &Arc<CudaStream>,
    ) -> Result<Foreign, Error> {
        let (own, other) = (self.stream.context(), home.context());
        if own != other {
            let (expected, found) = (own.ordinal(), other.ordinal());
            return Err(Error::WrongDevice { operation, buffer: name, expected, found });
        }
        if **home == *self.stream {
            return Ok(None);
        }
        cuda::refuse_per_thread(operation, home)?;
        // Waiting for a captured stream would draw the communicator's own into the capture.
        cuda::refuse_captured(operation, home)?;
        self.follow(home)?;
        Ok(Some(Arc::clone(home)))
    }

    /// Calls NCCL outside a group and deals with what it answers.
    #[inline]
    fn enqueue(&self, operation: Operation, source: u64, target: u64) -> Result<(), Error> {
        let shared = &*self.shared;
        let state = shared.lock();
        let handle = shared.handle(*state, operation.name)?;
        // SAFETY: the callers below pass the addresses of buffers that they have checked and still borrow; the handle
        // is alive and the guard keeps other threads out.
        let code = unsafe { operation.call(shared.raw(), source, target, handle, &self.stream) };
        drop(state);
        if code == ncclResult_t::ncclSuccess { Ok(()) } else { self.finish(operation.name, code) }
    }

    /// What to do after a call that did not simply succeed.
    #[cold]
    pub(crate) fn finish(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclInProgress {
            return self.shared.settle(operation, self.shared.config.limit());
        }
        self.shared.library.check(operation, code)
    }

    #[inline]
    fn enter(&self, operation: &'static str) -> Result<(), Error> {
        group::forbid(operation)?;
        cuda::bind(&self.shared.context)?;
        cuda::refuse_captured(operation, &self.stream)
    }

    /// After [`enter`](Self::enter): a buffer that waits for events draws the stream into the capture of the stream that
    /// recorded them, if there is one. The others cost no second question.
    #[inline]
    fn still_free(&self, operation: &'static str, accesses: &[&Access<'_>]) -> Result<(), Error> {
        if accesses.iter().any(|access| access.ordered()) {
            return cuda::refuse_captured(operation, &self.stream);
        }
        Ok(())
    }

    #[inline]
    fn leave(&self, foreign: Foreign) -> Result<(), Error> {
        match foreign {
            None => Ok(()),
            Some(home) => self.lead(&home),
        }
    }

    fn out_of_place<S, R>(&self, operation: Operation, send: &S, receive: &mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        self.enter(operation.name)?;
        let foreign =
            [self.admit(operation.name, SEND, send)?, self.admit(operation.name, RECEIVE, receive)?];
        let result = {
            let (source, target) = (send.read(&self.stream), receive.write(&self.stream));
            self.still_free(operation.name, &[&source, &target])?;
            self.enqueue(operation, source.address(), target.address())
        };
        let [first, second] = foreign;
        // Whatever NCCL answered: something may have been queued.
        result.and(self.leave(first)).and(self.leave(second))
    }

    fn in_place<B>(&self, operation: Operation, buffer: &mut B, offset: u64) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.enter(operation.name)?;
        let foreign = self.admit(operation.name, IN_PLACE, buffer)?;
        let result = {
            let target = buffer.write(&self.stream);
            self.still_free(operation.name, &[&target])?;
            self.enqueue(operation, target.address() + offset, target.address())
        };
        result.and(self.leave(foreign))
    }

    /// Element `i` of `receive` becomes the reduction of element `i` of all ranks' `send` (`ncclAllReduce`). All ranks
    /// pass the same length, type and operator.
    ///
    /// Returns when the operation is queued on the communicator's stream. A buffer of another stream is used after the
    /// work that is queued there, and work queued there later comes after the operation.
    ///
    /// # Errors
    /// - [`Error::Length`] unless both have the same length; [`Error::WrongDevice`]; [`Error::Stream`] for a buffer of a
    ///   per-thread default stream, and while a stream of these is being captured into a CUDA graph.
    /// - [`Error::InsideGroup`] inside a [`group`](super::group()): use the group's method.
    /// - [`Error::Nccl`], [`Error::Aborted`], [`Error::Deadline`] when NCCL could not queue it.
    pub fn all_reduce<S, R>(&self, send: &S, receive: &mut R, op: ReduceOp) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        let operation = self.all_reduce_operation::<S::Element>(send.len(), receive.len(), op)?;
        self.out_of_place(operation, send, receive)
    }

    /// As [`all_reduce`](Self::all_reduce), with the result in the place of the input.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_in_place<B>(&self, buffer: &mut B, op: ReduceOp) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        let operation = self.all_reduce_operation::<B::Element>(buffer.len(), buffer.len(), op)?;
        self.in_place(operation, buffer, 0)
    }

    /// `receive` becomes all ranks' `send`, in rank order (`ncclAllGather`): rank `r`'s part begins at element
    /// `r * send.len()`. All ranks pass the same length and type. Otherwise as [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Error::Length`] unless `receive.len() == size * send.len()`.
    pub fn all_gather<S, R>(&self, send: &S, receive: &mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        let operation = self.all_gather_operation::<S::Element>(send.len(), receive.len())?;
        self.out_of_place(operation, send, receive)
    }

    /// As [`all_gather`](Self::all_gather), with this rank's input at its own place in the buffer: from element
    /// `rank * (buffer.len() / size)` on.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather); [`Error::Length`] unless the length is a multiple of `size`.
    pub fn all_gather_in_place<B>(&self, buffer: &mut B) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        let part = self.part(ALL_GATHER, buffer.len())?;
        let operation = self.all_gather_operation::<B::Element>(part, buffer.len())?;
        self.in_place(operation, buffer, self.own_part::<B::Element>(part))
    }
}

#[inline]
fn expect(
    operation: &'static str,
    buffer: &'static str,
    needed: Option<usize>,
    found: usize,
) -> Result<(), Error> {
    if needed == Some(found) {
        return Ok(());
    }
    // A product that overflows is more than any buffer has.
    let needed = Needed::Exactly(needed.unwrap_or(usize::MAX));
    Err(Error::Length { operation, buffer, needed, found })
}
