//! The failure of a run that leaves the job usable.

use std::fmt;

use collectives::fabric;
use collectives::world::{self, World};
use serde::{Deserialize, Serialize};

use crate::gather::gather_json;
use crate::supervision::Stop;

/// End of the job or of the run when a rank fails before all ranks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtFailure {
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
    pub(crate) fn exchange_failures<T>(self, world: &dyn World, own: anyhow::Result<T>) -> anyhow::Result<T> {
        if self == Self::EndJob {
            return own;
        }
        let failure = own.as_ref().err().map(|error| {
            let (rank, host) = (world.rank(), world::host().name);
            (is_of_another_rank(error), RunFailure { rank, host, reason: format!("{error:#}") })
        });
        // The rank that has caused the failures of other ranks comes first.
        let all = gather_json(world, &failure)?.into_iter().flatten();
        match all.min_by_key(|(is_of_another_rank, failure)| (*is_of_another_rank, failure.rank)) {
            Some((_, failure)) => Err(failure.into()),
            None => own,
        }
    }

    /// The same as [`exchange_failures`](Self::exchange_failures), but a refusal comes first. Collective.
    ///
    /// # Errors
    /// The same refusal on all ranks, of the first rank that refuses, or those of `exchange_failures`.
    pub(crate) fn exchange_stops<T>(self, world: &dyn World, own: Result<T, Stop>) -> Result<T, Stop> {
        let refusals = gather_json(world, &own.as_ref().err().and_then(Stop::refusal_text))?;
        if let Some((rank, refusal)) =
            refusals.into_iter().enumerate().find_map(|(rank, own)| Some((rank, own?)))
        {
            return Err(Stop::Refused(format!("rank {rank}: {refusal}")));
        }
        let own = match own {
            Err(Stop::Failed(error)) => Err(error),
            // A refusal of this rank is among the gathered ones.
            own => Ok(own?),
        };
        Ok(self.exchange_failures(world, own)?)
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
