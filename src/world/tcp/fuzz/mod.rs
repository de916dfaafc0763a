//! What arbitrary bytes must not do to ranks that meet over TCP: each function takes any input, plays it, and panics
//! when something does not hold. `cargo fuzz` calls them (`fuzz/`), and the tests with inputs that were kept.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is all tests")]

mod join;
mod rendezvous;
mod service;
mod stream;
mod wire;

use super::wire::{Greeting, Member};
use crate::world::host::Host;

pub use join::join;
pub use rendezvous::{Told, rendezvous};
pub use service::service;
#[cfg(test)]
pub(crate) use stream::{End, Wire};
pub use wire::wire;

/// The longest input that is played.
const LONGEST: usize = 4096;

/// An input as a series of small numbers and of bytes; zeros when it has ended.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self(&data[..data.len().min(LONGEST)])
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
/// Ranks of the job that waits. Rank 1 has come, the last one comes after all strangers.
const SIZE: usize = 4;

fn member(name: &str) -> Member {
    Member { host: Host { name: name.to_owned(), id: name.to_owned() }, local: None }
}

fn greeting(rank: usize, size: usize, key: &str, name: &str) -> Vec<u8> {
    Greeting { rank: rank as u32, size: size as u32, key: key.to_owned(), member: member(name) }.encode()
}

#[cfg(test)]
mod tests;
