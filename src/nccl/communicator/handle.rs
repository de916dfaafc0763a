//! NCCL's object of a communicator, shared by all that need it, and what ends before it does.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use nccl_sys::{MissingSymbol, Nccl, ncclComm, ncclComm_t, ncclResult_t};
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use super::config::Config;
use crate::nccl::allocation::Allocation;
use crate::nccl::cuda;
use crate::nccl::error::Error;
use crate::nccl::library::{Library, SYMMETRIC_RACE};
use crate::nccl::section;

/// Limit for an abort that waits for a thread inside NCCL.
const PATIENCE: Duration = Duration::from_secs(5);

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
    pub(crate) clique: u64,
    /// Communicators that were made of this one.
    derived: AtomicU64,
    /// Where NCCL writes its handle. Some versions write it from a thread of their own, after the call has returned.
    slot: AtomicPtr<ncclComm>,
    /// Its owner takes it around every call, and there is hardly ever anybody else: what counts is what taking it costs
    /// then, which is half with one atomic exchange instead of two. An abort, which may have to wait, waits by itself.
    state: SpinMutex<State, Yield>,
    /// The streams that its operations and graphs run on: the last is the communicator's, the others those it had before.
    streams: Mutex<Vec<Arc<CudaStream>>>,
    dependents: Mutex<Vec<Dependent>>,
    /// Those of them that nobody else owns.
    kept: Mutex<Vec<Arc<dyn Object>>>,
    /// The byte that a [fence](Self::fence) writes, where operations need one.
    scratch: OnceLock<Allocation>,
}

/// An object of the communicator that ends before it does.
#[derive(Debug)]
pub(crate) struct Dependent {
    /// The registered memory; none for a graph.
    pub(crate) memory: Option<KnownMemory>,
    pub(crate) object: Weak<dyn Object>,
}

/// Memory that is registered or a window.
#[derive(Clone, Debug)]
pub(crate) struct KnownMemory {
    pub(crate) addresses: Range<u64>,
    /// NCCL's handle of it, as a number.
    pub(crate) raw: usize,
    /// True for a symmetric window.
    pub(crate) symmetric: bool,
    /// The memory's stream.
    pub(crate) home: Arc<CudaStream>,
}

/// A registration, a window or a graph.
pub(crate) trait Object: std::fmt::Debug + Send + Sync {
    /// Ends it: its communicator is about to be destroyed, or aborted. It is not used any more.
    fn end(&self, ending: Ending);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Destroy,
    /// NCCL ends everything of the communicator, but waits for its graphs.
    Abort,
}

/// State of NCCL's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The handle in the slot may be used.
    Alive,
    /// A communicator is being made from it, by NCCL's own thread: nothing but ending and asking.
    Busy,
    /// Its memory is released: nothing but resuming, ending and asking.
    Suspended,
    /// Its operations have been stopped: nothing but splitting, shrinking, ending and asking.
    Revoked,
    /// Its operations have been flushed: nothing but ending and asking.
    Finalized,
    /// A thread is ending it: nobody else may use it, though NCCL may still do what it was asked to before.
    Aborting,
    Aborted,
    Closed,
}

impl State {
    /// True while NCCL's object may be used.
    fn exists(self) -> bool {
        !matches!(self, Self::Aborting | Self::Aborted | Self::Closed)
    }
}

impl Handle {
    pub(crate) fn new(library: Library, stream: &Arc<CudaStream>, config: Config, clique: u64) -> Arc<Self> {
        Arc::new(Self {
            library,
            context: Arc::clone(stream.context()),
            config,
            clique,
            derived: AtomicU64::new(0),
            slot: AtomicPtr::default(),
            state: SpinMutex::new(State::Alive),
            streams: Mutex::new(vec![Arc::clone(stream)]),
            dependents: Mutex::default(),
            kept: Mutex::default(),
            scratch: OnceLock::new(),
        })
    }

    /// Where NCCL shall write its handle.
    pub(crate) fn slot(&self) -> *mut ncclComm_t {
        self.slot.as_ptr()
    }

    /// How many communicators were made of this one before: the same on all ranks, which make them together.
    pub(crate) fn count_derived(&self) -> u64 {
        self.derived.fetch_add(1, Ordering::Relaxed)
    }

    /// The streams that its operations and graphs run on.
    pub(crate) fn streams(&self) -> Vec<Arc<CudaStream>> {
        unpoisoned(&self.streams).clone()
    }

    pub(crate) fn add_stream(&self, stream: &Arc<CudaStream>) {
        let mut streams = unpoisoned(&self.streams);
        streams.retain(|other| other != stream);
        streams.push(Arc::clone(stream));
    }

    /// Adds an object that ends before the communicator does.
    pub(crate) fn add(&self, dependent: Dependent) {
        let mut dependents = unpoisoned(&self.dependents);
        dependents.retain(|dependent| dependent.object.strong_count() > 0);
        dependents.push(dependent);
    }

    /// The registrations and windows that have any of these addresses.
    pub(crate) fn known_at(&self, addresses: &Range<u64>) -> Vec<(KnownMemory, Arc<dyn Object>)> {
        let mut known = self.known();
        known.retain(|(memory, _)| overlap(&memory.addresses, addresses));
        known
    }

    /// All registrations and windows.
    pub(crate) fn known(&self) -> Vec<(KnownMemory, Arc<dyn Object>)> {
        let dependents = unpoisoned(&self.dependents);
        let known = |dependent: &Dependent| Some((dependent.memory.clone()?, dependent.object.upgrade()?));
        dependents.iter().filter_map(known).collect()
    }

    pub(crate) fn in_a_symmetric_window(&self, address: u64) -> bool {
        self.known_at(&(address..address + 1)).iter().any(|(memory, _)| memory.symmetric)
    }

    /// Ends graphs, or all that NCCL knows memory by. The caller drops them when no one waits for the communicator any more.
    #[must_use = "the last owner of an object waits for the communicator"]
    fn end_objects(&self, graphs: bool, ending: Ending) -> Vec<Arc<dyn Object>> {
        let mut objects = Vec::new();
        unpoisoned(&self.dependents).retain(|dependent| {
            let ends = dependent.memory.is_none() == graphs;
            objects.extend(dependent.object.upgrade().filter(|_| ends));
            !ends
        });
        objects.iter().for_each(|object| object.end(ending));
        objects
    }

    /// Ends all that must end before the communicator is finalized or destroyed, after the queued work: graphs first, so that
    /// nothing is launched any more.
    pub(crate) fn release(&self, operation: &'static str) -> Result<Vec<Arc<dyn Object>>, Error> {
        let mut ended = self.end_objects(true, Ending::Destroy);
        self.drain_or_abort(operation)?;
        ended.extend(self.end_objects(false, Ending::Destroy));
        Ok(ended)
    }

    /// True when there is something to [release](Self::release).
    pub(crate) fn has_dependents(&self) -> bool {
        unpoisoned(&self.dependents).iter().any(|dependent| dependent.object.strong_count() > 0)
    }

    /// Keeps an object that nobody else owns, and that could not be ended, until the communicator has ended.
    pub(crate) fn keep(&self, object: Arc<dyn Object>) {
        unpoisoned(&self.kept).push(object);
    }

    /// Before an operation on the stream: orders it after a kernel before it that triggers programmatic launch early, where
    /// the loaded NCCL needs that. Events do not order the two kernels; other work between them does.
    #[inline]
    pub(crate) fn fence(&self, stream: &CudaStream) -> Result<(), Error> {
        self.scratch.get().map_or(Ok(()), |scratch| self.write(scratch, stream))
    }

    /// Before a symmetric window is made: operations need a fence from now on, where the loaded NCCL does.
    pub(crate) fn prepare_fence(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let needed = SYMMETRIC_RACE.contains(&self.library.version()) && self.config.is_fenced();
        if needed && self.scratch.get().is_none() {
            let scratch = Allocation::scratch(stream)?;
            self.scratch.get_or_init(|| scratch);
        }
        Ok(())
    }

    #[cold]
    fn write(&self, scratch: &Allocation, stream: &CudaStream) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        // SAFETY: the byte is alive until `self` is dropped, when the communicator's work is done; the stream is alive.
        unsafe { result::memset_d8_async(scratch.address, 0, 1, stream.cu_stream()) }
            .map_err(Error::cuda("cuMemsetD8Async"))
    }

    /// True when NCCL has ended it, or is about to.
    pub(crate) fn is_ending(&self) -> bool {
        !self.lock().exists()
    }

    /// True when it was closed, and not aborted.
    pub(crate) fn is_closed(&self) -> bool {
        *self.lock() == State::Closed
    }

    /// Nothing is being made from it any more.
    pub(crate) fn end_busy(&self, before: State) {
        let mut state = self.lock();
        if *state == State::Busy {
            *state = before;
        }
    }

    /// Waits for NCCL's own thread, and does not abort it at the deadline.
    pub(crate) fn wait_for_thread(&self, operation: &'static str) {
        let mut waiting = Waiting::new(self.config.limit());
        while matches!(self.progress(operation), Ok(ncclResult_t::ncclInProgress)) && waiting.pause().is_ok()
        {
        }
    }

    /// NCCL's handle; null until it has written it.
    pub(crate) fn made(&self) -> ncclComm_t {
        self.slot.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn raw(&self) -> &'static Nccl {
        self.library.raw()
    }

    /// Keeps every other thread out of NCCL with this communicator.
    #[inline]
    pub(crate) fn lock(&self) -> StateGuard<'_> {
        self.state.lock()
    }

    /// NCCL's handle for an operation, as long as the guard is held.
    #[inline]
    pub(crate) fn handle(&self, state: State, operation: &'static str) -> Result<ncclComm_t, Error> {
        if state != State::Alive {
            return Err(unusable(state, operation));
        }
        Ok(self.slot.load(Ordering::Acquire))
    }

    /// NCCL's handle, to ask or to end it, in whatever state it is.
    pub(crate) fn existing(&self, state: State, operation: &'static str) -> Result<ncclComm_t, Error> {
        if !state.exists() {
            return Err(Error::Aborted { operation });
        }
        Ok(self.slot.load(Ordering::Acquire))
    }

    /// Calls a function of NCCL's that needs the communicator alive.
    pub(crate) fn call(
        &self,
        operation: &'static str,
        call: impl FnOnce(&'static Nccl, ncclComm_t) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<(), Error> {
        let state = self.lock();
        let handle = self.handle(*state, operation)?;
        self.library.check(operation, call(self.raw(), handle)?)
    }

    /// Calls a function of NCCL's that works in every state in which there is a communicator.
    pub(crate) fn ask(
        &self,
        operation: &'static str,
        call: impl FnOnce(&'static Nccl, ncclComm_t) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<(), Error> {
        let state = self.lock();
        let handle = self.existing(*state, operation)?;
        self.library.check(operation, call(self.raw(), handle)?)
    }

    /// State of NCCL's background work: ncclInProgress, ncclSuccess or an error.
    pub(crate) fn progress(&self, operation: &'static str) -> Result<ncclResult_t, Error> {
        let mut code = ncclResult_t::ncclSuccess;
        // SAFETY: `ask` holds the guard, and the handle is alive; writes one code.
        self.ask(operation, |raw, handle| Ok(unsafe { raw.ncclCommGetAsyncError(handle, &mut code) }))?;
        Ok(code)
    }

    /// Calls a function that changes the communicator, and waits until NCCL is done with it: it may go on in a thread
    /// of its own.
    pub(crate) fn change(
        &self,
        operation: &'static str,
        from: &[State],
        to: State,
        call: impl FnOnce(&'static Nccl, ncclComm_t) -> Result<ncclResult_t, Error>,
    ) -> Result<(), Error> {
        section::forbid(operation)?;
        cuda::bind(&self.context)?;
        let mut state = self.lock();
        if !from.contains(&*state) {
            return Err(unusable(*state, operation));
        }
        let code = call(self.raw(), self.slot.load(Ordering::Acquire))?;
        if code != ncclResult_t::ncclInProgress {
            self.library.check(operation, code)?;
        }
        *state = to;
        drop(state);
        if code == ncclResult_t::ncclInProgress {
            self.settle(operation, self.config.limit())
        } else {
            Ok(())
        }
    }

    /// Waits until NCCL's own thread has finished what `operation` started. At the deadline the communicator is
    /// aborted, so that NCCL no longer touches the operation's buffers when the call returns.
    #[cold]
    pub(crate) fn settle(&self, operation: &'static str, limit: Option<Duration>) -> Result<(), Error> {
        let mut waiting = Waiting::new(limit);
        loop {
            match self.progress(operation) {
                Ok(ncclResult_t::ncclSuccess) => return Ok(()),
                Ok(ncclResult_t::ncclInProgress) => {}
                Ok(code) => return Err(self.library.failure(operation, code)),
                Err(error) => {
                    self.wait_for_abort();
                    return Err(error);
                }
            }
            if let Err(limit) = waiting.pause() {
                cuda::bind(&self.context)?;
                self.end(self.lock())?;
                self.wait_for_abort();
                return Err(Error::Deadline { operation, limit });
            }
        }
    }

    /// Until another thread's abort is done, NCCL's own thread may touch the buffers of what it is working on.
    pub(crate) fn wait_for_abort(&self) {
        let mut waiting = Waiting::new(None);
        while *self.lock() == State::Aborting {
            let _no_limit = waiting.pause();
        }
    }

    /// Aborts (`ncclCommAbort`), unless there is nothing left to abort.
    pub(crate) fn abort(&self, operation: &'static str) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        let state = self.lock_for_abort(operation)?;
        self.end(state)
    }

    /// The guard is not held while NCCL aborts, so that the owner is told meanwhile that the communicator is of no use any
    /// more.
    fn end(&self, mut state: StateGuard<'_>) -> Result<(), Error> {
        if !state.exists() {
            return Ok(());
        }
        *state = State::Aborting;
        drop(state);
        // NCCL waits for the graphs.
        let ended = self.end_objects(true, Ending::Abort);
        let handle = self.slot.load(Ordering::Acquire);
        let code = if handle.is_null() {
            ncclResult_t::ncclSuccess
        } else {
            // SAFETY: the handle is alive, and the state keeps everybody else from using it, now and afterwards.
            unsafe { self.raw().ncclCommAbort(handle) }
        };
        *self.lock() = State::Aborted;
        // Not before: the last owner of memory or of a registration waits for the abort.
        drop(ended);
        self.ended("ncclCommAbort", code)
    }

    /// After NCCL has ended the communicator.
    fn ended(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclInProgress {
            // NCCL may still look at the texts.
            std::mem::forget(self.config.clone());
            return Ok(());
        }
        let ended = self.library.check(operation, code);
        let kept = std::mem::take(&mut *unpoisoned(&self.kept));
        if ended.is_ok() {
            drop(kept);
        } else {
            // NCCL may still know it.
            std::mem::forget(kept);
        }
        ended
    }

    fn lock_for_abort(&self, operation: &'static str) -> Result<StateGuard<'_>, Error> {
        let mut waiting = Waiting::new(Some(PATIENCE));
        loop {
            if let Some(guard) = self.state.try_lock() {
                return Ok(guard);
            }
            if let Err(waited) = waiting.pause() {
                return Err(Error::Busy { operation, waited });
            }
        }
    }

    /// Destroys (`ncclCommDestroy`), unless it has been aborted.
    fn destroy(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommDestroy";
        cuda::bind(&self.context)?;
        let mut state = self.lock();
        let handle = self.existing(*state, OPERATION)?;
        *state = State::Closed;
        // SAFETY: the handle is alive, the guard keeps other threads out, and nobody uses it afterwards.
        let code = unsafe { self.raw().ncclCommDestroy(handle) };
        drop(state);
        self.ended(OPERATION, code)
    }

    /// Waits for the queued work, ends what belongs to the communicator, and destroys it. One that fails is aborted.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let _ended = self.release("closing the communicator")?;
        self.destroy()
    }

    /// Waits for the queued work; aborts the communicator when that fails.
    pub(crate) fn drain_or_abort(&self, operation: &'static str) -> Result<(), Error> {
        self.drain(operation).inspect_err(|_| {
            if let Err(second) = self.abort("ncclCommAbort") {
                tracing::warn!("aborting a failed communicator: {second}");
            }
        })
    }

    /// Waits until the streams have no work left, as long as NCCL reports no error.
    fn drain(&self, operation: &'static str) -> Result<(), Error> {
        let (streams, mut waiting) = (self.streams(), Waiting::new(self.config.limit()));
        cuda::bind(&self.context)?;
        loop {
            let mut idle = match self.progress(operation)? {
                ncclResult_t::ncclSuccess => true,
                ncclResult_t::ncclInProgress => false,
                code => return Err(self.library.failure(operation, code)),
            };
            for stream in &streams {
                // SAFETY: the stream is alive and its context current.
                match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
                    CUresult::CUDA_SUCCESS => {}
                    CUresult::CUDA_ERROR_NOT_READY => idle = false,
                    code => return Err(Error::Cuda { operation: "cuStreamQuery", error: DriverError(code) }),
                }
            }
            if idle {
                return Ok(());
            }
            waiting.pause().map_err(|limit| Error::Deadline { operation, limit })?;
        }
    }
}

#[cold]
pub(crate) fn unusable(state: State, operation: &'static str) -> Error {
    let reason = match state {
        State::Busy => "a communicator is being made from it: wait for that first",
        State::Suspended => "it is suspended: resume it first",
        State::Revoked => "it has been revoked: split or shrink it, or make a new one",
        State::Finalized => "it has been finalized: make a new one",
        State::Alive | State::Aborting | State::Aborted | State::Closed => {
            return Error::Aborted { operation };
        }
    };
    Error::Unusable { operation, reason }
}

/// Waits in small steps: at first without sleeping, since most waits are short.
pub(crate) struct Waiting {
    since: Instant,
    limit: Option<Duration>,
    steps: u32,
}

impl Waiting {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { since: Instant::now(), limit, steps: 0 }
    }

    /// One step; at the limit that limit instead.
    pub(crate) fn pause(&mut self) -> Result<(), Duration> {
        if let Some(limit) = self.limit.filter(|&limit| self.since.elapsed() >= limit) {
            return Err(limit);
        }
        self.steps = self.steps.saturating_add(1);
        match self.steps {
            0..100 => thread::yield_now(),
            100..200 => thread::sleep(Duration::from_micros(50)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
        Ok(())
    }
}

/// True when both ranges have an address.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a communicator from any thread: for watchdogs. Obtained from
/// [`Communicator::abort_handle`](super::Communicator::abort_handle); it does not keep the communicator alive.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<Handle>);

impl AbortHandle {
    pub(crate) fn new(handle: &Arc<Handle>) -> Self {
        Self(Arc::clone(handle))
    }

    /// Ends all work of the communicator, queued, running or hanging, and frees it (`ncclCommAbort`). Its buffers then
    /// hold anything, its [`Graph`](crate::nccl::Graph)s cannot be launched any more, and the owner's next call answers
    /// [`Error::Aborted`]. Nothing happens when the communicator is already closed or aborted.
    ///
    /// # Errors
    /// - [`Error::Busy`] when a thread stays for 5 s inside a blocking NCCL call with the communicator: NCCL cannot
    ///   abort then. Non-blocking communicators ([`Config::blocking`]) can be aborted at any time.
    /// - [`Error::Nccl`] when NCCL reports that something failed while it aborted.
    pub fn abort(&self) -> Result<(), Error> {
        self.0.abort("ncclCommAbort")
    }
}
