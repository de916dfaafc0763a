//! Rules of the messages that were looked up last.

use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

use crate::knowledge::rules::Rule;

/// Number of places for messages, a power of two.
const PLACES: usize = 4096;
/// Longest message that is kept.
const TEXT: usize = 256;

/// Text that is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message of NCCL at level INFO that states no fact.
    WithoutFacts,
    /// Another message of NCCL.
    Message,
    /// A line of another program.
    Line,
}

/// The rules of the last messages. Ranks write the same ones, and rules need a search for each.
#[derive(Debug)]
pub(super) struct Answers<'a> {
    places: Vec<Answer<'a>>,
    hasher: RandomState,
    /// The place of the message that was looked up last.
    place: usize,
}

/// A message with its rule, if there is one.
#[derive(Clone, Debug, Default)]
struct Answer<'a> {
    kind: Option<Kind>,
    text: Vec<u8>,
    rule: Option<&'a Rule>,
}

impl Default for Answers<'_> {
    fn default() -> Self {
        Self { places: vec![Answer::default(); PLACES], hasher: RandomState::default(), place: 0 }
    }
}

impl<'a> Answers<'a> {
    /// The rule of a message that was kept, if it has one.
    pub(super) fn get(&mut self, message: &[u8], kind: Kind) -> Option<Option<&'a Rule>> {
        if message.len() > TEXT {
            return None;
        }
        self.place = self.hasher.hash_one(message) as usize % PLACES;
        let answer = &self.places[self.place];
        (answer.kind == Some(kind) && answer.text == message).then_some(answer.rule)
    }

    /// Keeps the rule of the message that [`get`](Self::get) was just asked for.
    pub(super) fn keep(&mut self, message: &[u8], kind: Kind, rule: Option<&'a Rule>) {
        if message.len() > TEXT {
            return;
        }
        let answer = &mut self.places[self.place];
        (answer.kind, answer.rule) = (Some(kind), rule);
        answer.text.clear();
        answer.text.extend_from_slice(message);
    }
}
