//! Operations that ranks launched between two answers.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::status::{Communicator, Identity, Place, Rank, Status};

/// A rank of any communicator: its place, or its number where the place is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Member {
    /// A GPU of a process, which may be a rank of several communicators.
    Place(Place),
    /// A rank of one communicator.
    Rank(Identity, u32),
}

/// Operations launched between two answers.
#[derive(Debug)]
pub(super) struct Progress {
    /// Operations of each rank in all its communicators.
    pub launched: BTreeMap<Member, u64>,
    /// True when a count went down or a communicator went away: the job was restarted or made new communicators.
    pub has_restarted: bool,
}

impl Progress {
    /// Compares two answers.
    pub(super) fn between(first: &Status, last: &Status) -> Self {
        let mut launched = BTreeMap::new();
        let mut has_restarted = false;
        for communicator in &last.communicators {
            let before = first.find(&communicator.identity);
            for rank in &communicator.ranks {
                let earlier = before.and_then(|before| before.rank(rank.rank));
                let grown = match earlier {
                    Some(earlier) => growth(earlier, rank),
                    // In a text answer, the communicator had no differences before.
                    None => Some(rank.launched()),
                };
                has_restarted |= grown.is_none();
                let sum: &mut u64 = launched.entry(member(communicator, rank)).or_default();
                *sum = sum.saturating_add(grown.unwrap_or(0));
            }
        }
        has_restarted |= first.communicators.iter().any(|each| last.find(&each.identity).is_none());
        Self { launched, has_restarted }
    }

    /// Checks that no rank of the communicator launched anything, in this communicator or another one.
    pub(super) fn is_still(&self, communicator: &Communicator) -> bool {
        communicator
            .ranks
            .iter()
            .all(|rank| self.launched.get(&member(communicator, rank)).is_none_or(|launched| *launched == 0))
    }

    /// Number of ranks that launched something.
    pub(super) fn moving(&self) -> usize {
        self.launched.values().filter(|launched| **launched > 0).count()
    }
}

/// The rank as a member of the job.
pub(super) fn member(communicator: &Communicator, rank: &Rank) -> Member {
    match &rank.place {
        Some(place) if place.pid >= 0 => Member::Place(place.clone()),
        _ => Member::Rank(communicator.identity.clone(), rank.rank),
    }
}

/// Operations launched since an earlier answer; `None` when a count went down.
fn growth(earlier: &Rank, now: &Rank) -> Option<u64> {
    let mut sum = 0_u64;
    for (collective, count) in &now.counts {
        let before = earlier.counts.get(collective).copied().unwrap_or(0);
        sum = sum.saturating_add(count.checked_sub(before)?);
    }
    Some(sum)
}

/// A difference of counts in a communicator whose ranks launch nothing.
#[derive(Debug)]
pub(super) struct Standstill<'a> {
    /// The communicator.
    pub communicator: &'a Communicator,
    /// The ranks that launched fewer operations than others, ascending.
    pub behind: Vec<u32>,
    /// The ranks that launched most, ascending.
    pub ahead: Vec<u32>,
    /// The operations that the ranks behind have not launched: `AllReduce 6`.
    pub awaited: Vec<String>,
    /// True when two ranks launched different sequences: each has more of some collective than the other.
    pub is_conflict: bool,
}

/// Finds the difference of counts between the ranks of a communicator.
pub(super) fn standstill(communicator: &Communicator) -> Option<Standstill<'_>> {
    let most = communicator.ranks.iter().map(Rank::launched).max()?;
    let groups = groups(communicator);
    if groups.len() < 2 {
        return None;
    }
    // Ranks that call the same sequence have counts of which one is nowhere above the other.
    let mut vectors: Vec<&BTreeMap<String, u64>> = groups.keys().copied().collect();
    vectors.sort_by_key(|counts| total(counts));
    let is_conflict = vectors.windows(2).any(|pair| !is_prefix(pair[0], pair[1]));
    let behind: BTreeSet<u32> =
        communicator.ranks.iter().filter(|rank| rank.launched() < most).map(|rank| rank.rank).collect();
    let ahead: BTreeSet<u32> =
        communicator.ranks.iter().filter(|rank| rank.launched() == most).map(|rank| rank.rank).collect();
    let (lowest, highest) = (vectors.first()?, vectors.last()?);
    let awaited = highest
        .iter()
        .filter_map(|(collective, count)| {
            let before = lowest.get(collective).copied().unwrap_or(0);
            (before < *count).then(|| format!("{collective} {}", before.saturating_add(1)))
        })
        .collect();
    Some(Standstill {
        communicator,
        behind: behind.into_iter().collect(),
        ahead: ahead.into_iter().collect(),
        awaited,
        is_conflict,
    })
}

/// The ranks by their counts.
pub(super) fn groups(communicator: &Communicator) -> BTreeMap<&BTreeMap<String, u64>, Vec<u32>> {
    let mut groups: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for rank in &communicator.ranks {
        groups.entry(&rank.counts).or_default().push(rank.rank);
    }
    groups
}

/// Checks that no count of `lower` is above that of `higher`.
fn is_prefix(lower: &BTreeMap<String, u64>, higher: &BTreeMap<String, u64>) -> bool {
    total(lower) < total(higher)
        && lower.iter().all(|(collective, count)| higher.get(collective).is_some_and(|other| count <= other))
}

fn total(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().fold(0, |sum, count| sum.saturating_add(*count))
}

/// `AllReduce 6, Broadcast 1`; `nothing` for no operation.
pub(super) fn counts_text(counts: &BTreeMap<String, u64>) -> String {
    let nonzero: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(collective, count)| format!("{collective} {count}"))
        .collect();
    if nonzero.is_empty() { "nothing".to_owned() } else { nonzero.join(", ") }
}
