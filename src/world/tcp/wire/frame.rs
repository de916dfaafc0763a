//! Frames: messages between connected ranks.

use super::MAX_FRAME;
use super::codec::{MAX_TEXT, Malformed, Member, Reader, malformed, put_member, put_text};
use crate::world::limits::MAX_NAME;
use crate::world::{Called, Error};

/// Kind, length of the body.
pub(crate) const FRAME_HEADER: usize = 5;

/// A message between connected ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The sender is alive.
    Heartbeat,
    /// The sender leaves the job without a failure.
    Goodbye,
    /// The sender has entered the barrier with this call number.
    Barrier(u64),
    /// Message for the all_gather with this call number.
    Message(u64, Vec<u8>),
    /// All ranks have entered the barrier with this call number.
    Released(u64),
    /// Packed messages of the all_gather with this call number.
    Gathered(u64, Vec<u8>),
    /// The job has failed. Processes that exit because of it use this exit code.
    Failed(i32, Error),
    /// The sender aborts the job: exit code, the failed rank if its process has several, and reason.
    Abort(i32, Option<u32>, String),
    /// The rendezvous is complete; all ranks in order.
    Members(Vec<Member>),
    /// The rendezvous has failed, for the given reason.
    RendezvousFailed(String),
    /// Activity of the sender, for messages about it.
    Note(String),
    /// Calls of one rank of the sender: rank, topic and calls.
    Called(u32, u64, Vec<Called>),
}

impl Frame {
    /// Maximum body length of the frame that ends a rendezvous of `ranks` ranks.
    pub(crate) fn max_members_len(ranks: usize) -> usize {
        (2 + MAX_TEXT).max(ranks.saturating_mul(12 + 2 * MAX_NAME))
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Heartbeat => 1,
            Self::Goodbye => 2,
            Self::Barrier(_) => 3,
            Self::Message(..) => 4,
            Self::Released(_) => 5,
            Self::Gathered(..) => 6,
            Self::Failed(..) => 7,
            Self::Abort(..) => 8,
            Self::Members(_) => 9,
            Self::RendezvousFailed(_) => 10,
            Self::Note(_) => 11,
            Self::Called(..) => 12,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // The length is filled in at the end.
        let mut bytes = vec![self.kind(), 0, 0, 0, 0];
        match self {
            Self::Heartbeat | Self::Goodbye => {}
            Self::Barrier(number) | Self::Released(number) => bytes.extend_from_slice(&number.to_le_bytes()),
            Self::Message(number, content) | Self::Gathered(number, content) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(content);
            }
            Self::Failed(code, error) => {
                bytes.extend_from_slice(&code.to_le_bytes());
                let (rank, host, reason) = match error {
                    Error::RankFailed { rank, host, reason } => {
                        (u32::try_from(*rank).unwrap_or(u32::MAX), host.as_str(), reason.clone())
                    }
                    other => (u32::MAX, "", other.to_string()),
                };
                bytes.extend_from_slice(&rank.to_le_bytes());
                put_text(&mut bytes, host, MAX_NAME);
                put_text(&mut bytes, &reason, MAX_TEXT);
            }
            Self::Abort(code, rank, reason) => {
                bytes.extend_from_slice(&code.to_le_bytes());
                bytes.extend_from_slice(&rank.unwrap_or(u32::MAX).to_le_bytes());
                put_text(&mut bytes, reason, MAX_TEXT);
            }
            Self::Members(members) => members.iter().for_each(|member| put_member(&mut bytes, member)),
            Self::RendezvousFailed(text) | Self::Note(text) => put_text(&mut bytes, text, MAX_TEXT),
            Self::Called(rank, topic, calls) => {
                bytes.extend_from_slice(&rank.to_le_bytes());
                bytes.extend_from_slice(&topic.to_le_bytes());
                for Called { place, number, what } in calls {
                    bytes.extend_from_slice(&place.to_le_bytes());
                    bytes.extend_from_slice(&number.to_le_bytes());
                    put_text(&mut bytes, what, MAX_TEXT);
                }
            }
        }
        // Callers keep frames below MAX_FRAME.
        let length = u32::try_from(bytes.len() - FRAME_HEADER).unwrap_or(u32::MAX);
        bytes[1..FRAME_HEADER].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let frame = match kind {
            1 => Self::Heartbeat,
            2 => Self::Goodbye,
            3 => Self::Barrier(reader.u64()?),
            4 | 6 => {
                let number = reader.u64()?;
                let message = std::mem::take(&mut reader.0).to_vec();
                if kind == 4 { Self::Message(number, message) } else { Self::Gathered(number, message) }
            }
            5 => Self::Released(reader.u64()?),
            7 => {
                let code = i32::from_le_bytes(reader.array()?);
                let (rank, host, reason) = (reader.u32()?, reader.name()?, reader.text()?);
                let error = match rank {
                    u32::MAX => Error::Mismatch(reason),
                    rank => Error::RankFailed { rank: rank as usize, host, reason },
                };
                Self::Failed(code, error)
            }
            8 => {
                let (code, rank) = (i32::from_le_bytes(reader.array()?), reader.u32()?);
                Self::Abort(code, (rank != u32::MAX).then_some(rank), reader.text()?)
            }
            9 => {
                let mut members = Vec::new();
                while !reader.0.is_empty() {
                    members.push(reader.member()?);
                }
                Self::Members(members)
            }
            10 => Self::RendezvousFailed(reader.text()?),
            11 => Self::Note(reader.text()?),
            12 => {
                let (rank, topic) = (reader.u32()?, reader.u64()?);
                let mut calls = Vec::new();
                while !reader.0.is_empty() {
                    let (place, number) = (reader.u64()?, reader.u64()?);
                    calls.push(Called { place, number, what: reader.text()? });
                }
                Self::Called(rank, topic, calls)
            }
            kind => return malformed(format!("a frame of unknown kind {kind}")),
        };
        reader.end(frame)
    }
}

/// Splits a byte stream into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    bytes: Vec<u8>,
    /// Length of the prefix of `bytes` that has been decoded.
    used: usize,
}

impl FrameDecoder {
    /// Number of bytes that have not been decoded.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn buffered(&self) -> usize {
        self.bytes.len() - self.used
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Decodes the next frame; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        self.next_within(MAX_FRAME)
    }

    /// Decodes the next frame, with a body of at most `max` bytes; `None` if more bytes are needed.
    pub(crate) fn next_within(&mut self, max: usize) -> Result<Option<Frame>, Malformed> {
        let Some((&[kind, l0, l1, l2, l3], body)) = self.bytes[self.used..].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > max {
            return malformed(format!("a frame of {length} bytes"));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, body)?;
        self.used += FRAME_HEADER + length;
        Ok(Some(frame))
    }
}
