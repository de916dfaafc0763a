//! Operations with too long a wait for other ranks.

use std::fmt::{self, Write};
use std::time::Duration;

/// Largest number of ranks named in an error.
pub(crate) const MAX_NAMED: usize = 32;

/// Text before the late ranks.
const LATE: &str = "; these ranks have not called it, are busy, or have continued: ";

/// A wait of a rank that has taken too long ([`World::time_out`](crate::world::World::time_out)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The waiting rank.
    pub rank: usize,
    /// The communicator, as in [`World::compare`](crate::world::World::compare).
    pub topic: u64,
    /// The operation: `all_reduce`. At most 16 KiB.
    pub operation: String,
    /// Its timeout.
    pub limit: Duration,
    /// The awaited calls of other ranks.
    pub awaited: Vec<Awaited>,
}

/// A call awaited by another rank, numbered as a [`Called`](crate::world::Called).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The rank of the call.
    pub rank: usize,
    /// The call's sequence.
    pub place: u64,
    /// Its number in the sequence.
    pub number: u64,
}

/// An operation incomplete at its timeout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// The operation: `all_reduce`.
    pub operation: String,
    /// Its timeout.
    pub limit: Duration,
    /// Awaited ranks that have not reported the call, with their hosts: at most 32, in rank order.
    pub late: Vec<(usize, String)>,
}

impl fmt::Display for Timeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&Self::timeout_text(&self.operation, self.limit, &self.late))
    }
}

impl Timeout {
    /// Creates the timeout of a wait for these ranks; keeps the first 32.
    pub(crate) fn new(wait: Wait, late: impl IntoIterator<Item = (usize, String)>) -> Self {
        let late = late.into_iter().take(MAX_NAMED).collect();
        Self { operation: wait.operation, limit: wait.limit, late }
    }

    /// The text, from the parts.
    pub(crate) fn timeout_text(operation: &str, limit: Duration, late: &[(usize, String)]) -> String {
        let seconds = limit.as_secs_f64();
        format!("{operation}: not complete after {seconds} s, the timeout{}", Self::late_names(late))
    }

    /// Returns the end of the text with the late ranks; empty if there are none.
    pub(crate) fn late_names(late: &[(usize, String)]) -> String {
        let mut text = String::new();
        for (index, (rank, host)) in late.iter().take(MAX_NAMED).enumerate() {
            let before = if index == 0 { LATE } else { ", " };
            // Writing into a string does not fail.
            let _ = write!(text, "{before}rank {rank} on host {host}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(operation: &str, limit: Duration, late: impl IntoIterator<Item = usize>) -> Timeout {
        let late = late.into_iter().map(|rank| (rank, format!("node{rank}"))).collect();
        Timeout { operation: operation.to_owned(), limit, late }
    }

    #[test]
    fn late_ranks_are_named_up_to_a_limit() {
        let limit = Duration::from_millis(1500);
        assert_eq!(
            timeout("barrier", limit, []).to_string(),
            "barrier: not complete after 1.5 s, the timeout"
        );
        assert_eq!(
            timeout("barrier", limit, [1, 12]).to_string(),
            "barrier: not complete after 1.5 s, the timeout; these ranks have not called it, are busy, or \
             have continued: rank 1 on host node1, rank 12 on host node12"
        );
        let wait = Wait { rank: 0, topic: 1, operation: "barrier".to_owned(), limit, awaited: Vec::new() };
        let late = (0..1000).map(|rank| (rank, format!("node{rank}")));
        assert_eq!(Timeout::new(wait, late), timeout("barrier", limit, 0..32));
    }
}
