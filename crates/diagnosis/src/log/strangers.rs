//! Messages without a rule, which ranks repeat.

use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

use crate::knowledge::rules::Origin;

/// Number of places for messages, a power of two.
const PLACES: usize = 2048;
/// Longest message that is kept.
const TEXT: usize = 256;

/// The last messages that no rule knows. Ranks write the same ones, and rules need a search for each.
#[derive(Debug)]
pub(super) struct Strangers {
    places: Vec<(Option<Origin>, Vec<u8>)>,
    hasher: RandomState,
    /// The place of the message that was looked up last.
    place: usize,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { places: vec![(None, Vec::new()); PLACES], hasher: RandomState::default(), place: 0 }
    }
}

impl Strangers {
    /// Returns true if the message is one of them.
    pub(super) fn contains(&mut self, message: &[u8], origin: Origin) -> bool {
        if message.len() > TEXT {
            return false;
        }
        self.place = self.hasher.hash_one(message) as usize % PLACES;
        let (kept, text) = &self.places[self.place];
        *kept == Some(origin) && text == message
    }

    /// Keeps the message that [`contains`](Self::contains) was just asked for.
    pub(super) fn insert(&mut self, message: &[u8], origin: Origin) {
        if message.len() > TEXT {
            return;
        }
        let (kept, text) = &mut self.places[self.place];
        *kept = Some(origin);
        text.clear();
        text.extend_from_slice(message);
    }
}
