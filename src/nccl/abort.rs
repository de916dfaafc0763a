//! A communicator's handle, shared between its owner and those who may abort it.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use nccl_sys::{Nccl, ncclComm, ncclComm_t, ncclResult_t};

use super::config::Config;
use super::cuda;
use super::error::Error;
use super::group;
use super::library::Library;

/// How long an abort waits for a thread that is inside NCCL with the communicator.
const PATIENCE: Duration = Duration::from_secs(5);

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
    state: Mutex<State>,
}

/// What has become of NCCL's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The handle in the slot may be used.
    Alive,
    Aborted,
    Closed,
}

impl Shared {
    pub(crate) fn new(library: Library, context: Arc<CudaContext>, config: Config) -> Arc<Self> {
        let (slot, state) = (AtomicPtr::default(), Mutex::new(State::Alive));
        Arc::new(Self { library, context, config, slot, state })
    }

    /// Where NCCL shall write its handle.
    pub(crate) fn slot(&self) -> *mut ncclComm_t {
        self.slot.as_ptr()
    }

    #[inline]
    pub(crate) fn raw(&self) -> &'static Nccl {
        self.library.raw()
    }

    /// Keeps every other thread out of NCCL with this communicator.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NCCL's handle, as long as the guard is held.
    #[inline]
    pub(crate) fn handle(&self, state: State, operation: &'static str) -> Result<ncclComm_t, Error> {
        if state != State::Alive {
            return Err(Error::Aborted { operation });
        }
        Ok(self.slot.load(Ordering::Acquire))
    }

    /// What NCCL says about work that goes on outside calls: ncclInProgress, ncclSuccess or an error.
    pub(crate) fn progress(&self, operation: &'static str) -> Result<ncclResult_t, Error> {
        let state = self.lock();
        let handle = self.handle(*state, operation)?;
        let mut code = ncclResult_t::ncclSuccess;
        // SAFETY: the handle is alive and the guard keeps other threads out; writes one code.
        let result = unsafe { self.raw().ncclCommGetAsyncError(handle, &mut code) };
        self.library.check("ncclCommGetAsyncError", result)?;
        Ok(code)
    }

    /// Waits until NCCL's own thread has finished what `operation` started. At the deadline the communicator is aborted,
    /// so that NCCL no longer touches the operation's buffers when the call returns.
    #[cold]
    pub(crate) fn settle(&self, operation: &'static str, limit: Option<Duration>) -> Result<(), Error> {
        let mut waiting = Waiting::new(limit);
        loop {
            match self.progress(operation)? {
                ncclResult_t::ncclSuccess => return Ok(()),
                ncclResult_t::ncclInProgress => {}
                code => return Err(self.library.failure(operation, code)),
            }
            if let Err(limit) = waiting.pause() {
                cuda::bind(&self.context)?;
                // Whoever has the lock is aborting, and until that is done NCCL may touch the buffers.
                self.end(self.lock())?;
                return Err(Error::Deadline { operation, limit });
            }
        }
    }

    /// Aborts (`ncclCommAbort`), unless there is nothing left to abort.
    pub(crate) fn abort(&self, operation: &'static str) -> Result<(), Error> {
        group::forbid(operation)?;
        cuda::bind(&self.context)?;
        self.end(self.lock_for_abort(operation)?)
    }

    fn end(&self, mut state: MutexGuard<'_, State>) -> Result<(), Error> {
        if *state != State::Alive {
            return Ok(());
        }
        *state = State::Aborted;
        let handle = self.slot.load(Ordering::Acquire);
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the handle is alive, the guard keeps other threads out, and nobody uses it afterwards.
        let code = unsafe { self.raw().ncclCommAbort(handle) };
        self.library.check("ncclCommAbort", code)
    }

    fn lock_for_abort(&self, operation: &'static str) -> Result<MutexGuard<'_, State>, Error> {
        let mut waiting = Waiting::new(Some(PATIENCE));
        loop {
            match self.state.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
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
        let handle = self.handle(*state, OPERATION)?;
        *state = State::Closed;
        // SAFETY: the handle is alive, the guard keeps other threads out, and nobody uses it afterwards.
        let code = unsafe { self.raw().ncclCommDestroy(handle) };
        if code == ncclResult_t::ncclInProgress { Ok(()) } else { self.library.check(OPERATION, code) }
    }
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
    /// hold anything. The owner's next call answers [`Error::Aborted`]. Nothing happens when the communicator is
    /// already closed or aborted.
    ///
    /// # Errors
    /// - [`Error::Busy`] when a thread stays for 5 s inside a blocking NCCL call with the communicator: NCCL cannot
    ///   abort then. Non-blocking communicators ([`Config::blocking`]) can be aborted at any time.
    /// - [`Error::InsideGroup`] when this thread is inside a [`group`](super::group()).
    /// - [`Error::Nccl`] when NCCL reports that something failed while it aborted.
    pub fn abort(&self) -> Result<(), Error> {
        self.0.abort("ncclCommAbort")
    }
}
