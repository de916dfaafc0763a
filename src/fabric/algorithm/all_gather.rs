//! Algorithms for all_gather.
//!
//! Costs for `p` ranks that contribute `n` bytes each, as messages on the critical path; every algorithm sends the
//! (p-1) n bytes that every rank must receive.

use super::{Action, Round, Schedule, Split, scratch, source, target};

/// What an all_gather schedule is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Bytes of each rank's block.
    pub(crate) block: usize,
    /// The most bytes of a segment of a block.
    pub(crate) segment: usize,
    /// Segments in flight together.
    pub(crate) in_flight: usize,
}

impl Message {
    pub(super) fn segments(&self) -> Split {
        Split::into_segments(self.block, 1, self.segment)
    }

    /// The rank `distance` above this one, around the end.
    fn above(&self, distance: usize) -> usize {
        (self.rank + distance) % self.ranks
    }

    /// The rank `distance` (at most the number of ranks) below this one, around the end.
    fn below(&self, distance: usize) -> usize {
        (self.rank + self.ranks - distance) % self.ranks
    }

    /// Puts a part of this rank's own block where it belongs.
    pub(super) fn keep(&self, offset: usize, len: usize) -> Option<Action> {
        (len > 0).then_some(Action::Copy {
            from: source(offset),
            to: target(self.rank * self.block + offset),
            len,
        })
    }
}

/// Every rank sends its block to every other: 1 message to each.
pub(crate) struct Direct(pub(crate) Message);

// SAFETY: receives other blocks into the target and sends the own one. Segments are disjoint.
unsafe impl Schedule for Direct {
    fn segments(&self) -> usize {
        self.0.segments().parts()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight
    }

    fn rounds(&self) -> usize {
        1
    }

    fn scratch_len(&self) -> usize {
        0
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let (start, len) = self.0.segments().span(segment);
        for distance in 1..self.0.ranks {
            let from = self.0.below(distance);
            round.receive(from, target(from * self.0.block + start), len);
            round.send(self.0.above(distance), source(start), len);
        }
        round.meanwhile = self.0.keep(start, len);
    }
}

/// Exchanges all that is known with partners at doubling distance: lg p messages; a power of two of ranks.
pub(crate) struct RecursiveDoubling(pub(crate) Message);

// SAFETY: receives the partner's group of blocks and sends the own group. One segment.
unsafe impl Schedule for RecursiveDoubling {
    fn segments(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        1
    }

    fn rounds(&self) -> usize {
        self.0.ranks.ilog2() as usize
    }

    fn scratch_len(&self) -> usize {
        0
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let Message { rank, block, .. } = self.0;
        let distance = 1 << number;
        let peer = rank ^ distance;
        let (mine, theirs) = (rank / distance * distance, peer / distance * distance);
        round.receive(peer, target(theirs * block), distance * block);
        if number == 0 {
            round.send(peer, source(0), block);
            round.meanwhile = self.0.keep(0, block);
        } else {
            round.send(peer, target(mine * block), distance * block);
        }
    }
}

/// Bruck's: passes all that is known down at doubling distance, in scratch memory that starts with the own block,
/// and turns it into rank order at the end: lg p messages, rounded up; any number of ranks.
pub(crate) struct Bruck(pub(crate) Message);

// SAFETY: receives behind the blocks that are known and sends those; copies to the target in the end. One segment.
unsafe impl Schedule for Bruck {
    fn segments(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        1
    }

    fn rounds(&self) -> usize {
        self.0.ranks.next_power_of_two().ilog2() as usize
    }

    fn scratch_len(&self) -> usize {
        self.0.ranks * self.0.block
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let Message { rank, ranks, block, .. } = self.0;
        let known = 1 << number;
        let len = known.min(ranks - known) * block;
        round.receive(self.0.above(known), scratch(known * block), len);
        if number == 0 {
            round.send(self.0.below(known), source(0), len);
            round.meanwhile =
                (block > 0).then_some(Action::Copy { from: source(0), to: scratch(0), len: block });
        } else {
            round.send(self.0.below(known), scratch(0), len);
        }
        if number + 1 == self.rounds() {
            let (up, down) = ((ranks - rank) * block, rank * block);
            round.then.push(Action::Copy { from: scratch(0), to: target(down), len: up });
            round.then.push(Action::Copy { from: scratch(up), to: target(0), len: down });
        }
    }
}

/// Passes blocks around a ring: p-1 messages, all to one neighbour.
pub(crate) struct Ring(pub(crate) Message);

// SAFETY: receives a block next to the one that it sends. Segments are disjoint.
unsafe impl Schedule for Ring {
    fn segments(&self) -> usize {
        self.0.segments().parts()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight
    }

    fn rounds(&self) -> usize {
        self.0.ranks - 1
    }

    fn scratch_len(&self) -> usize {
        0
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let block = self.0.block;
        let (start, len) = self.0.segments().span(segment);
        let take = self.0.below(number + 1);
        round.receive(self.0.below(1), target(take * block + start), len);
        if number == 0 {
            round.send(self.0.above(1), source(start), len);
            round.meanwhile = self.0.keep(start, len);
        } else {
            round.send(self.0.above(1), target(self.0.below(number) * block + start), len);
        }
    }
}
