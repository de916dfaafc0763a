//! Threads by the text before `NCCL INFO`, which is the same on all their lines unless it has a time.

use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

/// Number of places for headers, a power of two.
const PLACES: usize = 1024;
/// Longest header that is kept.
const TEXT: usize = 96;

/// The last headers.
#[derive(Debug)]
pub(super) struct Headers {
    places: Vec<Header>,
    hasher: RandomState,
    /// The place of the header that was looked up last.
    place: usize,
}

#[derive(Clone, Debug, Default)]
struct Header {
    text: Vec<u8>,
    known: Known,
}

/// The writer of lines with a header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Index of the thread; `None` where its writer is above the limit.
    pub(super) thread: Option<usize>,
    /// Number of times that threads were forgotten before.
    pub(super) forgotten: u64,
    /// Start of the writer in the header.
    pub(super) start: usize,
}

impl Default for Headers {
    fn default() -> Self {
        Self { places: vec![Header::default(); PLACES], hasher: RandomState::default(), place: 0 }
    }
}

impl Headers {
    /// The writer of a header that was kept.
    pub(super) fn get(&mut self, header: &[u8]) -> Option<Known> {
        if header.len() > TEXT || header.is_empty() {
            return None;
        }
        self.place = self.hasher.hash_one(header) as usize % PLACES;
        let kept = &self.places[self.place];
        (kept.text == header).then_some(kept.known)
    }

    /// Keeps the writer of the header that [`get`](Self::get) was just asked for.
    pub(super) fn keep(&mut self, header: &[u8], known: Known) {
        if header.len() > TEXT || header.is_empty() {
            return;
        }
        let kept = &mut self.places[self.place];
        kept.known = known;
        kept.text.clear();
        kept.text.extend_from_slice(header);
    }
}
