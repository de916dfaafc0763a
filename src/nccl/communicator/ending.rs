//! The end of NCCL's object: destroyed when its work is done, or aborted.

use std::{mem, sync::Arc, time::Duration};

use nccl_sys::ncclResult_t;

use super::handle::{Handle, Object, State, StateGuard, unpoisoned};
use super::poll::poll;
use crate::nccl::{cuda, error::Error};

/// Limit for an abort that waits for a thread inside NCCL.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

impl Handle {
    /// Ends graphs, or all that NCCL knows memory by. The caller drops the objects when no one waits for the communicator any
    /// more.
    #[must_use = "the last owner of an object waits for the communicator"]
    fn end_objects(&self, graphs: bool) -> Vec<Arc<dyn Object>> {
        let objects = self.objects();
        let ended = objects.iter().filter(|object| object.memory().is_none() == graphs);
        ended.for_each(|object| object.end());
        objects
    }

    /// Ends all that must end before the communicator is finalized or destroyed, after the queued work: graphs first, so that
    /// nothing is launched any more. The caller drops the objects afterwards.
    ///
    /// # Errors
    /// See [`drain_or_abort`](Self::drain_or_abort).
    pub(crate) fn release(&self, operation: &'static str) -> Result<Vec<Arc<dyn Object>>, Error> {
        self.refuse_captured(operation)?;
        let mut ended = self.end_objects(true);
        self.drain_or_abort(operation)?;
        ended.extend(self.end_objects(false));
        Ok(ended)
    }

    /// Waits for the queued work, ends what belongs to the communicator, and destroys it (`ncclCommDestroy`). A communicator
    /// for which that fails is aborted.
    pub(crate) fn close(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommDestroy";
        let released = self.release("closing the communicator");
        let _ended = released.inspect_err(|_| self.abort_after_failure())?;
        cuda::bind(&self.context)?;
        let mut state = self.lock();
        let comm = self.comm(*state, State::exists, OPERATION)?;
        *state = State::Closed;
        // SAFETY: the handle is alive, the guard keeps other threads out, and nobody uses it afterwards.
        let code = unsafe { self.raw().ncclCommDestroy(comm) };
        drop(state);
        self.ended(OPERATION, code)
    }

    /// Aborts (`ncclCommAbort`), unless there is nothing left to abort.
    pub(crate) fn abort(&self, operation: &'static str) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        let locked = poll(Some(ABORT_LIMIT), || self.state.try_lock());
        self.end(locked.map_err(|waited| Error::Busy { operation, waited })?)
    }

    fn abort_after_failure(&self) {
        if let Err(second) = self.abort("ncclCommAbort") {
            tracing::warn!("aborting a failed communicator: {second}");
        }
    }

    /// The guard is not held while NCCL aborts, so that the owner is told meanwhile that the communicator is of no use any
    /// more.
    pub(super) fn end(&self, mut state: StateGuard<'_>) -> Result<(), Error> {
        if !state.exists() {
            return Ok(());
        }
        *state = State::Aborting;
        drop(state);
        // NCCL waits for the graphs, and ends the rest itself.
        let ended = self.end_objects(true);
        let comm = self.written();
        let code = if comm.is_null() {
            ncclResult_t::ncclSuccess
        } else {
            // SAFETY: the handle is alive, and the state keeps everybody else from using it, now and afterwards.
            unsafe { self.raw().ncclCommAbort(comm) }
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

    /// Until another thread's abort is done, NCCL's own thread may touch the buffers of what it is working on.
    pub(crate) fn wait_for_abort(&self) {
        let _no_limit = poll(None, || (*self.lock() != State::Aborting).then_some(()));
    }

    /// Waits for the queued work; aborts the communicator when that fails.
    ///
    /// # Errors
    /// [`Error::Stream`] while a stream of it is being captured, which waiting would break: it is not aborted then.
    pub(crate) fn drain_or_abort(&self, operation: &'static str) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        let idle = || self.is_idle(operation).map(|idle| idle.then_some(())).transpose();
        poll(self.config.limit(), idle)
            .unwrap_or_else(|limit| Err(Error::Deadline { operation, limit }))
            .inspect_err(|error| {
                if !matches!(error, Error::Stream { .. }) {
                    self.abort_after_failure();
                }
            })
    }

    fn refuse_captured(&self, operation: &'static str) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        self.streams().iter().try_for_each(|stream| cuda::refuse_captured(operation, stream))
    }

    /// True when the streams have no work left, and NCCL reports no error.
    fn is_idle(&self, operation: &'static str) -> Result<bool, Error> {
        let Some(finished) = self.finished(operation) else { return Ok(false) };
        finished?;
        for stream in self.streams() {
            cuda::refuse_captured(operation, &stream)?;
            if !cuda::is_idle(&stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
