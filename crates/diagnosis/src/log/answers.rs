//! Rules of the messages that were looked up last.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;

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
    /// The hash of the message that was looked up last.
    hash: u64,
}

/// A message with its rule, if there is one. The seed of the hash is random, so that 64 bits tell messages
/// apart.
#[derive(Clone, Copy, Debug, Default)]
struct Answer<'a> {
    kind: Option<Kind>,
    hash: u64,
    rule: Option<&'a Rule>,
}

impl Default for Answers<'_> {
    fn default() -> Self {
        Self { places: vec![Answer::default(); PLACES], hasher: RandomState::default(), hash: 0 }
    }
}

impl<'a> Answers<'a> {
    /// The rule of a message that was kept, if it has one.
    pub(super) fn get(&mut self, message: &[u8], kind: Kind) -> Option<Option<&'a Rule>> {
        if message.len() > TEXT {
            return None;
        }
        self.hash = self.hasher.hash_one(message);
        let answer = self.places[self.hash as usize % PLACES];
        (answer.kind == Some(kind) && answer.hash == self.hash).then_some(answer.rule)
    }

    /// Keeps the rule of the message that [`get`](Self::get) was just asked for.
    pub(super) fn keep(&mut self, message: &[u8], kind: Kind, rule: Option<&'a Rule>) {
        if message.len() > TEXT {
            return;
        }
        self.places[self.hash as usize % PLACES] = Answer { kind: Some(kind), hash: self.hash, rule };
    }
}
