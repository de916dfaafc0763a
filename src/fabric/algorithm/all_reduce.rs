//! Algorithms for all_reduce.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and bytes sent by each rank.

use super::{Pipeline, Position, Round, Schedule, Spec, scratch, source, target};

/// Every rank sends everything to every other and combines in rank order: 1 message, (p-1) n bytes.
pub(crate) struct Direct(pub(crate) Spec<Position>);

// SAFETY: one round and one segment; each peer has a part of the scratch memory of its own, and the result is
// written when all sends are over.
unsafe impl Schedule for Direct {
    fn scratch_len(&self) -> usize {
        self.0.at.ranks * self.0.bytes()
    }

    fn round(&self, _segment: usize, _number: usize, round: &mut Round) {
        let Position { rank, ranks } = self.0.at;
        let len = self.0.bytes();
        for distance in 1..ranks {
            let from = self.0.at.below(distance);
            round.receive(from, scratch(from * len), len);
            round.send(self.0.at.above(distance), source(0), len);
        }
        // ((0 + 1) + 2) + ...: ranks after the second combine those before them in scratch memory first.
        for other in 1..rank {
            round.combine(scratch(0), scratch(0), scratch(other * len), len);
        }
        let first = if rank == 0 { 1 } else { 0 };
        round.combine(target(0), source(0), scratch(first * len), len);
        for other in rank.max(first) + 1..ranks {
            round.combine(target(0), target(0), scratch(other * len), len);
        }
        round.finish(target(0), len);
    }
}

/// The largest power of two of the ranks works; each of the others is represented by a neighbour, to which it sends its
/// vector first and from which it receives the result last.
#[derive(Clone, Copy)]
struct Fold {
    rank: usize,
    /// Number of working ranks.
    workers: usize,
    /// Number of represented ranks: the even ones of the first `2 * represented`.
    represented: usize,
}

impl Fold {
    fn new(rank: usize, ranks: usize) -> Self {
        let workers = 1 << ranks.ilog2();
        Self { rank, workers, represented: ranks - workers }
    }

    /// Rounds before the first step, and as many after the last.
    fn outer_rounds(&self) -> usize {
        usize::from(self.represented > 0)
    }

    /// Rounds that halve or double.
    fn steps(&self) -> usize {
        self.workers.ilog2() as usize
    }

    fn is_represented(&self) -> bool {
        self.rank < 2 * self.represented && self.rank.is_multiple_of(2)
    }

    fn represents(&self) -> bool {
        self.rank < 2 * self.represented && self.rank % 2 == 1
    }

    /// This rank's number among the workers, of which it is one.
    fn number(&self) -> usize {
        if self.represents() { self.rank / 2 } else { self.rank - self.represented }
    }

    /// The rank of a worker.
    fn rank_of(&self, number: usize) -> usize {
        if number < self.represented { 2 * number + 1 } else { number + self.represented }
    }

    /// Location of a worker's vector at the first step.
    fn vector(&self, offset: usize) -> super::Location {
        if self.represents() { target(offset) } else { source(offset) }
    }

    /// The round before the first step, on `len` bytes.
    fn before(&self, offset: usize, len: usize, round: &mut Round) {
        if self.is_represented() {
            round.send(self.rank + 1, source(offset), len);
        } else if self.represents() {
            round.receive(self.rank - 1, scratch(0), len);
            round.combine(target(offset), source(offset), scratch(0), len);
        }
    }

    /// The round after the last step.
    fn after(&self, offset: usize, len: usize, round: &mut Round) {
        if self.is_represented() {
            round.receive(self.rank + 1, target(offset), len);
        } else if self.represents() {
            round.send(self.rank - 1, target(offset), len);
        }
    }
}

/// Exchanges and combines whole vectors with partners at doubling distance: lg p messages, n lg p bytes (for a
/// number of ranks that is no power of two: 2 messages and up to 2 n bytes more).
pub(crate) struct RecursiveDoubling(pub(crate) Spec<Position>);

// SAFETY: a round receives into scratch memory only, but for the last one, which receives into a target that this
// rank no longer sends. One segment.
unsafe impl Schedule for RecursiveDoubling {
    fn rounds(&self) -> usize {
        let fold = Fold::new(self.0.at.rank, self.0.at.ranks);
        fold.steps() + 2 * fold.outer_rounds()
    }

    fn scratch_len(&self) -> usize {
        self.0.bytes()
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let fold = Fold::new(self.0.at.rank, self.0.at.ranks);
        let len = self.0.bytes();
        if number < fold.outer_rounds() {
            return fold.before(0, len, round);
        }
        let step = number - fold.outer_rounds();
        if step >= fold.steps() {
            return fold.after(0, len, round);
        }
        if fold.is_represented() {
            return;
        }
        let peer = fold.rank_of(fold.number() ^ 1 << step);
        let vector = if step == 0 { fold.vector(0) } else { target(0) };
        round.receive(peer, scratch(0), len);
        round.send(peer, vector, len);
        round.combine(target(0), vector, scratch(0), len);
        if step + 1 == fold.steps() {
            round.finish(target(0), len);
        }
    }
}

/// Rabenseifner's: reduce-scatter by recursive halving, then all-gather by recursive doubling: 2 lg p messages,
/// 2 n (p-1)/p bytes (for a number of ranks that is no power of two: 2 messages and up to 2 n bytes more).
pub(crate) struct Rabenseifner(pub(crate) Spec<Position>);

// SAFETY: the halving receives into scratch memory, the doubling into parts of the target that this rank gave away
// while halving and does not send in that round. Segments are disjoint.
unsafe impl Schedule for Rabenseifner {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        let fold = Fold::new(self.0.at.rank, self.0.at.ranks);
        2 * fold.steps() + 2 * fold.outer_rounds()
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn scratch_len(&self) -> usize {
        self.0.segments().largest()
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let fold = Fold::new(self.0.at.rank, self.0.at.ranks);
        let chunks = self.0.segments().part(segment, fold.workers);
        if number < fold.outer_rounds() {
            return fold.before(chunks.start(0), chunks.len(0, fold.workers), round);
        }
        let step = number - fold.outer_rounds();
        if step >= 2 * fold.steps() {
            return fold.after(chunks.start(0), chunks.len(0, fold.workers), round);
        }
        if fold.is_represented() {
            return;
        }
        let me = fold.number();
        if step < fold.steps() {
            let distance = fold.workers >> (step + 1);
            let peer = me ^ distance;
            // The chunks that both still share are 2 * distance; each keeps the half with its own number.
            let (mine, theirs) = (me / distance * distance, peer / distance * distance);
            let (keep, give) = (chunks.start(mine), chunks.start(theirs));
            let len = chunks.len(mine, mine + distance);
            let vector = |offset| if step == 0 { fold.vector(offset) } else { target(offset) };
            round.receive(fold.rank_of(peer), scratch(0), len);
            round.send(fold.rank_of(peer), vector(give), chunks.len(theirs, theirs + distance));
            round.combine(target(keep), vector(keep), scratch(0), len);
            if distance == 1 {
                round.finish(target(keep), len);
            }
        } else {
            let distance = 1 << (step - fold.steps());
            let peer = me ^ distance;
            let (mine, theirs) = (me / distance * distance, peer / distance * distance);
            let (have, want) = (chunks.start(mine), chunks.start(theirs));
            round.receive(fold.rank_of(peer), target(want), chunks.len(theirs, theirs + distance));
            round.send(fold.rank_of(peer), target(have), chunks.len(mine, mine + distance));
        }
    }
}

/// Reduce-scatter and all-gather, each by direct exchange: 2 messages of n/p bytes to each peer, 2 n (p-1)/p bytes.
pub(crate) struct Pairwise(pub(crate) Spec<Position>);

// SAFETY: the first round receives into scratch memory, a part for each peer; the second into chunks of the target
// that are not this rank's, while it sends its own. Segments are disjoint.
unsafe impl Schedule for Pairwise {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        2
    }

    fn scratch_len(&self) -> usize {
        self.0.segments().part(0, self.0.at.ranks).largest() * (self.0.at.ranks - 1)
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let Position { rank, ranks } = self.0.at;
        let chunks = self.0.segments().part(segment, ranks);
        let mine = chunks.start(rank);
        let len = chunks.len(rank, rank + 1);
        for distance in 1..ranks {
            let from = self.0.at.below(distance);
            let to = self.0.at.above(distance);
            if number == 0 {
                round.receive(from, scratch((distance - 1) * len), len);
                round.send(to, source(chunks.start(to)), chunks.len(to, to + 1));
            } else {
                round.receive(from, target(chunks.start(from)), chunks.len(from, from + 1));
                round.send(to, target(mine), len);
            }
        }
        if number == 0 {
            round.combine(target(mine), source(mine), scratch(0), len);
            for other in 1..ranks - 1 {
                round.combine(target(mine), target(mine), scratch(other * len), len);
            }
            round.finish(target(mine), len);
        }
    }
}

/// Reduce-scatter and all-gather around a ring: 2 (p-1) messages of n/p bytes, 2 n (p-1)/p bytes, all to one
/// neighbour.
pub(crate) struct Ring(pub(crate) Spec<Position>);

// SAFETY: a reducing round receives into scratch memory, a gathering one into a chunk of the target next to the
// one that it sends. Segments are disjoint.
unsafe impl Schedule for Ring {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        2 * (self.0.at.ranks - 1)
    }

    fn scratch_len(&self) -> usize {
        self.0.segments().part(0, self.0.at.ranks).largest()
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let ranks = self.0.at.ranks;
        let chunks = self.0.segments().part(segment, ranks);
        let steps = ranks - 1;
        let (from, to) = (self.0.at.below(1), self.0.at.above(1));
        if number < steps {
            let give = self.0.at.below(number);
            let take = self.0.at.below(number + 1);
            let len = chunks.len(take, take + 1);
            let start = chunks.start(give);
            let location = if number == 0 { source(start) } else { target(start) };
            round.receive(from, scratch(0), len);
            round.send(to, location, chunks.len(give, give + 1));
            round.combine(target(chunks.start(take)), source(chunks.start(take)), scratch(0), len);
            if number + 1 == steps {
                round.finish(target(chunks.start(take)), len);
            }
        } else {
            let step = number - steps;
            let give = (self.0.at.above(1) + ranks - step) % ranks;
            let take = self.0.at.below(step);
            round.receive(from, target(chunks.start(take)), chunks.len(take, take + 1));
            round.send(to, target(chunks.start(give)), chunks.len(give, give + 1));
        }
    }
}
