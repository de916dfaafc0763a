//! Ending a communicator from any thread.

use std::sync::Arc;

use super::handle::Handle;
use crate::nccl::error::Error;

/// Ends a communicator from any thread: for watchdogs. Obtained from
/// [`Communicator::abort_handle`](super::Communicator::abort_handle); it does not keep the communicator alive.
#[derive(Clone, Debug)]
pub struct AbortHandle(pub(super) Arc<Handle>);

impl AbortHandle {
    /// Ends all work of the communicator, queued, running or hanging, and frees it (`ncclCommAbort`). Its buffers then
    /// hold anything, its [`Graph`](crate::nccl::Graph)s cannot be launched any more, and the owner's next call answers
    /// [`Error::Aborted`]. Nothing happens when the communicator is already closed or aborted.
    ///
    /// # Errors
    /// - [`Error::Busy`] when a thread stays for 5 s inside a blocking NCCL call with the communicator: NCCL cannot
    ///   abort then. Non-blocking communicators ([`Config::blocking`](super::Config::blocking)) can be aborted at any time.
    /// - [`Error::Nccl`] when NCCL reports that something failed while it aborted.
    pub fn abort(&self) -> Result<(), Error> {
        self.0.abort("ncclCommAbort")
    }
}
