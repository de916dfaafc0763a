//! Algorithms for all_gather.
//!
//! Costs for `p` ranks with `n` bytes each, as messages on the critical path; with every algorithm a rank
//! receives (p-1) n bytes, the minimum.

use super::{Pipeline, RankPosition, Round, Schedule, Spec, scratch_at, source_at, target_at};
use crate::fabric::selection::Algorithm;

pub(super) fn build_schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let (pipeline, at) = (spec.segment_pipeline(), spec.at);
    match algorithm {
        // SAFETY: receives other blocks into the target and sends the own one. Segments are disjoint.
        Algorithm::Direct => unsafe { Schedule::new(spec, pipeline, 1, 0, fill_direct_round) },
        // SAFETY: receives the partner's group of blocks and sends the own group.
        Algorithm::RecursiveDoubling => unsafe {
            Schedule::new(spec, Pipeline::WHOLE, at.tree_steps(), 0, recursive_doubling)
        },
        // SAFETY: receives behind the known blocks and sends those; copies to the target in the end.
        Algorithm::Bruck => unsafe {
            Schedule::new(
                spec,
                Pipeline::WHOLE,
                at.tree_steps(),
                at.ranks * spec.byte_count(),
                fill_bruck_round,
            )
        },
        // The ring serves any number of ranks. SAFETY: receives a block next to the sent one. Segments are
        // disjoint.
        _ => unsafe { Schedule::new(spec, pipeline, at.ranks - 1, 0, fill_ring_round) },
    }
}

impl Spec {
    /// Copies a part of this rank's own block into the target.
    pub(super) fn keep_block(&self, offset: usize, len: usize, round: &mut Round) {
        round.copy_meanwhile(source_at(offset), target_at(self.at.rank * self.byte_count() + offset), len);
    }
}

/// Every rank sends its block to every other: 1 message to each.
fn fill_direct_round(spec: &Spec, segment: usize, _number: usize, round: &mut Round) {
    let (start, len) = spec.vector_segments().part_span(segment);
    for distance in 1..spec.at.ranks {
        let from = spec.at.rank_below(distance);
        round.receive_message(from, target_at(from * spec.byte_count() + start), len);
        round.send_message(spec.at.rank_above(distance), source_at(start), len);
    }
    spec.keep_block(start, len, round);
}

/// Exchanges all known blocks with partners at doubling distance: lg p messages; a power of two of ranks.
fn recursive_doubling(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let (rank, block) = (spec.at.rank, spec.byte_count());
    let distance = 1 << number;
    let peer = rank ^ distance;
    let (mine, theirs) = (rank / distance * distance, peer / distance * distance);
    round.receive_message(peer, target_at(theirs * block), distance * block);
    if number == 0 {
        round.send_message(peer, source_at(0), block);
        spec.keep_block(0, block, round);
    } else {
        round.send_message(peer, target_at(mine * block), distance * block);
    }
}

/// Bruck's algorithm: sends all known blocks down at doubling distance, in scratch memory from the own block
/// on, and copies them into rank order at the end: lg p messages, rounded up; any number of ranks.
fn fill_bruck_round(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let RankPosition { rank, ranks, .. } = spec.at;
    let block = spec.byte_count();
    let known = 1 << number;
    let len = known.min(ranks - known) * block;
    round.receive_message(spec.at.rank_above(known), scratch_at(known * block), len);
    if number == 0 {
        round.send_message(spec.at.rank_below(known), source_at(0), len);
        round.copy_meanwhile(source_at(0), scratch_at(0), block);
    } else {
        round.send_message(spec.at.rank_below(known), scratch_at(0), len);
    }
    if number + 1 == spec.at.tree_steps() {
        let (up, down) = ((ranks - rank) * block, rank * block);
        round.copy_after(scratch_at(0), target_at(down), up);
        round.copy_after(scratch_at(up), target_at(0), down);
    }
}

/// Passes blocks around a ring: p-1 messages, all to one neighbour.
fn fill_ring_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let (at, block) = (spec.at, spec.byte_count());
    let (start, len) = spec.vector_segments().part_span(segment);
    let take = at.rank_below(number + 1);
    round.receive_message(at.rank_below(1), target_at(take * block + start), len);
    if number == 0 {
        round.send_message(at.rank_above(1), source_at(start), len);
        spec.keep_block(start, len, round);
    } else {
        round.send_message(at.rank_above(1), target_at(at.rank_below(number) * block + start), len);
    }
}
