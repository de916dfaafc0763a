//! The three ways a checked operation goes: to NCCL at once, into a group, into a graph. Here is what they have in common,
//! and the first.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::{Version, ncclResult_t};

use super::abort::State;
use super::buffer::{Access, DeviceBuffer, DeviceBufferMut};
use super::call_config::CallConfig;
use super::communicator::Communicator;
use super::cuda;
use super::error::Error;
use super::inside;
use super::operation::{Kind, Offsets, Operation, Site};
use super::reduction::Scalar;

pub(crate) const SEND: &str = "send buffer";
pub(crate) const RECEIVE: &str = "receive buffer";
pub(crate) const IN_PLACE: &str = "buffer";

/// The buffers of an operation. Without `send`, both of NCCL's addresses are in `receive`; without `receive`, NCCL
/// writes nothing.
#[doc(hidden)]
pub struct Buffers<'b, S: ?Sized, R: ?Sized> {
    pub(crate) send: Option<&'b S>,
    pub(crate) receive: Option<&'b mut R>,
    /// What the operator reads.
    pub(crate) scalar: Option<&'b dyn Scalar>,
}

/// Where a collective goes. Sealed.
pub trait Launch<'b>: sealed::Launch<'b> {}

pub(crate) mod sealed {
    use super::{Buffers, CallConfig, Communicator, DeviceBuffer, DeviceBufferMut, Error, Operation};

    pub trait Launch<'b>: Copy {
        /// Takes a checked operation.
        fn launch<S, R>(
            self,
            communicator: &'b Communicator,
            config: Option<&'b CallConfig>,
            operation: Operation,
            buffers: Buffers<'b, S, R>,
        ) -> Result<(), Error>
        where
            S: DeviceBuffer + ?Sized,
            R: DeviceBufferMut + ?Sized;
    }
}

/// To NCCL, at once.
#[derive(Clone, Copy, Debug)]
pub struct Now;

/// To NCCL, at once, while the communicator's stream is being captured into a graph.
#[derive(Clone, Copy, Debug)]
pub struct Captured;

/// The accesses to an operation's buffers, valid as long as the buffers are borrowed.
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

    /// Whether the stream may have been made to wait for events of a buffer.
    #[inline]
    fn ordered(&self) -> bool {
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
        let Buffers { send, receive, scalar } = buffers;
        if let Some(send) = send {
            self.admit(operation, SEND, send.stream(), foreign)?;
        }
        if let Some(receive) = &receive {
            let name = if send.is_some() { RECEIVE } else { IN_PLACE };
            self.admit(operation, name, receive.stream(), foreign)?;
        }
        if let Some(scalar) = scalar {
            self.admit(operation, "scalar", scalar.home(), foreign)?;
        }
        Ok(Accesses {
            send: send.map(|send| send.read(&self.stream)),
            receive: receive.map(|receive| receive.write(&self.stream)),
            scalar: scalar.map(|scalar| scalar.read_scalar(&self.stream)),
        })
    }

    /// Checks that a buffer is on this communicator's device, and makes NCCL's stream wait for the buffer's, which it
    /// then notes.
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
        if loaded < Version::new(2, 30, 0) && self.shared.in_a_window(address) {
            return Err(Error::Misaligned { operation, loaded });
        }
        Ok(())
    }

    /// Calls NCCL's function for an operation.
    ///
    /// # Safety
    /// The addresses are those of buffers that were checked and are still borrowed; the caller holds the guard of the
    /// communicator's state, which is `state`.
    #[inline(always)]
    pub(crate) unsafe fn call_nccl(
        &self,
        state: State,
        config: Option<&CallConfig>,
        operation: &Operation,
        (source, target): (u64, u64),
    ) -> Result<ncclResult_t, Error> {
        let shared = &*self.shared;
        let handle = shared.handle(state, operation.name)?;
        let (source, target) = (source as *const _, target as *mut _);
        let site = Site { source, target, handle, stream: &self.stream };
        match config {
            // SAFETY: by the contract above; the handle is alive.
            None => Ok(unsafe { operation.call(shared.raw(), site) }?),
            Some(config) => {
                let config = config.raw(shared.library)?;
                // SAFETY: as above; the configuration's text outlives the call.
                Ok(unsafe { operation.call_configured(shared.raw(), site, &config) }?)
            }
        }
    }

    /// What to do after a call that did not simply succeed.
    #[cold]
    pub(crate) fn finish(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclInProgress {
            return self.shared.settle(operation, self.shared.config.limit());
        }
        self.shared.library.check(operation, code)
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
        inside::forbid(operation.name)?;
        if cuda::is_default(&self.stream) || self.size() == 1 && operation.needs_kernel() {
            cuda::bind(&self.shared.context)?;
        } else {
            cuda::bind_once(&self.shared.context)?;
        }
        if !captured {
            cuda::refuse_captured(operation.name, &self.stream)?;
        }
        let mut foreign = Foreign::new();
        let result = {
            let accesses = self.access(operation.name, buffers, &mut foreign)?;
            // A buffer that waits for events draws the stream into the capture of the stream that recorded them, if
            // there is one. The others cost no second question.
            if !captured && accesses.ordered() {
                cuda::refuse_captured(operation.name, &self.stream)?;
            }
            let addresses = self.addresses(operation, &accesses)?;
            let state = self.shared.lock();
            // SAFETY: checked buffers, borrowed until `accesses` is dropped; the guard is held.
            let code = unsafe { self.call_nccl(*state, config, operation, addresses) };
            drop(state);
            match code {
                // The way of nearly all calls. The results of the others are moved about.
                Ok(ncclResult_t::ncclSuccess) if foreign.is_empty() => return Ok(()),
                Ok(ncclResult_t::ncclSuccess) => Ok(()),
                Ok(code) => self.finish(operation.name, code),
                Err(error) => Err(error),
            }
        };
        // Whatever NCCL answered: something may have been queued.
        foreign.iter().fold(result, |result, home| result.and(self.lead(home)))
    }
}

impl Launch<'_> for Now {}
impl<'b> sealed::Launch<'b> for Now {
    #[inline]
    fn launch<S, R>(
        self,
        communicator: &'b Communicator,
        config: Option<&'b CallConfig>,
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
        config: Option<&'b CallConfig>,
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
