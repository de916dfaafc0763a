//! The groups of ranks that measure at the same time.

use crate::request::Request;
use crate::supervision::Stop;

/// A rank's position in its group: the ranks that carry out operations together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPosition {
    /// The rank's number in the group.
    pub rank: usize,
    /// Number of ranks in the group.
    pub ranks: usize,
    /// The group's number.
    pub color: u64,
}

impl GroupPosition {
    /// The number of the group for the record.
    pub(crate) fn group_number(&self) -> usize {
        usize::try_from(self.color).unwrap_or(usize::MAX)
    }
}

/// The groups of the ranks that measure. The ranks of a group carry out operations together; all groups carry
/// out the same ones at the same time. Ranks outside all groups only wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Ordered by their first ranks.
    groups: Vec<MeasuredGroup>,
    /// The ranks of all groups, in ascending order.
    measured: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MeasuredGroup {
    color: u64,
    /// Ranks of the job, in ascending order.
    ranks: Vec<usize>,
}

impl Groups {
    /// All of `ranks` ranks as one group.
    pub fn of_all(ranks: usize) -> Self {
        Self::from_colors((0..ranks).map(|rank| (0, rank)))
    }

    /// The groups of a request to `processes` processes with `per_process` ranks each.
    ///
    /// # Errors
    /// [`Stop::Refused`] if the request names ranks that the job does not have.
    pub fn new(request: &Request, processes: usize, per_process: usize) -> Result<Self, Stop> {
        let ranks = processes * per_process;
        let Some(chosen) = &request.groups else {
            let color = |process| request.variables.split.map_or(0, |split| split.group_color(process));
            return Ok(Self::from_colors((0..ranks).map(|rank| (color(rank / per_process), rank))));
        };
        Self::of_lists(chosen, ranks)
    }

    /// The chosen ones of a job's `ranks` ranks, in ascending order, as one group.
    ///
    /// # Errors
    /// [`Stop::Refused`] if they are ranks that the job does not have.
    pub(crate) fn of_chosen(chosen: &[usize], ranks: usize) -> Result<Self, Stop> {
        Self::of_lists(&[chosen], ranks)
    }

    /// The groups of these lists of a job's `ranks` ranks, each in ascending order. The number of a group is
    /// its place among the lists.
    fn of_lists<T: AsRef<[usize]>>(lists: &[T], ranks: usize) -> Result<Self, Stop> {
        let colored = |(color, list): (u64, &T)| list.as_ref().iter().map(|&rank| (color, rank)).collect();
        let mut all: Vec<(u64, usize)> = (0..).zip(lists).flat_map::<Vec<_>, _>(colored).collect();
        if let Some((_, rank)) = all.iter().find(|&&(_, rank)| rank >= ranks) {
            return Err(Stop::Refused(format!(
                "rank {rank} is to measure, but there are {ranks} ranks, counted from 0"
            )));
        }
        all.sort_unstable_by_key(|&(_, rank)| rank);
        Ok(Self::from_colors(all.into_iter()))
    }

    /// Groups of ranks with the same color. The ranks are in ascending order.
    fn from_colors(ranks: impl Iterator<Item = (u64, usize)>) -> Self {
        let mut groups: Vec<MeasuredGroup> = Vec::new();
        let mut measured = Vec::new();
        for (color, rank) in ranks {
            measured.push(rank);
            match groups.iter_mut().find(|group| group.color == color) {
                Some(group) => group.ranks.push(rank),
                None => groups.push(MeasuredGroup { color, ranks: vec![rank] }),
            }
        }
        Self { groups, measured }
    }

    /// Number of groups.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The numbers of ranks of the groups.
    pub fn group_sizes(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().map(|group| group.ranks.len())
    }

    /// Number of ranks of the smallest group.
    pub fn smallest_size(&self) -> usize {
        self.group_sizes().min().unwrap_or(0)
    }

    /// Number of ranks of the largest group.
    pub fn largest_size(&self) -> usize {
        self.group_sizes().max().unwrap_or(0)
    }

    /// The ranks of all groups, in ascending order.
    pub(crate) fn measured_ranks(&self) -> impl Iterator<Item = usize> {
        self.measured.iter().copied()
    }

    /// The position of a rank of the job in its group; `None` if it does not measure.
    pub fn rank_position(&self, rank: usize) -> Option<GroupPosition> {
        self.groups.iter().find_map(|group| {
            let position = group.ranks.binary_search(&rank).ok()?;
            Some(GroupPosition { rank: position, ranks: group.ranks.len(), color: group.color })
        })
    }

    /// The number of the rank's group in order of the groups' first ranks.
    pub(crate) fn group_index(&self, rank: usize) -> Option<usize> {
        self.groups.iter().position(|group| group.ranks.binary_search(&rank).is_ok())
    }

    /// The ranks of the rank's group; of a rank that does not measure, only itself.
    pub(crate) fn group_members(&self, rank: usize) -> Vec<usize> {
        let group = self.groups.iter().find(|group| group.ranks.binary_search(&rank).is_ok());
        group.map_or_else(|| vec![rank], |group| group.ranks.clone())
    }

    /// The position of the first rank of each group, and the ranks of the group.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GroupPosition, &[usize])> {
        self.groups.iter().map(|group| {
            (GroupPosition { rank: 0, ranks: group.ranks.len(), color: group.color }, &group.ranks[..])
        })
    }

    /// The position of the first rank that measures.
    pub(crate) fn first_position(&self) -> GroupPosition {
        GroupPosition { rank: 0, ranks: self.groups[0].ranks.len(), color: self.groups[0].color }
    }

    /// The number of a rank of the job among those that measure; `None` if the rank does not measure.
    pub(crate) fn measured_number(&self, rank: usize) -> Option<usize> {
        self.measured.binary_search(&rank).ok()
    }

    /// True when all of the `ranks` ranks of the job are one group.
    pub(crate) fn is_whole(&self, ranks: usize) -> bool {
        self.group_count() == 1 && self.measured.len() == ranks
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::collective::Collective;
    use crate::request::{GroupSplit, Variables};

    fn request(groups: Option<Vec<Vec<usize>>>, split: Option<GroupSplit>) -> Request {
        let variables = Variables { split, ..Variables::default() };
        Request { groups, variables, ..Request::new(vec![Collective::AllReduce]) }
    }

    fn members(groups: &Groups) -> Vec<&[usize]> {
        groups.iter().map(|(_, ranks)| ranks).collect()
    }

    #[test]
    fn processes_of_one_color_are_a_group() {
        let split = request(None, Some(GroupSplit::Modulo(2)));
        let groups = Groups::new(&split, 3, 2).unwrap();
        assert_eq!(members(&groups), [&[0, 1, 4, 5][..], &[2, 3]]);
        assert_eq!(groups.rank_position(4), Some(GroupPosition { rank: 2, ranks: 4, color: 0 }));
        assert_eq!(groups.rank_position(3), Some(GroupPosition { rank: 1, ranks: 2, color: 1 }));
        assert_eq!((groups.smallest_size(), groups.largest_size()), (2, 4));
        // The group of rank 0 is the first, whatever its color.
        let or = Groups::new(&request(None, Some(GroupSplit::Or(2))), 4, 1).unwrap();
        assert_eq!(members(&or), [[0, 2], [1, 3]]);
    }

    #[test]
    fn lists_of_ranks_are_groups_with_the_numbers_of_the_lists() {
        let lists = vec![vec![4, 5], vec![0, 3], vec![2]];
        let groups = Groups::new(&request(Some(lists), None), 6, 1).unwrap();
        assert_eq!(members(&groups), [&[0, 3][..], &[2], &[4, 5]]);
        assert_eq!(groups.rank_position(5), Some(GroupPosition { rank: 1, ranks: 2, color: 0 }));
        assert_eq!(groups.rank_position(3), Some(GroupPosition { rank: 1, ranks: 2, color: 1 }));
        assert_eq!((groups.rank_position(1), groups.measured_number(5)), (None, Some(4)));
    }

    #[test]
    fn ranks_that_are_not_chosen_have_no_position() {
        let groups = Groups::new(&request(Some(vec![vec![1, 3]]), None), 2, 2).unwrap();
        assert_eq!([0, 1, 2, 3].map(|rank| groups.measured_number(rank)), [None, Some(0), None, Some(1)]);
        assert_eq!(groups.rank_position(3), Some(GroupPosition { rank: 1, ranks: 2, color: 0 }));
        assert_eq!(
            (groups.rank_position(2), groups.group_members(2), groups.group_members(1)),
            (None, vec![2], vec![1, 3])
        );
        let outside = Groups::new(&request(Some(vec![vec![1, 4]]), None), 2, 2).unwrap_err();
        assert!(outside.refusal_text().unwrap().starts_with("rank 4 is to measure, but there are 4 ranks"));
    }
}
