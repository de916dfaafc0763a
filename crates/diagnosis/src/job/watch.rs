//! Two polls of a job, some seconds apart.

use std::collections::BTreeSet;
use std::time::Duration;

use super::client::{Client, Poll, Unanswered};
use super::status::{Format, Identity, RankPlace, Status};

/// The intended job, if several answer at one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// A process of the job.
    pub pid: Option<i64>,
    /// Hash of a communicator of the job.
    pub communicator: Option<u64>,
}

/// Two polls of a job.
#[derive(Debug)]
pub struct Watch {
    /// Queried address.
    pub address: String,
    /// The first answer.
    pub first: Poll,
    /// The second answer, or the reason for its absence.
    pub second: Result<Poll, Unanswered>,
}

/// Asks twice, and calls `wait` between.
///
/// # Errors
/// [`Unanswered`] if the first question has no answer.
pub fn watch_job(
    client: &Client,
    selection: &Selection,
    interval: Duration,
    wait: &mut dyn FnMut(Duration),
) -> Result<Watch, Unanswered> {
    let first = client.poll_job(&|status| selection.accepts_answer(status))?;
    wait(interval);
    let second =
        client.poll_job(&|status| selection.accepts_answer(status) && same_job(&first.status, status));
    Ok(Watch { address: client.address.clone(), first, second })
}

impl Selection {
    /// Checks that an answer is about the intended job.
    pub fn accepts_answer(&self, status: &Status) -> bool {
        self.pid.is_none_or(|pid| status.process_ids().contains(&pid))
            && self
                .communicator
                .is_none_or(|hash| status.communicators.iter().any(|each| each.identity.hash == hash))
    }
}

impl Watch {
    /// Returns the latest answer.
    pub fn last_answer(&self) -> &Poll {
        self.second.as_ref().unwrap_or(&self.first)
    }

    /// Returns the time between the answers.
    pub fn interval(&self) -> Duration {
        self.last_answer().at.saturating_duration_since(self.first.at)
    }
}

/// Checks that two answers can be about the same job: they share a communicator, a process, or, in a text
/// without both, the sizes of the communicators.
fn same_job(first: &Status, second: &Status) -> bool {
    if first.nccl_version != second.nccl_version {
        return false;
    }
    let identities = |status: &Status| -> BTreeSet<Identity> {
        status.communicators.iter().map(|each| each.identity.clone()).collect()
    };
    if !identities(first).is_disjoint(&identities(second)) {
        return true;
    }
    if first.format == Format::Text {
        return communicator_sizes(first) == communicator_sizes(second);
    }
    let processes = |status: &Status| -> BTreeSet<(String, i64)> {
        status.places_of_ranks().into_iter().map(|RankPlace { host, pid, .. }| (host.clone(), *pid)).collect()
    };
    !processes(first).is_disjoint(&processes(second))
        || (first.communicators.is_empty() && second.communicators.is_empty())
}

/// Returns the sizes of the communicators, ascending.
fn communicator_sizes(status: &Status) -> Vec<(u32, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for kind in &status.kinds {
        *counts.entry(kind.size).or_insert(0_u64) += u64::from(kind.communicators);
    }
    counts.into_iter().collect()
}
