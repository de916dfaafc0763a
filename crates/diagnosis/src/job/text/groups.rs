//! Ranks counted and not named in a text answer.

use std::collections::BTreeSet;

/// Largest number of ranks derived from one answer, a limit against hostile answers.
const MOST_DERIVED: usize = 4 << 20;

/// Ranks of a communicator with the same value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankGroup<T> {
    /// The value.
    pub value: T,
    /// Number of ranks.
    pub size: u32,
    /// Ranks named in the answer.
    pub named: Vec<u32>,
}

/// Largest number of further ranks to derive.
#[derive(Debug)]
pub(super) struct Budget(usize);

impl Budget {
    pub(super) fn new() -> Self {
        Self(MOST_DERIVED)
    }
}

/// Completes the one group without names: it has all ranks that are neither in another group nor absent.
///
/// Returns false if the ranks of a group remain unknown.
pub(super) fn complete_groups<T>(
    groups: &mut [RankGroup<T>],
    size: u32,
    absent: &BTreeSet<u32>,
    budget: &mut Budget,
) -> bool {
    let unnamed: Vec<usize> = (0..groups.len())
        .filter(|&index| (groups[index].named.len() as u64) < u64::from(groups[index].size))
        .collect();
    let [only] = unnamed[..] else {
        return unnamed.is_empty();
    };
    if !groups[only].named.is_empty() || size as usize > budget.0 {
        return false;
    }
    budget.0 -= size as usize;
    let taken: BTreeSet<u32> = groups.iter().flat_map(|group| &group.named).chain(absent).copied().collect();
    let rest: Vec<u32> = (0..size).filter(|rank| !taken.contains(rank)).collect();
    if rest.len() as u64 != u64::from(groups[only].size) {
        return false;
    }
    groups[only].named = rest;
    true
}
