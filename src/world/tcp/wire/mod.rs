//! Messages of the TCP rendezvous and world. All numbers are little-endian.
//!
//! Peers are untrusted: decoding never panics, never reads past its input, and allocates nothing for a claimed length
//! before that many bytes have arrived.

mod codec;
mod frame;
mod hello;

pub(crate) use codec::Member;
pub(crate) use frame::{Frame, FrameDecoder};
pub(crate) use hello::{HANDSHAKE_TIMEOUT, Hello, HelloReply};

/// Maximum length of one rank's all_gather message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
/// Maximum length of a frame, in bytes; it holds all messages of an all_gather.
pub(crate) const MAX_FRAME: usize = 1 << 30;

#[cfg(test)]
mod tests;
