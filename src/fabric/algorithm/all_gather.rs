//! Algorithms for all_gather.
//!
//! Costs for `p` ranks that contribute `n` bytes each, as messages on the critical path; every algorithm sends the
//! (p-1) n bytes that every rank must receive.

use super::{Action, Pipeline, Position, Round, Schedule, Spec, scratch, source, target};

impl Spec<Position> {
    /// Copy of a part of this rank's own block into the target.
    pub(super) fn keep(&self, offset: usize, len: usize) -> Option<Action> {
        (len > 0).then_some(Action::Copy {
            from: source(offset),
            to: target(self.at.rank * self.bytes() + offset),
            len,
        })
    }
}

/// Every rank sends its block to every other: 1 message to each.
pub(crate) struct Direct(pub(crate) Spec<Position>);

// SAFETY: receives other blocks into the target and sends the own one. Segments are disjoint.
unsafe impl Schedule for Direct {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let (start, len) = self.0.segments().span(segment);
        for distance in 1..self.0.at.ranks {
            let from = self.0.at.below(distance);
            round.receive(from, target(from * self.0.bytes() + start), len);
            round.send(self.0.at.above(distance), source(start), len);
        }
        round.meanwhile = self.0.keep(start, len);
    }
}

/// Exchanges all known blocks with partners at doubling distance: lg p messages; a power of two of ranks.
pub(crate) struct RecursiveDoubling(pub(crate) Spec<Position>);

// SAFETY: receives the partner's group of blocks and sends the own group. One segment.
unsafe impl Schedule for RecursiveDoubling {
    fn rounds(&self) -> usize {
        self.0.at.ranks.ilog2() as usize
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let (rank, block) = (self.0.at.rank, self.0.bytes());
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

/// Bruck's algorithm: sends all known blocks down at doubling distance, in scratch memory that starts with the own
/// block, and copies them into rank order at the end: lg p messages, rounded up; any number of ranks.
pub(crate) struct Bruck(pub(crate) Spec<Position>);

// SAFETY: receives behind the blocks that are known and sends those; copies to the target in the end. One segment.
unsafe impl Schedule for Bruck {
    fn rounds(&self) -> usize {
        self.0.at.ranks.next_power_of_two().ilog2() as usize
    }

    fn scratch_len(&self) -> usize {
        self.0.at.ranks * self.0.bytes()
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let Position { rank, ranks } = self.0.at;
        let block = self.0.bytes();
        let known = 1 << number;
        let len = known.min(ranks - known) * block;
        round.receive(self.0.at.above(known), scratch(known * block), len);
        if number == 0 {
            round.send(self.0.at.below(known), source(0), len);
            round.meanwhile =
                (block > 0).then_some(Action::Copy { from: source(0), to: scratch(0), len: block });
        } else {
            round.send(self.0.at.below(known), scratch(0), len);
        }
        if number + 1 == self.rounds() {
            let (up, down) = ((ranks - rank) * block, rank * block);
            round.then.push(Action::Copy { from: scratch(0), to: target(down), len: up });
            round.then.push(Action::Copy { from: scratch(up), to: target(0), len: down });
        }
    }
}

/// Passes blocks around a ring: p-1 messages, all to one neighbour.
pub(crate) struct Ring(pub(crate) Spec<Position>);

// SAFETY: receives a block next to the one that it sends. Segments are disjoint.
unsafe impl Schedule for Ring {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        self.0.at.ranks - 1
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let block = self.0.bytes();
        let (start, len) = self.0.segments().span(segment);
        let take = self.0.at.below(number + 1);
        round.receive(self.0.at.below(1), target(take * block + start), len);
        if number == 0 {
            round.send(self.0.at.above(1), source(start), len);
            round.meanwhile = self.0.keep(start, len);
        } else {
            round.send(self.0.at.above(1), target(self.0.at.below(number) * block + start), len);
        }
    }
}
