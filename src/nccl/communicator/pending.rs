//! A communicator that is still connecting.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use nccl_sys::ncclResult_t;

use super::Communicator;
use super::handle::{AbortHandle, Handle, State};
use crate::nccl::error::Error;
use crate::nccl::section;

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
    /// Whether it is made from another, so that only NCCL knows its rank and size, and whether there is one.
    derived: bool,
    communicator: Communicator,
}

/// The communicator that the new one is made from: its progress is the new one's. Dropping it aborts work that is going
/// on, since NCCL would write the new handle to a place that is gone.
#[derive(Debug)]
struct Origin {
    operation: &'static str,
    parent: Arc<Handle>,
    child: Arc<Handle>,
    /// The parent's state before.
    before: State,
    /// True when there is nothing left to end.
    done: bool,
}

impl Origin {
    /// True when NCCL has finished; a parent that was closed meanwhile had, too.
    fn is_finished(&self) -> Result<bool, Error> {
        match finished(&self.parent, self.operation) {
            Err(Error::Aborted { .. }) if self.parent.is_closed() => Ok(true),
            answer => answer,
        }
    }

    /// Waits until NCCL has finished.
    fn settle(&self, limit: Option<Duration>) -> Result<(), Error> {
        match self.parent.settle(self.operation, limit) {
            Err(Error::Aborted { .. }) if self.parent.is_closed() => Ok(()),
            answer => answer,
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if !self.done && !matches!(self.is_finished(), Ok(true)) {
            let aborted = self.parent.abort("ncclCommAbort");
            // Another thread may be aborting it.
            self.parent.wait_for_abort();
            if let Err(error) = aborted {
                tracing::warn!("aborting {}: {error}", self.operation);
                // NCCL may still write the new handle into it.
                mem::forget(Arc::clone(&self.child));
            }
        }
        self.parent.end_busy(self.before);
    }
}

impl Pending {
    /// A communicator that is not made from another.
    pub(crate) fn new(operation: &'static str, communicator: Communicator) -> Self {
        Self { operation, origin: None, derived: false, communicator }
    }

    /// One that is.
    pub(crate) fn derived(
        operation: &'static str,
        communicator: Communicator,
        parent: &Arc<Handle>,
        before: State,
    ) -> Self {
        let (parent, child) = (Arc::clone(parent), Arc::clone(&communicator.handle));
        let origin = Some(Origin { operation, parent, child, before, done: false });
        Self { operation, origin, derived: true, communicator }
    }

    /// True when NCCL has finished. Returns at once.
    ///
    /// # Errors
    /// When the work has failed: [`Error::Nccl`], or [`Error::Aborted`]. [`Error::InsideGroup`].
    pub fn poll(&mut self) -> Result<bool, Error> {
        section::forbid(self.operation)?;
        if let Some(origin) = &self.origin {
            if !origin.is_finished()? {
                return Ok(false);
            }
            self.defuse();
        }
        let handle = &self.communicator.handle;
        if self.derived && handle.made().is_null() { Ok(true) } else { finished(handle, self.operation) }
    }

    /// Waits until NCCL has finished, but no longer than `limit`.
    ///
    /// # Errors
    /// [`Error::Deadline`] when it has not: the work is aborted then. [`Error::Nccl`] when it has failed. [`Error::InsideGroup`],
    /// which aborts it, too.
    pub fn wait(self, limit: Duration) -> Result<Communicator, Error> {
        let operation = self.operation;
        self.finish(Some(limit))?.ok_or(Error::Aborted { operation })
    }

    /// Waits as long as the configuration allows.
    pub(crate) fn join(self) -> Result<Communicator, Error> {
        let operation = self.operation;
        self.join_part()?.ok_or(Error::Aborted { operation })
    }

    /// As [`join`](Self::join); nothing where NCCL has made no communicator for this rank.
    pub(crate) fn join_part(self) -> Result<Option<Communicator>, Error> {
        let limit = self.communicator.handle.config.limit();
        self.finish(limit)
    }

    fn finish(mut self, limit: Option<Duration>) -> Result<Option<Communicator>, Error> {
        section::forbid(self.operation)?;
        if let Some(origin) = &self.origin {
            origin.settle(limit)?;
            self.defuse();
        }
        let handle = &self.communicator.handle;
        if self.derived && handle.made().is_null() {
            return Ok(None);
        }
        handle.settle(self.operation, limit)?;
        if self.derived {
            self.communicator.ready_as_nccl_says().map(Some)
        } else {
            Ok(Some(self.communicator.ready()))
        }
    }

    /// NCCL is done with the parent, which may have begun something else since.
    fn defuse(&mut self) {
        if let Some(origin) = &mut self.origin {
            origin.done = true;
        }
        self.origin = None;
    }

    /// A handle that ends the work from any thread, and with it the communicator that the new one is made from.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.origin.as_ref().map_or(&self.communicator.handle, |origin| &origin.parent))
    }
}

fn finished(handle: &Handle, operation: &'static str) -> Result<bool, Error> {
    match handle.progress(operation)? {
        ncclResult_t::ncclSuccess => Ok(true),
        ncclResult_t::ncclInProgress => Ok(false),
        code => Err(handle.library.failure(operation, code)),
    }
}
