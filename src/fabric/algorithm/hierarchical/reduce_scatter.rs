//! reduce_scatter.

use super::{Hierarchical, PackedBlocks};
use crate::fabric::algorithm::{Location, Round, RoundFunction, Schedule, scratch, source, target};
use crate::fabric::selection::Algorithm;

/// The ranks of a host reduce the blocks that each of their lanes sends to other hosts, and every lane
/// reduces these blocks between hosts: the messages of the reduce_scatter between hosts, and h-1 blocks from
/// each rank.
///
/// With the ring, the blocks sent in a round are reduced inside the host in the round before. Otherwise all
/// blocks are reduced inside the host first, in scratch memory, and then go to all hosts at once (pairwise),
/// or the blocks of several hosts together by recursive halving, thus for any number of hosts: lg h messages
/// between hosts, rounded up.
pub(super) fn schedule<'a>(parameters: Hierarchical<'a>) -> Schedule<Hierarchical<'a>> {
    let Hierarchical { here, spec, .. } = parameters;
    let (most, neighbours) = (parameters.most(), here.neighbours().len());
    let (scratch_len, round): (_, RoundFunction<Hierarchical<'a>>) = match parameters.between {
        Algorithm::Pairwise | Algorithm::RecursiveHalving => {
            let packed = parameters.packed_blocks(spec.segments().largest()).len();
            let between = (here.hosts.count() - 1) * most;
            let arrivals = between.max(packed).max((neighbours - 1) * packed);
            (packed + arrivals, Hierarchical::round_of_packed_reduction)
        }
        _ => ((2 + neighbours) * most, Hierarchical::round_of_ring),
    };
    let rounds = parameters.steps_of_reduction() + usize::from(here.hosts.have_others());
    // SAFETY: receives into scratch memory behind the partial results and the blocks to send; only the last
    // round, and the one before, write the target, when nothing sends this rank's own block. Segments are
    // disjoint.
    unsafe { Schedule::new(parameters, spec.pipeline(), rounds, scratch_len, round).ordered() }
}

impl Hierarchical<'_> {
    /// Rounds before the results are sent to ranks without a lane.
    fn steps_of_reduction(&self) -> usize {
        let hosts = self.here.hosts.count();
        match self.between {
            Algorithm::Pairwise => 2,
            Algorithm::RecursiveHalving => 1 + hosts.next_power_of_two().ilog2() as usize,
            // The ring serves every number of hosts.
            _ => hosts,
        }
    }

    fn own(&self, rank: usize, start: usize) -> Location {
        source(rank * self.spec.bytes() + start)
    }

    /// Sends the blocks of the hosts at `distances` to their lanes on this host. Blocks for this rank's lane
    /// are received at `arrivals`, `apart` bytes from sender to sender.
    fn exchange(
        &self,
        distances: impl Iterator<Item = usize> + Clone,
        (start, len): (usize, usize),
        arrivals: usize,
        apart: usize,
        round: &mut Round,
    ) {
        let here = self.here;
        let ranks = here.neighbours();
        for (number, other) in here.others().enumerate() {
            let blocks = |lane: usize| {
                distances
                    .clone()
                    .flat_map(move |distance| here.hosts.bundle(here.above(distance), lane))
                    .enumerate()
            };
            if other < here.hosts.lanes {
                for (part, rank) in blocks(other) {
                    round.send_part(ranks[other], part, self.own(rank, start), len);
                }
            }
            if self.has_lane() {
                for (part, _) in blocks(here.index) {
                    let location = scratch(arrivals + number * apart + part * len);
                    round.receive_part(ranks[other], part, location, len);
                }
            }
        }
    }

    /// The blocks of all hosts, from this one's on, of the lane for this rank's blocks.
    fn packed_blocks(&self, len: usize) -> PackedBlocks<'_> {
        PackedBlocks { here: self.here, lane: self.here.index % self.here.hosts.lanes, start: 0, block: len }
    }

    /// Location of the result of a block of this host: the first of a lane is this rank's own, and goes to
    /// its target.
    fn block_result(&self, position: usize, start: usize, others: usize, len: usize) -> Location {
        if position == 0 { target(start) } else { scratch(others + position * len) }
    }

    /// Sends ranks without a lane their results, from `others` on.
    fn give(&self, others: usize, (start, len): (usize, usize), round: &mut Round) {
        let here = self.here;
        let lane = here.index % here.hosts.lanes;
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
        let hosts = self.here.hosts;
        let blocks = (0..hosts.count()).map(|host| hosts.bundle(host, 0).len()).max().unwrap_or(0);
        blocks * self.spec.segments().largest()
    }

    fn round_of_ring(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.segments().span(segment));
        let (hosts, most) = (here.hosts, self.most());
        let half = |number: usize| number % 2 * most;
        let last = hosts.count() - 1;
        if number > last {
            return self.give(half(last), (start, len), round);
        }
        // The blocks of this host come last.
        let distance = last - number;
        self.exchange(std::iter::once(distance), (start, len), 2 * most, most, round);
        if !self.has_lane() {
            return;
        }
        let mut arrivals = here.neighbours().len() - 1;
        if number > 0 {
            let blocks = |distance: usize| hosts.bundle(here.above(distance), here.index).len() * len;
            round.send(self.peer(here.above(1)), scratch(half(number - 1)), blocks(distance + 1));
            round.receive(self.peer(here.below(1)), scratch((2 + arrivals) * most), blocks(distance));
            arrivals += 1;
        }
        for (position, rank) in hosts.bundle(here.above(distance), here.index).enumerate() {
            let offset = position * len;
            let out = if number == last {
                self.block_result(position, start, half(number), len)
            } else {
                scratch(half(number) + offset)
            };
            let arrived = (0..arrivals).map(|arrival| scratch((2 + arrival) * most + offset));
            round.combine_all(out, self.own(rank, start), arrived, len);
            if number == last {
                round.finish(out, len);
            }
        }
    }

    fn round_of_packed_reduction(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.segments().span(segment));
        let hosts = here.hosts;
        if number == self.steps_of_reduction() {
            return self.give(0, (start, len), round);
        }
        let packed = self.packed_blocks(len);
        let arrivals = packed.len();
        if number == 0 {
            self.exchange(0..hosts.count(), (start, len), arrivals, packed.len(), round);
        }
        if !self.has_lane() {
            return;
        }
        if number == 0 {
            let others = here.neighbours().len() - 1;
            for distance in 0..hosts.count() {
                for (position, rank) in hosts.bundle(here.above(distance), here.index).enumerate() {
                    let out = packed.location(distance, position);
                    let arrived =
                        (0..others).map(|other| scratch(arrivals + other * packed.len() + out.offset));
                    round.combine_all(out, self.own(rank, start), arrived, len);
                }
            }
            return;
        }
        let blocks = hosts.bundle(here.host, here.index).len();
        if self.between == Algorithm::Pairwise {
            for distance in 1..hosts.count() {
                let location = scratch(arrivals + (distance - 1) * blocks * len);
                round.receive(self.peer(here.below(distance)), location, blocks * len);
                let theirs = packed.len_of(distance, 1);
                round.send(self.peer(here.above(distance)), packed.location(distance, 0), theirs);
            }
            for position in 0..blocks {
                let out = self.block_result(position, start, 0, len);
                let arrived = (0..hosts.count() - 1)
                    .map(|arrival| scratch(arrivals + (arrival * blocks + position) * len));
                round.combine_all(out, packed.location(0, position), arrived, len);
                round.finish(out, len);
            }
            return;
        }
        let last = number + 1 == self.steps_of_reduction();
        let distance = 1 << (self.steps_of_reduction() - 1 - number);
        let count = distance.min(hosts.count() - distance);
        let theirs = packed.len_of(distance, count);
        round.send(self.peer(here.above(distance)), packed.location(distance, 0), theirs);
        let kept = packed.len_of(0, count);
        round.receive(self.peer(here.below(distance)), scratch(arrivals), kept);
        if !last {
            return round.combine(packed.location(0, 0), packed.location(0, 0), scratch(arrivals), kept);
        }
        for position in 0..blocks {
            let out = self.block_result(position, start, 0, len);
            round.combine(out, packed.location(0, position), scratch(arrivals + position * len), len);
            round.finish(out, len);
        }
    }
}
