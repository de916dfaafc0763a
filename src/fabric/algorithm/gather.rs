//! Algorithms for gather.
//!
//! Costs for `p` ranks with `n` bytes each, as messages on the critical path; the root receives (p-1) n
//! bytes. Only the root has a target.

use super::{Pipeline, Round, Schedule, Spec, scratch_at, source_at, target_at};
use crate::fabric::selection::Algorithm;

pub(super) fn build_schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    match algorithm {
        Algorithm::Binomial => {
            let scratch_len = spec.at.subtree_size(spec.at.tree_number()) * spec.byte_count();
            // SAFETY: receives into scratch memory behind the blocks already there, and sends those.
            unsafe {
                Schedule::new(spec, Pipeline::WHOLE, spec.at.tree_steps(), scratch_len, fill_binomial_round)
            }
        }
        // Direct serves any number of ranks. SAFETY: the root only receives, into the other ranks' blocks of
        // the target. Segments are disjoint.
        _ => unsafe { Schedule::new(spec, spec.segment_pipeline(), 1, 0, fill_direct_round) },
    }
}

/// Every rank sends its block to the root: 1 message of each, p-1 at the root.
pub(super) fn fill_direct_round(spec: &Spec, segment: usize, _number: usize, round: &mut Round) {
    let (at, block) = (spec.at, spec.byte_count());
    let (start, len) = spec.vector_segments().part_span(segment);
    if !at.is_root() {
        return round.send_message(at.root, source_at(start), len);
    }
    for from in (1..at.ranks).map(|distance| at.rank_above(distance)) {
        round.receive_message(from, target_at(from * block + start), len);
    }
    round.copy_meanwhile(source_at(start), target_at(at.rank * block + start), len);
}

/// Up a binomial tree: every rank forwards its subtree's blocks; lg p messages, rounded up. Blocks pass
/// through other ranks on their way.
pub(super) fn fill_binomial_round(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let (at, block) = (spec.at, spec.byte_count());
    let me = at.tree_number();
    if let Some(child) = at.child_at(number) {
        round.receive_message(
            at.rank_of(child),
            scratch_at((child - me) * block),
            at.subtree_size(child) * block,
        );
    }
    if let Some(parent) = at.parent_at(number) {
        let blocks = if at.has_children() { scratch_at(0) } else { source_at(0) };
        round.send_message(at.rank_of(parent), blocks, at.subtree_size(me) * block);
    }
    if number == 0 && at.has_children() {
        round.copy_meanwhile(source_at(0), scratch_at(0), block);
    }
    if number + 1 == at.tree_steps() && at.is_root() {
        let up = (at.ranks - at.root) * block;
        round.copy_after(scratch_at(0), target_at(at.root * block), up);
        round.copy_after(scratch_at(up), target_at(0), at.root * block);
    }
}
