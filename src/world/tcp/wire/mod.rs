//! What the ranks of a TCP rendezvous say to each other. All numbers are little-endian.
//!
//! Decoding never panics, never reads past its input, and never allocates by a length that a stranger claims
//! before that many bytes have come.

mod codec;
mod frame;
mod hello;

pub(crate) use codec::Member;
pub(crate) use frame::{Frame, Frames};
pub(crate) use hello::{Answer, GREETING, Greeting};

/// The longest message of one rank in an all_gather, in bytes.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
/// The longest frame, in bytes: all messages of an all_gather together.
pub(crate) const MAX_FRAME: usize = 1 << 30;

#[cfg(test)]
mod tests;
