//! Algorithms for reduce.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and bytes sent by each rank. Only the
//! root has a target; the others keep partial results in scratch memory.

use super::{Round, Schedule, Spec, scratch_at, source_at, target_at};
use crate::fabric::selection::Algorithm;

pub(super) fn build_schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let segments = spec.vector_segments();
    match algorithm {
        Algorithm::Pairwise => {
            let scratch_len = segments.split_part(0, spec.at.ranks).largest_bytes() * (spec.at.ranks - 1);
            // SAFETY: the first round receives into scratch memory, a part for each peer; in the second the
            // root receives the other ranks' chunks of the target and sends nothing. Segments are disjoint.
            unsafe { Schedule::new(spec, spec.segment_pipeline(), 2, scratch_len, fill_pairwise_round) }
        }
        // The tree serves any number of ranks. SAFETY: receives into scratch memory beside the data kept and
        // sent there. Segments are disjoint.
        _ => unsafe {
            Schedule::new(
                spec,
                spec.segment_pipeline(),
                spec.at.tree_steps(),
                2 * segments.largest_bytes(),
                fill_binomial_round,
            )
        },
    }
}

/// Up a binomial tree: every rank combines its children's vectors with its own; lg p messages, rounded up; n
/// bytes.
fn fill_binomial_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let (at, segments) = (spec.at, spec.vector_segments());
    let (start, len) = segments.part_span(segment);
    let partial = if at.is_root() { target_at(start) } else { scratch_at(0) };
    let arrived = scratch_at(segments.largest_bytes());
    if let Some(child) = at.child_at(number) {
        round.receive_message(at.rank_of(child), arrived, len);
        round.combine_after(partial, if number == 0 { source_at(start) } else { partial }, arrived, len);
    }
    if let Some(parent) = at.parent_at(number) {
        let whole = if at.has_children() { partial } else { source_at(start) };
        round.send_message(at.rank_of(parent), whole, len);
    }
    if at.is_root() && number + 1 == at.tree_steps() {
        round.finish_after(target_at(start), len);
    }
}

/// Every rank reduces one chunk, received from all others, and sends it to the root: 2 messages, n bytes.
fn fill_pairwise_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let chunks = spec.vector_segments().split_part(segment, at.ranks);
    let (mine, len) = chunks.part_span(at.rank);
    if number == 0 {
        let whole = if at.is_root() { target_at(mine) } else { scratch_at(0) };
        return round.reduce_own(at, |rank| chunks.part_span(rank), whole);
    }
    if !at.is_root() {
        return round.send_message(at.root, scratch_at(0), len);
    }
    for from in (1..at.ranks).map(|distance| at.rank_below(distance)) {
        let (start, len) = chunks.part_span(from);
        round.receive_message(from, target_at(start), len);
    }
}
