//! A communicator's handle, shared between its owner and those who may abort it.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use nccl_sys::{MissingSymbol, Nccl, ncclComm, ncclComm_t, ncclResult_t};
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use super::config::Config;
use super::cuda;
use super::error::Error;
use super::inside;
use super::library::Library;

/// How long an abort waits for a thread that is inside NCCL with the communicator.
const PATIENCE: Duration = Duration::from_secs(5);

/// As long as it is held, no other thread is inside NCCL with the communicator.
pub(crate) type StateGuard<'a> = SpinMutexGuard<'a, State, Yield>;

/// What owner and abort handles share. NCCL wants one thread at a time inside it with a communicator, abort included:
/// the mutex is held around every call.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) library: Library,
    pub(crate) context: Arc<CudaContext>,
    /// NCCL keeps pointers to the texts in it.
    pub(crate) config: Config,
    /// Where NCCL writes its handle. Some versions write it from a thread of their own, after the call has returned.
    slot: AtomicPtr<ncclComm>,
    /// Its owner takes it around every call, and there is hardly ever anybody else: what counts is what taking it costs
    /// then, which is half with one atomic exchange instead of two. An abort, which may have to wait, waits by itself.
    state: SpinMutex<State, Yield>,
    /// The addresses of its symmetric windows.
    windows: Mutex<Vec<Range<u64>>>,
    /// The thread of each graph of its operations. NCCL waits for the graphs before it ends a communicator.
    graphs: Mutex<Vec<ThreadId>>,
}

/// What has become of NCCL's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The handle in the slot may be used.
    Alive,
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
    /// Whether NCCL's object may be used.
    fn exists(self) -> bool {
        !matches!(self, Self::Aborting | Self::Aborted | Self::Closed)
    }
}

impl Shared {
    pub(crate) fn new(library: Library, context: Arc<CudaContext>, config: Config) -> Arc<Self> {
        let (slot, state) = (AtomicPtr::default(), SpinMutex::new(State::Alive));
        Arc::new(Self {
            library,
            context,
            config,
            slot,
            state,
            windows: Mutex::default(),
            graphs: Mutex::default(),
        })
    }

    /// Where NCCL shall write its handle.
    pub(crate) fn slot(&self) -> *mut ncclComm_t {
        self.slot.as_ptr()
    }

    /// There is one more symmetric window of it.
    pub(crate) fn add_window(&self, addresses: Range<u64>) {
        self.windows().push(addresses);
    }

    /// There is one less.
    pub(crate) fn remove_window(&self, addresses: &Range<u64>) {
        let mut windows = self.windows();
        if let Some(index) = windows.iter().position(|window| window == addresses) {
            windows.swap_remove(index);
        }
    }

    pub(crate) fn in_a_window(&self, address: u64) -> bool {
        self.windows().iter().any(|window| window.contains(&address))
    }

    fn windows(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is one more graph of it, in this thread.
    pub(crate) fn add_graph(&self) {
        self.graphs().push(thread::current().id());
    }

    /// There is one less.
    pub(crate) fn remove_graph(&self) {
        self.graphs().pop();
    }

    /// Whether there are graphs of it.
    pub(crate) fn has_graphs(&self) -> bool {
        !self.graphs().is_empty()
    }

    fn graphs(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether NCCL has ended it.
    pub(crate) fn is_aborted(&self) -> bool {
        matches!(*self.lock(), State::Aborted)
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

    /// What NCCL says about work that goes on outside calls: ncclInProgress, ncclSuccess or an error.
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
        inside::forbid(operation)?;
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
                    // A communicator with graphs is blocking, so that NCCL has no thread of its own at work; and its abort
                    // waits for the graphs.
                    if !self.has_graphs() {
                        self.wait_for_abort();
                    }
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
    fn wait_for_abort(&self) {
        let mut waiting = Waiting::new(None);
        while *self.lock() == State::Aborting {
            let _no_limit = waiting.pause();
        }
    }

    /// Aborts (`ncclCommAbort`), unless there is nothing left to abort.
    pub(crate) fn abort(&self, operation: &'static str) -> Result<(), Error> {
        inside::forbid(operation)?;
        cuda::bind(&self.context)?;
        let state = self.lock_for_abort(operation)?;
        if state.exists() && self.graphs().contains(&thread::current().id()) {
            let reason =
                "there are CUDA graphs of it in this thread: drop them first, for NCCL waits for them";
            return Err(Error::Unusable { operation, reason });
        }
        self.end(state)
    }

    /// The guard is not held while NCCL aborts: that may wait until the owner has dropped its graphs, and the owner
    /// must be told meanwhile that the communicator is of no use any more.
    fn end(&self, mut state: StateGuard<'_>) -> Result<(), Error> {
        if !state.exists() {
            return Ok(());
        }
        *state = State::Aborting;
        drop(state);
        let handle = self.slot.load(Ordering::Acquire);
        let code = if handle.is_null() {
            ncclResult_t::ncclSuccess
        } else {
            // SAFETY: the handle is alive, and the state keeps everybody else from using it, now and afterwards.
            unsafe { self.raw().ncclCommAbort(handle) }
        };
        *self.lock() = State::Aborted;
        if code == ncclResult_t::ncclInProgress { Ok(()) } else { self.library.check("ncclCommAbort", code) }
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
    pub(crate) fn destroy(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommDestroy";
        cuda::bind(&self.context)?;
        let mut state = self.lock();
        let handle = self.existing(*state, OPERATION)?;
        *state = State::Closed;
        // SAFETY: the handle is alive, the guard keeps other threads out, and nobody uses it afterwards.
        let code = unsafe { self.raw().ncclCommDestroy(handle) };
        if code == ncclResult_t::ncclInProgress { Ok(()) } else { self.library.check(OPERATION, code) }
    }
}

#[cold]
pub(crate) fn unusable(state: State, operation: &'static str) -> Error {
    let reason = match state {
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

/// Ends a communicator from any thread: for watchdogs. Obtained from
/// [`Communicator::abort_handle`](super::Communicator::abort_handle); it does not keep the communicator alive.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<Shared>);

impl AbortHandle {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Ends all work of the communicator, queued, running or hanging, and frees it (`ncclCommAbort`). Its buffers then
    /// hold anything, and the owner's next call answers [`Error::Aborted`]. Where there are [`Graph`](super::Graph)s of
    /// the communicator, it returns only when their owner has dropped them, too. Nothing happens when the communicator
    /// is already closed or aborted.
    ///
    /// # Errors
    /// - [`Error::Busy`] when a thread stays for 5 s inside a blocking NCCL call with the communicator: NCCL cannot
    ///   abort then. Non-blocking communicators ([`Config::blocking`]) can be aborted at any time.
    /// - [`Error::Unusable`] when this is the owner's thread and there are graphs of the communicator: drop them first.
    /// - [`Error::InsideGroup`] when this thread is inside a [`group`](super::group()).
    /// - [`Error::Nccl`] when NCCL reports that something failed while it aborted.
    pub fn abort(&self) -> Result<(), Error> {
        self.0.abort("ncclCommAbort")
    }
}
