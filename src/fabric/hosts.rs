//! Placement of the ranks on hosts.

/// Hosts of a job: the same on every rank.
///
/// A *lane* consists of one rank of each host, all with the same index on their hosts. There are as many
/// lanes as the smallest host has ranks; larger hosts have ranks without a lane.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    /// The ranks of each host, in order; hosts in the order of their first ranks.
    ranks: Vec<Vec<usize>>,
    /// By rank, its host and its index there.
    places: Vec<(usize, usize)>,
    /// Number of lanes.
    pub(crate) lanes: usize,
}

impl Hosts {
    /// Groups ranks with equal labels into hosts.
    pub(crate) fn new<L: PartialEq>(labels: &[L]) -> Self {
        let mut ranks: Vec<Vec<usize>> = Vec::new();
        let mut places = Vec::with_capacity(labels.len());
        for (rank, label) in labels.iter().enumerate() {
            let known = ranks.iter().position(|others| labels[others[0]] == *label);
            let host = known.unwrap_or_else(|| {
                ranks.push(Vec::new());
                ranks.len() - 1
            });
            places.push((host, ranks[host].len()));
            ranks[host].push(rank);
        }
        let lanes = ranks.iter().map(Vec::len).min().unwrap_or(0);
        Self { ranks, places, lanes }
    }

    /// Number of hosts.
    pub(crate) fn host_count(&self) -> usize {
        self.ranks.len()
    }

    /// True with several hosts, if at least one has several ranks.
    pub(crate) fn is_hierarchical(&self) -> bool {
        self.ranks.len() > 1 && self.ranks.len() < self.places.len()
    }

    /// The host of a rank, and the rank's index there.
    pub(crate) fn host_and_index(&self, rank: usize) -> (usize, usize) {
        self.places[rank]
    }

    /// The ranks of a host.
    pub(crate) fn ranks_of(&self, host: usize) -> &[usize] {
        &self.ranks[host]
    }

    /// True when some host has ranks without a lane.
    pub(crate) fn have_others(&self) -> bool {
        self.ranks.iter().any(|ranks| ranks.len() > self.lanes)
    }

    /// Ranks of a host whose blocks go through a lane: the lane's own rank, then its share of the ranks
    /// without a lane.
    pub(crate) fn bundle_ranks(&self, host: usize, lane: usize) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.ranks[host].iter().skip(lane).step_by(self.lanes.max(1)).copied()
    }
}

/// A rank's place among the hosts of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPosition<'a> {
    pub(crate) hosts: &'a Hosts,
    /// This rank's host.
    pub(crate) host: usize,
    /// This rank's index there.
    pub(crate) index: usize,
}

impl<'a> HostPosition<'a> {
    pub(crate) fn new(hosts: &'a Hosts, rank: usize) -> Self {
        let (host, index) = hosts.host_and_index(rank);
        Self { hosts, host, index }
    }

    /// The ranks of this host.
    pub(crate) fn neighbour_ranks(&self) -> &'a [usize] {
        self.hosts.ranks_of(self.host)
    }

    /// The indices of this host's other ranks, from the next one on, around the end.
    pub(crate) fn other_indices(&self) -> impl Iterator<Item = usize> + use<> {
        let (index, count) = (self.index, self.neighbour_ranks().len());
        (1..count).map(move |distance| (index + distance) % count)
    }

    /// The host `distance` above this one, around the end.
    pub(crate) fn host_above(&self, distance: usize) -> usize {
        (self.host + distance) % self.hosts.host_count()
    }

    /// The host `distance` (at most the number of hosts) below this one, around the end.
    pub(crate) fn host_below(&self, distance: usize) -> usize {
        (self.host + self.hosts.host_count() - distance) % self.hosts.host_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_come_in_the_order_of_their_first_ranks_and_lanes_are_as_many_as_the_fewest_ranks() {
        let hosts = Hosts::new(&["b", "a", "b", "c", "a", "b"]);
        assert_eq!(hosts.host_count(), 3);
        assert_eq!(hosts.ranks, [vec![0, 2, 5], vec![1, 4], vec![3]]);
        assert_eq!((hosts.host_and_index(4), hosts.host_and_index(5)), ((1, 1), (0, 2)));
        assert_eq!((hosts.lanes, hosts.have_others()), (1, true));
        assert_eq!(hosts.bundle_ranks(0, 0).collect::<Vec<_>>(), [0, 2, 5]);
        let here = HostPosition::new(&hosts, 2);
        assert_eq!(here.other_indices().collect::<Vec<_>>(), [2, 0]);
        assert_eq!((here.host_above(2), here.host_below(1)), (2, 2));
    }

    #[test]
    fn ranks_without_a_lane_are_shared_among_the_lanes() {
        let hosts = Hosts::new(&[0, 0, 1, 1, 1, 1, 1]);
        for (host, lane, ranks) in [(0, 0, &[0][..]), (0, 1, &[1]), (1, 0, &[2, 4, 6]), (1, 1, &[3, 5])] {
            assert_eq!(hosts.bundle_ranks(host, lane).collect::<Vec<_>>(), ranks);
            assert_eq!(hosts.bundle_ranks(host, lane).len(), ranks.len());
        }
    }

    #[test]
    fn one_host_alone_or_one_rank_per_host_is_no_hierarchy() {
        for (labels, hierarchical) in
            [(&[1, 1, 1][..], false), (&[1, 2, 3], false), (&[1], false), (&[1, 2, 1], true)]
        {
            assert_eq!(Hosts::new(labels).is_hierarchical(), hierarchical, "{labels:?}");
        }
    }
}
