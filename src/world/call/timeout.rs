//! Operations that have waited for other ranks for too long. The text of their error travels between ranks as the reason of a failure.

use std::fmt::{self, Write};
use std::time::Duration;

/// Largest number of ranks that an error names.
const MAX_NAMED: usize = 32;

/// Parts of the text.
const AFTER: &str = ": not complete after ";
const SECONDS: &str = " s, the timeout";
const LATE: &str = "; these ranks have not called it, are busy, or have gone on: ";
const RANK: &str = "rank ";
const HOST: &str = " on host ";

/// An operation of a rank that has waited for too long ([`World::time_out`](crate::world::World::time_out)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The rank that waits.
    pub rank: usize,
    /// The communicator, as in [`World::compare`](crate::world::World::compare).
    pub topic: u64,
    /// The operation: `all_reduce`. At most 16 KiB.
    pub operation: String,
    /// Its timeout.
    pub limit: Duration,
    /// The calls of other ranks that it waits for.
    pub awaited: Vec<Awaited>,
}

/// A call of a rank that another one waits for, numbered as a [`Called`](crate::world::Called).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The rank that is to call it.
    pub rank: usize,
    /// The sequence that numbers the call.
    pub place: u64,
    /// Its number in the sequence.
    pub number: u64,
}

/// The timeout of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeout {
    pub(crate) operation: String,
    pub(crate) limit: Duration,
    /// Awaited ranks that have not reported the call, with their hosts.
    pub(crate) late: Vec<(usize, String)>,
}

impl fmt::Display for Timeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&Self::text(&self.operation, self.limit, &self.late))
    }
}

impl Timeout {
    /// The text, from the parts.
    pub(crate) fn text(operation: &str, limit: Duration, late: &[(usize, String)]) -> String {
        format!("{operation}{AFTER}{}{SECONDS}{}", limit.as_secs_f64(), Self::names(late))
    }

    /// The end of the text, which names the late ranks; empty if there are none.
    pub(crate) fn names(late: &[(usize, String)]) -> String {
        let mut text = String::new();
        for (index, (rank, host)) in late.iter().take(MAX_NAMED).enumerate() {
            let before = if index == 0 { LATE } else { ", " };
            // Writing into a string does not fail.
            let _ = write!(text, "{before}{RANK}{rank}{HOST}{host}");
        }
        text
    }

    /// Finds a timeout in the reason of a failure. Leaves out names that are not well formed.
    pub(crate) fn find(reason: &str) -> Option<Self> {
        let text = reason.strip_prefix("failed: ")?;
        let (text, names) = text.split_once(LATE).unwrap_or((text, ""));
        let (operation, seconds) = text.strip_suffix(SECONDS)?.rsplit_once(AFTER)?;
        let limit = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
        let name = |name: &str| {
            let (rank, host) = name.strip_prefix(RANK)?.split_once(HOST)?;
            Some((rank.parse().ok()?, host.to_owned()))
        };
        let late = names.split(", ").filter_map(name).collect();
        Some(Self { operation: operation.to_owned(), limit, late })
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
    fn a_timeout_is_found_in_the_reason_of_a_failure() {
        for operation in ["", "all_reduce", "all_reduce of 5 float, sum", "waiting: rank 1 on host a"] {
            for limit in [Duration::from_millis(1), Duration::from_millis(1500), Duration::from_secs(86_400)]
            {
                for late in [&[][..], &[0], &[5, 70_000], &[1, 2, 4, 9]] {
                    let timeout = timeout(operation, limit, late.iter().copied());
                    assert_eq!(Timeout::find(&format!("failed: {timeout}")), Some(timeout));
                }
            }
        }
        for reason in [
            "failed: lost: not complete after x s, the timeout",
            "failed: lost: not complete after -1 s, the timeout",
            "failed: lost: not complete after 1e300 s, the timeout",
            "failed: the loss is NaN",
            "died: its connection closed",
        ] {
            assert_eq!(Timeout::find(reason), None, "{reason}");
        }
        let cut = format!("failed: barrier{AFTER}2{SECONDS}{LATE}rank 4 on host c, rank x on host d, rank 5");
        assert_eq!(Timeout::find(&cut).unwrap().late, [(4, "c".to_owned())]);
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
            "barrier: not complete after 1.5 s, the timeout; these ranks have not called it, are busy, or have gone on: \
             rank 1 on host node1, rank 12 on host node12"
        );
        let found = Timeout::find(&format!("failed: {}", timeout("barrier", limit, 0..1000))).unwrap();
        assert_eq!(found, timeout("barrier", limit, 0..32));
    }
}
