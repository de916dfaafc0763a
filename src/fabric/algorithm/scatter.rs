//! Algorithms for scatter: those for gather, reversed.
//!
//! Costs are those of the gather with the same name, with sends and receives exchanged: for `p` ranks that get `n`
//! bytes each, the root sends (p-1) n bytes, to each rank or down the tree. Only the root has a source.

use super::{Action, Buffer, Location, Pipeline, Round, Schedule};

/// A gather reversed: its rounds run from the last to the first, and its receives become sends. Source and target swap
/// roles, so copies reverse too.
///
/// Copies that follow the messages of a gather must precede them here. So there is one more round: the first does the
/// copies of the gather's last one, without messages.
pub(crate) struct Reversed<S>(pub(crate) S);

// SAFETY: the memory sent, received and touched meanwhile in a round is that of one round of the gather. There no two
// sends overlap either, since every byte goes one way, and the memory copied meanwhile is in none of them: so sends can
// be receives. The buffers are those of the gather under each other's names, and segments are disjoint as there.
unsafe impl<S: Schedule> Schedule for Reversed<S> {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        self.0.rounds() + 1
    }

    fn scratch_len(&self) -> usize {
        self.0.scratch_len()
    }

    fn is_ordered(&self) -> bool {
        self.0.is_ordered()
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let last = self.0.rounds();
        if number < last {
            self.0.round(segment, last - 1 - number, round);
            let Round { receives, sends, meanwhile, then: _ } = round;
            receives.clear();
            sends.clear();
            *meanwhile = None;
        }
        let copies = round.then.len();
        if number > 0 {
            self.0.round(segment, last - number, round);
            round.then.truncate(copies);
        }
        round.turn_around();
    }
}

impl Round {
    fn turn_around(&mut self) {
        self.translate(
            |rank| rank,
            |location| match location.buffer {
                Buffer::Source => Location { buffer: Buffer::Target, ..location },
                Buffer::Target => Location { buffer: Buffer::Source, ..location },
                Buffer::Scratch => location,
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
