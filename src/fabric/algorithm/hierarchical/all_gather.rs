//! all_gather.

use super::{Hierarchical, PackedBlocks};
use crate::fabric::algorithm::{Location, Round, RoundFunction, Schedule, source_at, target_at};
use crate::fabric::selection::Algorithm;

/// Every lane gathers the blocks of its ranks from all hosts, and its ranks forward them inside their hosts:
/// the messages of the all_gather between hosts, and h-1 blocks from each rank.
///
/// In the ring and the direct exchange each block arrives in its place, and is forwarded in the next round.
/// Bruck's algorithm has the blocks of several hosts in one message, in scratch memory: lg h messages between
/// hosts, rounded up.
pub(super) fn build_schedule<'a>(parameters: Hierarchical<'a>) -> Schedule<Hierarchical<'a>> {
    let (spec, rounds) = (parameters.spec, parameters.round_count());
    let (scratch_len, round): (_, RoundFunction<Hierarchical<'a>>) = match parameters.between {
        Algorithm::Bruck => {
            (spec.at.ranks * spec.vector_segments().largest_bytes(), Hierarchical::round_of_packed)
        }
        _ => (0, Hierarchical::round_of_blocks),
    };
    // SAFETY: single blocks are received at places where this rank does not have them yet, and sent from
    // places where it has them; the own block is sent from the source, and copied meanwhile. Packed blocks
    // are received behind the sent ones, or in the other lanes' parts of the scratch memory, and copied to
    // the target in the end. Segments are disjoint.
    unsafe { Schedule::new(parameters, spec.segment_pipeline(), rounds, scratch_len, round).into_ordered() }
}

impl Hierarchical<'_> {
    /// Rounds between hosts.
    fn host_steps(&self) -> usize {
        let hosts = self.here.hosts.host_count();
        match self.between {
            Algorithm::Direct => 1,
            Algorithm::Bruck => hosts.next_power_of_two().ilog2() as usize,
            // The ring serves every number of hosts.
            _ => hosts - 1,
        }
    }

    /// Round of the first step between hosts: lanes that carry the blocks of several ranks receive them
    /// before.
    fn first_host_round(&self) -> usize {
        usize::from(self.here.hosts.have_others())
    }

    fn round_count(&self) -> usize {
        self.first_host_round() + self.host_steps() + 1
    }

    /// Location of a part of a rank's block.
    fn part_location(&self, rank: usize, start: usize) -> Location {
        if rank == self.spec.at.rank {
            source_at(start)
        } else {
            target_at(rank * self.spec.byte_count() + start)
        }
    }

    /// Sends this lane's blocks of host `sent` to host `to`, and receives the blocks of host `received` from
    /// host `from`.
    fn pass_blocks(
        &self,
        (sent, to): (usize, usize),
        (received, from): (usize, usize),
        (start, len): (usize, usize),
        round: &mut Round,
    ) {
        let bundle = |host| self.here.hosts.bundle_ranks(host, self.here.index).enumerate();
        for (part, rank) in bundle(sent) {
            round.send_part(self.lane_peer(to), part, self.part_location(rank, start), len);
        }
        for (part, rank) in bundle(received) {
            round.receive_part(self.lane_peer(from), part, self.part_location(rank, start), len);
        }
    }

    /// A round with a message for each block.
    fn round_of_blocks(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.vector_segments().part_span(segment));
        let (hosts, lanes) = (here.hosts, here.hosts.lanes);
        let ranks = here.neighbour_ranks();
        if number == 0 {
            for other in here.other_indices() {
                round.send_message(ranks[other], source_at(start), len);
                round.receive_message(ranks[other], self.part_location(ranks[other], start), len);
            }
            self.spec.keep_block(start, len, round);
        }
        let direct = self.between == Algorithm::Direct;
        if let Some(step) = number.checked_sub(self.first_host_round())
            && step < self.host_steps()
            && self.has_lane()
        {
            if direct {
                for distance in 1..hosts.host_count() {
                    let below = here.host_below(distance);
                    self.pass_blocks(
                        (here.host, here.host_above(distance)),
                        (below, below),
                        (start, len),
                        round,
                    );
                }
            } else {
                let (sent, received) = (here.host_below(step), here.host_below(step + 1));
                self.pass_blocks(
                    (sent, here.host_above(1)),
                    (received, here.host_below(1)),
                    (start, len),
                    round,
                );
            }
        }
        // Blocks received in the round before.
        let Some(step) = number.checked_sub(self.first_host_round() + 1) else { return };
        let distances = if direct { 1..hosts.host_count() } else { step + 1..step + 2 };
        for other in here.other_indices() {
            let blocks = |lane: usize| {
                distances
                    .clone()
                    .flat_map(move |distance| hosts.bundle_ranks(here.host_below(distance), lane))
                    .enumerate()
            };
            if self.has_lane() {
                for (part, rank) in blocks(here.index) {
                    round.send_part(ranks[other], part, self.part_location(rank, start), len);
                }
            }
            if other < lanes {
                for (part, rank) in blocks(other) {
                    round.receive_part(ranks[other], part, self.part_location(rank, start), len);
                }
            }
        }
    }

    /// The blocks of all hosts, from this one's on, with a part of the scratch memory for each lane.
    fn gathered_blocks(&self, lane: usize, len: usize) -> PackedBlocks<'_> {
        let of = |lane, start| PackedBlocks { here: self.here, lane, start, block: len };
        of(lane, (0..lane).map(|lane| of(lane, 0).total_len()).sum())
    }

    fn round_of_packed(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.vector_segments().part_span(segment));
        let (hosts, lanes) = (here.hosts, here.hosts.lanes);
        let ranks = here.neighbour_ranks();
        let has_lane = self.has_lane();
        let own = self.gathered_blocks(here.index % lanes, len);
        if number == 0 {
            if !has_lane {
                round.send_message(ranks[here.index % lanes], source_at(start), len);
            } else {
                for (position, rank) in hosts.bundle_ranks(here.host, here.index).enumerate().skip(1) {
                    round.receive_message(rank, own.block_location(0, position), len);
                }
                round.copy_meanwhile(source_at(start), own.block_location(0, 0), len);
            }
        }
        if let Some(step) = number.checked_sub(self.first_host_round())
            && step < self.host_steps()
            && has_lane
        {
            let known = 1 << step;
            let count = known.min(hosts.host_count() - known);
            round.receive_message(
                self.lane_peer(here.host_above(known)),
                own.block_location(known, 0),
                own.len_of(known, count),
            );
            let have = if number == 0 { source_at(start) } else { own.block_location(0, 0) };
            round.send_message(self.lane_peer(here.host_below(known)), have, own.len_of(0, count));
        }
        if number + 1 < self.round_count() {
            return;
        }
        for other in here.other_indices() {
            if has_lane {
                round.send_message(ranks[other], own.block_location(0, 0), own.total_len());
            }
            if other < lanes {
                let theirs = self.gathered_blocks(other, len);
                round.receive_message(ranks[other], theirs.block_location(0, 0), theirs.total_len());
            }
        }
        for lane in 0..lanes {
            let packed = self.gathered_blocks(lane, len);
            for distance in 0..hosts.host_count() {
                for (position, rank) in hosts.bundle_ranks(here.host_above(distance), lane).enumerate() {
                    let to = target_at(rank * self.spec.byte_count() + start);
                    round.copy_after(packed.block_location(distance, position), to, len);
                }
            }
        }
    }
}
