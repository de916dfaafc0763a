//! The contract between a group and the backend that carries out its operations.

use std::time::Duration;

use super::backend::{Backend, Choice};
use super::work::Work;
use crate::purpose::Purpose;
use crate::{Element, Error, ReduceOp, world};

/// One rank of a group over one kind of memory. Clones are the same rank of the same group.
///
/// An operation runs after those that were called before, through any clone. The first error stops the group:
/// all later operations return it, on every rank. A refusal ([`Error::is_refusal`]) has sent nothing, and
/// stops nothing. Dropping the last clone waits for the operations under way, and leaves the group; while the
/// thread is panicking, it tells the other ranks instead.
pub(super) trait GroupBackend: Clone {
    /// [`Backend::Host`] or [`Backend::Gpu`].
    const BACKEND: Backend;

    /// Describes the transport in one line.
    fn describe_transport(&self) -> &str;

    /// The purpose of the operations that are called through this clone.
    fn purpose_mut(&mut self) -> &mut Option<Purpose>;

    /// The same rank for operations of a purpose, unless it has one already.
    fn with_default_purpose(&self, purpose: Purpose) -> Self {
        let mut rank = self.clone();
        rank.purpose_mut().get_or_insert(purpose);
        rank
    }

    /// The choice with which a part of the ranks connects over the same backend.
    fn backend_choice(&self) -> Choice;

    /// The longest time that an operation waits for other ranks; `None` waits forever.
    fn operation_timeout(&self) -> Option<Duration>;

    /// Sets the longest time that an operation waits for other ranks.
    fn set_timeout(&self, limit: Option<Duration>);

    /// Returns the error that has stopped the group or the job, without waiting for other ranks.
    fn check_group(&self) -> Result<(), Error>;

    /// Returns when every rank has called it, and all operations before are complete.
    fn run_barrier(&self) -> Result<(), Error>;

    /// Reduces borrowed host memory, and returns when that is complete.
    fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error>;

    /// Replaces borrowed host memory by that of rank `root`, and returns when that is complete.
    fn broadcast_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error>;

    /// Gathers a message of every rank, of up to [`MAX_MESSAGE`](world::MAX_MESSAGE) bytes, in rank order.
    /// `world` is that of the same ranks, if its exchanges may be used: they have the same order on all ranks
    /// only for one group of a job.
    fn all_gather_bytes(&self, mine: &[u8], world: Option<&world::Handle>) -> Result<Vec<Vec<u8>>, Error>;

    /// The stream on which the operations run; `None` on hosts.
    #[cfg(feature = "nccl")]
    fn group_stream(&self) -> Option<&std::sync::Arc<cudarc::driver::CudaStream>> {
        None
    }
}

/// Operations of a backend that own buffers `B` while they run. They return at once; the [`Work`] gives the
/// buffers back, also those of a refused operation.
pub trait Operations<B>: Sized {
    /// Replaces `data` by the reduction of all ranks' `data`.
    fn all_reduce(&self, data: B, op: ReduceOp) -> Work<B>;

    /// Replaces `data` by that of rank `root`.
    fn broadcast(&self, data: B, root: usize) -> Work<B>;

    /// Concatenates all ranks' `part` in `whole`, in rank order. Returns `(part, whole)`.
    fn all_gather(&self, part: B, whole: B) -> Work<(B, B)>;

    /// Stores this rank's block of the reduction of all ranks' `whole` in `part`. Returns `(whole, part)`.
    fn reduce_scatter(&self, whole: B, part: B, op: ReduceOp) -> Work<(B, B)>;

    /// Reduces several buffers as one operation.
    fn all_reduce_list(&self, data: Vec<B>, op: ReduceOp) -> Work<Vec<B>>;
}
