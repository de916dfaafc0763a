//! Algorithms for scatter: the algorithms for gather, reversed.
//!
//! Costs equal the costs of the gather with the same name, with sends and receives exchanged: for `p` ranks
//! with `n` bytes each, the root sends (p-1) n bytes, to each rank or down the tree. Only the root has a
//! source.

use super::{Action, BufferKind, Location, Round, Schedule, Spec, gather};
use crate::fabric::selection::Algorithm;

/// A gather reversed: its rounds run from the last to the first, and its receives become sends. Source and
/// target swap roles, so copies reverse too.
///
/// Copies after the messages of a gather must precede them here. So there is one more round: the first does
/// the copies of the gather's last one, without messages.
pub(super) fn build_schedule(algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    let Schedule { pipeline, rounds, scratch_len, .. } = gather::build_schedule(algorithm, spec);
    let round = match algorithm {
        Algorithm::Binomial => fill_binomial_round,
        _ => fill_direct_round,
    };
    // SAFETY: a round sends, receives and touches the memory of one round of the gather. There no two sends
    // overlap either, since every byte goes one way, and the memory copied meanwhile is in none of them: so
    // sends can be receives. The buffers are the gather's buffers with exchanged names, and segments are
    // disjoint as there.
    unsafe { Schedule::new(spec, pipeline, rounds + 1, scratch_len, round) }
}

fn fill_binomial_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    reverse_gather(spec.at.tree_steps(), number, round, |number, round| {
        gather::fill_binomial_round(spec, segment, number, round)
    });
}

fn fill_direct_round(spec: &Spec, segment: usize, number: usize, round: &mut Round) {
    reverse_gather(1, number, round, |number, round| gather::fill_direct_round(spec, segment, number, round));
}

/// Fills round `number` of the scatter from the `last` rounds of a gather.
fn reverse_gather(last: usize, number: usize, round: &mut Round, gather: impl Fn(usize, &mut Round)) {
    if number < last {
        gather(last - 1 - number, round);
        let Round { receives, sends, meanwhile, then: _ } = round;
        receives.clear();
        sends.clear();
        *meanwhile = None;
    }
    let copies = round.then.len();
    if number > 0 {
        gather(last - number, round);
        round.then.truncate(copies);
    }
    round.turn_around();
}

impl Round {
    fn turn_around(&mut self) {
        self.translate_all(
            |rank| rank,
            |location| match location.buffer {
                BufferKind::Source => Location { buffer: BufferKind::Target, ..location },
                BufferKind::Target => Location { buffer: BufferKind::Source, ..location },
                BufferKind::Scratch => location,
            },
        );
        std::mem::swap(&mut self.receives, &mut self.sends);
        self.then.reverse();
        for action in self.then.iter_mut().chain(&mut self.meanwhile) {
            if let Action::Copy { from, to, .. } = action {
                std::mem::swap(from, to);
            }
        }
    }
}
