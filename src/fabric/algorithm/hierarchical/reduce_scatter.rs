//! reduce_scatter.

use super::{Hierarchical, PackedBlocks};
use crate::fabric::algorithm::{Location, Round, RoundFunction, Schedule, scratch_at, source_at, target_at};
use crate::fabric::selection::Algorithm;

/// The ranks of a host reduce the blocks that each of their lanes sends to other hosts, and every lane
/// reduces these blocks between hosts: the messages of the reduce_scatter between hosts, and h-1 blocks from
/// each rank.
///
/// With the ring, the blocks sent in a round are reduced inside the host in the round before. Otherwise all
/// blocks are reduced inside the host first, in scratch memory, and then go to all hosts at once (pairwise),
/// or the blocks of several hosts together by recursive halving, thus for any number of hosts: lg h messages
/// between hosts, rounded up.
pub(super) fn build_schedule<'a>(parameters: Hierarchical<'a>) -> Schedule<Hierarchical<'a>> {
    let Hierarchical { here, spec, .. } = parameters;
    let (most, neighbours) = (parameters.most_bytes(), here.neighbour_ranks().len());
    let (scratch_len, round): (_, RoundFunction<Hierarchical<'a>>) = match parameters.between {
        Algorithm::Pairwise | Algorithm::RecursiveHalving => {
            let packed = parameters.packed_blocks(spec.vector_segments().largest_bytes()).total_len();
            let between = (here.hosts.host_count() - 1) * most;
            let arrivals = between.max(packed).max((neighbours - 1) * packed);
            (packed + arrivals, Hierarchical::round_of_packed_reduction)
        }
        _ => ((2 + neighbours) * most, Hierarchical::round_of_ring),
    };
    let rounds = parameters.steps_of_reduction() + usize::from(here.hosts.have_others());
    // SAFETY: receives into scratch memory behind the partial results and the blocks to send; only the last
    // round, and the one before, write the target, when nothing sends this rank's own block. Segments are
    // disjoint.
    unsafe { Schedule::new(parameters, spec.segment_pipeline(), rounds, scratch_len, round).into_ordered() }
}

impl Hierarchical<'_> {
    /// Rounds before the results are sent to ranks without a lane.
    fn steps_of_reduction(&self) -> usize {
        let hosts = self.here.hosts.host_count();
        match self.between {
            Algorithm::Pairwise => 2,
            Algorithm::RecursiveHalving => 1 + hosts.next_power_of_two().ilog2() as usize,
            // The ring serves every number of hosts.
            _ => hosts,
        }
    }

    fn block_source(&self, rank: usize, start: usize) -> Location {
        source_at(rank * self.spec.byte_count() + start)
    }

    /// Sends the blocks of the hosts at `distances` to their lanes on this host. Blocks for this rank's lane
    /// are received at `arrivals`, `apart` bytes from sender to sender.
    fn exchange_blocks(
        &self,
        distances: impl Iterator<Item = usize> + Clone,
        (start, len): (usize, usize),
        arrivals: usize,
        apart: usize,
        round: &mut Round,
    ) {
        let here = self.here;
        let ranks = here.neighbour_ranks();
        for (number, other) in here.other_indices().enumerate() {
            let blocks = |lane: usize| {
                distances
                    .clone()
                    .flat_map(move |distance| here.hosts.bundle_ranks(here.host_above(distance), lane))
                    .enumerate()
            };
            if other < here.hosts.lanes {
                for (part, rank) in blocks(other) {
                    round.send_part(ranks[other], part, self.block_source(rank, start), len);
                }
            }
            if self.has_lane() {
                for (part, _) in blocks(here.index) {
                    let location = scratch_at(arrivals + number * apart + part * len);
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
        if position == 0 { target_at(start) } else { scratch_at(others + position * len) }
    }

    /// Sends ranks without a lane their results, from `others` on.
    fn give_results(&self, others: usize, (start, len): (usize, usize), round: &mut Round) {
        let here = self.here;
        let lane = here.index % here.hosts.lanes;
        if here.index == lane {
            for (position, rank) in here.hosts.bundle_ranks(here.host, lane).enumerate().skip(1) {
                round.send_message(rank, scratch_at(others + position * len), len);
            }
        } else {
            round.receive_message(here.neighbour_ranks()[lane], target_at(start), len);
        }
    }

    /// Largest number of bytes that a lane carries for one host, in one segment.
    fn most_bytes(&self) -> usize {
        let hosts = self.here.hosts;
        let blocks = (0..hosts.host_count()).map(|host| hosts.bundle_ranks(host, 0).len()).max().unwrap_or(0);
        blocks * self.spec.vector_segments().largest_bytes()
    }

    fn round_of_ring(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.vector_segments().part_span(segment));
        let (hosts, most) = (here.hosts, self.most_bytes());
        let half = |number: usize| number % 2 * most;
        let last = hosts.host_count() - 1;
        if number > last {
            return self.give_results(half(last), (start, len), round);
        }
        // The blocks of this host come last.
        let distance = last - number;
        self.exchange_blocks(std::iter::once(distance), (start, len), 2 * most, most, round);
        if !self.has_lane() {
            return;
        }
        let mut arrivals = here.neighbour_ranks().len() - 1;
        if number > 0 {
            let blocks =
                |distance: usize| hosts.bundle_ranks(here.host_above(distance), here.index).len() * len;
            round.send_message(
                self.lane_peer(here.host_above(1)),
                scratch_at(half(number - 1)),
                blocks(distance + 1),
            );
            round.receive_message(
                self.lane_peer(here.host_below(1)),
                scratch_at((2 + arrivals) * most),
                blocks(distance),
            );
            arrivals += 1;
        }
        for (position, rank) in hosts.bundle_ranks(here.host_above(distance), here.index).enumerate() {
            let offset = position * len;
            let out = if number == last {
                self.block_result(position, start, half(number), len)
            } else {
                scratch_at(half(number) + offset)
            };
            let arrived = (0..arrivals).map(|arrival| scratch_at((2 + arrival) * most + offset));
            round.combine_all(out, self.block_source(rank, start), arrived, len);
            if number == last {
                round.finish_after(out, len);
            }
        }
    }

    fn round_of_packed_reduction(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.vector_segments().part_span(segment));
        let hosts = here.hosts;
        if number == self.steps_of_reduction() {
            return self.give_results(0, (start, len), round);
        }
        let packed = self.packed_blocks(len);
        let arrivals = packed.total_len();
        if number == 0 {
            self.exchange_blocks(0..hosts.host_count(), (start, len), arrivals, packed.total_len(), round);
        }
        if !self.has_lane() {
            return;
        }
        if number == 0 {
            let others = here.neighbour_ranks().len() - 1;
            for distance in 0..hosts.host_count() {
                for (position, rank) in hosts.bundle_ranks(here.host_above(distance), here.index).enumerate()
                {
                    let out = packed.block_location(distance, position);
                    let arrived = (0..others)
                        .map(|other| scratch_at(arrivals + other * packed.total_len() + out.offset));
                    round.combine_all(out, self.block_source(rank, start), arrived, len);
                }
            }
            return;
        }
        let blocks = hosts.bundle_ranks(here.host, here.index).len();
        if self.between == Algorithm::Pairwise {
            for distance in 1..hosts.host_count() {
                let location = scratch_at(arrivals + (distance - 1) * blocks * len);
                round.receive_message(self.lane_peer(here.host_below(distance)), location, blocks * len);
                let theirs = packed.len_of(distance, 1);
                round.send_message(
                    self.lane_peer(here.host_above(distance)),
                    packed.block_location(distance, 0),
                    theirs,
                );
            }
            for position in 0..blocks {
                let out = self.block_result(position, start, 0, len);
                let arrived = (0..hosts.host_count() - 1)
                    .map(|arrival| scratch_at(arrivals + (arrival * blocks + position) * len));
                round.combine_all(out, packed.block_location(0, position), arrived, len);
                round.finish_after(out, len);
            }
            return;
        }
        let last = number + 1 == self.steps_of_reduction();
        let distance = 1 << (self.steps_of_reduction() - 1 - number);
        let count = distance.min(hosts.host_count() - distance);
        let theirs = packed.len_of(distance, count);
        round.send_message(
            self.lane_peer(here.host_above(distance)),
            packed.block_location(distance, 0),
            theirs,
        );
        let kept = packed.len_of(0, count);
        round.receive_message(self.lane_peer(here.host_below(distance)), scratch_at(arrivals), kept);
        if !last {
            return round.combine_after(
                packed.block_location(0, 0),
                packed.block_location(0, 0),
                scratch_at(arrivals),
                kept,
            );
        }
        for position in 0..blocks {
            let out = self.block_result(position, start, 0, len);
            round.combine_after(
                out,
                packed.block_location(0, position),
                scratch_at(arrivals + position * len),
                len,
            );
            round.finish_after(out, len);
        }
    }
}
