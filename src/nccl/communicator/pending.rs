//! A communicator that is still connecting.

use std::{mem, sync::Arc, time::Duration};

use nccl_sys::ncclResult_t;

use super::handle::{Guards, Handle, State};
use super::{AbortHandle, Communicator};
use crate::nccl::{error::Error, library::Library, nccl_group};

/// A communicator that NCCL is still working on, on a thread of its own. Dropping it aborts the work, and with it the
/// communicator that it is made from, where there is one: NCCL cannot abort one without the other.
///
/// ```no_run
/// # use std::{sync::Arc, time::Duration};
/// # use collectives::nccl::{Communicator, Error, Library, UniqueId};
/// # fn example(library: Library, stream: &Arc<cudarc::driver::CudaStream>, id: UniqueId) -> Result<(), Error> {
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
    /// Until the new communicator exists.
    origin: Option<Origin>,
    communicator: Communicator,
}

/// A new communicator with NCCL's answer. Whatever that is, it is kept until the group that it is made in has ended.
pub(super) type Started = Result<(Pending, Result<(), Error>), Error>;

/// The communicator that the new one is made from. Dropping it aborts work that goes on: NCCL would write to a slot that is gone.
#[derive(Debug)]
struct Origin {
    operation: &'static str,
    parent: Arc<Handle>,
    child: Arc<Handle>,
    /// The parent's state before.
    before: State,
    /// True when NCCL is done with the parent, which may have begun something else since.
    done: bool,
}

impl Origin {
    /// False while NCCL's work goes on.
    fn is_finished(&mut self) -> Result<bool, Error> {
        self.finish(self.parent.is_finished(self.operation))
    }

    /// Waits until NCCL has finished.
    fn settle(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        self.finish(self.parent.settle(self.operation, limit).map(|()| true))
    }

    /// A parent that was closed meanwhile had finished, too.
    fn finish(&mut self, answer: Result<bool, Error>) -> Result<bool, Error> {
        self.done = match answer {
            Err(Error::Aborted { .. }) if *self.parent.lock() == State::Closed => true,
            answer => answer?,
        };
        Ok(self.done)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if !self.done && !matches!(self.is_finished(), Ok(true)) {
            let aborted = self.parent.abort();
            // Another thread may be aborting it.
            self.parent.wait_for_abort();
            if let Err(error) = aborted {
                tracing::warn!("aborting {}: {error}", self.operation);
                // NCCL may still write the new handle into it.
                mem::forget(Arc::clone(&self.child));
            }
        }
        self.parent.replace(State::Busy, self.before);
    }
}

impl Pending {
    /// Starts one communicator.
    pub(super) fn start(operation: &'static str, start: impl FnOnce() -> Started) -> Result<Self, Error> {
        nccl_group::forbid(operation)?;
        let (pending, answer) = start()?;
        answer.map(|()| pending)
    }

    /// Starts several, none without a library, in one group of NCCL's, which uses their parents until it has ended.
    pub(super) fn start_group<'a, T>(
        library: Option<Library>,
        parents: impl IntoIterator<Item = &'a Handle>,
        ranks: impl IntoIterator<Item = T>,
        mut start: impl FnMut(T, &mut Guards<'a>) -> Started,
    ) -> Result<Vec<Self>, Error> {
        let Some(library) = library else { return Ok(Vec::new()) };
        // Those of a group that fails are dropped when it has been cancelled, and the guards have been given back.
        let mut group = Vec::new();
        let mut guards = Guards::lock(parents);
        nccl_group::run(library, nccl_group::END, || {
            ranks.into_iter().try_for_each(|rank| {
                let (pending, answer) = start(rank, &mut guards)?;
                group.push(pending);
                answer
            })
        })?;
        drop(guards);
        Ok(group)
    }

    /// A communicator with NCCL's answer, and the one that it is made from with the state that this had before.
    pub(super) fn new(
        operation: &'static str,
        communicator: Communicator,
        answer: ncclResult_t,
        parent: Option<(&Arc<Handle>, State)>,
    ) -> Started {
        let origin = parent.map(|(parent, before)| {
            let (parent, child) = (Arc::clone(parent), Arc::clone(&communicator.handle));
            Origin { operation, parent, child, before, done: false }
        });
        let answer = communicator.handle.library.accept(operation, answer).map(drop);
        Ok((Self { operation, origin, communicator }, answer))
    }

    /// True when NCCL has finished. Returns at once.
    ///
    /// # Errors
    /// When the work has failed: [`Error::Nccl`], or [`Error::Aborted`]. [`Error::InsideGroup`].
    pub fn poll(&mut self) -> Result<bool, Error> {
        nccl_group::forbid(self.operation)?;
        if let Some(origin) = &mut self.origin
            && !origin.is_finished()?
        {
            return Ok(false);
        }
        self.origin = None;
        // Without a handle NCCL has made no communicator for this rank.
        let handle = &self.communicator.handle;
        Ok(handle.raw_handle().is_null() || handle.is_finished(self.operation)?)
    }

    /// Waits until NCCL has finished, but no longer than `limit`.
    ///
    /// # Errors
    /// [`Error::Deadline`] when it has not, and [`Error::InsideGroup`], which both abort it. [`Error::Nccl`] when it has failed.
    pub fn wait(self, limit: Duration) -> Result<Communicator, Error> {
        let operation = self.operation;
        self.finish(Some(limit))?.ok_or(Error::Aborted { operation })
    }

    /// Waits as long as the configuration allows.
    pub(super) fn join(self) -> Result<Communicator, Error> {
        let operation = self.operation;
        self.join_part()?.ok_or(Error::Aborted { operation })
    }

    /// Like [`join`](Self::join); nothing where NCCL has made no communicator for this rank.
    pub(super) fn join_part(self) -> Result<Option<Communicator>, Error> {
        let limit = self.communicator.handle.config.deadline;
        self.finish(limit)
    }

    fn finish(mut self, limit: Option<Duration>) -> Result<Option<Communicator>, Error> {
        nccl_group::forbid(self.operation)?;
        if let Some(mut origin) = self.origin.take() {
            origin.settle(limit)?;
        }
        if self.communicator.handle.raw_handle().is_null() {
            return Ok(None);
        }
        self.communicator.handle.settle(self.operation, limit)?;
        self.communicator.connected().map(Some)
    }

    /// A handle that ends the work from any thread, and with it the communicator that the new one is made from.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        let handle = self.origin.as_ref().map_or(&self.communicator.handle, |origin| &origin.parent);
        AbortHandle(Arc::clone(handle))
    }
}
