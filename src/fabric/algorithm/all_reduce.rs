//! Algorithms for all_reduce.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and bytes sent by each rank.

use super::{Location, Pipeline, Position, Round, Schedule, Spec, scratch, source, target};
use crate::fabric::selection::Algorithm;

pub(super) fn schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let (pipeline, ranks) = (spec.pipeline(), spec.at.ranks);
    let chunk = || spec.segments().part(0, ranks).largest();
    let fold = Fold::new(spec.at);
    match algorithm {
        // SAFETY: one round; each peer has a part of the scratch memory of its own, and the result is written
        // when all sends are over.
        Algorithm::Direct => unsafe { Schedule::new(spec, Pipeline::WHOLE, 1, ranks * spec.bytes(), direct) },
        // SAFETY: all rounds receive into scratch memory, except the last: it receives into the target after
        // this rank's last send of it.
        Algorithm::RecursiveDoubling => unsafe {
            let rounds = fold.steps() + 2 * fold.outer_rounds();
            Schedule::new(spec, Pipeline::WHOLE, rounds, spec.bytes(), recursive_doubling)
        },
        // SAFETY: the halving receives into scratch memory, the doubling into parts of the target given away
        // by this rank while halving, and not sent in the same round. Segments are disjoint.
        Algorithm::Rabenseifner => unsafe {
            let rounds = 2 * fold.steps() + 2 * fold.outer_rounds();
            Schedule::new(spec, pipeline, rounds, spec.segments().largest(), rabenseifner).ordered()
        },
        // SAFETY: the first round receives into scratch memory, a part for each peer; the second into other
        // ranks' chunks of the target, while this rank sends its own. Segments are disjoint.
        Algorithm::Pairwise => unsafe { Schedule::new(spec, pipeline, 2, chunk() * (ranks - 1), pairwise) },
        // The ring serves any number of ranks. SAFETY: a reducing round receives into scratch memory, a
        // gathering one into a chunk of the target next to the sent one. Segments are disjoint.
        _ => unsafe { Schedule::new(spec, pipeline, 2 * (ranks - 1), chunk(), ring) },
    }
}

/// Every rank sends everything to every other and combines in rank order: 1 message, (p-1) n bytes.
fn direct(spec: &Spec, _segment: usize, _number: usize, round: &mut Round) {
    let Position { rank, ranks, .. } = spec.at;
    let len = spec.bytes();
    for distance in 1..ranks {
        let from = spec.at.below(distance);
        round.receive(from, scratch(from * len), len);
        round.send(spec.at.above(distance), source(0), len);
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

/// The largest power of two of the ranks works. Each remaining rank is represented by a neighbour: it sends
/// its vector there first, and receives the result from there last.
#[derive(Clone, Copy)]
struct Fold {
    rank: usize,
    /// Number of working ranks.
    workers: usize,
    /// Number of represented ranks: the even ones of the first `2 * represented`.
    represented: usize,
}

impl Fold {
    fn new(Position { rank, ranks, .. }: Position) -> Self {
        let workers = 1 << ranks.ilog2();
        Self { rank, workers, represented: ranks - workers }
    }

    /// Rounds before the first step, and as many after the last.
    fn outer_rounds(&self) -> usize {
        usize::from(self.represented > 0)
    }

    /// Number of halving rounds, equal to the number of doubling rounds.
    fn steps(&self) -> usize {
        self.workers.ilog2() as usize
    }

    fn is_represented(&self) -> bool {
        self.rank < 2 * self.represented && self.rank.is_multiple_of(2)
    }

    fn represents(&self) -> bool {
        self.rank < 2 * self.represented && self.rank % 2 == 1
    }

    /// This rank's number among the workers. It must be a worker.
    fn number(&self) -> usize {
        if self.represents() { self.rank / 2 } else { self.rank - self.represented }
    }

    /// The rank of a worker.
    fn rank_of(&self, number: usize) -> usize {
        if number < self.represented { 2 * number + 1 } else { number + self.represented }
    }

    /// Location of a worker's vector at the first step.
    fn vector(&self, offset: usize) -> Location {
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

/// Exchanges and combines whole vectors with partners at doubling distance: lg p messages, n lg p bytes (if
/// the number of ranks is not a power of two: 2 messages and up to 2 n bytes more).
fn recursive_doubling(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let fold = Fold::new(spec.at);
    let len = spec.bytes();
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

/// Rabenseifner's: reduce-scatter by recursive halving, then all-gather by recursive doubling: 2 lg p
/// messages, 2 n (p-1)/p bytes (if the number of ranks is not a power of two: 2 messages and up to 2 n bytes
/// more).
fn rabenseifner(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let fold = Fold::new(spec.at);
    let chunks = spec.segments().part(segment, fold.workers);
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
    let reduces = step < fold.steps();
    let distance = if reduces { fold.workers >> (step + 1) } else { 1 << (step - fold.steps()) };
    // Both share 2 * distance chunks; while halving each keeps the half with its own number.
    let me = fold.number();
    let (peer, mine, theirs) =
        (fold.rank_of(me ^ distance), me / distance * distance, (me ^ distance) / distance * distance);
    let (own, other) = (chunks.start(mine), chunks.start(theirs));
    let (own_len, other_len) = (chunks.len(mine, mine + distance), chunks.len(theirs, theirs + distance));
    if !reduces {
        round.receive(peer, target(other), other_len);
        return round.send(peer, target(own), own_len);
    }
    let vector = |offset| if step == 0 { fold.vector(offset) } else { target(offset) };
    round.receive(peer, scratch(0), own_len);
    round.send(peer, vector(other), other_len);
    round.combine(target(own), vector(own), scratch(0), own_len);
    if distance == 1 {
        round.finish(target(own), own_len);
    }
}

/// Reduce-scatter and all-gather, each by direct exchange: 2 messages of n/p bytes to each peer, 2 n (p-1)/p
/// bytes.
fn pairwise(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let chunks = spec.segments().part(segment, at.ranks);
    let (mine, len) = chunks.span(at.rank);
    if number == 0 {
        return round.reduce_own(at, |rank| chunks.span(rank), target(mine));
    }
    for distance in 1..at.ranks {
        let from = at.below(distance);
        let (start, theirs) = chunks.span(from);
        round.receive(from, target(start), theirs);
        round.send(at.above(distance), target(mine), len);
    }
}

/// Reduce-scatter and all-gather around a ring: 2 (p-1) messages of n/p bytes, 2 n (p-1)/p bytes, all to one
/// neighbour.
fn ring(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let (at, ranks) = (spec.at, spec.at.ranks);
    let chunks = spec.segments().part(segment, ranks);
    let steps = ranks - 1;
    // The gathering steps continue after the reducing ones: each rank sends the chunk received in the step
    // before.
    let (give, give_len) = chunks.span(at.below(number % ranks));
    let (take, len) = chunks.span(at.below((number + 1) % ranks));
    if number < steps {
        let location = if number == 0 { source(give) } else { target(give) };
        round.receive(at.below(1), scratch(0), len);
        round.send(at.above(1), location, give_len);
        round.combine(target(take), source(take), scratch(0), len);
        if number + 1 == steps {
            round.finish(target(take), len);
        }
    } else {
        round.receive(at.below(1), target(take), len);
        round.send(at.above(1), target(give), give_len);
    }
}
