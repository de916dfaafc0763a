//! A communicator that is still connecting.

use std::time::Duration;

use nccl_sys::ncclResult_t;

use super::abort::AbortHandle;
use super::communicator::Communicator;
use super::error::Error;
use super::group;

/// A communicator that NCCL is still working on, on a thread of its own. Dropping it aborts the work.
#[derive(Debug)]
#[must_use = "dropping it aborts the work"]
pub struct Pending {
    operation: &'static str,
    communicator: Communicator,
}

impl Pending {
    pub(crate) fn new(operation: &'static str, communicator: Communicator) -> Self {
        Self { operation, communicator }
    }

    /// Whether NCCL has finished. Returns at once.
    ///
    /// # Errors
    /// When the work has failed: [`Error::Nccl`], or [`Error::Aborted`]. [`Error::InsideGroup`].
    pub fn poll(&mut self) -> Result<bool, Error> {
        group::forbid(self.operation)?;
        let shared = &self.communicator.shared;
        match shared.progress(self.operation)? {
            ncclResult_t::ncclSuccess => Ok(true),
            ncclResult_t::ncclInProgress => Ok(false),
            code => Err(shared.library.failure(self.operation, code)),
        }
    }

    /// Waits until NCCL has finished, but no longer than `limit`.
    ///
    /// # Errors
    /// [`Error::Deadline`] when it has not: the work is aborted then. [`Error::Nccl`] when it has failed.
    pub fn wait(self, limit: Duration) -> Result<Communicator, Error> {
        group::forbid(self.operation)?;
        self.communicator.shared.settle(self.operation, Some(limit))?;
        Ok(self.communicator.ready())
    }

    /// A handle that ends the work from any thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.communicator.abort_handle()
    }
}
