//! Algorithms for reduce_scatter.
//!
//! Costs for `p` ranks whose vectors have `n` bytes, a block of n/p for each rank, as messages on the critical path
//! and bytes sent by each rank. Partial results are kept in scratch memory: in place, a rank's vector stays
//! as it is but for its own block.

use super::{Pipeline, Position, Round, Schedule, Spec, scratch, source, target};

/// Every rank sends every other its block, and combines the blocks received: 1 message to each peer, n (p-1)/p bytes.
pub(crate) struct Pairwise(pub(crate) Spec<Position>);

// SAFETY: receives into scratch memory, a part for each peer; the result is written when all sends are over, to the
// own block, which is not sent. Segments are disjoint.
unsafe impl Schedule for Pairwise {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn scratch_len(&self) -> usize {
        (self.0.at.ranks - 1) * self.0.segments().largest()
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let at = self.0.at;
        let (segments, block) = (self.0.segments(), self.0.bytes());
        let (start, len) = segments.span(segment);
        for distance in 1..at.ranks {
            let to = at.above(distance);
            round.receive(at.below(distance), scratch((distance - 1) * len), len);
            round.send(to, source(to * block + start), len);
        }
        round.combine(target(start), source(at.rank * block + start), scratch(0), len);
        for other in 1..at.ranks - 1 {
            round.combine(target(start), target(start), scratch(other * len), len);
        }
        round.finish(target(start), len);
    }
}

/// Exchanges halves of the remaining blocks with partners at halving distance: lg p messages, n (p-1)/p bytes; a power
/// of two of ranks.
pub(crate) struct RecursiveHalving(pub(crate) Spec<Position>);

impl RecursiveHalving {
    /// Start of the receive buffer in scratch memory: behind the half of all blocks that is left after the first round.
    fn arrivals(&self) -> usize {
        self.0.at.ranks / 2 * self.0.bytes()
    }
}

// SAFETY: receives into a part of the scratch memory that is not sent; the first round sends of the source, the others
// of the scratch memory. The result is written when all sends are over. One segment.
unsafe impl Schedule for RecursiveHalving {
    fn rounds(&self) -> usize {
        self.0.at.ranks.ilog2() as usize
    }

    fn scratch_len(&self) -> usize {
        2 * self.arrivals()
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let Position { rank, ranks } = self.0.at;
        let block = self.0.bytes();
        let distance = ranks >> (number + 1);
        let peer = rank ^ distance;
        // The blocks that both still share are 2 * distance; each keeps the half with its own number.
        let (mine, theirs) = (rank / distance * distance, peer / distance * distance);
        let first = mine.min(theirs);
        let partial = |index: usize| match number {
            0 => source(index * block),
            _ => scratch((index - first) * block),
        };
        let len = distance * block;
        let arrived = scratch(self.arrivals());
        round.receive(peer, arrived, len);
        round.send(peer, partial(theirs), len);
        if distance == 1 {
            round.combine(target(0), partial(mine), arrived, len);
            round.finish(target(0), len);
        } else {
            round.combine(scratch(0), partial(mine), arrived, len);
        }
    }
}

/// Passes partial results around a ring, each on its way to the rank whose block it is: p-1 messages of n/p bytes, all
/// to one neighbour.
pub(crate) struct Ring(pub(crate) Spec<Position>);

// SAFETY: receives into one half of the scratch memory what it combines there, and sends what the round before left in
// the other half. The result is written when all sends are over. Segments are disjoint.
unsafe impl Schedule for Ring {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        self.0.at.ranks - 1
    }

    fn scratch_len(&self) -> usize {
        2 * self.0.segments().largest()
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let at = self.0.at;
        let (segments, block) = (self.0.segments(), self.0.bytes());
        let (start, len) = segments.span(segment);
        let half = |number: usize| scratch(number % 2 * segments.largest());
        let take = at.below((number + 2) % at.ranks);
        let own = source(take * block + start);
        round.receive(at.below(1), half(number), len);
        match number {
            0 => round.send(at.above(1), source(at.below(1) * block + start), len),
            _ => round.send(at.above(1), half(number - 1), len),
        }
        if number + 2 == at.ranks {
            round.combine(target(start), own, half(number), len);
            round.finish(target(start), len);
        } else {
            round.combine(half(number), half(number), own, len);
        }
    }
}
