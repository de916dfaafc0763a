//! Memory known to NCCL: registrations, and the common part of registrations and windows.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::{ffi::c_void, ops::Range};

use nccl_sys::{MissingSymbol, Nccl, ncclComm_t, ncclResult_t};

use super::buffer::{DeviceBuffer, OwnedBuffer};
use crate::lock::lock;
use crate::log;
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{Communicator, CommunicatorState, Handle, Object, RegisteredMemory};
use crate::nccl::{cuda, error::Error, nccl_group};

/// NCCL's functions for a kind of registered memory.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) register_name: &'static str,
    pub(super) deregister_name: &'static str,
    pub(super) deregister: unsafe fn(&Nccl, ncclComm_t, *mut c_void) -> Result<ncclResult_t, MissingSymbol>,
}

/// Memory, registered with NCCL until this is dropped. Owns the memory and the communicator's handle: both
/// outlive it.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) communicator: Arc<Handle>,
    memory: RegisteredMemory,
    owner: Owner,
    /// NCCL's handle, or null. For a non-blocking communicator, NCCL writes it from a thread of its own.
    pub(super) slot: AtomicPtr<c_void>,
    /// See [`RegisteredMemory::number`].
    number: AtomicU64,
    functions: &'static Functions,
    /// True once NCCL has deregistered it.
    ended: AtomicBool,
}

impl Registered {
    pub(super) fn new<B: DeviceBuffer + ?Sized>(
        communicator: &Communicator,
        buffer: &B,
        symmetric: bool,
        functions: &'static Functions,
    ) -> Result<Arc<Self>, Error> {
        let operation = functions.register_name;
        nccl_group::forbid_group(operation)?;
        cuda::bind_context(&communicator.handle.context)?;
        let OwnedBuffer { stream, owner, addresses, .. } =
            OwnedBuffer::new(communicator, operation, "memory", buffer)?;
        Ok(Arc::new(Self {
            communicator: Arc::clone(&communicator.handle),
            memory: RegisteredMemory { addresses, raw: 0, symmetric, number: 0, stream },
            owner,
            slot: AtomicPtr::default(),
            number: AtomicU64::new(0),
            functions,
            ended: AtomicBool::new(false),
        }))
    }

    /// The communicator deregisters it before it ends.
    pub(super) fn add_to_communicator(self: &Arc<Self>) {
        self.communicator.add_object(Arc::downgrade(self) as Weak<dyn Object>);
    }

    /// Numbers a new window before NCCL creates it.
    pub(super) fn number_window(&self) {
        let number = self.communicator.windows.fetch_add(1, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
    }

    /// Leaves the release to the communicator: it tries again when it is closed.
    fn defer_to_communicator(&self, error: &Error) {
        log::warn(format_args!("{}: {error}", self.functions.deregister_name));
        let left = Arc::new(Self {
            communicator: Arc::clone(&self.communicator),
            memory: self.memory.clone(),
            owner: Arc::clone(&self.owner),
            slot: AtomicPtr::new(self.raw_handle()),
            number: AtomicU64::new(self.number.load(Ordering::Relaxed)),
            functions: self.functions,
            ended: AtomicBool::new(self.ended.load(Ordering::Acquire)),
        });
        left.add_to_communicator();
        lock(&self.communicator.kept).push(left);
    }

    pub(super) fn is_active(&self) -> bool {
        !self.raw_handle().is_null() && !self.ended.load(Ordering::Acquire)
    }

    pub(super) fn raw_handle(&self) -> *mut c_void {
        self.slot.load(Ordering::Acquire)
    }

    pub(super) fn address_range(&self) -> &Range<u64> {
        &self.memory.addresses
    }

    pub(super) fn address_and_bytes(&self) -> (*mut c_void, usize) {
        let Range { start, end } = self.memory.addresses;
        (start as *mut c_void, (end - start) as usize)
    }

    /// Deregisters it. No work uses it any more.
    fn deregister_memory(&self) -> Result<(), Error> {
        let (operation, handle) = (self.functions.deregister_name, &*self.communicator);
        let state = handle.lock_state();
        let communicator = handle.comm_in_state(*state, CommunicatorState::allows_queries, operation)?;
        // SAFETY: the communicator is alive, the handle is one of its own, and no work of this rank uses it.
        let code =
            unsafe { (self.functions.deregister)(handle.library.raw(), communicator, self.raw_handle()) }?;
        drop(state);
        handle.finish_operation(operation, code)
    }

    /// Waits for the communicator's work and deregisters the memory. If the work fails, the communicator is
    /// aborted with all its objects.
    fn drain_and_deregister(&self) -> Result<(), Error> {
        let (operation, handle) = (self.functions.deregister_name, &*self.communicator);
        if std::thread::panicking() {
            // Dropping the communicator deregisters it too.
            return handle.abort_communicator().and(Err(Error::Aborted { operation }));
        }
        cuda::bind_context(&handle.context)?;
        // Waiting would invalidate a capture.
        handle.used_streams().iter().try_for_each(|stream| cuda::refuse_captured(operation, stream))?;
        handle.drain_or_abort(operation)?;
        self.deregister_memory()
    }
}

impl Object for Registered {
    fn release_object(&self) {
        if self.is_active() {
            self.ended.store(true, Ordering::Release);
            if let Err(error) = self.deregister_memory() {
                self.defer_to_communicator(&error);
            }
        }
    }

    fn registered_memory(&self) -> Option<RegisteredMemory> {
        let number = self.number.load(Ordering::Relaxed);
        Some(RegisteredMemory { raw: self.raw_handle().addr(), number, ..self.memory.clone() })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.is_active()
            && let Err(error) = self.drain_and_deregister()
        {
            if self.communicator.is_ending() {
                // NCCL has ended the communicator with all its objects, or is about to.
                self.communicator.wait_for_abort();
            } else {
                self.defer_to_communicator(&error);
            }
        }
    }
}

/// Memory registered with a communicator (`ncclCommRegister`, NCCL 2.19). The communicator's collectives
/// access it without intermediate copies. From [`Communicator::register`].
///
/// Owns the memory together with the [`Memory`](super::Memory). Dropping it waits for the communicator's work
/// and deregisters it (`ncclCommDeregister`), as does closing the communicator. If this is not possible, for
/// example while the communicator's stream is being captured into a CUDA graph, the memory stays registered
/// and allocated until the communicator ends.
#[derive(Debug)]
pub struct Registration {
    _registered: Arc<Registered>,
}

static REGISTRATION: Functions = Functions {
    register_name: "ncclCommRegister",
    deregister_name: "ncclCommDeregister",
    deregister: Nccl::ncclCommDeregister,
};

impl Communicator {
    /// Registers memory with this communicator; a local operation. The memory is a [`Memory`](super::Memory)
    /// or a view of one. It may be registered with several communicators. If one rank passes registered
    /// memory to a collective, all ranks must: NCCL does not define what happens otherwise.
    ///
    /// Memory of [`Memory::alloc`](super::Memory::alloc) can always be registered. NCCL 2.30.3 and later
    /// refuses memory of the driver's pools (`cuMemAllocAsync`) with [`Error::Nccl`], and so most slices of
    /// cudarc adopted by `Memory::try_from`; collectives use it unregistered.
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
    /// [`Error::MissingSymbol`] before NCCL 2.19; [`Error::WrongDevice`]; [`Error::NotOwned`] for a slice of
    /// cudarc (`Memory::try_from` adopts it); [`Error::InsideGroup`]; [`Error::Nccl`]; [`Error::Aborted`] and
    /// [`Error::Unusable`].
    pub fn register<B: DeviceBuffer + ?Sized>(&self, buffer: &B) -> Result<Registration, Error> {
        let registered = Registered::new(self, buffer, false, &REGISTRATION)?;
        let ((address, bytes), slot) = (registered.address_and_bytes(), registered.slot.as_ptr());
        self.handle.call_in_state(
            REGISTRATION.register_name,
            CommunicatorState::is_alive,
            |raw, communicator| {
                // While the guard is held: a graph keeps the memory known to NCCL when it is captured.
                registered.add_to_communicator();
                // SAFETY: `call_in_state` holds the guard, and the handle is alive; the memory has so many
                // bytes; writes one pointer.
                unsafe { raw.ncclCommRegister(communicator, address, bytes, slot) }
            },
        )?;
        Ok(Registration { _registered: registered })
    }
}
