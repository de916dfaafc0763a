//! Algorithms for broadcast.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and maximum bytes sent by a rank. Only
//! the root has a source.

use super::{Location, Round, Schedule, Spec, source, target};
use crate::fabric::selection::Algorithm;

pub(super) fn schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let (pipeline, at) = (spec.pipeline(), spec.at);
    match algorithm {
        // SAFETY: the root only sends, from the source; another rank only receives. Segments are disjoint.
        Algorithm::Direct => unsafe { Schedule::new(spec, pipeline, 1, 0, direct) },
        // SAFETY: the root only sends, from the source; another rank receives only missing chunks into the
        // target, and sends only chunks it has. Segments are disjoint.
        Algorithm::Ring => unsafe { Schedule::new(spec, pipeline, at.steps() + at.ranks - 1, 0, ring) },
        // The tree serves any number of ranks. SAFETY: the root only sends, from the source; another rank
        // receives in one round and sends in later ones. Segments are disjoint.
        _ => unsafe { Schedule::new(spec, pipeline, at.steps(), 0, binomial) },
    }
}

impl Spec {
    /// Location of the vector to send.
    fn have(&self, offset: usize) -> Location {
        if self.at.is_root() { source(offset) } else { target(offset) }
    }

    /// Copies the root's segment to its target.
    fn keep(&self, offset: usize, len: usize, round: &mut Round) {
        if self.at.is_root() {
            round.copy_meanwhile(source(offset), target(offset), len);
        }
    }
}

/// The root sends every rank the vector: 1 message to each; (p-1) n bytes.
fn direct(spec: &Spec, segment: usize, _number: usize, round: &mut Round) {
    let at = spec.at;
    let (start, len) = spec.segments().span(segment);
    if !at.is_root() {
        return round.receive(at.root, target(start), len);
    }
    for to in (1..at.ranks).map(|distance| at.above(distance)) {
        round.send(to, source(start), len);
    }
    spec.keep(start, len, round);
}

/// Down a binomial tree: lg p messages, rounded up; n lg p bytes.
///
/// The number of ranks with the vector doubles in every round: in round `k` the ranks up to `2^k` after the
/// root send it `2^k` ranks further. The ranks that send most are thus adjacent, and on hosts with more ranks
/// than processors run on different processors.
fn binomial(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let (start, len) = spec.segments().span(segment);
    let (me, have) = (at.number(), 1 << number);
    if (have..2 * have).contains(&me) {
        round.receive(at.rank_of(me - have), target(start), len);
    } else if me < have && me + have < at.ranks {
        round.send(at.rank_of(me + have), spec.have(start), len);
    }
    if number == 0 {
        spec.keep(start, len, round);
    }
}

/// Scatters the vector down a binomial tree and gathers it around a ring (van de Geijn): lg p + p-1 messages,
/// less than 2 n bytes. A rank with other ranks' chunks from the scatter does not receive them again.
fn ring(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let at = spec.at;
    let chunks = spec.segments().part(segment, at.ranks);
    let me = at.number();
    if number == 0 {
        spec.keep(chunks.start(0), chunks.len(0, at.ranks), round);
    }
    if number < at.steps() {
        let step = at.steps() - 1 - number;
        let subtree = |number: usize| chunks.len(number, number + at.subtree(number));
        if let Some(parent) = at.parent(step) {
            round.receive(at.rank_of(parent), target(chunks.start(me)), subtree(me));
        }
        if let Some(child) = at.child(step) {
            round.send(at.rank_of(child), spec.have(chunks.start(child)), subtree(child));
        }
        return;
    }
    let step = number - at.steps();
    let (before, after) = ((me + at.ranks - 1) % at.ranks, (me + 1) % at.ranks);
    let give = (me + at.ranks - step) % at.ranks;
    let take = (before + at.ranks - step) % at.ranks;
    // After the scatter, a rank has the chunks of its subtree.
    let has = |number: usize, chunk: usize| (number..number + at.subtree(number)).contains(&chunk);
    if !has(me, take) {
        round.receive(at.rank_of(before), target(chunks.start(take)), chunks.len(take, take + 1));
    }
    if !has(after, give) {
        round.send(at.rank_of(after), spec.have(chunks.start(give)), chunks.len(give, give + 1));
    }
}
