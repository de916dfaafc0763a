//! Rules of the latest messages.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;

use crate::knowledge::rules::Rule;

/// Number of places for messages, a power of two.
const PLACES: usize = 4096;
/// Length limit of a kept message.
const TEXT: usize = 256;

/// Kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// A message of NCCL at level INFO, without facts.
    WithoutFacts,
    /// Another message of NCCL.
    Message,
    /// A line of another program.
    Line,
}

/// Rules of the latest messages. Ranks write the same messages, and a rule needs a search.
#[derive(Debug)]
pub(super) struct Answers<'a> {
    places: Vec<KeptRule<'a>>,
    hasher: RandomState,
    /// Hash of the latest message.
    hash: u64,
}

/// A message with its rule, if any. The seed of the hash is random, so that 64 bits distinguish messages.
#[derive(Clone, Copy, Debug, Default)]
struct KeptRule<'a> {
    kind: Option<MessageKind>,
    hash: u64,
    rule: Option<&'a Rule>,
}

impl Default for Answers<'_> {
    fn default() -> Self {
        Self { places: vec![KeptRule::default(); PLACES], hasher: RandomState::default(), hash: 0 }
    }
}

impl<'a> Answers<'a> {
    /// Returns the rule of a kept message, if any.
    pub(super) fn kept_rule(&mut self, message: &[u8], kind: MessageKind) -> Option<Option<&'a Rule>> {
        if message.len() > TEXT {
            return None;
        }
        self.hash = self.hasher.hash_one(message);
        let answer = self.places[self.hash as usize % PLACES];
        (answer.kind == Some(kind) && answer.hash == self.hash).then_some(answer.rule)
    }

    /// Keeps the rule of the message of the last call of [`kept_rule`](Self::kept_rule).
    pub(super) fn keep_rule(&mut self, message: &[u8], kind: MessageKind, rule: Option<&'a Rule>) {
        if message.len() > TEXT {
            return;
        }
        self.places[self.hash as usize % PLACES] = KeptRule { kind: Some(kind), hash: self.hash, rule };
    }
}

/// Returns true for a message that the cache does not keep: a channel, a path, or a line about a
/// communicator.
pub(super) fn is_never_kept(message: &[u8]) -> bool {
    message.starts_with(b"Channel ") || message.starts_with(b"GPU/") || is_of_communicator(message)
}

/// Returns true for the beginning of a line about a communicator.
pub(super) fn is_of_communicator(message: &[u8]) -> bool {
    message.starts_with(b"ncclComm") || message.starts_with(b"comm 0x")
}
