//! Buffers of an operation: checks, and ordering of their streams.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{iter, mem::ManuallyDrop, num::NonZeroU64};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream};
use nccl_sys::Version;

use super::kind::{NcclOperation, OperationKind, WAIT_SIGNAL};
use super::reduction::{Operator, SCALAR};
use crate::nccl::communicator::Communicator;
use crate::nccl::cuda;
use crate::nccl::error::{Error, each_first_error};
use crate::nccl::library::Library;
use crate::nccl::memory::{Access, DeviceBuffer, DeviceBufferMut, MemoryViewMut, OwnedBuffer};

pub(super) const SEND: &str = "send buffer";
pub(super) const RECEIVE: &str = "receive buffer";
pub(super) const IN_PLACE: &str = "buffer";

/// Buffers of an operation. Without `send`, both of NCCL's addresses are in `receive`; without `receive`,
/// NCCL writes nothing.
#[doc(hidden)]
pub struct CallBuffers<'b, S: ?Sized, R: ?Sized> {
    send: Option<&'b S>,
    receive: Option<&'b mut R>,
    pub(super) operator: Option<&'b Arc<Operator>>,
    /// Offsets of NCCL's two addresses in the buffers, in bytes.
    pub(super) offsets: (u64, u64),
}

impl<'b, S: DeviceBuffer + ?Sized> CallBuffers<'b, S, MemoryViewMut<'b, u8>> {
    pub(super) fn send_only(send: Option<&'b S>) -> Self {
        Self::new(send, None, None)
    }
}

impl<'b, B: DeviceBufferMut + ?Sized> CallBuffers<'b, B, B> {
    /// One buffer, written by the operation, and read if the operation reads.
    #[inline]
    pub(super) fn in_place(buffer: &'b mut B, operator: Option<&'b Arc<Operator>>) -> Self {
        Self::new(None, Some(buffer), operator)
    }
}

impl<'b, S: DeviceBuffer + ?Sized, R: DeviceBufferMut + ?Sized> CallBuffers<'b, S, R> {
    #[inline]
    pub(super) fn new(
        send: Option<&'b S>,
        receive: Option<&'b mut R>,
        operator: Option<&'b Arc<Operator>>,
    ) -> Self {
        Self { send, receive, operator, offsets: (0, 0) }
    }

    /// Orders the accesses after events of the buffers.
    #[inline(always)]
    pub(super) fn into_accesses(self, stream: &'b CudaStream) -> Accesses<'b> {
        Accesses {
            send: ManuallyDrop::new(self.send.map(|send| send.read(stream))),
            receive: ManuallyDrop::new(self.receive.map(|receive| receive.write(stream))),
        }
    }

    pub(super) fn owned_buffers(
        &self,
        communicator: &Communicator,
        operation: &'static str,
    ) -> Result<Vec<OwnedBuffer>, Error> {
        let send = self.send.map(|send| OwnedBuffer::new(communicator, operation, SEND, send));
        let receive = self.receive.as_deref().map(|receive| {
            let buffer = OwnedBuffer::new(communicator, operation, self.receive_name(), receive)?;
            Ok(OwnedBuffer { is_written: true, ..buffer })
        });
        let scalar = self.operator.and_then(|operator| operator.scalar.clone()).map(Ok);
        send.into_iter().chain(receive).chain(scalar).collect()
    }

    #[inline(always)]
    fn may_have_events(&self) -> bool {
        self.send.is_some_and(S::may_have_events) || self.receive.as_deref().is_some_and(R::may_have_events)
    }

    #[inline(always)]
    fn check_copies(&self, operation: &'static str) -> Result<(), Error> {
        if let Some(send) = self.send {
            send.check_copies(operation)?;
        }
        self.receive.as_deref().map_or(Ok(()), |receive| receive.check_copies(operation))
    }

    #[inline]
    fn receive_name(&self) -> &'static str {
        if self.send.is_some() { RECEIVE } else { IN_PLACE }
    }
}

/// Accesses to an operation's buffers, valid while the buffers are borrowed. Dropping them has no effect:
/// cudarc records the stream's use of the buffers when the [accesses of queued work](Self::into_queued) are
/// dropped.
#[derive(Debug)]
pub(super) struct Accesses<'b> {
    send: ManuallyDrop<Option<Access<'b>>>,
    receive: ManuallyDrop<Option<Access<'b>>>,
}

pub(super) type Queued<'b> = (Option<Access<'b>>, Option<Access<'b>>);

impl<'b> Accesses<'b> {
    /// True if the stream may wait for events of a buffer.
    #[inline]
    pub(super) fn have_events(&self) -> bool {
        // Not a loop: the compiler does not unroll it.
        self.send.as_ref().is_some_and(Access::has_events)
            || self.receive.as_ref().is_some_and(Access::has_events)
    }

    /// Address of the buffer to read, or of the only one.
    #[inline]
    fn source_address(&self) -> u64 {
        self.send.as_ref().map_or(self.target_address(), Access::address)
    }

    #[inline]
    fn target_address(&self) -> u64 {
        self.receive.as_ref().map_or(0, Access::address)
    }

    /// Address of the buffer that is read, if a place of a rank in it is not a multiple of 4 bytes, in an
    /// operation with symmetric kernels in NCCL. These write to any place correctly.
    #[inline]
    pub(super) fn misaligned_address(&self, operation: &NcclOperation) -> Option<NonZeroU64> {
        let (first, part) = (self.source_address(), (operation.count * operation.data_type.size()) as u64);
        // All ranks must agree, so this rank's own part does not count: in place, rank 0's part is at the
        // beginning of the buffer, and the others follow it.
        let places = match operation.kind {
            OperationKind::AllReduce(_) => first,
            OperationKind::AllGather if self.send.is_some() => first,
            OperationKind::AllGather | OperationKind::ReduceScatter(_) => first | part,
            _ => 0,
        };
        if places.is_multiple_of(4) { None } else { NonZeroU64::new(first) }
    }

    /// Accesses of work, to be dropped once the work is queued. Dropping has no effect without events.
    pub(super) fn into_queued(self) -> Queued<'b> {
        (ManuallyDrop::into_inner(self.send), ManuallyDrop::into_inner(self.receive))
    }
}

/// Streams of an operation's buffers other than the communicator's. Rarely any.
pub(super) type OtherStreams = Vec<Arc<CudaStream>>;

impl Communicator {
    /// Checks the devices of the buffers, and orders NCCL's stream (it may be `captured`) after their
    /// streams. Streams other than NCCL's are added to `others`.
    #[inline(always)]
    pub(super) fn access_buffers<'b>(
        &'b self,
        operation: &NcclOperation,
        buffers: CallBuffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
        captured: bool,
        others: &mut OtherStreams,
    ) -> Result<Accesses<'b>, Error> {
        let name = operation.operation_name();
        let mut contexts = Vec::new();
        let track = !captured && buffers.may_have_events();
        if track && !self.handle.tracks_own.load(Ordering::Relaxed) {
            self.begin_tracking()?;
        }
        let mut wait_for = |buffer, stream: &Arc<CudaStream>| {
            if Arc::ptr_eq(stream, &self.stream) {
                return Ok(());
            }
            self.wait_for_other(name, buffer, stream, others)?;
            self.add_context(stream.context(), track, &mut contexts)
        };
        if let Some(send) = buffers.send {
            wait_for(SEND, send.stream())?;
        }
        if let Some(receive) = &buffers.receive {
            wait_for(buffers.receive_name(), receive.stream())?;
        }
        if let Some(scalar) = buffers.operator.and_then(|operator| operator.scalar.as_ref()) {
            wait_for(SCALAR, &scalar.stream)?;
        }
        if operation.waits_for_signals() {
            self.add_streams_of_windows(others)?;
        }
        // Here, it costs half the instructions of a check before the waits.
        buffers.check_copies(name)?;
        let accesses = buffers.into_accesses(&self.stream);
        if accesses.have_events() {
            self.check_events(name, captured, &contexts)?;
        }
        Ok(accesses)
    }

    /// Makes cudarc record NCCL's use of buffers, and respect the events of buffers of the same context
    /// object.
    #[cold]
    #[inline(never)]
    fn begin_tracking(&self) -> Result<(), Error> {
        let context = self.stream.context();
        self.handle.track_events(context)?;
        self.handle.tracks_own.store(context.is_event_tracking(), Ordering::Relaxed);
        Ok(())
    }

    /// Checks that a buffer is on this communicator's device, and makes NCCL's stream wait for the buffer's
    /// stream. Adds the latter to `others`.
    #[cold]
    pub(super) fn wait_for_other(
        &self,
        operation: &'static str,
        name: &'static str,
        stream: &Arc<CudaStream>,
        others: &mut OtherStreams,
    ) -> Result<(), Error> {
        self.expect_device(operation, name, stream)?;
        if **stream == *self.stream {
            return Ok(());
        }
        cuda::refuse_per_thread(operation, stream)?;
        cuda::bind_context(&self.handle.context)?;
        // Waiting for a captured stream would make the communicator's stream part of the capture.
        cuda::refuse_captured(operation, stream)?;
        cuda::order_streams(&*self.order_event()?, stream, &self.stream)?;
        // A capture of the other stream may have begun since its check, and include this stream now.
        cuda::refuse_captured(operation, &self.stream)?;
        others.push(Arc::clone(stream));
        Ok(())
    }

    /// Adds a context object other than the communicator's stream's, after making cudarc respect its events
    /// if `track`.
    #[cold]
    fn add_context(
        &self,
        context: &Arc<CudaContext>,
        track: bool,
        contexts: &mut Vec<Arc<CudaContext>>,
    ) -> Result<(), Error> {
        if Arc::ptr_eq(context, self.stream.context()) {
            return Ok(());
        }
        contexts.push(Arc::clone(context));
        if track { self.handle.track_events(context) } else { Ok(()) }
    }

    /// Checks that the stream has waited for the events of cudarc's buffers, and that they have not made it
    /// part of a capture. Fails after an error recorded by cudarc, since cudarc neither waits nor records
    /// then. `contexts` are the other context objects of the buffers, and so of their events.
    #[cold]
    fn check_events(
        &self,
        operation: &'static str,
        captured: bool,
        contexts: &[Arc<CudaContext>],
    ) -> Result<(), Error> {
        let mut all = iter::once(self.stream.context()).chain(contexts);
        all.try_for_each(|context| context.check_err()).map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_CAPTURED_EVENT => Error::Stream { operation, reason: CAPTURED_BUFFER },
            _ => Error::Cuda { operation: NOTED, error },
        })?;
        if captured { Ok(()) } else { cuda::refuse_captured(operation, &self.stream) }
    }

    /// Returns NCCL's two addresses of an operation. Before NCCL 2.30, refuses offsets in a symmetric window
    /// to read from unless they are multiples of 4 bytes: their results are wrong with 2.28.9, and right with
    /// 2.30.7.
    #[inline]
    pub(super) fn operation_addresses(
        &self,
        operation: &NcclOperation,
        offsets: (u64, u64),
        accesses: &Accesses<'_>,
    ) -> Result<(u64, u64), Error> {
        if let Some(first) = accesses.misaligned_address(operation) {
            self.refuse_misaligned(operation, first.get())?;
        }
        Ok((accesses.source_address() + offsets.0, accesses.target_address() + offsets.1))
    }

    /// Refuses a place in a symmetric window unless it is a multiple of 4 bytes, if the loaded NCCL gives
    /// wrong results there. `address` is in the window.
    #[cold]
    pub(super) fn refuse_misaligned(&self, operation: &NcclOperation, address: u64) -> Result<(), Error> {
        let registered = self.handle.registered_at(&(address..address + 1));
        let in_symmetric_window = registered.iter().any(|(memory, _)| memory.symmetric);
        if in_symmetric_window { refuse_misread(self.library(), operation) } else { Ok(()) }
    }

    /// Adds the streams of the communicator's windows: other ranks may have written into them before a
    /// signal.
    #[cold]
    pub(super) fn add_streams_of_windows(&self, others: &mut OtherStreams) -> Result<(), Error> {
        cuda::bind_context(&self.handle.context)?;
        let streams = self.handle.registered_objects().into_iter().map(|(memory, _)| memory.stream);
        for stream in streams.filter(|stream| **stream != *self.stream) {
            cuda::refuse_captured(WAIT_SIGNAL, &stream)?;
            others.push(stream);
        }
        // Created before the operation: after a failure, nothing is queued.
        if others.is_empty() { Ok(()) } else { self.order_event().map(drop) }
    }
}

/// Refuses an operation at a misaligned place in a symmetric window, if the loaded NCCL gives wrong results
/// there.
pub(super) fn refuse_misread(library: Library, operation: &NcclOperation) -> Result<(), Error> {
    let loaded = library.version();
    // Operations of a single rank are copies.
    if loaded < Version::new(2, 30, 0) && operation.size > 1 {
        return Err(Error::Misaligned { operation: operation.operation_name(), loaded });
    }
    Ok(())
}

const CAPTURED_BUFFER: &str = "a buffer was written in a CUDA graph's capture, and its event cannot be \
                               waited for: disable the context's event tracking to use buffers in graphs";

/// Driver function of a failure recorded by cudarc.
const NOTED: &str = "an earlier operation of cudarc's";

/// Checks that cudarc recorded events on NCCL's streams when the accesses were released. If it did not, after
/// a noted error, waits for the work of all of them and returns the error.
pub(super) fn check_recorded<'a>(streams: impl Iterator<Item = &'a CudaStream> + Clone) -> Result<(), Error> {
    // Taken before the waits: the error of several streams can be noted in one context object.
    let noted = each_first_error(streams.clone(), |stream| {
        stream.context().check_err().map_err(Error::of_cuda(NOTED))
    });
    if noted.is_ok() {
        return Ok(());
    }
    let wait = |stream: &CudaStream| {
        cuda::bind_context(stream.context()).and_then(|()| cuda::wait_for_stream(stream))
    };
    noted.and(each_first_error(streams, wait))
}
