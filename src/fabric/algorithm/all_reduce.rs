//! Algorithms for all_reduce.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and bytes sent by each rank.

use super::{Location, Pipeline, RankPosition, Round, Schedule, Spec, scratch_at, source_at, target_at};
use crate::fabric::selection::Algorithm;

pub(super) fn build_schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let (pipeline, ranks) = (spec.segment_pipeline(), spec.at.ranks);
    let chunk = || spec.vector_segments().split_part(0, ranks).largest_bytes();
    let fold = Fold::new(spec.at);
    match algorithm {
        // SAFETY: one round; each peer has a part of the scratch memory of its own, and the result is written
        // when all sends are over.
        Algorithm::Direct => unsafe {
            Schedule::new(spec, Pipeline::WHOLE, 1, ranks * spec.byte_count(), fill_direct_round)
        },
        // SAFETY: all rounds receive into scratch memory, except the last: it receives into the target after
        // this rank's last send of it.
        Algorithm::RecursiveDoubling => unsafe {
            let rounds = fold.step_count() + 2 * fold.outer_rounds();
            Schedule::new(spec, Pipeline::WHOLE, rounds, spec.byte_count(), recursive_doubling)
        },
        // SAFETY: the halving receives into scratch memory, the doubling into parts of the target given away
        // by this rank while halving, and not sent in the same round. Segments are disjoint.
        Algorithm::Rabenseifner => unsafe {
            let rounds = 2 * fold.step_count() + 2 * fold.outer_rounds();
            Schedule::new(
                spec,
                pipeline,
                rounds,
                spec.vector_segments().largest_bytes(),
                fill_rabenseifner_round,
            )
            .into_ordered()
        },
        // SAFETY: the first round receives into scratch memory, a part for each peer; the second into other
        // ranks' chunks of the target, while this rank sends its own. Segments are disjoint.
        Algorithm::Pairwise => unsafe {
            Schedule::new(spec, pipeline, 2, chunk() * (ranks - 1), fill_pairwise_round)
        },
        // The ring serves any number of ranks. SAFETY: a reducing round receives into scratch memory, a
        // gathering one into a chunk of the target next to the sent one. Segments are disjoint.
        _ => unsafe { Schedule::new(spec, pipeline, 2 * (ranks - 1), chunk(), fill_ring_round) },
    }
}

/// Every rank sends everything to every other and combines in rank order: 1 message, (p-1) n bytes.
fn fill_direct_round(spec: &Spec, _segment: usize, _number: usize, round: &mut Round) {
    let RankPosition { rank, ranks, .. } = spec.at;
    let len = spec.byte_count();
    for distance in 1..ranks {
        let from = spec.at.rank_below(distance);
        round.receive_message(from, scratch_at(from * len), len);
        round.send_message(spec.at.rank_above(distance), source_at(0), len);
    }
    // ((0 + 1) + 2) + ...: ranks after the second combine those before them in scratch memory first.
    for other in 1..rank {
        round.combine_after(scratch_at(0), scratch_at(0), scratch_at(other * len), len);
    }
    let first = if rank == 0 { 1 } else { 0 };
    round.combine_after(target_at(0), source_at(0), scratch_at(first * len), len);
    for other in rank.max(first) + 1..ranks {
        round.combine_after(target_at(0), target_at(0), scratch_at(other * len), len);
    }
    round.finish_after(target_at(0), len);
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
    fn new(RankPosition { rank, ranks, .. }: RankPosition) -> Self {
        let workers = 1 << ranks.ilog2();
        Self { rank, workers, represented: ranks - workers }
    }

    /// Rounds before the first step, and as many after the last.
    fn outer_rounds(&self) -> usize {
        usize::from(self.represented > 0)
    }

    /// Number of halving rounds, equal to the number of doubling rounds.
    fn step_count(&self) -> usize {
        self.workers.ilog2() as usize
    }

    fn is_represented(&self) -> bool {
        self.rank < 2 * self.represented && self.rank.is_multiple_of(2)
    }

    fn is_representative(&self) -> bool {
        self.rank < 2 * self.represented && self.rank % 2 == 1
    }

    /// This rank's number among the workers. It must be a worker.
    fn worker_number(&self) -> usize {
        if self.is_representative() { self.rank / 2 } else { self.rank - self.represented }
    }

    /// The rank of a worker.
    fn rank_of(&self, number: usize) -> usize {
        if number < self.represented { 2 * number + 1 } else { number + self.represented }
    }

    /// Location of a worker's vector at the first step.
    fn vector_location(&self, offset: usize) -> Location {
        if self.is_representative() { target_at(offset) } else { source_at(offset) }
    }

    /// The round before the first step, on `len` bytes.
    fn fill_round_before(&self, offset: usize, len: usize, round: &mut Round) {
        if self.is_represented() {
            round.send_message(self.rank + 1, source_at(offset), len);
        } else if self.is_representative() {
            round.receive_message(self.rank - 1, scratch_at(0), len);
            round.combine_after(target_at(offset), source_at(offset), scratch_at(0), len);
        }
    }

    /// The round after the last step.
    fn fill_round_after(&self, offset: usize, len: usize, round: &mut Round) {
        if self.is_represented() {
            round.receive_message(self.rank + 1, target_at(offset), len);
        } else if self.is_representative() {
            round.send_message(self.rank - 1, target_at(offset), len);
        }
    }
}

/// Exchanges and combines whole vectors with partners at doubling distance: lg p messages, n lg p bytes (if
/// the number of ranks is not a power of two: 2 messages and up to 2 n bytes more).
fn recursive_doubling(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let fold = Fold::new(spec.at);
    let len = spec.byte_count();
    if number < fold.outer_rounds() {
        return fold.fill_round_before(0, len, round);
    }
    let step = number - fold.outer_rounds();
    if step >= fold.step_count() {
        return fold.fill_round_after(0, len, round);
    }
    if fold.is_represented() {
        return;
    }
    let peer = fold.rank_of(fold.worker_number() ^ 1 << step);
    let vector = if step == 0 { fold.vector_location(0) } else { target_at(0) };
    round.receive_message(peer, scratch_at(0), len);
    round.send_message(peer, vector, len);
    round.combine_after(target_at(0), vector, scratch_at(0), len);
    if step + 1 == fold.step_count() {
        round.finish_after(target_at(0), len);
    }
}

/// Rabenseifner's: reduce-scatter by recursive halving, then all-gather by recursive doubling: 2 lg p
/// messages, 2 n (p-1)/p bytes (if the number of ranks is not a power of two: 2 messages and up to 2 n bytes
/// more).
fn fill_rabenseifner_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let fold = Fold::new(spec.at);
    let chunks = spec.vector_segments().split_part(segment, fold.workers);
    if number < fold.outer_rounds() {
        return fold.fill_round_before(chunks.part_start(0), chunks.parts_bytes(0, fold.workers), round);
    }
    let step = number - fold.outer_rounds();
    if step >= 2 * fold.step_count() {
        return fold.fill_round_after(chunks.part_start(0), chunks.parts_bytes(0, fold.workers), round);
    }
    if fold.is_represented() {
        return;
    }
    let reduces = step < fold.step_count();
    let distance = if reduces { fold.workers >> (step + 1) } else { 1 << (step - fold.step_count()) };
    // Both share 2 * distance chunks; while halving each keeps the half with its own number.
    let me = fold.worker_number();
    let (peer, mine, theirs) =
        (fold.rank_of(me ^ distance), me / distance * distance, (me ^ distance) / distance * distance);
    let (own, other) = (chunks.part_start(mine), chunks.part_start(theirs));
    let (own_len, other_len) =
        (chunks.parts_bytes(mine, mine + distance), chunks.parts_bytes(theirs, theirs + distance));
    if !reduces {
        round.receive_message(peer, target_at(other), other_len);
        return round.send_message(peer, target_at(own), own_len);
    }
    let vector = |offset| if step == 0 { fold.vector_location(offset) } else { target_at(offset) };
    round.receive_message(peer, scratch_at(0), own_len);
    round.send_message(peer, vector(other), other_len);
    round.combine_after(target_at(own), vector(own), scratch_at(0), own_len);
    if distance == 1 {
        round.finish_after(target_at(own), own_len);
    }
}

/// Reduce-scatter and all-gather, each by direct exchange: 2 messages of n/p bytes to each peer, 2 n (p-1)/p
/// bytes.
fn fill_pairwise_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let chunks = spec.vector_segments().split_part(segment, at.ranks);
    let (mine, len) = chunks.part_span(at.rank);
    if number == 0 {
        return round.reduce_own(at, |rank| chunks.part_span(rank), target_at(mine));
    }
    for distance in 1..at.ranks {
        let from = at.rank_below(distance);
        let (start, theirs) = chunks.part_span(from);
        round.receive_message(from, target_at(start), theirs);
        round.send_message(at.rank_above(distance), target_at(mine), len);
    }
}

/// Reduce-scatter and all-gather around a ring: 2 (p-1) messages of n/p bytes, 2 n (p-1)/p bytes, all to one
/// neighbour.
fn fill_ring_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let (at, ranks) = (spec.at, spec.at.ranks);
    let chunks = spec.vector_segments().split_part(segment, ranks);
    let steps = ranks - 1;
    // The gathering steps continue after the reducing ones: each rank sends the chunk received in the step
    // before.
    let (give, give_len) = chunks.part_span(at.rank_below(number % ranks));
    let (take, len) = chunks.part_span(at.rank_below((number + 1) % ranks));
    if number < steps {
        let location = if number == 0 { source_at(give) } else { target_at(give) };
        round.receive_message(at.rank_below(1), scratch_at(0), len);
        round.send_message(at.rank_above(1), location, give_len);
        round.combine_after(target_at(take), source_at(take), scratch_at(0), len);
        if number + 1 == steps {
            round.finish_after(target_at(take), len);
        }
    } else {
        round.receive_message(at.rank_below(1), target_at(take), len);
        round.send_message(at.rank_above(1), target_at(give), give_len);
    }
}
