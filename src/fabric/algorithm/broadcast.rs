//! Algorithms for broadcast.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and maximum bytes sent by a rank. Only
//! the root has a source.

use super::{Location, Round, Schedule, Spec, source_at, target_at};
use crate::fabric::selection::Algorithm;

pub(super) fn build_schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let (pipeline, at) = (spec.segment_pipeline(), spec.at);
    match algorithm {
        // SAFETY: the root only sends, from the source; another rank only receives. Segments are disjoint.
        Algorithm::Direct => unsafe { Schedule::new(spec, pipeline, 1, 0, fill_direct_round) },
        // SAFETY: the root only sends, from the source; another rank receives only missing chunks into the
        // target, and sends only chunks it has. Segments are disjoint.
        Algorithm::Ring => unsafe {
            Schedule::new(spec, pipeline, at.tree_steps() + at.ranks - 1, 0, fill_ring_round)
        },
        // The tree serves any number of ranks. SAFETY: the root only sends, from the source; another rank
        // receives in one round and sends in later ones. Segments are disjoint.
        _ => unsafe { Schedule::new(spec, pipeline, at.tree_steps(), 0, fill_binomial_round) },
    }
}

impl Spec {
    /// Location of the vector to send.
    fn sent_location(&self, offset: usize) -> Location {
        if self.at.is_root() { source_at(offset) } else { target_at(offset) }
    }

    /// Copies the root's segment to its target.
    fn copy_own_vector(&self, offset: usize, len: usize, round: &mut Round) {
        if self.at.is_root() {
            round.copy_meanwhile(source_at(offset), target_at(offset), len);
        }
    }
}

/// The root sends every rank the vector: 1 message to each; (p-1) n bytes.
fn fill_direct_round(spec: &Spec, segment: usize, _number: usize, round: &mut Round) {
    let at = spec.at;
    let (start, len) = spec.vector_segments().part_span(segment);
    if !at.is_root() {
        return round.receive_message(at.root, target_at(start), len);
    }
    for to in (1..at.ranks).map(|distance| at.rank_above(distance)) {
        round.send_message(to, source_at(start), len);
    }
    spec.copy_own_vector(start, len, round);
}

/// Down a binomial tree: lg p messages, rounded up; n lg p bytes.
///
/// The number of ranks with the vector doubles in every round: in round `k` the ranks up to `2^k` after the
/// root send it `2^k` ranks further. The ranks that send most are thus adjacent, and on hosts with more ranks
/// than processors run on different processors.
fn fill_binomial_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let (start, len) = spec.vector_segments().part_span(segment);
    let (me, have) = (at.tree_number(), 1 << number);
    if (have..2 * have).contains(&me) {
        round.receive_message(at.rank_of(me - have), target_at(start), len);
    } else if me < have && me + have < at.ranks {
        round.send_message(at.rank_of(me + have), spec.sent_location(start), len);
    }
    if number == 0 {
        spec.copy_own_vector(start, len, round);
    }
}

/// Scatters the vector down a binomial tree and gathers it around a ring (van de Geijn): lg p + p-1 messages,
/// less than 2 n bytes. A rank with other ranks' chunks from the scatter does not receive them again.
fn fill_ring_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let chunks = spec.vector_segments().split_part(segment, at.ranks);
    let me = at.tree_number();
    if number == 0 {
        spec.copy_own_vector(chunks.part_start(0), chunks.parts_bytes(0, at.ranks), round);
    }
    if number < at.tree_steps() {
        let step = at.tree_steps() - 1 - number;
        let subtree = |number: usize| chunks.parts_bytes(number, number + at.subtree_size(number));
        if let Some(parent) = at.parent_at(step) {
            round.receive_message(at.rank_of(parent), target_at(chunks.part_start(me)), subtree(me));
        }
        if let Some(child) = at.child_at(step) {
            round.send_message(
                at.rank_of(child),
                spec.sent_location(chunks.part_start(child)),
                subtree(child),
            );
        }
        return;
    }
    let step = number - at.tree_steps();
    let (before, after) = ((me + at.ranks - 1) % at.ranks, (me + 1) % at.ranks);
    let give = (me + at.ranks - step) % at.ranks;
    let take = (before + at.ranks - step) % at.ranks;
    // After the scatter, a rank has the chunks of its subtree.
    let has = |number: usize, chunk: usize| (number..number + at.subtree_size(number)).contains(&chunk);
    if !has(me, take) {
        round.receive_message(
            at.rank_of(before),
            target_at(chunks.part_start(take)),
            chunks.parts_bytes(take, take + 1),
        );
    }
    if !has(after, give) {
        round.send_message(
            at.rank_of(after),
            spec.sent_location(chunks.part_start(give)),
            chunks.parts_bytes(give, give + 1),
        );
    }
}
