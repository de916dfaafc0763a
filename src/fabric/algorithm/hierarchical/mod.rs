//! Algorithms for several ranks per host, if messages between hosts cost far more than messages inside a
//! host.
//!
//! Traffic between hosts is divided among *lanes*, each of one rank of every host
//! ([`Hosts`](crate::fabric::hosts::Hosts)): J. L. Träff and S. Hunold, "Decomposing MPI Collectives for
//! Exploiting Multi-lane Communication" (2020). All ranks of a host share its work, each byte leaves a host
//! as often as it must, and the critical path has as many messages between hosts as an algorithm for one rank
//! per host. Ranks may be placed in any order. On hosts with more ranks than lanes, the other ranks send
//! their data to those with a lane, and get the result from them. If one host has a single rank, or the
//! message is short, there is a single lane.
//!
//! There is no hierarchical all_to_all, gather or scatter: all_to_all and gather were measured to take up to
//! 1.6 times the time of flat algorithms above 32 KiB, and 0.8 to 1 below; scatter 0.8 to 1.4.
//!
//! Costs concern messages between hosts, for `h` hosts with `q` ranks each and `q` lanes.

mod all_gather;
pub(crate) mod barrier;
mod reduce_scatter;
mod vector;

use super::{Location, Schedule, Spec, scratch_at};
use crate::fabric::hosts::HostPosition;
use crate::fabric::selection::{Algorithm, Collective};

/// Parameters of a hierarchical algorithm.
#[derive(Clone, Copy)]
pub(crate) struct Hierarchical<'a> {
    pub(crate) collective: Collective,
    pub(crate) here: HostPosition<'a>,
    /// Algorithm between hosts.
    pub(crate) between: Algorithm,
    /// The operation of all ranks.
    pub(crate) spec: Spec,
}

impl<'a> Hierarchical<'a> {
    pub(crate) fn build_schedule(self) -> Schedule<Self> {
        match self.collective {
            Collective::AllGather => all_gather::build_schedule(self),
            Collective::ReduceScatter => reduce_scatter::build_schedule(self),
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => {
                vector::build_schedule(self)
            }
            other => unreachable!("{other} has no hierarchical schedule"),
        }
    }

    /// True when this rank has a lane.
    fn has_lane(&self) -> bool {
        self.here.index < self.here.hosts.lanes
    }

    /// The rank of this lane on a host.
    fn lane_peer(&self, host: usize) -> usize {
        self.here.hosts.ranks_of(host)[self.here.index]
    }
}

/// The blocks of a lane, one after the other in scratch memory: the blocks of this host first, then the
/// blocks of the hosts above, around the end.
struct PackedBlocks<'a> {
    here: HostPosition<'a>,
    lane: usize,
    start: usize,
    /// Bytes of each block.
    block: usize,
}

impl PackedBlocks<'_> {
    /// Bytes of the blocks of `count` hosts, from the host at `distance` on.
    fn len_of(&self, distance: usize, count: usize) -> usize {
        let blocks = |distance| self.here.hosts.bundle_ranks(self.here.host_above(distance), self.lane).len();
        (distance..distance + count).map(blocks).sum::<usize>() * self.block
    }

    /// Bytes of all blocks.
    fn total_len(&self) -> usize {
        self.len_of(0, self.here.hosts.host_count())
    }

    /// Location of a block of the host at `distance`.
    fn block_location(&self, distance: usize, position: usize) -> Location {
        scratch_at(self.start + self.len_of(0, distance) + position * self.block)
    }
}
