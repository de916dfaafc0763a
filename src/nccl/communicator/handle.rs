//! NCCL's object of a communicator, shared by all that need it: its state, and the calls that go to it.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::{fmt, ops::Range, ptr};

use cudarc::driver::{CudaContext, CudaStream, result};
use nccl_sys::{Nccl, ncclComm, ncclComm_t, ncclResult_t};
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use super::config::Config;
use crate::nccl::library::{Answer, Library, SYMMETRIC_RACE};
use crate::nccl::{allocation::Allocation, cuda, error::Error};

/// While it lives, no other thread is inside NCCL with the communicator.
pub(crate) type StateGuard<'a> = SpinMutexGuard<'a, State, Yield>;

/// NCCL's object, owned by the communicator, and by the windows, registrations, graphs and abort handles of it. NCCL wants one
/// thread at a time inside it with a communicator, abort included: the mutex is held around every call.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) library: Library,
    pub(crate) context: Arc<CudaContext>,
    /// NCCL keeps pointers to the texts in it.
    pub(crate) config: Config,
    /// The same number for all ranks of the communicator in this process, and for no other communicator.
    pub(crate) communicator_key: u64,
    /// Number of communicators that were made of this one: the same on all ranks, which make them together.
    pub(super) derived: AtomicU64,
    /// Where NCCL writes its handle. Some versions write it from a thread of their own, after the call has returned.
    slot: AtomicPtr<ncclComm>,
    /// Its owner takes it around every call, and there is hardly ever anybody else: what counts is what taking it costs then,
    /// which is half with one atomic exchange instead of two. An abort, which may have to wait, waits by itself.
    pub(super) state: SpinMutex<State, Yield>,
    /// The streams that its operations and graphs run on: the last is the communicator's, the others those it had before.
    streams: Mutex<Vec<Arc<CudaStream>>>,
    /// Graphs, operators, registrations and windows, which end before the communicator does.
    objects: Mutex<Vec<Weak<dyn Object>>>,
    /// Objects that nobody else owns, and that could not be ended: they stay until the communicator has ended.
    pub(super) kept: Mutex<Vec<Arc<dyn Object>>>,
    /// The byte that a [fence](Self::fence) writes, where operations need one.
    scratch: OnceLock<Allocation>,
}

/// The guards of several communicators: no other thread is inside NCCL with any of them.
pub(crate) struct Guards<'a>(Vec<(&'a Handle, StateGuard<'a>)>);

impl<'a> Guards<'a> {
    /// Locks each once, in one order, whoever locks several: a graph may be launched by another thread.
    pub(crate) fn lock(handles: impl IntoIterator<Item = &'a Handle>) -> Self {
        let mut handles: Vec<_> = handles.into_iter().collect();
        handles.sort_by_key(|handle| ptr::from_ref(*handle));
        handles.dedup_by_key(|handle| ptr::from_ref(*handle));
        Self(handles.into_iter().map(|handle| (handle, handle.lock())).collect())
    }

    /// Refuses where one of them takes no operations.
    pub(crate) fn all_alive(self, operation: &'static str) -> Result<Self, Error> {
        for (handle, state) in &self.0 {
            handle.comm(**state, State::is_alive, operation)?;
        }
        Ok(self)
    }

    /// NCCL's handle of one of them, as long as the guards are held; see [`Handle::comm`].
    pub(crate) fn comm(
        &mut self,
        handle: &Handle,
        accepted: impl FnOnce(State) -> bool,
        operation: &'static str,
    ) -> Result<(ncclComm_t, &mut State), Error> {
        let guard = self.0.iter_mut().find(|(other, _)| ptr::eq(*other, handle));
        let state = &mut *guard.ok_or(Error::Aborted { operation })?.1;
        Ok((handle.comm(*state, accepted, operation)?, state))
    }
}

/// Memory that is registered or a window.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredMemory {
    pub(crate) addresses: Range<u64>,
    /// NCCL's handle of it, as a number.
    pub(crate) raw: usize,
    /// True for a symmetric window.
    pub(crate) symmetric: bool,
    pub(crate) stream: Arc<CudaStream>,
}

/// A registration, a window, an operator or a graph.
pub(crate) trait Object: fmt::Debug + Send + Sync {
    /// Ends NCCL's part of it: its communicator is about to end. It is not used any more.
    fn release(&self);

    /// True for what may be launched until it is released.
    fn is_graph(&self) -> bool {
        false
    }

    /// The memory of a registration or window; none for the others.
    fn memory(&self) -> Option<RegisteredMemory> {
        None
    }
}

/// State of NCCL's object. Those between the first and the last three allow nothing but asking and ending, and what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Alive,
    /// A communicator is being made from it, by NCCL's own thread.
    Busy,
    /// Its memory is about to be released.
    Suspending,
    /// Its memory is released. It can be resumed.
    Suspended,
    /// Its operations have been stopped. It can be split and shrunk.
    Revoked,
    /// Its operations have been flushed, or are about to be.
    Finalized,
    /// A thread is ending it: nobody else may use it, though NCCL may still do what it was asked to before.
    Aborting,
    Aborted,
    Closed,
}

impl State {
    /// True while operations are possible.
    #[inline]
    pub(crate) fn is_alive(self) -> bool {
        self == Self::Alive
    }

    /// True while NCCL's object may be asked and ended.
    pub(crate) fn exists(self) -> bool {
        !matches!(self, Self::Aborting | Self::Aborted | Self::Closed)
    }

    #[cold]
    fn refuse(self, operation: &'static str) -> Error {
        let reason = match self {
            Self::Busy => "a communicator is being made from it: wait for that first",
            Self::Suspending | Self::Suspended => "it is suspended: resume it first",
            Self::Revoked => "it has been revoked: split or shrink it, or make a new one",
            Self::Finalized => "it has been finalized: make a new one",
            _ => return Error::Aborted { operation },
        };
        Error::Unusable { operation, reason }
    }
}

impl Handle {
    /// `key` is the same for all ranks of the communicator, and for no other communicator.
    pub(super) fn new(
        library: Library,
        stream: &Arc<CudaStream>,
        config: Config,
        key: impl Hash,
    ) -> Arc<Self> {
        Arc::new(Self {
            library,
            context: Arc::clone(stream.context()),
            config,
            communicator_key: BuildHasherDefault::<DefaultHasher>::new().hash_one(key),
            derived: AtomicU64::new(0),
            slot: AtomicPtr::default(),
            state: SpinMutex::new(State::Alive),
            streams: Mutex::new(vec![Arc::clone(stream)]),
            objects: Mutex::default(),
            kept: Mutex::default(),
            scratch: OnceLock::new(),
        })
    }

    #[inline]
    pub(crate) fn raw(&self) -> &'static Nccl {
        self.library.raw()
    }

    /// Where NCCL shall write its handle.
    pub(crate) fn slot(&self) -> *mut ncclComm_t {
        self.slot.as_ptr()
    }

    /// NCCL's handle, whatever the state; null until NCCL has written it.
    #[inline]
    pub(crate) fn raw_handle(&self) -> ncclComm_t {
        self.slot.load(Ordering::Acquire)
    }

    /// The streams that its operations and graphs run on.
    pub(crate) fn streams(&self) -> Vec<Arc<CudaStream>> {
        unpoisoned(&self.streams).clone()
    }

    /// Adds the communicator's new stream, which comes after what is queued on the one before.
    pub(crate) fn add_stream(&self, stream: &Arc<CudaStream>) {
        let mut streams = unpoisoned(&self.streams);
        streams.retain(|other| other != stream);
        streams.push(Arc::clone(stream));
    }

    /// Adds an object that ends before the communicator does.
    pub(crate) fn add(&self, object: Weak<dyn Object>) {
        let mut objects = unpoisoned(&self.objects);
        objects.retain(|object| object.strong_count() > 0);
        objects.push(object);
    }

    /// Keeps an object that nobody else owns, and that could not be ended, until the communicator has ended.
    pub(crate) fn keep(&self, object: Arc<dyn Object>) {
        unpoisoned(&self.kept).push(object);
    }

    /// All graphs, registrations and windows. The caller drops them without the lock: the last owner of one may add another.
    pub(super) fn objects(&self) -> Vec<Arc<dyn Object>> {
        unpoisoned(&self.objects).iter().filter_map(Weak::upgrade).collect()
    }

    /// All registrations and windows.
    pub(crate) fn registered(&self) -> Vec<(RegisteredMemory, Arc<dyn Object>)> {
        self.objects().into_iter().filter_map(|object| Some((object.memory()?, object))).collect()
    }

    /// The registrations and windows that have any of these addresses.
    pub(crate) fn registered_at(&self, addresses: &Range<u64>) -> Vec<(RegisteredMemory, Arc<dyn Object>)> {
        let mut registered = self.registered();
        registered.retain(|(memory, _)| overlap(&memory.addresses, addresses));
        registered
    }

    pub(crate) fn in_a_symmetric_window(&self, address: u64) -> bool {
        self.registered_at(&(address..address + 1)).iter().any(|(memory, _)| memory.symmetric)
    }

    /// Before an operation on the stream: orders it after a kernel before it that triggers programmatic launch early, where the
    /// loaded NCCL needs that. Events do not order the two kernels; other work between them does.
    #[inline]
    pub(crate) fn fence(&self, stream: &CudaStream) -> Result<(), Error> {
        self.scratch.get().map_or(Ok(()), |scratch| self.write(scratch, stream))
    }

    /// Before a symmetric window is made: operations need a fence from now on, where the loaded NCCL does.
    pub(crate) fn prepare_fence(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let needed = SYMMETRIC_RACE.contains(&self.library.version()) && !self.config.unfenced;
        if needed && self.scratch.get().is_none() {
            _ = self.scratch.set(Allocation::scratch(stream)?);
        }
        Ok(())
    }

    #[cold]
    fn write(&self, scratch: &Allocation, stream: &CudaStream) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        // SAFETY: the byte is alive until `self` is dropped, which waits for the stream; the stream is alive.
        unsafe { result::memset_d8_async(scratch.address, 0, 1, stream.cu_stream()) }
            .map_err(Error::cuda("cuMemsetD8Async"))
    }

    /// Keeps every other thread out of NCCL with this communicator.
    #[inline]
    pub(crate) fn lock(&self) -> StateGuard<'_> {
        self.state.lock()
    }

    /// NCCL's handle, for as long as the guard of the state is held.
    ///
    /// # Errors
    /// [`Error::Unusable`] or [`Error::Aborted`] in a state that is not accepted.
    #[inline]
    pub(crate) fn comm(
        &self,
        state: State,
        accepted: impl FnOnce(State) -> bool,
        operation: &'static str,
    ) -> Result<ncclComm_t, Error> {
        if accepted(state) { Ok(self.raw_handle()) } else { Err(state.refuse(operation)) }
    }

    /// True when NCCL has ended it, or is about to.
    pub(crate) fn is_ending(&self) -> bool {
        !self.lock().exists()
    }

    /// Changes the state `from`, and no other, without NCCL. Returns the state before.
    pub(crate) fn replace(&self, from: State, to: State) -> State {
        let mut state = self.lock();
        let before = *state;
        if before == from {
            *state = to;
        }
        before
    }

    /// Changes the state to `to`, so that graphs that other threads launch are refused, and waits. Alive again when that fails.
    pub(crate) fn wait_in_state<T>(
        &self,
        operation: &'static str,
        to: State,
        wait: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.comm(self.replace(State::Alive, to), State::is_alive, operation)?;
        wait().inspect_err(|_| _ = self.replace(to, State::Alive))
    }

    /// Calls a function of NCCL's in the states that are accepted.
    pub(crate) fn call(
        &self,
        operation: &'static str,
        accepted: impl FnOnce(State) -> bool,
        call: impl FnOnce(&'static Nccl, ncclComm_t) -> Answer,
    ) -> Result<(), Error> {
        let state = self.lock();
        let comm = self.comm(*state, accepted, operation)?;
        self.library.check(operation, call(self.raw(), comm)?)
    }

    /// False while NCCL's background work goes on. When it has failed, the error.
    pub(super) fn is_finished(&self, operation: &'static str) -> Result<bool, Error> {
        let mut code = ncclResult_t::ncclSuccess;
        self.call(operation, State::exists, |raw, comm| {
            // SAFETY: `call` holds the guard, and the handle is alive; writes one code.
            Ok(unsafe { raw.ncclCommGetAsyncError(comm, &mut code) })
        })?;
        Ok(self.library.accept(operation, code)? == ncclResult_t::ncclSuccess)
    }
}

impl Drop for Handle {
    /// Frees the fence's byte in the order of the last stream, which comes after all streams before it.
    fn drop(&mut self) {
        if let (Some(scratch), Some(last)) = (self.scratch.get_mut(), unpoisoned(&self.streams).pop()) {
            scratch.stream = last;
        }
    }
}

/// True when both ranges have an address.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

pub(super) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
