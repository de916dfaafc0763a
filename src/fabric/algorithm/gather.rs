//! Algorithms for gather.
//!
//! Costs for `p` ranks with `n` bytes each, as messages on the critical path; the root receives (p-1) n
//! bytes. Only the root has a target.

use super::{Pipeline, Round, Schedule, Spec, scratch, source, target};
use crate::fabric::selection::Algorithm;

pub(super) fn schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    match algorithm {
        Algorithm::Binomial => {
            let scratch_len = spec.at.subtree(spec.at.number()) * spec.bytes();
            // SAFETY: receives into scratch memory behind the blocks already there, and sends those.
            unsafe { Schedule::new(spec, Pipeline::WHOLE, spec.at.steps(), scratch_len, binomial) }
        }
        // Direct serves any number of ranks. SAFETY: the root only receives, into the other ranks' blocks of
        // the target. Segments are disjoint.
        _ => unsafe { Schedule::new(spec, spec.pipeline(), 1, 0, direct) },
    }
}

/// Every rank sends its block to the root: 1 message of each, p-1 at the root.
pub(super) fn direct(spec: &Spec, segment: usize, _number: usize, round: &mut Round) {
    let (at, block) = (spec.at, spec.bytes());
    let (start, len) = spec.segments().span(segment);
    if !at.is_root() {
        return round.send(at.root, source(start), len);
    }
    for from in (1..at.ranks).map(|distance| at.above(distance)) {
        round.receive(from, target(from * block + start), len);
    }
    round.copy_meanwhile(source(start), target(at.rank * block + start), len);
}

/// Up a binomial tree: every rank forwards its subtree's blocks; lg p messages, rounded up. Blocks pass
/// through other ranks on their way.
pub(super) fn binomial(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let (at, block) = (spec.at, spec.bytes());
    let me = at.number();
    if let Some(child) = at.child(number) {
        round.receive(at.rank_of(child), scratch((child - me) * block), at.subtree(child) * block);
    }
    if let Some(parent) = at.parent(number) {
        let blocks = if at.has_children() { scratch(0) } else { source(0) };
        round.send(at.rank_of(parent), blocks, at.subtree(me) * block);
    }
    if number == 0 && at.has_children() {
        round.copy_meanwhile(source(0), scratch(0), block);
    }
    if number + 1 == at.steps() && at.is_root() {
        let up = (at.ranks - at.root) * block;
        round.copy(scratch(0), target(at.root * block), up);
        round.copy(scratch(up), target(0), at.root * block);
    }
}
