//! reduce_scatter.

use super::{Levels, PackedBlocks};
use crate::fabric::algorithm::{
    Location, Pipeline, Position, Round, Schedule, Spec, scratch, source, target,
};
use crate::fabric::selection::Algorithm;

/// The ranks of a host reduce the blocks that each of their lanes sends to other hosts, and every lane reduces those
/// between hosts: the messages of the reduce_scatter between hosts, and h-1 blocks from each rank.
///
/// With the ring, the blocks sent in a round are reduced inside the host in the round before. Otherwise all blocks are
/// reduced inside the host first, in scratch memory, and then go to all hosts at once (pairwise), or those of several
/// hosts together by recursive halving, which so serves any number of hosts: lg h messages between hosts, rounded up.
pub(crate) struct Hierarchical<'a> {
    pub(crate) levels: Levels<'a>,
    /// The operation of all ranks.
    pub(crate) spec: Spec<Position>,
}

impl Hierarchical<'_> {
    fn is_ring(&self) -> bool {
        !matches!(self.levels.between, Algorithm::Pairwise | Algorithm::RecursiveHalving)
    }

    /// Rounds before the results are sent to ranks without a lane.
    fn steps(&self) -> usize {
        let hosts = self.levels.here.hosts.count();
        match self.levels.between {
            Algorithm::Pairwise => 2,
            Algorithm::RecursiveHalving => 1 + hosts.next_power_of_two().ilog2() as usize,
            // The ring, which serves every number of hosts.
            _ => hosts,
        }
    }

    fn own(&self, rank: usize, start: usize) -> Location {
        source(rank * self.spec.bytes() + start)
    }

    /// Sends the blocks of the hosts at `distances` to the lanes of this host that carry them. Those for this rank's
    /// lane are received at `arrivals`, `apart` bytes from sender to sender.
    fn exchange(
        &self,
        distances: impl Iterator<Item = usize> + Clone,
        (start, len): (usize, usize),
        arrivals: usize,
        apart: usize,
        round: &mut Round,
    ) {
        let here = self.levels.here;
        let ranks = here.neighbours();
        for (number, other) in here.others().enumerate() {
            let blocks = |lane: usize| {
                distances
                    .clone()
                    .flat_map(move |distance| here.hosts.bundle(here.above(distance), lane))
                    .enumerate()
            };
            if other < here.hosts.lanes() {
                for (part, rank) in blocks(other) {
                    round.send_part(ranks[other], part, self.own(rank, start), len);
                }
            }
            if here.index < here.hosts.lanes() {
                for (part, _) in blocks(here.index) {
                    let location = scratch(arrivals + number * apart + part * len);
                    round.receive_part(ranks[other], part, location, len);
                }
            }
        }
    }

    /// Location of the result of a block of this host: the first of a lane is this rank's own, and goes to its target.
    fn result(&self, position: usize, start: usize, others: usize, len: usize) -> Location {
        if position == 0 { target(start) } else { scratch(others + position * len) }
    }

    /// Sends ranks without a lane their results, which start at `others`.
    fn give(&self, others: usize, (start, len): (usize, usize), round: &mut Round) {
        let here = self.levels.here;
        let lane = here.index % here.hosts.lanes();
        if here.index == lane {
            for (position, rank) in here.hosts.bundle(here.host, lane).enumerate().skip(1) {
                round.send(rank, scratch(others + position * len), len);
            }
        } else {
            round.receive(here.neighbours()[lane], target(start), len);
        }
    }

    /// Largest number of bytes that a lane carries for one host, in one segment.
    fn most(&self) -> usize {
        let hosts = self.levels.here.hosts;
        let blocks = (0..hosts.count()).map(|host| hosts.bundle_len(host, 0)).max().unwrap_or(0);
        blocks * self.spec.segments().largest()
    }

    fn round_of_ring(&self, (start, len): (usize, usize), number: usize, round: &mut Round) {
        let here = self.levels.here;
        let (hosts, most) = (here.hosts, self.most());
        let half = |number: usize| number % 2 * most;
        let last = hosts.count() - 1;
        if number > last {
            return self.give(half(last), (start, len), round);
        }
        // The blocks of this host come last.
        let distance = last - number;
        self.exchange(std::iter::once(distance), (start, len), 2 * most, most, round);
        if here.index >= hosts.lanes() {
            return;
        }
        let mut arrivals = here.neighbours().len() - 1;
        if number > 0 {
            let peer = |host: usize| hosts.ranks_of(host)[here.index];
            let blocks = |distance: usize| hosts.bundle_len(here.above(distance), here.index) * len;
            round.send(peer(here.above(1)), scratch(half(number - 1)), blocks(distance + 1));
            round.receive(peer(here.below(1)), scratch((2 + arrivals) * most), blocks(distance));
            arrivals += 1;
        }
        for (position, rank) in hosts.bundle(here.above(distance), here.index).enumerate() {
            let offset = position * len;
            let out = if number == last {
                self.result(position, start, half(number), len)
            } else {
                scratch(half(number) + offset)
            };
            if arrivals == 0 {
                round.copy(self.own(rank, start), out, len);
            }
            for arrival in 0..arrivals {
                let before = if arrival == 0 { self.own(rank, start) } else { out };
                round.combine(out, before, scratch((2 + arrival) * most + offset), len);
            }
            if number == last {
                round.finish(out, len);
            }
        }
    }

    fn round_of_packed(&self, (start, len): (usize, usize), number: usize, round: &mut Round) {
        let here = self.levels.here;
        let hosts = here.hosts;
        if number == self.steps() {
            return self.give(0, (start, len), round);
        }
        let packed = PackedBlocks::new(here, here.index % hosts.lanes(), 0, len);
        let arrivals = packed.len();
        if number == 0 {
            self.exchange(0..hosts.count(), (start, len), arrivals, packed.len(), round);
        }
        if here.index >= hosts.lanes() {
            return;
        }
        if number == 0 {
            let others = here.neighbours().len() - 1;
            for distance in 0..hosts.count() {
                for (position, rank) in hosts.bundle(here.above(distance), here.index).enumerate() {
                    let out = packed.location(distance, position);
                    if others == 0 {
                        round.copy(self.own(rank, start), out, len);
                    }
                    for other in 0..others {
                        let before = if other == 0 { self.own(rank, start) } else { out };
                        let arrived = scratch(arrivals + other * packed.len() + out.offset);
                        round.combine(out, before, arrived, len);
                    }
                }
            }
            return;
        }
        let peer = |host: usize| hosts.ranks_of(host)[here.index];
        let blocks = hosts.bundle_len(here.host, here.index);
        if self.levels.between == Algorithm::Pairwise {
            for distance in 1..hosts.count() {
                let location = scratch(arrivals + (distance - 1) * blocks * len);
                round.receive(peer(here.below(distance)), location, blocks * len);
                let theirs = packed.len_of(distance, 1);
                round.send(peer(here.above(distance)), packed.location(distance, 0), theirs);
            }
            for position in 0..blocks {
                let out = self.result(position, start, 0, len);
                for arrival in 0..hosts.count() - 1 {
                    let before = if arrival == 0 { packed.location(0, position) } else { out };
                    let arrived = scratch(arrivals + (arrival * blocks + position) * len);
                    round.combine(out, before, arrived, len);
                }
                round.finish(out, len);
            }
            return;
        }
        let last = number + 1 == self.steps();
        let distance = 1 << (self.steps() - 1 - number);
        let count = distance.min(hosts.count() - distance);
        let theirs = packed.len_of(distance, count);
        round.send(peer(here.above(distance)), packed.location(distance, 0), theirs);
        let kept = packed.len_of(0, count);
        round.receive(peer(here.below(distance)), scratch(arrivals), kept);
        if !last {
            return round.combine(packed.location(0, 0), packed.location(0, 0), scratch(arrivals), kept);
        }
        for position in 0..blocks {
            let out = self.result(position, start, 0, len);
            round.combine(out, packed.location(0, position), scratch(arrivals + position * len), len);
            round.finish(out, len);
        }
    }
}

// SAFETY: receives into scratch memory behind the partial results and the blocks to send; only the last round, and the
// one before, write the target, when nothing sends this rank's own block. Segments are disjoint.
unsafe impl Schedule for Hierarchical<'_> {
    fn pipeline(&self) -> Pipeline {
        self.spec.pipeline()
    }

    fn rounds(&self) -> usize {
        self.steps() + usize::from(self.levels.here.hosts.have_others())
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn scratch_len(&self) -> usize {
        let here = self.levels.here;
        let neighbours = here.neighbours().len();
        if self.is_ring() {
            return (2 + neighbours) * self.most();
        }
        let packed =
            PackedBlocks::new(here, here.index % here.hosts.lanes(), 0, self.spec.segments().largest()).len();
        let between = (here.hosts.count() - 1) * self.most();
        packed + between.max(packed).max((neighbours - 1) * packed)
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let part = self.spec.segments().span(segment);
        if part.1 == 0 {
            return;
        }
        if self.is_ring() {
            self.round_of_ring(part, number, round);
        } else {
            self.round_of_packed(part, number, round);
        }
    }
}
