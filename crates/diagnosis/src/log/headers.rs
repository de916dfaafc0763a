//! Threads by the text before `NCCL INFO`, which is the same on all their lines unless it has a time.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;

/// Number of places for headers, a power of two.
const PLACES: usize = 1024;
/// Longest header that is kept.
const TEXT: usize = 96;

/// The level of the lines whose headers are kept.
pub(super) const INFO: &[u8] = b"NCCL INFO ";

/// The last headers.
#[derive(Debug)]
pub(super) struct Headers {
    places: Vec<Option<Header>>,
    hasher: RandomState,
    /// The hash of the header that was looked up last.
    hash: u64,
    /// The length of the header that was found last.
    length: usize,
}

/// A header by its hash. The seed of the hash is random, so that 64 bits tell headers apart.
#[derive(Clone, Copy, Debug)]
struct Header {
    hash: u64,
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
        Self { places: vec![None; PLACES], hasher: RandomState::default(), hash: 0, length: 0 }
    }
}

impl Headers {
    /// The writer of a header that was kept.
    pub(super) fn get(&mut self, header: &[u8]) -> Option<Known> {
        if header.len() > TEXT || header.is_empty() {
            return None;
        }
        self.hash = self.hasher.hash_one(header);
        let kept = self.places[self.hash as usize % PLACES].as_ref().filter(|kept| kept.hash == self.hash)?;
        self.length = header.len();
        Some(kept.known)
    }

    /// The length and the writer of the header of a line of level INFO, where it is as long as the last one.
    /// A header that was kept has no level in it, so that the first one of the line need not be searched.
    pub(super) fn of_same_length(&mut self, line: &[u8]) -> Option<(usize, Known)> {
        let (header, rest) = line.split_at_checked(self.length)?;
        rest.starts_with(INFO).then(|| self.get(header)).flatten().map(|known| (header.len(), known))
    }

    /// Keeps the writer of the header that [`get`](Self::get) was just asked for.
    pub(super) fn keep(&mut self, header: &[u8], known: Known) {
        if header.len() > TEXT || header.is_empty() {
            return;
        }
        self.places[self.hash as usize % PLACES] = Some(Header { hash: self.hash, known });
    }
}
