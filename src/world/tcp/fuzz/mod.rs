//! Fuzz targets for untrusted input of TCP worlds. Each function plays arbitrary bytes and panics if an
//! invariant is violated. `cargo fuzz` calls them (`fuzz/`), and the tests with random inputs and a corpus.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is all tests")]

mod join;
mod rendezvous;
mod service;
mod stream;
mod wire;

use super::wire::{Frame, FrameDecoder, JobMember};
use crate::world::host::Host;

pub use join::join;
pub use rendezvous::{Outcome, rendezvous};
pub use service::service;
#[cfg(test)]
pub(crate) use stream::{PeerStream, SharedStream};
pub use wire::wire;

/// Maximum length of an input; the rest is ignored.
const MAX_INPUT: usize = 4096;

/// An input, read as small numbers and bytes. Numbers are 0 after its end.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self(&data[..data.len().min(MAX_INPUT)])
    }

    fn number(&mut self) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

const KEY: &str = "our job";
/// Size of the job. Rank 1 joins before the untrusted peers, the last rank after them.
const SIZE: usize = 4;

fn member(name: &str) -> JobMember {
    JobMember { host: Host { name: name.to_owned(), id: name.to_owned() }, local: None }
}

fn hello(rank: usize, size: usize, key: &str, name: &str) -> Vec<u8> {
    Frame::Hello(rank as u32, size as u32, key.to_owned(), member(name)).encode_first()
}

/// Returns a decoder of a new connection with these received bytes.
fn received(bytes: &[u8]) -> FrameDecoder {
    let mut decoder = FrameDecoder::new();
    decoder.push_bytes(bytes);
    decoder
}

#[cfg(test)]
mod tests;
