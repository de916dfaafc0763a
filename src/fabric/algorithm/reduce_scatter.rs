//! Algorithms for reduce_scatter.
//!
//! Costs for `p` ranks with vectors of `n` bytes, a block of n/p for each rank, as messages on the critical
//! path and bytes sent by each rank. Partial results are kept in scratch memory: in place, only the own block
//! of a rank's vector changes.

use super::{Pipeline, RankPosition, Round, Schedule, Spec, scratch_at, source_at, target_at};
use crate::fabric::selection::Algorithm;

pub(super) fn build_schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let ranks = spec.at.ranks;
    let largest = spec.vector_segments().largest_bytes();
    match algorithm {
        // SAFETY: receives into an unsent part of the scratch memory; the first round sends from the source,
        // later rounds from the scratch memory. The result is written when all sends are over.
        Algorithm::RecursiveHalving => unsafe {
            let scratch_len = 2 * arrivals_start(&spec);
            Schedule::new(spec, Pipeline::WHOLE, spec.at.tree_steps(), scratch_len, recursive_halving)
        },
        // SAFETY: receives into one half of the scratch memory and combines there, and sends the result of
        // the round before from the other half. The result is written when all sends are over. Segments are
        // disjoint.
        Algorithm::Ring => unsafe {
            Schedule::new(spec, spec.segment_pipeline(), ranks - 1, 2 * largest, fill_ring_round)
        },
        // Pairwise serves any number of ranks. SAFETY: receives into scratch memory, a part for each peer;
        // the result is written when all sends are over, to the own, unsent block. Segments are disjoint.
        _ => unsafe {
            Schedule::new(spec, spec.segment_pipeline(), 1, (ranks - 1) * largest, fill_pairwise_round)
        },
    }
}

/// Every rank sends every other its block, and combines the blocks received: 1 message to each peer, n
/// (p-1)/p bytes.
fn fill_pairwise_round(spec: &Spec, segment: usize, _number: usize, round: &mut Round) {
    let (start, len) = spec.vector_segments().part_span(segment);
    round.reduce_own(spec.at, |rank| (rank * spec.byte_count() + start, len), target_at(start));
}

/// Start of the receive buffer of [`recursive_halving`] in scratch memory: behind the half of all blocks left
/// after the first round.
fn arrivals_start(spec: &Spec) -> usize {
    spec.at.ranks / 2 * spec.byte_count()
}

/// Exchanges halves of the remaining blocks with partners at halving distance: lg p messages, n (p-1)/p
/// bytes; a power of two of ranks.
fn recursive_halving(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let RankPosition { rank, ranks, .. } = spec.at;
    let block = spec.byte_count();
    let distance = ranks >> (number + 1);
    let peer = rank ^ distance;
    // Both still share 2 * distance blocks; each keeps the half with its own number.
    let (mine, theirs) = (rank / distance * distance, peer / distance * distance);
    let first = mine.min(theirs);
    let partial = |index: usize| match number {
        0 => source_at(index * block),
        _ => scratch_at((index - first) * block),
    };
    let len = distance * block;
    let arrived = scratch_at(arrivals_start(spec));
    round.receive_message(peer, arrived, len);
    round.send_message(peer, partial(theirs), len);
    if distance == 1 {
        round.combine_after(target_at(0), partial(mine), arrived, len);
        round.finish_after(target_at(0), len);
    } else {
        round.combine_after(scratch_at(0), partial(mine), arrived, len);
    }
}

/// Passes partial results around a ring, each on its way to the rank of its block: p-1 messages of n/p bytes,
/// all to one neighbour.
fn fill_ring_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let (at, segments, block) = (spec.at, spec.vector_segments(), spec.byte_count());
    let (start, len) = segments.part_span(segment);
    let half = |number: usize| scratch_at(number % 2 * segments.largest_bytes());
    let take = at.rank_below((number + 2) % at.ranks);
    let own = source_at(take * block + start);
    round.receive_message(at.rank_below(1), half(number), len);
    match number {
        0 => round.send_message(at.rank_above(1), source_at(at.rank_below(1) * block + start), len),
        _ => round.send_message(at.rank_above(1), half(number - 1), len),
    }
    if number + 2 == at.ranks {
        round.combine_after(target_at(start), own, half(number), len);
        round.finish_after(target_at(start), len);
    } else {
        round.combine_after(half(number), half(number), own, len);
    }
}
