//! all_gather.

use super::{Hierarchical, PackedBlocks};
use crate::fabric::algorithm::{Location, Round, RoundFunction, Schedule, source, target};
use crate::fabric::selection::Algorithm;

/// Every lane gathers the blocks of its ranks from all hosts, and its ranks forward them inside their hosts:
/// the messages of the all_gather between hosts, and h-1 blocks from each rank.
///
/// In the ring and the direct exchange each block arrives in its place, and is forwarded in the next round.
/// Bruck's algorithm has the blocks of several hosts in one message, in scratch memory: lg h messages between
/// hosts, rounded up.
pub(super) fn schedule<'a>(parameters: Hierarchical<'a>) -> Schedule<Hierarchical<'a>> {
    let (spec, rounds) = (parameters.spec, parameters.rounds());
    let (scratch_len, round): (_, RoundFunction<Hierarchical<'a>>) = match parameters.between {
        Algorithm::Bruck => (spec.at.ranks * spec.segments().largest(), Hierarchical::round_of_packed),
        _ => (0, Hierarchical::round_of_blocks),
    };
    // SAFETY: single blocks are received at places where this rank does not have them yet, and sent from
    // places where it has them; the own block is sent from the source, and copied meanwhile. Packed blocks
    // are received behind the sent ones, or in the other lanes' parts of the scratch memory, and copied to
    // the target in the end. Segments are disjoint.
    unsafe { Schedule::new(parameters, spec.pipeline(), rounds, scratch_len, round).ordered() }
}

impl Hierarchical<'_> {
    /// Rounds between hosts.
    fn steps(&self) -> usize {
        let hosts = self.here.hosts.count();
        match self.between {
            Algorithm::Direct => 1,
            Algorithm::Bruck => hosts.next_power_of_two().ilog2() as usize,
            // The ring serves every number of hosts.
            _ => hosts - 1,
        }
    }

    /// Round of the first step between hosts: lanes that carry the blocks of several ranks receive them
    /// before.
    fn first(&self) -> usize {
        usize::from(self.here.hosts.have_others())
    }

    fn rounds(&self) -> usize {
        self.first() + self.steps() + 1
    }

    /// Location of a part of a rank's block.
    fn location(&self, rank: usize, start: usize) -> Location {
        if rank == self.spec.at.rank { source(start) } else { target(rank * self.spec.bytes() + start) }
    }

    /// Sends this lane's blocks of host `sent` to host `to`, and receives the blocks of host `received` from
    /// host `from`.
    fn pass(
        &self,
        (sent, to): (usize, usize),
        (received, from): (usize, usize),
        (start, len): (usize, usize),
        round: &mut Round,
    ) {
        let bundle = |host| self.here.hosts.bundle(host, self.here.index).enumerate();
        for (part, rank) in bundle(sent) {
            round.send_part(self.peer(to), part, self.location(rank, start), len);
        }
        for (part, rank) in bundle(received) {
            round.receive_part(self.peer(from), part, self.location(rank, start), len);
        }
    }

    /// A round with a message for each block.
    fn round_of_blocks(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.segments().span(segment));
        let (hosts, lanes) = (here.hosts, here.hosts.lanes);
        let ranks = here.neighbours();
        if number == 0 {
            for other in here.others() {
                round.send(ranks[other], source(start), len);
                round.receive(ranks[other], self.location(ranks[other], start), len);
            }
            self.spec.keep_block(start, len, round);
        }
        let direct = self.between == Algorithm::Direct;
        if let Some(step) = number.checked_sub(self.first())
            && step < self.steps()
            && self.has_lane()
        {
            if direct {
                for distance in 1..hosts.count() {
                    let below = here.below(distance);
                    self.pass((here.host, here.above(distance)), (below, below), (start, len), round);
                }
            } else {
                let (sent, received) = (here.below(step), here.below(step + 1));
                self.pass((sent, here.above(1)), (received, here.below(1)), (start, len), round);
            }
        }
        // Blocks received in the round before.
        let Some(step) = number.checked_sub(self.first() + 1) else { return };
        let distances = if direct { 1..hosts.count() } else { step + 1..step + 2 };
        for other in here.others() {
            let blocks = |lane: usize| {
                distances
                    .clone()
                    .flat_map(move |distance| hosts.bundle(here.below(distance), lane))
                    .enumerate()
            };
            if self.has_lane() {
                for (part, rank) in blocks(here.index) {
                    round.send_part(ranks[other], part, self.location(rank, start), len);
                }
            }
            if other < lanes {
                for (part, rank) in blocks(other) {
                    round.receive_part(ranks[other], part, self.location(rank, start), len);
                }
            }
        }
    }

    /// The blocks of all hosts, from this one's on, with a part of the scratch memory for each lane.
    fn packed(&self, lane: usize, len: usize) -> PackedBlocks<'_> {
        let of = |lane, start| PackedBlocks { here: self.here, lane, start, block: len };
        of(lane, (0..lane).map(|lane| of(lane, 0).len()).sum())
    }

    fn round_of_packed(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, (start, len)) = (self.here, self.spec.segments().span(segment));
        let (hosts, lanes) = (here.hosts, here.hosts.lanes);
        let ranks = here.neighbours();
        let has_lane = self.has_lane();
        let own = self.packed(here.index % lanes, len);
        if number == 0 {
            if !has_lane {
                round.send(ranks[here.index % lanes], source(start), len);
            } else {
                for (position, rank) in hosts.bundle(here.host, here.index).enumerate().skip(1) {
                    round.receive(rank, own.location(0, position), len);
                }
                round.copy_meanwhile(source(start), own.location(0, 0), len);
            }
        }
        if let Some(step) = number.checked_sub(self.first())
            && step < self.steps()
            && has_lane
        {
            let known = 1 << step;
            let count = known.min(hosts.count() - known);
            round.receive(self.peer(here.above(known)), own.location(known, 0), own.len_of(known, count));
            let have = if number == 0 { source(start) } else { own.location(0, 0) };
            round.send(self.peer(here.below(known)), have, own.len_of(0, count));
        }
        if number + 1 < self.rounds() {
            return;
        }
        for other in here.others() {
            if has_lane {
                round.send(ranks[other], own.location(0, 0), own.len());
            }
            if other < lanes {
                let theirs = self.packed(other, len);
                round.receive(ranks[other], theirs.location(0, 0), theirs.len());
            }
        }
        for lane in 0..lanes {
            let packed = self.packed(lane, len);
            for distance in 0..hosts.count() {
                for (position, rank) in hosts.bundle(here.above(distance), lane).enumerate() {
                    let to = target(rank * self.spec.bytes() + start);
                    round.copy(packed.location(distance, position), to, len);
                }
            }
        }
    }
}
