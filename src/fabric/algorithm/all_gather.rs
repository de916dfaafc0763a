//! Algorithms for all_gather.
//!
//! Costs for `p` ranks with `n` bytes each, as messages on the critical path; with every algorithm a rank
//! receives (p-1) n bytes, the minimum.

use super::{Pipeline, Position, Round, Schedule, Spec, scratch, source, target};
use crate::fabric::selection::Algorithm;

pub(super) fn schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let (pipeline, at) = (spec.pipeline(), spec.at);
    match algorithm {
        // SAFETY: receives other blocks into the target and sends the own one. Segments are disjoint.
        Algorithm::Direct => unsafe { Schedule::new(spec, pipeline, 1, 0, direct) },
        // SAFETY: receives the partner's group of blocks and sends the own group.
        Algorithm::RecursiveDoubling => unsafe {
            Schedule::new(spec, Pipeline::WHOLE, at.steps(), 0, recursive_doubling)
        },
        // SAFETY: receives behind the known blocks and sends those; copies to the target in the end.
        Algorithm::Bruck => unsafe {
            Schedule::new(spec, Pipeline::WHOLE, at.steps(), at.ranks * spec.bytes(), bruck)
        },
        // The ring serves any number of ranks. SAFETY: receives a block next to the sent one. Segments are
        // disjoint.
        _ => unsafe { Schedule::new(spec, pipeline, at.ranks - 1, 0, ring) },
    }
}

impl Spec {
    /// Copies a part of this rank's own block into the target.
    pub(super) fn keep_block(&self, offset: usize, len: usize, round: &mut Round) {
        round.copy_meanwhile(source(offset), target(self.at.rank * self.bytes() + offset), len);
    }
}

/// Every rank sends its block to every other: 1 message to each.
fn direct(spec: &Spec, segment: usize, _number: usize, round: &mut Round) {
    let (start, len) = spec.segments().span(segment);
    for distance in 1..spec.at.ranks {
        let from = spec.at.below(distance);
        round.receive(from, target(from * spec.bytes() + start), len);
        round.send(spec.at.above(distance), source(start), len);
    }
    spec.keep_block(start, len, round);
}

/// Exchanges all known blocks with partners at doubling distance: lg p messages; a power of two of ranks.
fn recursive_doubling(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let (rank, block) = (spec.at.rank, spec.bytes());
    let distance = 1 << number;
    let peer = rank ^ distance;
    let (mine, theirs) = (rank / distance * distance, peer / distance * distance);
    round.receive(peer, target(theirs * block), distance * block);
    if number == 0 {
        round.send(peer, source(0), block);
        spec.keep_block(0, block, round);
    } else {
        round.send(peer, target(mine * block), distance * block);
    }
}

/// Bruck's algorithm: sends all known blocks down at doubling distance, in scratch memory from the own block
/// on, and copies them into rank order at the end: lg p messages, rounded up; any number of ranks.
fn bruck(spec: &Spec, _segment: usize, number: usize, round: &mut Round) {
    let Position { rank, ranks, .. } = spec.at;
    let block = spec.bytes();
    let known = 1 << number;
    let len = known.min(ranks - known) * block;
    round.receive(spec.at.above(known), scratch(known * block), len);
    if number == 0 {
        round.send(spec.at.below(known), source(0), len);
        round.copy_meanwhile(source(0), scratch(0), block);
    } else {
        round.send(spec.at.below(known), scratch(0), len);
    }
    if number + 1 == spec.at.steps() {
        let (up, down) = ((ranks - rank) * block, rank * block);
        round.copy(scratch(0), target(down), up);
        round.copy(scratch(up), target(0), down);
    }
}

/// Passes blocks around a ring: p-1 messages, all to one neighbour.
fn ring(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    let (at, block) = (spec.at, spec.bytes());
    let (start, len) = spec.segments().span(segment);
    let take = at.below(number + 1);
    round.receive(at.below(1), target(take * block + start), len);
    if number == 0 {
        round.send(at.above(1), source(start), len);
        spec.keep_block(start, len, round);
    } else {
        round.send(at.above(1), target(at.below(number) * block + start), len);
    }
}
