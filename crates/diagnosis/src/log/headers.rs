//! Cache of the threads by the text before `NCCL INFO`. The lines of a thread have the same text there,
//! unless it contains a time.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;

/// Number of places for headers, a power of two.
const PLACES: usize = 1024;
/// Length limit of a kept header.
const TEXT: usize = 96;

/// Level of the lines with kept headers.
pub(super) const INFO: &[u8] = b"NCCL INFO ";

/// Cache of the latest headers.
#[derive(Debug)]
pub(super) struct Headers {
    places: Vec<Option<Header>>,
    hasher: RandomState,
    /// Hash of the latest header.
    hash: u64,
    /// Length of the last header found.
    length: usize,
}

/// A header by its hash. The seed of the hash is random, so that 64 bits distinguish headers.
#[derive(Clone, Copy, Debug)]
struct Header {
    hash: u64,
    known: KnownWriter,
}

/// The writer of lines with a header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownWriter {
    /// Index of the thread, or `None` for a writer above the limit.
    pub(super) thread: Option<usize>,
    /// Number of earlier resets of the threads.
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
    /// Returns the writer of a kept header.
    pub(super) fn kept_writer(&mut self, header: &[u8]) -> Option<KnownWriter> {
        if header.len() > TEXT || header.is_empty() {
            return None;
        }
        self.hash = self.hasher.hash_one(header);
        let kept = self.places[self.hash as usize % PLACES].as_ref().filter(|kept| kept.hash == self.hash)?;
        self.length = header.len();
        Some(kept.known)
    }

    /// Returns the length and the writer of the header of a line of level INFO, if it is as long as the last
    /// one. A kept header contains no level, so the line's first level need not be searched.
    pub(super) fn of_same_length(&mut self, line: &[u8]) -> Option<(usize, KnownWriter)> {
        let (header, rest) = line.split_at_checked(self.length)?;
        rest.starts_with(INFO).then(|| self.kept_writer(header)).flatten().map(|known| (header.len(), known))
    }

    /// Keeps the writer of the header of the last call of [`kept_writer`](Self::kept_writer).
    pub(super) fn keep_writer(&mut self, header: &[u8], known: KnownWriter) {
        if header.len() > TEXT || header.is_empty() {
            return;
        }
        self.places[self.hash as usize % PLACES] = Some(Header { hash: self.hash, known });
    }
}
