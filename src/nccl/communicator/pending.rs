//! A communicator during its connection.

use std::{mem, sync::Arc, time::Duration};

use nccl_sys::ncclResult_t;

use super::handle::{CommunicatorState, Guards, Handle};
use super::{AbortHandle, Communicator};
use crate::log;
use crate::nccl::{error::Error, library::Library, nccl_group};

/// A communicator that NCCL is creating on a thread of its own. Dropping it aborts the work and, if it is
/// derived from another communicator, the other as well: NCCL cannot abort one without the other.
///
/// ```no_run
/// # use std::{sync::Arc, time::Duration};
/// # use collectives::nccl::{Communicator, Error, Library, UniqueId};
/// # use cudarc::driver::CudaStream;
/// # fn example(library: Library, stream: &Arc<CudaStream>, id: UniqueId) -> Result<(), Error> {
/// let mut pending = Communicator::builder(library, stream).rank(0, 2).id(&id).init_pending()?;
/// while !pending.poll()? {
///     // Load data meanwhile ...
/// }
/// let communicator = pending.wait(Duration::from_secs(30))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it aborts the work"]
pub struct Pending {
    operation: &'static str,
    /// Waits until the new communicator exists.
    origin: Option<Origin>,
    communicator: Communicator,
}

/// A new communicator with NCCL's result code. It is kept until its NCCL group has ended, even after an
/// error.
pub(super) type Started = Result<(Pending, Result<(), Error>), Error>;

/// Parent of the new communicator. Dropping it aborts unfinished work: NCCL would write to a freed slot.
#[derive(Debug)]
struct Origin {
    operation: &'static str,
    parent: Arc<Handle>,
    child: Arc<Handle>,
    /// Previous state of the parent.
    before: CommunicatorState,
    /// True once NCCL has finished with the parent. The parent may have begun another operation since.
    done: bool,
}

impl Origin {
    fn is_finished(&mut self) -> Result<bool, Error> {
        self.finish_origin(self.parent.is_finished(self.operation))
    }

    fn wait_for_nccl(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        self.finish_origin(self.parent.wait_for_nccl(self.operation, limit).map(|()| true))
    }

    /// A parent closed meanwhile has also finished.
    fn finish_origin(&mut self, result: Result<bool, Error>) -> Result<bool, Error> {
        self.done = match result {
            Err(Error::Aborted { .. }) if *self.parent.lock_state() == CommunicatorState::Closed => true,
            result => result?,
        };
        Ok(self.done)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if !self.done && !matches!(self.is_finished(), Ok(true)) {
            let aborted = self.parent.abort_communicator();
            // Another thread may be aborting it.
            self.parent.wait_for_abort();
            if let Err(error) = aborted {
                log::warn(format_args!("aborting {}: {error}", self.operation));
                // NCCL may still write the new handle into it.
                mem::forget(Arc::clone(&self.child));
            }
        }
        self.parent.replace_state(CommunicatorState::Busy, self.before);
    }
}

impl Pending {
    pub(super) fn start(operation: &'static str, start: impl FnOnce() -> Started) -> Result<Self, Error> {
        nccl_group::forbid_group(operation)?;
        let (pending, result) = start()?;
        result.map(|()| pending)
    }

    /// Starts several in one NCCL group. The group uses their parents until it has ended. Starts none without
    /// a library.
    pub(super) fn start_group<'a, T>(
        library: Option<Library>,
        parents: impl IntoIterator<Item = &'a Handle>,
        ranks: impl IntoIterator<Item = T>,
        mut start: impl FnMut(T, &mut Guards<'a>) -> Started,
    ) -> Result<Vec<Self>, Error> {
        let Some(library) = library else { return Ok(Vec::new()) };
        // If the group fails, they are dropped after it was cancelled and the guards were released.
        let mut group = Vec::new();
        let mut guards = Guards::lock_all(parents);
        nccl_group::run_calls(library, nccl_group::END, || {
            ranks.into_iter().try_for_each(|rank| {
                let (pending, result) = start(rank, &mut guards)?;
                group.push(pending);
                result
            })
        })?;
        drop(guards);
        Ok(group)
    }

    /// A communicator with NCCL's result code, and its parent with the previous state.
    pub(super) fn new(
        operation: &'static str,
        communicator: Communicator,
        result: ncclResult_t,
        parent: Option<(&Arc<Handle>, CommunicatorState)>,
    ) -> Started {
        let origin = parent.map(|(parent, before)| {
            let (parent, child) = (Arc::clone(parent), Arc::clone(&communicator.handle));
            Origin { operation, parent, child, before, done: false }
        });
        let result = communicator.handle.library.accept_code(operation, result).map(drop);
        Ok((Self { operation, origin, communicator }, result))
    }

    /// Returns true once NCCL has finished. Does not block.
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Aborted`] if the work has failed. [`Error::InsideGroup`].
    pub fn poll(&mut self) -> Result<bool, Error> {
        nccl_group::forbid_group(self.operation)?;
        if let Some(origin) = &mut self.origin
            && !origin.is_finished()?
        {
            return Ok(false);
        }
        self.origin = None;
        // Without a handle, NCCL has created no communicator for this rank.
        let handle = &self.communicator.handle;
        Ok(handle.raw_handle().is_null() || handle.is_finished(self.operation)?)
    }

    /// Waits until NCCL has finished, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Deadline`] and [`Error::InsideGroup`]: both abort it. [`Error::Nccl`] if the work has failed.
    pub fn wait(self, limit: Duration) -> Result<Communicator, Error> {
        let operation = self.operation;
        self.finish_within(Some(limit))?.ok_or(Error::Aborted { operation })
    }

    /// Waits for at most [`Config::deadline`](super::Config::deadline).
    pub(super) fn wait_for_rank(self) -> Result<Communicator, Error> {
        let operation = self.operation;
        self.wait_for_part()?.ok_or(Error::Aborted { operation })
    }

    /// Like [`wait_for_rank`](Self::wait_for_rank); `None` if NCCL has created no communicator for this rank.
    pub(super) fn wait_for_part(self) -> Result<Option<Communicator>, Error> {
        let limit = self.communicator.handle.config.deadline;
        self.finish_within(limit)
    }

    fn finish_within(mut self, limit: Option<Duration>) -> Result<Option<Communicator>, Error> {
        nccl_group::forbid_group(self.operation)?;
        if let Some(mut origin) = self.origin.take() {
            origin.wait_for_nccl(limit)?;
        }
        if self.communicator.handle.raw_handle().is_null() {
            return Ok(None);
        }
        self.communicator.handle.wait_for_nccl(self.operation, limit)?;
        self.communicator.into_connected().map(Some)
    }

    /// Handle for aborting the work, and with it the parent of the new communicator, from any thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        let handle = self.origin.as_ref().map_or(&self.communicator.handle, |origin| &origin.parent);
        AbortHandle(Arc::clone(handle))
    }
}
