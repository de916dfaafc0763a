//! The failure of a run that leaves the job usable.

use std::fmt;

use collectives::fabric;
use collectives::world::{self, World};
use serde::{Deserialize, Serialize};

use crate::gather::gather;

/// End of the job or of the run when a rank fails before all ranks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtFailure {
    /// The failed rank ends the job.
    EndJob,
    /// The run ends on all ranks.
    EndRun,
}

/// The first rank that has failed in a run before all ranks were connected. The job can still be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// The rank of the job.
    pub rank: usize,
    /// Name of its host.
    pub host: String,
    /// The reason, as a sentence.
    pub reason: String,
}

impl fmt::Display for RunFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "rank {} on host {} failed: {}", self.rank, self.host, self.reason)
    }
}

impl std::error::Error for RunFailure {}

impl AtFailure {
    /// Returns the rank's own result when no rank has failed. Collective, except with [`AtFailure::EndJob`].
    ///
    /// # Errors
    /// The same [`RunFailure`] on all ranks; with [`AtFailure::EndJob`] the rank's own error.
    pub(super) fn exchange_failures<T>(self, world: &dyn World, own: anyhow::Result<T>) -> anyhow::Result<T> {
        if self == Self::EndJob {
            return own;
        }
        let failure = own.as_ref().err().map(|error| {
            let (rank, host) = (world.rank(), world::host().name);
            (is_of_another_rank(error), RunFailure { rank, host, reason: format!("{error:#}") })
        });
        // The rank that has caused the failures of other ranks comes first.
        let all = gather(world, &failure)?.into_iter().flatten();
        match all.min_by_key(|(is_of_another_rank, failure)| (*is_of_another_rank, failure.rank)) {
            Some((_, failure)) => Err(failure.into()),
            None => own,
        }
    }
}

/// True for an error that reports the failure of another rank.
fn is_of_another_rank(error: &anyhow::Error) -> bool {
    let is_failed_rank = |error: &world::Error| matches!(error, world::Error::RankFailed { .. });
    match error.downcast_ref() {
        Some(fabric::Error::World(error)) => is_failed_rank(error),
        Some(error) => matches!(error, fabric::Error::Peer { .. }),
        None => error.downcast_ref().is_some_and(is_failed_rank),
    }
}
