//! NCCL's communicator object, its state, and calls on it.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::{fmt, ops::Range, ptr, thread};

use cudarc::driver::{CudaContext, CudaStream, result};
use nccl_sys::{Nccl, ncclComm, ncclComm_t, ncclResult_t};
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use super::config::Config;
use crate::lock::lock;
use crate::nccl::library::{CallResult, Library, SYMMETRIC_RACE};
use crate::nccl::{allocation::Allocation, cuda, error::Error};

/// While it is held, no other thread is inside NCCL with the communicator.
pub(crate) type StateGuard<'a> = SpinMutexGuard<'a, CommunicatorState, Yield>;

/// NCCL's communicator object, shared by the communicator and its windows, registrations, graphs and abort
/// handles. NCCL allows one thread at a time per communicator: the mutex is held during every call except an
/// abort; before an abort, the state becomes `Aborting`.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) library: Library,
    pub(crate) context: Arc<CudaContext>,
    /// NCCL keeps pointers to its strings.
    pub(crate) config: Config,
    /// The same number for all ranks of the communicator in this process, and unique among communicators.
    pub(crate) communicator_key: u64,
    /// Number of communicators derived from this one: the same on all ranks, since they derive them together.
    pub(super) derived: AtomicU64,
    /// Number of windows created so far: the same on all ranks, since they create them together.
    pub(crate) windows: AtomicU64,
    /// Slot for NCCL's handle. Some versions write it from a thread of their own, after the call has
    /// returned.
    pub(super) slot: AtomicPtr<ncclComm>,
    /// Held during every call, almost always without contention. A spin lock halves the uncontended cost: one
    /// atomic exchange instead of two. An abort polls instead, since it may wait long.
    pub(super) state: SpinMutex<CommunicatorState, Yield>,
    /// Number of threads polling for the guard in order to abort. A spin lock has no queue: a thread with one
    /// call after the other would keep them out.
    pub(super) aborts: AtomicUsize,
    /// Streams of its operations and graphs: the last is the current one, the others are previous ones.
    streams: Mutex<Vec<Arc<CudaStream>>>,
    /// Graphs, operators, registrations and windows. They must end before the communicator.
    objects: Mutex<Vec<Weak<dyn Object>>>,
    /// Objects without another owner, after a failed release. Kept until the communicator has ended.
    pub(crate) kept: Mutex<Vec<Arc<dyn Object>>>,
    /// Byte written by a [fence](Self::fence_operation), if operations need fences.
    scratch: OnceLock<Allocation>,
    /// Unused streams of [`cuda::track_events`], one for each context object of buffers with events.
    tracking: Mutex<Vec<Arc<CudaStream>>>,
    /// True once `tracking` has a stream of the context object of the communicator's stream.
    pub(crate) tracks_own: AtomicBool,
}

/// Guards of several communicators: no other thread is inside NCCL with any of them.
pub(crate) struct Guards<'a>(Vec<(&'a Handle, StateGuard<'a>)>);

impl<'a> Guards<'a> {
    /// Locks each one once, in a global order: another thread may launch a graph of the same communicators.
    pub(crate) fn lock_all(handles: impl IntoIterator<Item = &'a Handle>) -> Self {
        let mut handles: Vec<_> = handles.into_iter().collect();
        handles.sort_by_key(|handle| ptr::from_ref(*handle));
        handles.dedup_by_key(|handle| ptr::from_ref(*handle));
        Self(handles.into_iter().map(|handle| (handle, handle.lock_state())).collect())
    }

    pub(crate) fn all_alive(self, operation: &'static str) -> Result<Self, Error> {
        for (handle, state) in &self.0 {
            handle.comm_in_state(**state, CommunicatorState::is_alive, operation)?;
        }
        Ok(self)
    }

    /// NCCL's handle of one of them, valid while the guards are held; see [`Handle::comm_in_state`].
    pub(crate) fn comm_of(
        &mut self,
        handle: &Handle,
        accepted: impl FnOnce(CommunicatorState) -> bool,
        operation: &'static str,
    ) -> Result<(ncclComm_t, &mut CommunicatorState), Error> {
        let guard = self.0.iter_mut().find(|(other, _)| ptr::eq(*other, handle));
        let state = &mut *guard.ok_or(Error::Aborted { operation })?.1;
        Ok((handle.comm_in_state(*state, accepted, operation)?, state))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RegisteredMemory {
    pub(crate) addresses: Range<u64>,
    /// NCCL's handle of the window or registration, as a number.
    pub(crate) raw: usize,
    pub(crate) symmetric: bool,
    /// Number of a window in the order of creation, the same on all ranks.
    pub(crate) number: u64,
    pub(crate) stream: Arc<CudaStream>,
}

pub(crate) trait Object: fmt::Debug + Send + Sync {
    /// Ends NCCL's part of it, because its communicator is about to end. It is not used afterwards.
    fn release_object(&self);

    /// True for an object that can be launched until it is released.
    fn is_graph(&self) -> bool {
        false
    }

    /// Memory of a registration or window; `None` for other objects.
    fn registered_memory(&self) -> Option<RegisteredMemory> {
        None
    }
}

/// State of NCCL's object. Between `Alive` and `Aborting`, only queries, ending and the operations named
/// at the state are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommunicatorState {
    Alive,
    /// NCCL's own thread is creating a communicator from it.
    Busy,
    /// Its memory is being released.
    Suspending,
    /// Its memory is released. It can be resumed.
    Suspended,
    /// Its operations have been stopped. It can be split and shrunk.
    Revoked,
    /// Its operations have been flushed or are being flushed, by the end of the communicator too.
    Finalized,
    /// A thread is ending it: no other thread may use it, though NCCL may still be working on earlier
    /// operations.
    Aborting,
    Aborted,
    Closed,
}

impl CommunicatorState {
    /// True while operations are allowed.
    #[inline]
    pub(crate) fn is_alive(self) -> bool {
        self == Self::Alive
    }

    /// True while queries and ending are allowed.
    pub(crate) fn allows_queries(self) -> bool {
        !matches!(self, Self::Aborting | Self::Aborted | Self::Closed)
    }

    #[cold]
    pub(crate) fn refuse_operation(self, operation: &'static str) -> Error {
        let reason = match self {
            Self::Busy => "a communicator is being made from it: wait for the new communicator first",
            Self::Suspending | Self::Suspended => "it is suspended: resume it first",
            Self::Revoked => "its operations have been stopped: split or shrink it, or make a new one",
            Self::Finalized => "it has been finalized: make a new one",
            _ => return Error::Aborted { operation },
        };
        Error::Unusable { operation, reason }
    }
}

impl Handle {
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
            windows: AtomicU64::new(0),
            slot: AtomicPtr::default(),
            state: SpinMutex::new(CommunicatorState::Alive),
            aborts: AtomicUsize::new(0),
            streams: Mutex::new(vec![Arc::clone(stream)]),
            objects: Mutex::default(),
            kept: Mutex::default(),
            scratch: OnceLock::new(),
            tracking: Mutex::default(),
            tracks_own: AtomicBool::new(false),
        })
    }

    /// Makes cudarc respect the events of a context object as long as the communicator lives, unless the
    /// program has disabled event tracking.
    #[cold]
    pub(crate) fn track_events(&self, context: &Arc<CudaContext>) -> Result<(), Error> {
        cuda::keep_tracking(&mut lock(&self.tracking), context)
    }

    /// Returns false if NCCL works on threads of its own.
    pub(crate) fn is_blocking(&self) -> bool {
        self.config.is_blocking()
    }

    /// NCCL's handle in any state; null until NCCL has written it.
    #[inline]
    pub(crate) fn raw_handle(&self) -> ncclComm_t {
        self.slot.load(Ordering::Acquire)
    }

    pub(crate) fn used_streams(&self) -> Vec<Arc<CudaStream>> {
        lock(&self.streams).clone()
    }

    /// Adds the communicator's new stream. It is ordered after the previous one.
    pub(crate) fn add_stream(&self, stream: &Arc<CudaStream>) {
        let mut streams = lock(&self.streams);
        streams.retain(|other| other != stream);
        streams.push(Arc::clone(stream));
    }

    pub(crate) fn add_object(&self, object: Weak<dyn Object>) {
        let mut objects = lock(&self.objects);
        objects.retain(|object| object.strong_count() > 0);
        objects.push(object);
    }

    /// All graphs, operators, registrations and windows. Drop them without locks and guards: the last owner
    /// of one calls NCCL, and can log and add another.
    pub(crate) fn live_objects(&self) -> Vec<Arc<dyn Object>> {
        lock(&self.objects).iter().filter_map(Weak::upgrade).collect()
    }

    /// Registrations and windows. Call it without locks and guards, as for
    /// [`live_objects`](Self::live_objects): it drops the other objects.
    pub(crate) fn registered_objects(&self) -> Vec<(RegisteredMemory, Arc<dyn Object>)> {
        self.live_objects()
            .into_iter()
            .filter_map(|object| Some((object.registered_memory()?, object)))
            .collect()
    }

    pub(crate) fn registered_at(&self, addresses: &Range<u64>) -> Vec<(RegisteredMemory, Arc<dyn Object>)> {
        let mut registered = self.registered_objects();
        registered.retain(|(memory, _)| ranges_overlap(&memory.addresses, addresses));
        registered
    }

    /// Orders an operation on the stream after a preceding kernel that triggers programmatic launch early, if
    /// the loaded NCCL needs it. Events do not order the two kernels; other work between them does.
    #[inline]
    pub(crate) fn fence_operation(&self, stream: &CudaStream) -> Result<(), Error> {
        self.scratch.get().map_or(Ok(()), |scratch| self.write_scratch(scratch, stream))
    }

    /// Enables fences before a symmetric window is created, if the loaded NCCL needs them.
    pub(crate) fn prepare_fence(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let needed = SYMMETRIC_RACE.contains(&self.library.version()) && !self.config.unfenced;
        if needed && self.scratch.get().is_none() {
            _ = self.scratch.set(Allocation::scratch_byte(stream)?);
        }
        Ok(())
    }

    #[cold]
    fn write_scratch(&self, scratch: &Allocation, stream: &CudaStream) -> Result<(), Error> {
        cuda::bind_context(&self.context)?;
        // SAFETY: the byte is allocated until `self` is dropped, and the drop waits for the stream; the
        // stream is alive.
        unsafe { result::memset_d8_async(scratch.address, 0, 1, stream.cu_stream()) }
            .map_err(Error::of_cuda("cuMemsetD8Async"))
    }

    #[inline]
    pub(crate) fn lock_state(&self) -> StateGuard<'_> {
        if self.aborts.load(Ordering::Relaxed) > 0 {
            self.let_aborts_go_first();
        }
        self.state.lock()
    }

    #[cold]
    fn let_aborts_go_first(&self) {
        while self.aborts.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
    }

    /// Returns NCCL's handle, valid while the state's guard is held; an error in a state not accepted.
    #[inline]
    pub(crate) fn comm_in_state(
        &self,
        state: CommunicatorState,
        accepted: impl FnOnce(CommunicatorState) -> bool,
        operation: &'static str,
    ) -> Result<ncclComm_t, Error> {
        if accepted(state) { Ok(self.raw_handle()) } else { Err(state.refuse_operation(operation)) }
    }

    pub(crate) fn is_ending(&self) -> bool {
        !self.lock_state().allows_queries()
    }

    /// Changes the state only if it is `from`, without calling NCCL. Returns the previous state.
    pub(crate) fn replace_state(&self, from: CommunicatorState, to: CommunicatorState) -> CommunicatorState {
        let mut state = self.lock_state();
        let before = *state;
        if before == from {
            *state = to;
        }
        before
    }

    /// Waits in the state `to`: other threads cannot launch graphs. If the wait fails, the state is alive
    /// again.
    pub(crate) fn wait_in_state<T>(
        &self,
        operation: &'static str,
        to: CommunicatorState,
        wait: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.comm_in_state(
            self.replace_state(CommunicatorState::Alive, to),
            CommunicatorState::is_alive,
            operation,
        )?;
        wait().inspect_err(|_| _ = self.replace_state(to, CommunicatorState::Alive))
    }

    pub(crate) fn call_in_state(
        &self,
        operation: &'static str,
        accepted: impl FnOnce(CommunicatorState) -> bool,
        call: impl FnOnce(&'static Nccl, ncclComm_t) -> CallResult,
    ) -> Result<(), Error> {
        let state = self.lock_state();
        let comm = self.comm_in_state(*state, accepted, operation)?;
        self.library.check_code(operation, call(self.library.raw(), comm)?)
    }

    /// Returns false while NCCL's background work continues, or its error.
    pub(super) fn is_finished(&self, operation: &'static str) -> Result<bool, Error> {
        let mut code = ncclResult_t::ncclSuccess;
        self.call_in_state(operation, CommunicatorState::allows_queries, |raw, comm| {
            // SAFETY: `call_in_state` holds the guard, and the handle is alive; writes one code.
            Ok(unsafe { raw.ncclCommGetAsyncError(comm, &mut code) })
        })?;
        Ok(self.library.accept_code(operation, code)? == ncclResult_t::ncclSuccess)
    }
}

impl Drop for Handle {
    /// Frees the fence's byte in the order of the last stream. It is ordered after all previous ones.
    fn drop(&mut self) {
        if let (Some(scratch), Some(last)) = (self.scratch.get_mut(), lock(&self.streams).pop()) {
            scratch.stream = last;
        }
    }
}

pub(crate) fn ranges_overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}
