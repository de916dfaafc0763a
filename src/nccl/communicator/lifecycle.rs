//! Waiting for NCCL, and the end of its object: destroyed when its work is done, or aborted.

use std::time::{Duration, Instant};
use std::{mem, sync::Arc, thread};

use nccl_sys::{Nccl, ncclComm_t, ncclResult_t};

use super::handle::{Handle, Object, State, StateGuard, unpoisoned};
use crate::nccl::{cuda, error::Error, library::Answer, nccl_group};

const ABORT: &str = "ncclCommAbort";

/// Limit for an abort that waits for a thread inside NCCL.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// Ends a communicator from any thread: for watchdogs. Obtained from
/// [`Communicator::abort_handle`](super::Communicator::abort_handle); it does not keep the communicator alive.
#[derive(Clone, Debug)]
pub struct AbortHandle(pub(super) Arc<Handle>);

impl AbortHandle {
    /// Ends all work of the communicator, queued, running or hanging, and frees it (`ncclCommAbort`). Its buffers then hold
    /// anything, its [`Graph`](crate::nccl::Graph)s cannot be launched any more, and the owner's next call answers
    /// [`Error::Aborted`]. Nothing happens when the communicator is already closed or aborted.
    ///
    /// # Errors
    /// - [`Error::Busy`] when a thread stays for 5 s inside a blocking NCCL call with the communicator: NCCL cannot abort then.
    ///   Non-blocking communicators ([`Config::blocking`](super::Config::blocking)) can be aborted at any time.
    /// - [`Error::Nccl`] when NCCL reports that something failed while it aborted.
    pub fn abort(&self) -> Result<(), Error> {
        self.0.abort()
    }
}

impl Handle {
    /// Calls a function that changes the communicator, and waits until NCCL is done with it: it may go on in a thread of its own.
    pub(super) fn change(
        &self,
        operation: &'static str,
        from: State,
        to: State,
        call: impl FnOnce(&'static Nccl, ncclComm_t) -> Answer,
    ) -> Result<(), Error> {
        nccl_group::forbid(operation)?;
        cuda::bind(&self.context)?;
        let mut state = self.lock();
        let comm = self.comm(*state, |state| state == from, operation)?;
        let code = self.library.accept(operation, call(self.raw(), comm)?)?;
        *state = to;
        drop(state);
        self.finish(operation, code)
    }

    /// Waits for NCCL's own thread, where `code` says that it works on an operation.
    #[cold]
    pub(crate) fn finish(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        match code {
            ncclResult_t::ncclInProgress => self.settle(operation, self.config.deadline),
            code => self.library.check(operation, code),
        }
    }

    /// Waits for NCCL's own thread, and does not abort it at the deadline.
    pub(crate) fn wait_for_thread(&self, operation: &'static str) {
        let _any = wait_until(self.config.deadline, || self.is_finished(operation));
    }

    /// Waits until NCCL's own thread has finished what `operation` started. At the deadline the communicator is aborted, so that
    /// NCCL no longer touches the operation's buffers when the call returns.
    #[cold]
    pub(crate) fn settle(&self, operation: &'static str, limit: Option<Duration>) -> Result<(), Error> {
        let settled = wait_until(limit, || self.is_finished(operation)).unwrap_or_else(|limit| {
            cuda::bind(&self.context)?;
            self.abort_locked(self.lock())?;
            Err(Error::Deadline { operation, limit })
        });
        settled.inspect_err(|_| self.wait_for_abort())
    }

    /// Waits for another thread's abort to finish: until then NCCL's own thread may touch the buffers of what it is working on.
    pub(crate) fn wait_for_abort(&self) {
        let _no_limit = poll(None, || (*self.lock() != State::Aborting).then_some(()));
    }

    /// Waits for the queued work; aborts the communicator when that fails.
    ///
    /// # Errors
    /// [`Error::Stream`] while a stream of it is being captured, which waiting would break: it is not aborted then.
    pub(crate) fn drain_or_abort(&self, operation: &'static str) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        let drained = wait_until(self.config.deadline, || self.is_idle(operation))
            .unwrap_or_else(|limit| Err(Error::Deadline { operation, limit }));
        if !matches!(drained, Ok(()) | Err(Error::Stream { .. })) {
            self.abort_after_failure();
        }
        drained
    }

    /// True when the streams have no work left, and NCCL reports no error.
    fn is_idle(&self, operation: &'static str) -> Result<bool, Error> {
        if !self.is_finished(operation)? {
            return Ok(false);
        }
        self.streams().iter().try_fold(true, |idle, stream| {
            cuda::refuse_captured(operation, stream)?;
            Ok(idle && cuda::is_idle(stream)?)
        })
    }

    /// Releases graphs, or all others. The caller drops the objects when nobody waits for the communicator.
    #[must_use = "the last owner of an object waits for the communicator"]
    fn release_objects(&self, graphs: bool) -> Vec<Arc<dyn Object>> {
        let objects = self.objects();
        let released = objects.iter().filter(|object| object.is_graph() == graphs);
        released.for_each(|object| object.release());
        objects
    }

    /// Releases all that must end before the communicator is finalized or destroyed: graphs first, so
    /// that nothing is launched any more, the others after the queued work: they stay usable when that fails. The caller drops the
    /// objects afterwards. Fails like [`Self::drain_or_abort`].
    pub(super) fn drain_and_release(&self, operation: &'static str) -> Result<Vec<Arc<dyn Object>>, Error> {
        cuda::bind(&self.context)?;
        self.streams().iter().try_for_each(|stream| cuda::refuse_captured(operation, stream))?;
        let mut released = self.release_objects(true);
        self.drain_or_abort(operation)?;
        released.extend(self.release_objects(false));
        Ok(released)
    }

    /// Waits for the queued work, ends what belongs to the communicator, and destroys it (`ncclCommDestroy`), or aborts it.
    pub(super) fn close(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommDestroy";
        let released = self.drain_and_release("closing the communicator");
        let _released = released.inspect_err(|_| self.abort_after_failure())?;
        cuda::bind(&self.context)?;
        let mut state = self.lock();
        let comm = self.comm(*state, State::exists, OPERATION)?;
        *state = State::Closed;
        // SAFETY: the handle is alive, the guard keeps other threads out, and nobody uses it afterwards.
        let code = unsafe { self.raw().ncclCommDestroy(comm) };
        // Unlocked only now: a thread that drops a registration waits for the lock, and frees the memory then.
        drop(state);
        self.after_end(OPERATION, code)
    }

    /// Aborts (`ncclCommAbort`), unless there is nothing left to abort.
    pub(crate) fn abort(&self) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        let locked = poll(Some(ABORT_LIMIT), || self.state.try_lock());
        self.abort_locked(locked.map_err(|waited| Error::Busy { operation: ABORT, waited })?)
    }

    fn abort_after_failure(&self) {
        if let Err(second) = self.abort() {
            tracing::warn!("aborting a failed communicator: {second}");
        }
    }

    /// The guard is not held while NCCL aborts, so that the owner is told meanwhile that the communicator is of no use any more.
    fn abort_locked(&self, mut state: StateGuard<'_>) -> Result<(), Error> {
        if !state.exists() {
            return Ok(());
        }
        *state = State::Aborting;
        drop(state);
        // NCCL waits for the graphs, and ends the rest itself.
        let objects = self.release_objects(true);
        let comm = self.raw_handle();
        let code = if comm.is_null() {
            ncclResult_t::ncclSuccess
        } else {
            // SAFETY: the handle is alive, and the state keeps everybody else from using it, now and afterwards.
            unsafe { self.raw().ncclCommAbort(comm) }
        };
        *self.lock() = State::Aborted;
        // Dropped only now: the last owner of memory or of a registration waits for the abort.
        drop(objects);
        self.after_end(ABORT, code)
    }

    /// After NCCL has ended the communicator.
    fn after_end(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclInProgress {
            // NCCL may still read the configuration's strings.
            mem::forget(self.config.clone());
            return Ok(());
        }
        let ended = self.library.check(operation, code);
        let kept = mem::take(&mut *unpoisoned(&self.kept));
        if ended.is_err() {
            // NCCL may still know it.
            mem::forget(kept);
        }
        ended
    }
}

/// Asks until the answer is true or an error, no longer than the limit, which is the outer error then.
fn wait_until(
    limit: Option<Duration>,
    mut is_done: impl FnMut() -> Result<bool, Error>,
) -> Result<Result<(), Error>, Duration> {
    poll(limit, || is_done().map(|done| done.then_some(())).transpose())
}

/// Asks until there is an answer, or the limit has passed, which is the error. Does not sleep at first: most waits are short.
fn poll<T>(limit: Option<Duration>, mut ask: impl FnMut() -> Option<T>) -> Result<T, Duration> {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        let waited = started.elapsed();
        if let Some(limit) = limit.filter(|&limit| waited >= limit) {
            return Err(limit);
        }
        match waited.as_micros() {
            0..100 => thread::yield_now(),
            100..10_000 => thread::sleep(Duration::from_micros(50)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}
