//! Contributions of ranks to a barrier or all_gather.

use super::mismatch::Mismatch;
use crate::world::{Error, Reason};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contribution {
    Barrier,
    Message(Vec<u8>),
}

impl Contribution {
    pub(crate) fn call_name(&self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Message(_) => "all_gather",
        }
    }
}

/// Combines the contributions of all ranks, in rank order from `first`, to the messages of an all_gather;
/// `None` for a barrier.
///
/// # Errors
/// If some ranks are at a barrier and others at an all_gather.
pub(crate) fn combine_contributions(
    contributions: Vec<Contribution>,
    first: usize,
) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let expected = contributions.first().map_or("barrier", Contribution::call_name);
    let mut messages = Vec::new();
    for (index, contribution) in contributions.into_iter().enumerate() {
        let name = contribution.call_name();
        if name != expected {
            return Err(Error::CallMismatch(Mismatch {
                rank: first,
                called: expected.to_owned(),
                peer: first + index,
                peer_called: Some(name.to_owned()),
            }));
        }
        if let Contribution::Message(message) = contribution {
            messages.push(message);
        }
    }
    Ok((!messages.is_empty()).then_some(messages))
}

/// A late rank, or a late process of several ranks.
#[derive(Default)]
pub(crate) struct LateRank {
    /// The rank, or the first one of the process.
    pub(crate) rank: usize,
    /// Ranks of the process, if the late one is not known: ` (the process of ranks 2 to 3)`.
    pub(crate) ranks: String,
    pub(crate) host: String,
    /// Its [`World::note`](crate::world::World::note).
    pub(crate) note: String,
}

const MAX_NAMED: usize = 8;

/// Returns the error for a call that some ranks have not reached within `limit`. The first late rank is the
/// failed one; the reason names the others.
pub(crate) fn late_error(call: &str, limit: Duration, late: &[LateRank]) -> Option<Error> {
    let (LateRank { rank, ranks, host, note }, others) = late.split_first()?;
    let last = |note: &str| {
        let note = note.trim().replace('\n', ", ");
        if note.is_empty() { String::new() } else { format!(" (last heard of it: {note})") }
    };
    let article = if call.starts_with('a') { "an" } else { "a" };
    let mut reason = format!("{article} {call} within {} s{ranks}{}", limit.as_secs_f64(), last(note));
    for (index, LateRank { rank, ranks, host, note }) in others.iter().take(MAX_NAMED - 1).enumerate() {
        let link = if index == 0 { "; neither did" } else { "," };
        reason += &format!("{link} rank {rank} on host {host}{ranks}{}", last(note));
    }
    if others.len() >= MAX_NAMED {
        reason += &format!(" and {} more", others.len() + 1 - MAX_NAMED);
    }
    Some(Error::RankFailed { rank: *rank, host: host.clone(), reason: Reason::Late(reason) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_ranks_are_named_with_their_notes() {
        let late = |count: usize| {
            let one = |rank| LateRank {
                rank,
                ranks: String::new(),
                host: format!("node{rank}"),
                note: if rank == 1 { "a\nb\n" } else { "" }.to_owned(),
            };
            let late: Vec<_> = (1..=count).map(one).collect();
            late_error("barrier", Duration::from_millis(1500), &late).map(|error| error.to_string())
        };
        assert_eq!(late(0), None);
        let first = "rank 1 on host node1 did not come to a barrier within 1.5 s (last heard of it: a, b)";
        assert_eq!(late(1).unwrap(), first);
        let three = format!("{first}; neither did rank 2 on host node2, rank 3 on host node3");
        assert_eq!(late(3).unwrap(), three);
        assert!(late(8).unwrap().ends_with(", rank 8 on host node8"));
        assert!(late(10).unwrap().ends_with(", rank 8 on host node8 and 2 more"));
        let process = LateRank {
            rank: 2,
            ranks: " (the process of ranks 2 to 3)".to_owned(),
            host: "a".to_owned(),
            note: "sums".to_owned(),
        };
        assert_eq!(
            late_error("barrier", Duration::from_secs(1), &[process]).unwrap().to_string(),
            "rank 2 on host a did not come to a barrier within 1 s (the process of ranks 2 to 3) (last heard \
             of it: sums)"
        );
    }

    #[test]
    fn ranks_at_different_calls_are_named() {
        let message = |byte| Contribution::Message(vec![byte]);
        assert_eq!(combine_contributions(vec![message(1), message(2)], 0), Ok(Some(vec![vec![1], vec![2]])));
        assert_eq!(combine_contributions(vec![Contribution::Barrier, Contribution::Barrier], 0), Ok(None));
        let text = combine_contributions(vec![message(1), message(1), Contribution::Barrier], 4)
            .unwrap_err()
            .to_string();
        assert!(text.starts_with("rank 4 called all_gather while rank 6 called barrier"), "{text}");
    }
}
