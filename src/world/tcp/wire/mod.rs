//! Messages of the TCP rendezvous and world. All numbers are little-endian.
//!
//! Peers are untrusted: decoding never panics, never reads past its input, and allocates nothing for a
//! claimed length before as many bytes have arrived.

mod codec;
mod frame;

use std::time::Duration;

pub(crate) use codec::{JobMember, MAX_TEXT};
pub(crate) use frame::{Frame, FrameDecoder};

/// Time limit for each side's part of the handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const MAX_HELLO: usize = 1024;
/// Maximum length of a frame, in bytes; it holds all messages of an all_gather.
pub(crate) const MAX_FRAME: usize = 1 << 30;

#[cfg(test)]
mod tests;
