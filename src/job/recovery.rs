//! Going on after a failure: [`Job::shrink`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Job;
use crate::world::{self, Recovery};
use crate::{Error, world::Handle};

/// A rank's [`Recovery`], made with its first group.
#[derive(Clone, Default)]
pub(super) struct Preparation(Arc<OnceLock<Result<Recovery, world::Error>>>);

impl Preparation {
    /// Prepares a rank, unless it is prepared. Collective. An error is kept, and returned by [`Job::shrink`].
    pub(super) fn prepare_rank(&self, world: &Handle) {
        self.0.get_or_init(|| Recovery::new(world));
    }
}

impl From<Recovery> for Preparation {
    fn from(recovery: Recovery) -> Self {
        Self(Arc::new(OnceLock::from(Ok(recovery))))
    }
}

impl Job {
    /// Goes on after a failure: [`Job::shrink_within`] a limit of 10 s.
    ///
    /// ```no_run
    /// use collectives::Error;
    /// use collectives::job::Job;
    /// # fn train(_job: &Job) -> Result<(), collectives::Error> { Ok(()) }
    ///
    /// let mut job = Job::from_environment()?;
    /// // Makes a group, and continues from the last checkpoint.
    /// while let Err(error) = train(&job) {
    ///     // This rank's own error, which the others learn.
    ///     if matches!(error, Error::Job(_) | Error::Buffer(_)) {
    ///         job.fail(&error.to_string());
    ///         return Err(error);
    ///     }
    ///     let left = job.shrink()?;
    ///     if left.size() == job.size() {
    ///         // All ranks are left: the same may fail again. After a timeout, the program could continue
    ///         // with `left`.
    ///         return Err(error);
    ///     }
    ///     job = left;
    /// }
    /// # Ok::<(), collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Job::shrink_within`].
    pub fn shrink(&self) -> Result<Self, Error> {
        self.shrink_within(Recovery::LIMIT)
    }

    /// Goes on without the ranks that are gone: returns a new job of those that are left, renumbered in their
    /// old order. Every rank that is left calls it when an operation has failed; operations of ranks that
    /// still wait for others then fail too. This job and its groups are not used again, and may be dropped
    /// before or after the new job's first group.
    ///
    /// Returns once all that are left have called; a rank that lives but does not call is waited for up to
    /// `limit`, and then left out. [`Recovery::shrink`] says which ranks go on, and why two parts of a job
    /// never do.
    ///
    /// Local ranks are renumbered, too, and [`Backend::Gpu`](super::Backend::Gpu) chooses GPUs by them. A
    /// program that keeps buffers on its GPU names this GPU instead (`Job::group_on_gpu`).
    ///
    /// # Errors
    /// [`Error::Job`] if the job had no group yet, since the first one prepares for failures while all ranks
    /// live; if a rank failed during that, its failure. [`Error::World`] with [`world::Error::LeftOut`] if
    /// the others go on without this rank, [`world::Error::TimedOut`] if too many ranks may live elsewhere or
    /// they do not agree, and [`world::Error::Launcher`] over MPI, whose ranks end together, and with
    /// [`OnFailure::Exit`](world::OnFailure::Exit).
    pub fn shrink_within(&self, limit: Duration) -> Result<Self, Error> {
        let recovery = self.preparation.0.get().ok_or_else(|| {
            Error::Job(
                "this job cannot continue after a failure: the first group prepares the job for failures, \
                 and the job had no group yet"
                    .to_owned(),
            )
        })?;
        let (world, recovery) = recovery.as_ref().map_err(Clone::clone)?.shrink(limit)?;
        Ok(Self::with_preparation(world, recovery.into()))
    }
}
