//! Memory that NCCL knows beforehand: what registrations and windows have in common, and registrations.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use nccl_sys::{MissingSymbol, Nccl, ncclComm_t, ncclResult_t};

use super::buffer::DeviceBuffer;
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{Communicator, Dependent, Ending, Handle, KnownMemory, Object};
use crate::nccl::cuda;
use crate::nccl::error::Error;
use crate::nccl::section;

/// A function of NCCL's that makes it forget memory.
type Forget = unsafe fn(&Nccl, ncclComm_t, *mut c_void) -> Result<ncclResult_t, MissingSymbol>;

/// Memory that NCCL knows by a handle. It owns the memory, and the communicator's handle, so that neither can end before NCCL has
/// forgotten the memory.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) communicator: Arc<Handle>,
    pub(crate) memory: KnownMemory,
    owner: Owner,
    /// NCCL's handle; null when it has none. Where the communicator is non-blocking NCCL writes it from a thread of its own.
    pub(crate) slot: AtomicPtr<c_void>,
    operation: &'static str,
    forget: Forget,
    /// True when NCCL has forgotten it.
    ended: AtomicBool,
}

impl Registered {
    /// A buffer that NCCL is about to know.
    pub(crate) fn new<B: DeviceBuffer + ?Sized>(
        communicator: &Communicator,
        buffer: &B,
        symmetric: bool,
        (know, operation): (&'static str, &'static str),
        forget: Forget,
    ) -> Result<Arc<Self>, Error> {
        section::forbid(know)?;
        let handle = &communicator.handle;
        cuda::bind(&handle.context)?;
        communicator.expect_device(know, "memory", buffer.stream())?;
        let owner = buffer.owner().ok_or(Error::NotOwned { operation: know })?;
        let start = buffer.read(buffer.stream()).address();
        let addresses = start..start + (buffer.len() * size_of::<B::Element>()) as u64;
        let memory = KnownMemory { addresses, raw: 0, symmetric, home: Arc::clone(buffer.stream()) };
        Ok(Arc::new(Self {
            communicator: Arc::clone(handle),
            memory,
            owner,
            slot: AtomicPtr::default(),
            operation,
            forget,
            ended: AtomicBool::new(false),
        }))
    }

    /// The communicator ends it before itself.
    pub(crate) fn add_to_communicator(self: &Arc<Self>) {
        let object: Weak<dyn Object> = Arc::downgrade(&(Arc::clone(self) as Arc<dyn Object>));
        self.communicator.add(Dependent {
            memory: Some(KnownMemory { raw: self.raw().addr(), ..self.memory.clone() }),
            object,
        });
    }

    /// True when NCCL has a handle of it, and has not forgotten it.
    pub(crate) fn is_active(&self) -> bool {
        !self.raw().is_null() && !self.ended.load(Ordering::Acquire)
    }

    /// NCCL's handle.
    pub(crate) fn raw(&self) -> *mut c_void {
        self.slot.load(Ordering::Acquire)
    }

    /// Address and size, for NCCL.
    pub(crate) fn place(&self) -> (*mut c_void, usize) {
        let Range { start, end } = self.memory.addresses;
        (start as *mut c_void, (end - start) as usize)
    }

    /// Makes NCCL forget it. No work uses it any more.
    fn forget(&self) -> Result<(), Error> {
        let (operation, handle) = (self.operation, &*self.communicator);
        let state = handle.lock();
        let communicator = handle.existing(*state, operation)?;
        // SAFETY: the communicator is alive, the handle is one of its own, and no work of this rank uses it.
        let code = unsafe { (self.forget)(handle.raw(), communicator, self.raw()) }?;
        drop(state);
        match code {
            ncclResult_t::ncclInProgress => handle.settle(operation, handle.config.limit()),
            code => handle.library.check(operation, code),
        }
    }

    /// Leaves it to the communicator, which tries again when it is closed.
    fn leave_to_communicator(&self, error: &Error) {
        tracing::warn!("{}: {error}", self.operation);
        let left = Arc::new(Self {
            communicator: Arc::clone(&self.communicator),
            memory: self.memory.clone(),
            owner: Arc::clone(&self.owner),
            slot: AtomicPtr::new(self.raw()),
            operation: self.operation,
            forget: self.forget,
            ended: AtomicBool::new(self.ended.load(Ordering::Acquire)),
        });
        left.add_to_communicator();
        self.communicator.keep(left);
    }

    /// Waits for the communicator's work, and makes NCCL forget it. A communicator whose work fails is aborted, which ends all
    /// that belongs to it.
    fn drain_and_forget(&self) -> Result<(), Error> {
        let handle = &*self.communicator;
        if std::thread::panicking() {
            // As when the communicator is dropped.
            return handle.abort("ncclCommAbort").and(Err(Error::Aborted { operation: self.operation }));
        }
        cuda::bind(&handle.context)?;
        // Waiting would spoil a capture.
        let streams = handle.streams();
        streams.iter().try_for_each(|stream| cuda::refuse_captured(self.operation, stream))?;
        handle.drain_or_abort(self.operation)?;
        self.forget()
    }
}

impl Object for Registered {
    fn end(&self, ending: Ending) {
        // An abort ends it with the communicator.
        if ending == Ending::Destroy
            && !self.raw().is_null()
            && !self.ended.swap(true, Ordering::AcqRel)
            && let Err(error) = self.forget()
        {
            self.leave_to_communicator(&error);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.ended.load(Ordering::Acquire) || self.raw().is_null() {
            return;
        }
        match self.drain_and_forget() {
            Ok(()) => {}
            // NCCL has ended the communicator with all that belongs to it, or is about to.
            Err(_) if self.communicator.is_ending() => self.communicator.wait_for_abort(),
            Err(error) => self.leave_to_communicator(&error),
        }
    }
}

/// Memory that is registered with a communicator (`ncclCommRegister`, NCCL 2.19): its collectives can read and write it
/// without copies of their own. From [`Communicator::register`].
///
/// It owns the memory together with the [`Memory`](super::Memory). Dropping it waits for the communicator's work and takes the
/// registration back (`ncclCommDeregister`); the communicator does so, too, when it is closed before. Where that is not
/// possible, as while the communicator's stream is being captured into a CUDA graph, the memory stays registered, and
/// allocated, until the communicator ends.
#[derive(Debug)]
pub struct Registration {
    _registered: Arc<Registered>,
}

impl Communicator {
    /// Registers memory with this communicator; a local operation. The memory is a [`Memory`](super::Memory), a view of one,
    /// or a [`RawBuffer`](super::RawBuffer) with an owner; several communicators may know one memory.
    ///
    /// ```no_run
    /// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error, Memory}};
    /// # fn example(communicator: &Communicator) -> Result<(), Error> {
    /// let mut memory = Memory::alloc(communicator.library(), communicator.stream(), 1 << 20)?;
    /// let registration = communicator.register(&memory)?;
    /// communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.19; [`Error::WrongDevice`]; [`Error::NotOwned`] for a slice of cudarc, which
    /// `Memory::try_from` adopts; [`Error::InsideGroup`]; [`Error::Nccl`]; [`Error::Aborted`] and
    /// [`Error::Unusable`].
    pub fn register<B: DeviceBuffer + ?Sized>(&self, buffer: &B) -> Result<Registration, Error> {
        const NAMES: (&str, &str) = ("ncclCommRegister", "ncclCommDeregister");
        let registered = Registered::new(self, buffer, false, NAMES, Nccl::ncclCommDeregister)?;
        let ((address, bytes), slot) = (registered.place(), registered.slot.as_ptr());
        self.handle.call(NAMES.0, |raw, communicator| {
            // SAFETY: `call` holds the guard, and the handle is alive; the memory has so many bytes; writes one pointer.
            unsafe { raw.ncclCommRegister(communicator, address, bytes, slot) }
        })?;
        registered.add_to_communicator();
        Ok(Registration { _registered: registered })
    }
}
