//! Operations launched by ranks between two answers.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::status::{Format, Identity, JobCommunicator, Rank, RankPlace, Status};

/// A rank of any communicator: its place, or its number if the place is unknown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RankMember {
    /// A GPU of a process. It may be a rank of several communicators.
    Place(RankPlace),
    /// A rank of one communicator.
    Rank(Identity, u32),
}

/// Operations launched between two answers.
#[derive(Debug)]
pub(super) struct LaunchProgress {
    /// Operations of each rank in all its communicators, as far as both answers have its counts.
    pub launched: BTreeMap<RankMember, u64>,
    /// Ranks with counts in one answer only: they may have launched more.
    pub unknown: BTreeSet<RankMember>,
    /// True if a count went down or a communicator disappeared: the job was restarted or made new
    /// communicators.
    pub has_restarted: bool,
}

impl LaunchProgress {
    /// Compares two answers.
    pub(super) fn between_answers(first: &Status, last: &Status) -> Self {
        let is_text = [first.format, last.format].contains(&Format::Text);
        let mut progress = Self { launched: BTreeMap::new(), unknown: BTreeSet::new(), has_restarted: false };
        for communicator in &last.communicators {
            let before = first.find_communicator(&communicator.identity);
            for rank in &communicator.ranks {
                let grown = match before.and_then(|before| before.rank(rank.rank)) {
                    Some(earlier) => count_growth(earlier, rank, is_text),
                    // A new communicator in JSON was made between the answers. A text names it only if its
                    // ranks differ.
                    None if before.is_none() && !is_text => Some((rank.launched_operations(), true)),
                    None => Some((0, false)),
                };
                progress.has_restarted |= grown.is_none();
                progress.add_operations(member_of(communicator, rank), grown.unwrap_or((0, true)));
            }
        }
        for communicator in &first.communicators {
            let now = last.find_communicator(&communicator.identity);
            progress.has_restarted |= now.is_none() && !is_text;
            let gone =
                communicator.ranks.iter().filter(|rank| now.is_none_or(|now| now.rank(rank.rank).is_none()));
            // A text omits ranks without a difference.
            for rank in gone.filter(|_| is_text) {
                progress.add_operations(member_of(communicator, rank), (0, false));
            }
        }
        progress
    }

    /// Adds operations of a rank in one communicator, with false for an incomplete number.
    fn add_operations(&mut self, member: RankMember, (grown, is_whole): (u64, bool)) {
        if !is_whole {
            self.unknown.insert(member.clone());
        }
        let sum = self.launched.entry(member).or_default();
        *sum = sum.saturating_add(grown);
    }

    /// Checks that no rank of the communicator launched anything, in this communicator or another one.
    pub(super) fn is_still(&self, communicator: &JobCommunicator) -> bool {
        communicator.ranks.iter().map(|rank| member_of(communicator, rank)).all(|member| {
            self.launched.get(&member).is_none_or(|sum| *sum == 0) && !self.unknown.contains(&member)
        })
    }

    /// Returns the number of ranks with launches.
    pub(super) fn count_moving(&self) -> usize {
        self.launched.values().filter(|launched| **launched > 0).count()
    }
}

/// Returns the rank as a member of the job.
pub(super) fn member_of(communicator: &JobCommunicator, rank: &Rank) -> RankMember {
    match &rank.place {
        Some(place) if place.pid >= 0 => RankMember::Place(place.clone()),
        _ => RankMember::Rank(communicator.identity.clone(), rank.rank),
    }
}

/// Returns the operations launched since an earlier answer, and true if the number is complete, or `None` if
/// a count went down.
///
/// A text has only counts differing between ranks, so a count without an earlier value proves nothing.
fn count_growth(earlier: &Rank, now: &Rank, is_text: bool) -> Option<(u64, bool)> {
    let mut sum = 0_u64;
    let mut is_whole =
        !is_text || earlier.counts.keys().all(|collective| now.counts.contains_key(collective));
    for (collective, count) in &now.counts {
        match earlier.counts.get(collective) {
            Some(before) => sum = sum.saturating_add(count.checked_sub(*before)?),
            None if is_text => is_whole = false,
            None => sum = sum.saturating_add(*count),
        }
    }
    Some((sum, is_whole))
}

/// A difference of counts in a communicator without launches.
#[derive(Debug)]
pub(super) struct Standstill<'a> {
    /// The communicator.
    pub communicator: &'a JobCommunicator,
    /// Ranks with fewer launched operations than others, ascending.
    pub behind: Vec<u32>,
    /// Ranks with most launches, ascending.
    pub ahead: Vec<u32>,
    /// Operations not launched by the ranks behind: `AllReduce 6`.
    pub awaited: Vec<String>,
    /// True if two ranks launched different sequences: each has more of some collective than the other.
    pub is_conflict: bool,
}

/// Finds the difference of counts between the ranks of a communicator.
pub(super) fn find_standstill(communicator: &JobCommunicator) -> Option<Standstill<'_>> {
    let most = communicator.ranks.iter().map(Rank::launched_operations).max()?;
    let groups = group_by_counts(communicator);
    if groups.len() < 2 {
        return None;
    }
    // With a common sequence of calls, no count of a rank behind is above the count of a rank ahead.
    let mut vectors: Vec<&BTreeMap<String, u64>> = groups.keys().copied().collect();
    vectors.sort_by_key(|counts| total_count(counts));
    let is_conflict = vectors.windows(2).any(|pair| !is_prefix(pair[0], pair[1]));
    let behind: BTreeSet<u32> = communicator
        .ranks
        .iter()
        .filter(|rank| rank.launched_operations() < most)
        .map(|rank| rank.rank)
        .collect();
    let ahead: BTreeSet<u32> = communicator
        .ranks
        .iter()
        .filter(|rank| rank.launched_operations() == most)
        .map(|rank| rank.rank)
        .collect();
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

/// Returns the ranks by their counts.
pub(super) fn group_by_counts(communicator: &JobCommunicator) -> BTreeMap<&BTreeMap<String, u64>, Vec<u32>> {
    let mut groups: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for rank in &communicator.ranks {
        groups.entry(&rank.counts).or_default().push(rank.rank);
    }
    groups
}

/// Checks that no count of `lower` is above the count in `higher`.
fn is_prefix(lower: &BTreeMap<String, u64>, higher: &BTreeMap<String, u64>) -> bool {
    total_count(lower) < total_count(higher)
        && lower.iter().all(|(collective, count)| higher.get(collective).is_some_and(|other| count <= other))
}

fn total_count(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().fold(0, |sum, count| sum.saturating_add(*count))
}

/// Returns `AllReduce 6, Broadcast 1`, or `nothing` without operations.
pub(super) fn counts_text(counts: &BTreeMap<String, u64>) -> String {
    let nonzero: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(collective, count)| format!("{collective} {count}"))
        .collect();
    if nonzero.is_empty() { "nothing".to_owned() } else { nonzero.join(", ") }
}
