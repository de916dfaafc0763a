//! Waiting for NCCL, and the end of its object: it is destroyed once its work is done, or aborted.

use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};
use std::{mem, thread};

use nccl_sys::{Nccl, ncclComm_t, ncclResult_t};

use super::handle::{CommunicatorState, Handle, Object, StateGuard};
use crate::lock::lock;
use crate::log;
use crate::nccl::{cuda, error::Error, library::CallResult, nccl_group};

const ABORT: &str = "ncclCommAbort";
pub(super) const CLOSING: &str = "closing the communicator";

/// Time limit of an abort's wait for a thread inside NCCL.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// Aborts a communicator from any thread, for watchdogs. From
/// [`Communicator::abort_handle`](super::Communicator::abort_handle). It does not keep the communicator
/// alive.
#[derive(Clone, Debug)]
pub struct AbortHandle(pub(super) Arc<Handle>);

impl AbortHandle {
    /// Ends all work of the communicator, queued, running or hanging, and frees it (`ncclCommAbort`). The
    /// contents of its buffers are then undefined, its [`Graph`](crate::nccl::Graph)s can no longer be
    /// launched, and the owner's next call returns [`Error::Aborted`]. No effect if the communicator is
    /// already closed or aborted.
    ///
    /// Operations of other ranks waiting for this one can complete, without an error, with undefined data:
    /// NCCL's kernels continue without waiting. Inform the other ranks before, and let them abort as well.
    ///
    /// # Errors
    /// - [`Error::Busy`] if a thread stays inside a blocking NCCL call with the communicator for 5 s: NCCL
    ///   cannot abort then. Non-blocking communicators ([`Config::blocking`](super::Config::blocking)) can be
    ///   aborted at any time.
    /// - [`Error::Nccl`] if NCCL reports an error of the abort.
    pub fn abort(&self) -> Result<(), Error> {
        self.0.abort_communicator()
    }
}

impl Handle {
    /// Calls a function that changes the communicator, and waits until NCCL has finished it.
    pub(super) fn change_state(
        &self,
        operation: &'static str,
        from: CommunicatorState,
        to: CommunicatorState,
        call: impl FnOnce(&'static Nccl, ncclComm_t) -> CallResult,
    ) -> Result<(), Error> {
        nccl_group::forbid_group(operation)?;
        cuda::bind_context(&self.context)?;
        let mut state = self.lock_state();
        let comm = self.comm_in_state(*state, |state| state == from, operation)?;
        let code = self.library.accept_code(operation, call(self.library.raw(), comm)?)?;
        *state = to;
        drop(state);
        self.finish_operation(operation, code)
    }

    /// Waits for NCCL's own thread if it works on an operation according to `code`.
    #[cold]
    pub(crate) fn finish_operation(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        match code {
            ncclResult_t::ncclInProgress => self.wait_for_nccl(operation, self.config.deadline),
            code => self.library.check_code(operation, code),
        }
    }

    /// Waits for NCCL's own thread, without aborting at the deadline.
    pub(crate) fn wait_for_thread(&self, operation: &'static str) {
        let _any = wait_until(self.config.deadline, OPERATION, || self.is_finished(operation));
    }

    /// Waits until NCCL's own thread has finished `operation`. Aborts the communicator at the deadline: NCCL
    /// must not access the operation's buffers after the call.
    #[cold]
    pub(crate) fn wait_for_nccl(
        &self,
        operation: &'static str,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let result = wait_until(limit, OPERATION, || self.is_finished(operation)).unwrap_or_else(|limit| {
            cuda::bind_context(&self.context)?;
            self.abort_locked(self.lock_state())?;
            Err(Error::Deadline { operation, limit })
        });
        result.inspect_err(|_| self.wait_for_abort())
    }

    /// Waits for another thread's abort. During the abort, NCCL's own thread may access the buffers of its
    /// current operation.
    pub(crate) fn wait_for_abort(&self) {
        let _no_limit =
            poll_until(None, SHORT, || (*self.lock_state() != CommunicatorState::Aborting).then_some(()));
    }

    /// Waits for the queued work. While one of its streams is being captured, returns [`Error::Stream`],
    /// since waiting would invalidate the capture.
    pub(super) fn drain_work(&self, operation: &'static str) -> Result<(), Error> {
        cuda::bind_context(&self.context)?;
        wait_until(self.config.deadline, SHORT, || self.is_idle(operation))
            .unwrap_or_else(|limit| Err(Error::Deadline { operation, limit }))
    }

    /// Like [`drain_work`](Self::drain_work), but aborts the communicator if waiting fails, other than by a
    /// capture.
    pub(crate) fn drain_or_abort(&self, operation: &'static str) -> Result<(), Error> {
        let drained = self.drain_work(operation);
        if !matches!(drained, Ok(()) | Err(Error::Stream { .. })) {
            self.abort_after_failure();
        }
        drained
    }

    /// True once the streams have no work left and NCCL reports no error.
    fn is_idle(&self, operation: &'static str) -> Result<bool, Error> {
        if !self.is_finished(operation)? {
            return Ok(false);
        }
        self.used_streams().iter().try_fold(true, |idle, stream| {
            cuda::refuse_captured(operation, stream)?;
            // A capture may have begun meanwhile.
            let captured = |error| cuda::refuse_captured(operation, stream).and(Err(error));
            Ok(idle && cuda::is_idle(stream).or_else(captured)?)
        })
    }

    /// Releases graphs, or all other objects. The caller drops the objects once nobody waits for the
    /// communicator.
    #[must_use = "the last owner of an object waits for the communicator"]
    fn release_objects(&self, graphs: bool) -> Vec<Arc<dyn Object>> {
        let objects = self.live_objects();
        let released = objects.iter().filter(|object| object.is_graph() == graphs);
        released.for_each(|object| object.release_object());
        objects
    }

    /// Releases all objects that must end before the communicator is finalized or destroyed: graphs first, to
    /// prevent further launches, the others after the queued work, to keep them usable if waiting fails. The
    /// caller drops the objects afterwards.
    pub(super) fn drain_and_release(&self, operation: &'static str) -> Result<Vec<Arc<dyn Object>>, Error> {
        cuda::bind_context(&self.context)?;
        self.used_streams().iter().try_for_each(|stream| cuda::refuse_captured(operation, stream))?;
        let mut released = self.release_objects(true);
        self.drain_or_abort(operation)?;
        released.extend(self.release_objects(false));
        Ok(released)
    }

    /// See [`Communicator::close`](super::Communicator::close).
    pub(super) fn close_communicator(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommDestroy";
        // Before the objects are listed: a graph under capture by another thread is known by then, or
        // refused.
        self.replace_state(CommunicatorState::Alive, CommunicatorState::Finalized);
        let released = self.drain_and_release(CLOSING);
        let _released = released.inspect_err(|_| self.abort_after_failure())?;
        cuda::bind_context(&self.context)?;
        let mut state = self.lock_state();
        let comm = self.comm_in_state(*state, CommunicatorState::allows_queries, OPERATION)?;
        *state = CommunicatorState::Closed;
        // SAFETY: the handle is alive, the guard keeps other threads out, and it is not used afterwards.
        let code = unsafe { self.library.raw().ncclCommDestroy(comm) };
        // Unlocked before the drop: a thread dropping a registration waits for the lock and then frees the
        // memory.
        drop(state);
        self.after_end(OPERATION, code)
    }

    pub(crate) fn abort_communicator(&self) -> Result<(), Error> {
        cuda::bind_context(&self.context)?;
        self.aborts.fetch_add(1, Ordering::Relaxed);
        let locked = poll_until(Some(ABORT_LIMIT), SHORT, || self.state.try_lock());
        self.aborts.fetch_sub(1, Ordering::Relaxed);
        self.abort_locked(locked.map_err(|waited| Error::Busy { operation: ABORT, waited })?)
    }

    fn abort_after_failure(&self) {
        if let Err(second) = self.abort_communicator() {
            log::warn(format_args!("aborting a failed communicator: {second}"));
        }
    }

    /// The guard is not held while NCCL aborts: the owner gets an error meanwhile.
    fn abort_locked(&self, mut state: StateGuard<'_>) -> Result<(), Error> {
        if !state.allows_queries() {
            return Ok(());
        }
        *state = CommunicatorState::Aborting;
        drop(state);
        // NCCL waits for the graphs, and ends the other objects itself.
        let objects = self.release_objects(true);
        let comm = self.raw_handle();
        let code = if comm.is_null() {
            ncclResult_t::ncclSuccess
        } else {
            // SAFETY: the handle is alive, and the state keeps all other threads from using it, now and
            // afterwards.
            unsafe { self.library.raw().ncclCommAbort(comm) }
        };
        *self.lock_state() = CommunicatorState::Aborted;
        // Dropped after the abort: the last owner of memory or of a registration waits for it.
        drop(objects);
        self.after_end(ABORT, code)
    }

    fn after_end(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclInProgress {
            // NCCL may still read the configuration's strings.
            mem::forget(self.config.clone());
            return Ok(());
        }
        let ended = self.library.check_code(operation, code);
        let kept = mem::take(&mut *lock(&self.kept));
        if ended.is_err() {
            // NCCL may still use it.
            mem::forget(kept);
        }
        ended
    }
}

/// Yielding time of a wait before it sleeps: most waits are short.
const SHORT: Duration = Duration::from_micros(100);
/// The same for an operation on NCCL's thread. It takes some 100 us.
const OPERATION: Duration = Duration::from_millis(1);

/// Polls until the result is true or an error. The outer error means that the limit has passed.
fn wait_until(
    limit: Option<Duration>,
    awake: Duration,
    mut is_done: impl FnMut() -> Result<bool, Error>,
) -> Result<Result<(), Error>, Duration> {
    poll_until(limit, awake, || is_done().map(|done| done.then_some(())).transpose())
}

/// Polls until there is a result; the error means that the limit has passed. Does not sleep for the time
/// `awake`.
fn poll_until<T>(
    limit: Option<Duration>,
    awake: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, Duration> {
    let started = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return Ok(result);
        }
        let waited = started.elapsed();
        if let Some(limit) = limit.filter(|&limit| waited >= limit) {
            return Err(limit);
        }
        match waited {
            _ if waited < awake => thread::yield_now(),
            _ if waited < Duration::from_millis(10) => thread::sleep(Duration::from_micros(50)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}
