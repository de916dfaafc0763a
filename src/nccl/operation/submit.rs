//! Buffers of an operation in the order of streams, and the way to NCCL at once.

use std::{mem, sync::Arc};

use cudarc::driver::CudaStream;
use nccl_sys::{Version, cudaStream_t, ncclResult_t};

use super::call::{Captured, Immediate, Launch, Submission, sealed};
use super::call_config::CallConfig;
use super::reduction::Operator;
use super::{Kind, Operation, Site};
use crate::nccl::communicator::{Communicator, Handle, State};
use crate::nccl::error::{Error, each};
use crate::nccl::memory::{Access, DeviceBuffer, DeviceBufferMut, MemoryViewMut, OwnedBuffer};
use crate::nccl::{cuda, nccl_group};

pub(crate) const SEND: &str = "send buffer";
pub(crate) const RECEIVE: &str = "receive buffer";
pub(crate) const IN_PLACE: &str = "buffer";
pub(crate) const SCALAR: &str = "scalar";

/// The buffers of an operation. Without `send`, both of NCCL's addresses are in `receive`; without `receive`, NCCL
/// writes nothing.
#[doc(hidden)]
pub struct Buffers<'b, S: ?Sized, R: ?Sized> {
    send: Option<&'b S>,
    receive: Option<&'b mut R>,
    pub(crate) operator: Option<&'b Arc<Operator>>,
    pub(crate) offsets: Offsets,
}

/// Where NCCL's two addresses are in the buffers, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offsets {
    pub(crate) source: u64,
    pub(crate) target: u64,
}

impl<'b, B: DeviceBufferMut + ?Sized> Buffers<'b, B, B> {
    /// One buffer that is written, and read where the operation reads.
    #[inline]
    pub(super) fn written(buffer: &'b mut B, operator: Option<&'b Arc<Operator>>) -> Self {
        Self::new(None, Some(buffer), operator)
    }
}

impl<'b, S: DeviceBuffer + ?Sized> Buffers<'b, S, MemoryViewMut<'b, u8>> {
    pub(super) fn read(send: Option<&'b S>) -> Self {
        Self::new(send, None, None)
    }
}

impl<'b, S: DeviceBuffer + ?Sized, R: DeviceBufferMut + ?Sized> Buffers<'b, S, R> {
    #[inline]
    pub(super) fn new(
        send: Option<&'b S>,
        receive: Option<&'b mut R>,
        operator: Option<&'b Arc<Operator>>,
    ) -> Self {
        Self { send, receive, operator, offsets: Offsets::default() }
    }

    /// Orders the accesses after what the buffers know of.
    #[inline(always)]
    pub(crate) fn accesses(self, stream: &'b CudaStream) -> Accesses<'b> {
        Accesses {
            send: self.send.map(|send| send.read(stream)),
            receive: self.receive.map(|receive| receive.write(stream)),
        }
    }

    /// The buffers, and the scalar that the operator reads.
    pub(crate) fn uses(
        &self,
        communicator: &Communicator,
        operation: &'static str,
    ) -> Result<Vec<OwnedBuffer>, Error> {
        let send = self.send.map(|send| OwnedBuffer::new(communicator, operation, SEND, send));
        let name = if send.is_some() { RECEIVE } else { IN_PLACE };
        let receive = self.receive.as_deref().map(|receive| {
            Ok(OwnedBuffer { is_written: true, ..OwnedBuffer::new(communicator, operation, name, receive)? })
        });
        let scalar = self.operator.and_then(|operator| operator.scalar.clone()).map(Ok);
        send.into_iter().chain(receive).chain(scalar).collect()
    }
}

/// The accesses to an operation's buffers, valid as long as the buffers are borrowed.
#[derive(Debug)]
pub(crate) struct Accesses<'b> {
    send: Option<Access<'b>>,
    receive: Option<Access<'b>>,
}

impl Accesses<'_> {
    /// True when the stream may have been made to wait for events of a buffer.
    #[inline]
    pub(crate) fn have_events(&self) -> bool {
        // Not a loop: the compiler does not see through one.
        self.send.as_ref().is_some_and(Access::has_events)
            || self.receive.as_ref().is_some_and(Access::has_events)
    }
}

/// The streams of an operation's buffers that are not the communicator's: hardly ever any.
pub(crate) type OtherStreams = Vec<Arc<CudaStream>>;

impl Communicator {
    /// Checks where the buffers are, orders NCCL's stream after theirs, which it notes when they are others, and takes
    /// their addresses.
    #[inline(always)]
    pub(crate) fn access<'b>(
        &'b self,
        operation: &'static str,
        buffers: Buffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
        others: &mut OtherStreams,
    ) -> Result<Accesses<'b>, Error> {
        if let Some(send) = buffers.send {
            self.wait_for_buffer(operation, SEND, send.stream(), others)?;
        }
        if let Some(receive) = &buffers.receive {
            let name = if buffers.send.is_some() { RECEIVE } else { IN_PLACE };
            self.wait_for_buffer(operation, name, receive.stream(), others)?;
        }
        if let Some(scalar) = buffers.operator.and_then(|operator| operator.scalar.as_ref()) {
            self.wait_for_buffer(operation, SCALAR, &scalar.stream, others)?;
        }
        Ok(buffers.accesses(&self.stream))
    }

    /// Checks that a buffer is on this communicator's device, and makes NCCL's stream wait for the buffer's, which is then
    /// added to `others`.
    #[inline]
    fn wait_for_buffer(
        &self,
        operation: &'static str,
        name: &'static str,
        stream: &Arc<CudaStream>,
        others: &mut OtherStreams,
    ) -> Result<(), Error> {
        if Arc::ptr_eq(stream, &self.stream) {
            Ok(())
        } else {
            self.wait_for_other(operation, name, stream, others)
        }
    }

    #[cold]
    fn wait_for_other(
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
        // Waiting for a captured stream would draw the communicator's own into the capture.
        cuda::refuse_captured(operation, stream)?;
        self.wait_for(stream)?;
        others.push(Arc::clone(stream));
        Ok(())
    }

    /// NCCL's two addresses of an operation.
    ///
    /// # Errors
    /// Where the loaded NCCL is known to go wrong: seen with 2.28.9, and not any more with 2.30.7.
    #[inline]
    pub(crate) fn addresses(
        &self,
        operation: &Operation,
        offsets: Offsets,
        Accesses { send, receive }: &Accesses<'_>,
    ) -> Result<(u64, u64), Error> {
        let target = receive.as_ref().map_or(0, Access::address);
        // All ranks must come to the same answer, so that what counts is not where this rank's own part lies: in place,
        // rank 0's part begins with the buffer, and the others' follow it.
        let first = send.as_ref().map_or(target, Access::address);
        let (source, target) = (first + offsets.source, target + offsets.target);
        let part = (operation.count * operation.data_type.size()) as u64;
        let places = match operation.kind {
            Kind::AllReduce(_) => first,
            Kind::AllGather if send.is_some() => first,
            Kind::AllGather | Kind::ReduceScatter(_) => first | part,
            _ => 0,
        };
        if !places.is_multiple_of(4) {
            self.refuse_misaligned(operation.name, first)?;
        }
        Ok((source, target))
    }

    #[cold]
    fn refuse_misaligned(&self, operation: &'static str, address: u64) -> Result<(), Error> {
        let loaded = self.library().version();
        if loaded < Version::new(2, 30, 0) && self.handle.in_a_symmetric_window(address) {
            return Err(Error::Misaligned { operation, loaded });
        }
        Ok(())
    }

    /// Checks accesses to buffers that wait for events of cudarc's, before NCCL is called.
    ///
    /// # Errors
    /// [`Error::Cuda`] when cudarc has noted an error, since it does not wait then. The accesses are to be forgotten: cudarc
    /// would record that the stream has used the buffers, whose earlier uses it has not waited for. [`Error::Stream`] when the
    /// events have drawn the stream into the capture of the stream that recorded them.
    #[cold]
    pub(crate) fn check_accesses(&self, operation: &'static str, captured: bool) -> Result<(), Error> {
        self.stream.context().check_err().map_err(Error::cuda(NOTED))?;
        if captured { Ok(()) } else { cuda::refuse_captured(operation, &self.stream) }
    }

    /// The rest of a call that goes to NCCL at once, from the checks of the stream on.
    #[inline(always)]
    fn launch_now<'b>(
        &'b self,
        config: Option<&CallConfig>,
        operation: &Operation,
        buffers: Buffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
        captured: bool,
    ) -> Result<(), Error> {
        nccl_group::forbid(operation.name)?;
        if cuda::is_default(&self.stream) || self.size() == 1 && operation.needs_kernel() {
            cuda::bind(&self.handle.context)?;
        } else {
            cuda::bind_once(&self.handle.context)?;
        }
        if !captured {
            cuda::refuse_captured(operation.name, &self.stream)?;
        }
        let (mut others, offsets) = (OtherStreams::new(), buffers.offsets);
        let accesses = self.access(operation.name, buffers, &mut others)?;
        let events = accesses.have_events();
        if events && let Err(error) = self.check_accesses(operation.name, captured) {
            mem::forget(accesses);
            return Err(error);
        }
        let addresses = self.addresses(operation, offsets, &accesses)?;
        if operation.waits() {
            // It cannot be made after an error that cudarc has noted.
            self.event()?;
        }
        if !captured {
            self.handle.fence(&self.stream)?;
        }
        let state = self.handle.lock();
        // SAFETY: checked buffers, borrowed until `accesses` is dropped; the guard is held.
        let code = unsafe {
            call_nccl(&self.handle, raw_stream(&self.stream), *state, config, operation, addresses)
        };
        drop(state);
        let result = match code {
            // The way of nearly all calls.
            Ok(ncclResult_t::ncclSuccess) if others.is_empty() && !events && !operation.waits() => {
                return Ok(());
            }
            Ok(code) => finish(&self.handle, operation.name, code),
            Err(error) => Err(error),
        };
        drop(accesses);
        if operation.waits() {
            others.extend(self.streams_of_windows());
        }
        // Whatever NCCL answered: something may have been queued.
        let result = result.and(each(&others, |stream| self.make_wait(stream)));
        if events { result.and(released(&self.stream)) } else { result }
    }

    /// The streams of the communicator's windows, into which signals tell that other ranks have written.
    pub(crate) fn streams_of_windows(&self) -> OtherStreams {
        let streams = self.handle.registered().into_iter().map(|(memory, _)| memory.stream);
        streams.filter(|stream| **stream != *self.stream).collect()
    }
}

/// An operation of the driver whose failure cudarc noted.
const NOTED: &str = "an earlier operation of cudarc's";

/// After the accesses to buffers with events of cudarc's have been dropped.
///
/// # Errors
/// [`Error::Cuda`] when an event was not recorded. NCCL's work is done then, so that nothing has to wait for the event.
pub(crate) fn released(stream: &CudaStream) -> Result<(), Error> {
    stream.context().check_err().map_err(|error| {
        let _already_failing = cuda::bind(stream.context()).and_then(|()| cuda::wait(stream));
        Error::Cuda { operation: NOTED, error }
    })
}

/// The stream for NCCL.
#[inline]
pub(crate) fn raw_stream(stream: &CudaStream) -> cudaStream_t {
    stream.cu_stream() as cudaStream_t
}

/// Calls NCCL's function for an operation.
///
/// # Safety
/// The addresses are those of buffers that were checked and stay valid until the work is done; the caller holds the guard of the
/// communicator's state, which is `state`.
#[inline(always)]
pub(crate) unsafe fn call_nccl(
    handle: &Handle,
    stream: cudaStream_t,
    state: State,
    config: Option<&CallConfig>,
    operation: &Operation,
    (source, target): (u64, u64),
) -> Result<ncclResult_t, Error> {
    let comm = handle.comm(state, State::is_alive, operation.name)?;
    let site = Site { from: source as *const _, to: target as *mut _, comm, stream };
    match config {
        // SAFETY: by the contract above; the handle is alive.
        None => Ok(unsafe { operation.call(handle.raw(), site) }?),
        Some(config) => {
            let config = config.raw(handle.library)?;
            // SAFETY: as above; the configuration's text outlives the call.
            Ok(unsafe { operation.call_configured(handle.raw(), site, &config) }?)
        }
    }
}

/// Waits for NCCL's own thread, where it works on an operation.
#[cold]
pub(crate) fn finish(handle: &Handle, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
    if code == ncclResult_t::ncclInProgress {
        return handle.settle(operation, handle.config.deadline);
    }
    handle.library.check(operation, code)
}

impl Launch<'_> for Immediate {}
impl<'b> sealed::Launch<'b> for Immediate {
    #[inline]
    fn launch(
        self,
        Submission { communicator, config, operation }: Submission<'b>,
        buffers: Buffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        communicator.launch_now(config, &operation, buffers, false)
    }
}

impl Launch<'_> for Captured {}
impl<'b> sealed::Launch<'b> for Captured {
    #[inline]
    fn launch(
        self,
        Submission { communicator, config, operation }: Submission<'b>,
        buffers: Buffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        communicator.launch_now(config, &operation, buffers, true)
    }
}
