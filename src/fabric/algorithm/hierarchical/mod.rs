//! Algorithms for several ranks per host, where messages between hosts cost far more than those inside one.
//!
//! What crosses between the hosts is divided among *lanes*, each of one rank of every host ([`Hosts`](crate::fabric::hosts::Hosts)):
//! J. L. Träff and S. Hunold, "Decomposing MPI Collectives for Exploiting Multi-lane Communication" (2020). So all ranks
//! of a host share its work, each byte leaves a host as often as it must, and the critical path has as many messages
//! between hosts as an algorithm for one rank per host. The ranks may be placed in any order. Where a host has more ranks
//! than lanes, the others give what they have to those with a lane, and get the result from them; where one host has a
//! single rank, or the message is short, there is one lane, of one rank of each host.
//!
//! There is no all_to_all, gather or scatter: on two levels their bytes pass through more ranks, and measured against the flat
//! algorithms they were slower above 32 KiB by up to 1.6 times, and below at most 0.14 to 0.2 faster.
//!
//! Costs are of what crosses between hosts, for `h` hosts with `q` ranks each, and as many lanes.

pub(crate) mod all_gather;
pub(crate) mod all_reduce;
pub(crate) mod barrier;
pub(crate) mod broadcast;
pub(crate) mod reduce;
pub(crate) mod reduce_scatter;

use crate::fabric::algorithm::{Location, Split, scratch};
use crate::fabric::hosts::HostPosition;
use crate::fabric::selection::Algorithm;

/// A lane is used when it has this many bytes at least: for fewer a message costs what it costs to send any.
const LEAST: usize = 4 << 10;

/// How ranks take part in a hierarchical algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels<'a> {
    pub(crate) here: HostPosition<'a>,
    /// The algorithm between hosts.
    pub(crate) between: Algorithm,
}

impl Levels<'_> {
    /// One of these segments, a chunk for each lane that has something to do: in all segments as many.
    fn chunks(&self, segments: Split, segment: usize) -> Split {
        let lanes = (segments.largest() / LEAST).clamp(1, self.here.hosts.lanes().max(1));
        segments.part(segment, lanes)
    }
}

/// The blocks that go through a lane, one after the other in scratch memory: those of this host first, then those of the
/// hosts above, around the end.
struct PackedBlocks<'a> {
    here: HostPosition<'a>,
    lane: usize,
    start: usize,
    /// Bytes of each block.
    block: usize,
}

impl<'a> PackedBlocks<'a> {
    fn new(here: HostPosition<'a>, lane: usize, start: usize, block: usize) -> Self {
        Self { here, lane, start, block }
    }

    /// Bytes of those of `count` hosts from the one at `distance` on.
    fn len_of(&self, distance: usize, count: usize) -> usize {
        let blocks = |distance| self.here.hosts.bundle_len(self.here.above(distance), self.lane);
        (distance..distance + count).map(blocks).sum::<usize>() * self.block
    }

    /// Bytes of all together.
    fn len(&self) -> usize {
        self.len_of(0, self.here.hosts.count())
    }

    /// Where a block of the host at `distance` is.
    fn location(&self, distance: usize, position: usize) -> Location {
        scratch(self.start + self.len_of(0, distance) + position * self.block)
    }
}

/// The hosts as a root sees them: on its own host it is the first rank.
#[derive(Clone, Copy)]
struct RootedHosts<'a> {
    here: HostPosition<'a>,
    /// The root's host.
    host: usize,
    /// The root's index there.
    index: usize,
}

impl<'a> RootedHosts<'a> {
    fn new(here: HostPosition<'a>, root: usize) -> Self {
        let (host, index) = here.hosts.place(root);
        Self { here, host, index }
    }

    /// The number of the rank with an index on this host.
    fn number(&self, index: usize) -> usize {
        let count = self.here.neighbours().len();
        if self.here.host == self.host { (index + count - self.index) % count } else { index }
    }

    /// The rank that has a number on a host.
    fn rank_of(&self, host: usize, number: usize) -> usize {
        let ranks = self.here.hosts.ranks_of(host);
        if host == self.host { ranks[(self.index + number) % ranks.len()] } else { ranks[number] }
    }

    /// Whether this is the root's host.
    fn is_home(&self) -> bool {
        self.here.host == self.host
    }
}
