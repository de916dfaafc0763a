//! The ways of a checked operation to NCCL: at once, into a group, into a graph. Here is what they have in common, and the first.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::{Version, cudaStream_t, ncclResult_t};

use super::call_config::CallConfig;
use super::{Kind, Offsets, Operation, Site};
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{Communicator, Handle, State};
use crate::nccl::cuda;
use crate::nccl::error::{Error, each};
use crate::nccl::memory::{Access, DeviceBuffer, DeviceBufferMut};
use crate::nccl::section;

/// Of the smallest element.
const SCALAR_BYTES: u64 = 1;
pub(crate) const SEND: &str = "send buffer";
pub(crate) const RECEIVE: &str = "receive buffer";
pub(crate) const IN_PLACE: &str = "buffer";

/// One element in device memory that an operator reads while it runs: a [`DeviceBuffer`] of any type.
pub(crate) trait Scalar {
    fn home(&self) -> &Arc<CudaStream>;
    fn read_scalar<'a>(&'a self, stream: &'a CudaStream) -> Access<'a>;
    fn owner(&self) -> Option<Owner>;

    /// Keeps the operator until NCCL has taken the operation.
    fn operator(&self) -> Option<Owner> {
        None
    }
}

impl<B: DeviceBuffer + ?Sized> Scalar for &B {
    fn home(&self) -> &Arc<CudaStream> {
        self.stream()
    }

    fn read_scalar<'a>(&'a self, stream: &'a CudaStream) -> Access<'a> {
        self.read(stream)
    }

    fn owner(&self) -> Option<Owner> {
        DeviceBuffer::owner(*self)
    }
}

/// The buffers of an operation. Without `send`, both of NCCL's addresses are in `receive`; without `receive`, NCCL
/// writes nothing.
#[doc(hidden)]
pub struct Buffers<'b, S: ?Sized, R: ?Sized> {
    pub(crate) send: Option<&'b S>,
    pub(crate) receive: Option<&'b mut R>,
    /// What the operator reads.
    pub(crate) scalar: Option<&'b dyn Scalar>,
}

impl<'b, S: DeviceBuffer + ?Sized, R: DeviceBufferMut + ?Sized> Buffers<'b, S, R> {
    /// Orders the accesses after what the buffers know of.
    #[inline(always)]
    pub(crate) fn accesses(self, stream: &'b CudaStream) -> Accesses<'b> {
        Accesses {
            send: self.send.map(|send| send.read(stream)),
            receive: self.receive.map(|receive| receive.write(stream)),
            scalar: self.scalar.map(|scalar| scalar.read_scalar(stream)),
        }
    }

    /// Checks that the buffers are on the communicator's device and can be kept, and adds their streams to `homes`.
    pub(crate) fn owners(
        &self,
        communicator: &Communicator,
        operation: &'static str,
        homes: &mut Foreign,
    ) -> Result<Vec<Owner>, Error> {
        let send = self.send.map(|send| (SEND, send.stream(), send.owner()));
        let name = if send.is_some() { RECEIVE } else { IN_PLACE };
        let receive = self.receive.as_deref().map(|receive| (name, receive.stream(), receive.owner()));
        let scalar = self.scalar.map(|scalar| ("scalar", scalar.home(), scalar.owner()));
        let mut owners = Vec::new();
        for (name, home, owner) in [send, receive, scalar].into_iter().flatten() {
            communicator.expect_device(operation, name, home)?;
            owners.push(owner.ok_or(Error::NotOwned { operation })?);
            cuda::refuse_per_thread(operation, home)?;
            // Also the communicator's own: it may move to another stream before the graph is captured.
            homes.push(Arc::clone(home));
        }
        Ok(owners)
    }

    /// The addresses of the buffers' elements, and whether they are written.
    pub(crate) fn ranges(&self) -> Vec<(Range<u64>, bool)> {
        let send = self.send.map(|send| {
            let start = send.read(send.stream()).address();
            (start..start + (send.len() * size_of::<S::Element>()) as u64, false)
        });
        let receive = self.receive.as_deref().map(|receive| {
            let start = receive.read(receive.stream()).address();
            (start..start + (receive.len() * size_of::<R::Element>()) as u64, true)
        });
        let scalar = self.scalar.map(|scalar| {
            let start = scalar.read_scalar(scalar.home()).address();
            (start..start + SCALAR_BYTES, false)
        });
        send.into_iter().chain(receive).chain(scalar).filter(|(range, _)| !range.is_empty()).collect()
    }
}

/// The way of a collective to NCCL. Sealed.
pub trait Launch<'b>: sealed::Launch<'b> {}

pub(crate) mod sealed {
    use super::{Buffers, CallConfig, Communicator, DeviceBuffer, DeviceBufferMut, Error, Operation};

    pub trait Launch<'b>: Copy {
        /// Takes a checked operation.
        fn launch<S, R>(
            self,
            communicator: &'b Communicator,
            config: Option<&CallConfig>,
            operation: Operation,
            buffers: Buffers<'b, S, R>,
        ) -> Result<(), Error>
        where
            S: DeviceBuffer + ?Sized,
            R: DeviceBufferMut + ?Sized;
    }
}

/// Calls NCCL immediately.
#[derive(Clone, Copy, Debug)]
pub struct Immediate;

/// Calls NCCL immediately, while the communicator's stream is being captured into a graph.
#[derive(Clone, Copy, Debug)]
pub struct Captured;

/// The accesses to an operation's buffers, valid as long as the buffers are borrowed.
#[derive(Debug)]
pub(crate) struct Accesses<'b> {
    send: Option<Access<'b>>,
    receive: Option<Access<'b>>,
    scalar: Option<Access<'b>>,
}

impl Accesses<'_> {
    /// NCCL's two addresses.
    #[inline]
    pub(crate) fn addresses(&self, offsets: Offsets) -> (u64, u64) {
        let target = self.receive.as_ref().map_or(0, Access::address);
        let source = self.send.as_ref().map_or(target, Access::address);
        (source + offsets.source, target + offsets.target)
    }

    /// True when the stream may have been made to wait for events of a buffer.
    #[inline]
    pub(crate) fn ordered(&self) -> bool {
        // Not a loop: the compiler does not see through one.
        self.send.as_ref().is_some_and(Access::ordered)
            || self.receive.as_ref().is_some_and(Access::ordered)
            || self.scalar.as_ref().is_some_and(Access::ordered)
    }
}

/// The streams of an operation's buffers that are not the communicator's: hardly ever any.
pub(crate) type Foreign = Vec<Arc<CudaStream>>;

impl Communicator {
    /// Checks where the buffers are, orders NCCL's stream after theirs, which it notes when they are others, and takes
    /// their addresses.
    #[inline(always)]
    pub(crate) fn access<'b, S, R>(
        &'b self,
        operation: &'static str,
        buffers: Buffers<'b, S, R>,
        foreign: &mut Foreign,
    ) -> Result<Accesses<'b>, Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        let Buffers { send, receive, scalar } = &buffers;
        if let Some(send) = send {
            self.admit(operation, SEND, send.stream(), foreign)?;
        }
        if let Some(receive) = receive {
            let name = if send.is_some() { RECEIVE } else { IN_PLACE };
            self.admit(operation, name, receive.stream(), foreign)?;
        }
        if let Some(scalar) = scalar {
            self.admit(operation, "scalar", scalar.home(), foreign)?;
        }
        Ok(buffers.accesses(&self.stream))
    }

    /// Checks that a buffer is on this communicator's device, and makes NCCL's stream wait for the buffer's, which is then
    /// added to `foreign`.
    #[inline]
    pub(crate) fn admit(
        &self,
        operation: &'static str,
        name: &'static str,
        home: &Arc<CudaStream>,
        foreign: &mut Foreign,
    ) -> Result<(), Error> {
        if Arc::ptr_eq(home, &self.stream) {
            Ok(())
        } else {
            self.admit_other(operation, name, home, foreign)
        }
    }

    #[cold]
    fn admit_other(
        &self,
        operation: &'static str,
        name: &'static str,
        home: &Arc<CudaStream>,
        foreign: &mut Foreign,
    ) -> Result<(), Error> {
        self.expect_device(operation, name, home)?;
        if **home == *self.stream {
            return Ok(());
        }
        cuda::refuse_per_thread(operation, home)?;
        // Waiting for a captured stream would draw the communicator's own into the capture.
        cuda::refuse_captured(operation, home)?;
        self.follow(home)?;
        foreign.push(Arc::clone(home));
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
        accesses: &Accesses<'_>,
    ) -> Result<(u64, u64), Error> {
        let (source, target) = accesses.addresses(operation.offsets);
        // All ranks must come to the same answer, so that what counts is not where this rank's own part lies: in place,
        // rank 0's part begins with the buffer, and the others' follow it.
        let first = if accesses.send.is_some() { source } else { target - operation.offsets.target };
        let part = (operation.count * operation.data_type.size()) as u64;
        let places = match operation.kind {
            Kind::AllReduce(_) => first,
            Kind::AllGather if accesses.send.is_some() => first,
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
    fn launch_now<'b, S, R>(
        &'b self,
        config: Option<&CallConfig>,
        operation: &Operation,
        buffers: Buffers<'b, S, R>,
        captured: bool,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        section::forbid(operation.name)?;
        if cuda::is_default(&self.stream) || self.size() == 1 && operation.needs_kernel() {
            cuda::bind(&self.handle.context)?;
        } else {
            cuda::bind_once(&self.handle.context)?;
        }
        if !captured {
            cuda::refuse_captured(operation.name, &self.stream)?;
        }
        let mut foreign = Foreign::new();
        let accesses = self.access(operation.name, buffers, &mut foreign)?;
        let ordered = accesses.ordered();
        if ordered && let Err(error) = self.check_accesses(operation.name, captured) {
            mem::forget(accesses);
            return Err(error);
        }
        let addresses = self.addresses(operation, &accesses)?;
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
            Ok(ncclResult_t::ncclSuccess) if foreign.is_empty() && !ordered && !operation.waits() => {
                return Ok(());
            }
            Ok(code) => finish(&self.handle, operation.name, code),
            Err(error) => Err(error),
        };
        drop(accesses);
        if operation.waits() {
            foreign.extend(self.homes_of_windows());
        }
        // Whatever NCCL answered: something may have been queued.
        let result = result.and(each(&foreign, |home| self.lead(home)));
        if ordered { result.and(released(&self.stream)) } else { result }
    }

    /// The streams of the communicator's windows, into which signals tell that other ranks have written.
    pub(crate) fn homes_of_windows(&self) -> Foreign {
        let homes = self.handle.known().into_iter().map(|(memory, _)| memory.home);
        homes.filter(|home| **home != *self.stream).collect()
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
    let communicator = handle.handle(state, operation.name)?;
    let (source, target) = (source as *const _, target as *mut _);
    let site = Site { source, target, handle: communicator, stream };
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
        return handle.settle(operation, handle.config.limit());
    }
    handle.library.check(operation, code)
}

impl Launch<'_> for Immediate {}
impl<'b> sealed::Launch<'b> for Immediate {
    #[inline]
    fn launch<S, R>(
        self,
        communicator: &'b Communicator,
        config: Option<&CallConfig>,
        operation: Operation,
        buffers: Buffers<'b, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        communicator.launch_now(config, &operation, buffers, false)
    }
}

impl Launch<'_> for Captured {}
impl<'b> sealed::Launch<'b> for Captured {
    fn launch<S, R>(
        self,
        communicator: &'b Communicator,
        config: Option<&CallConfig>,
        operation: Operation,
        buffers: Buffers<'b, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        communicator.launch_now(config, &operation, buffers, true)
    }
}
