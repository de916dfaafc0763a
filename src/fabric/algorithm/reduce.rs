//! Algorithms for reduce.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and bytes sent by each rank. Only the
//! root has a target; the others keep partial results in scratch memory.

use super::{Round, Schedule, Spec, scratch, source, target};
use crate::fabric::selection::Algorithm;

pub(super) fn schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let segments = spec.segments();
    match algorithm {
        Algorithm::Pairwise => {
            let scratch_len = segments.part(0, spec.at.ranks).largest() * (spec.at.ranks - 1);
            // SAFETY: the first round receives into scratch memory, a part for each peer; in the second the
            // root receives the other ranks' chunks of the target and sends nothing. Segments are disjoint.
            unsafe { Schedule::new(spec, spec.pipeline(), 2, scratch_len, pairwise) }
        }
        // The tree serves any number of ranks. SAFETY: receives into scratch memory beside the data kept and
        // sent there. Segments are disjoint.
        _ => unsafe {
            Schedule::new(spec, spec.pipeline(), spec.at.steps(), 2 * segments.largest(), binomial)
        },
    }
}

/// Up a binomial tree: every rank combines its children's vectors with its own; lg p messages, rounded up; n
/// bytes.
fn binomial(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let (at, segments) = (spec.at, spec.segments());
    let (start, len) = segments.span(segment);
    let partial = if at.is_root() { target(start) } else { scratch(0) };
    let arrived = scratch(segments.largest());
    if let Some(child) = at.child(number) {
        round.receive(at.rank_of(child), arrived, len);
        round.combine(partial, if number == 0 { source(start) } else { partial }, arrived, len);
    }
    if let Some(parent) = at.parent(number) {
        let whole = if at.has_children() { partial } else { source(start) };
        round.send(at.rank_of(parent), whole, len);
    }
    if at.is_root() && number + 1 == at.steps() {
        round.finish(target(start), len);
    }
}

/// Every rank reduces one chunk, received from all others, and sends it to the root: 2 messages, n bytes.
fn pairwise(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let chunks = spec.segments().part(segment, at.ranks);
    let (mine, len) = chunks.span(at.rank);
    if number == 0 {
        let whole = if at.is_root() { target(mine) } else { scratch(0) };
        return round.reduce_own(at, |rank| chunks.span(rank), whole);
    }
    if !at.is_root() {
        return round.send(at.root, scratch(0), len);
    }
    for from in (1..at.ranks).map(|distance| at.below(distance)) {
        let (start, len) = chunks.span(from);
        round.receive(from, target(start), len);
    }
}
