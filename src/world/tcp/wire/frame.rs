//! Frames.

use super::MAX_FRAME;
use super::codec::{MAX_TEXT, Malformed, Member, Reader, malformed, put_member, put_text};
use crate::world::limits::MAX_NAME;
use crate::world::{Called, Error};

/// Kind, length of what follows.
pub(crate) const FRAME_HEADER: usize = 5;

/// What ranks say once they have met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// I live.
    Heartbeat,
    /// I leave in good order.
    Goodbye,
    /// I am at the barrier of this number.
    Barrier(u64),
    /// My message for the all_gather of this number.
    Message(u64, Vec<u8>),
    /// All are at the barrier of this number.
    Released(u64),
    /// All messages of the all_gather of this number, packed.
    Gathered(u64, Vec<u8>),
    /// The job has failed; processes that end with it use this exit code.
    Failed(i32, Error),
    /// I abort the job, with this exit code and for this reason. The rank is given when it is one of several
    /// in my process.
    Abort(i32, Option<u32>, String),
    /// The rendezvous is complete; these are all ranks, in order.
    Members(Vec<Member>),
    /// The rendezvous has failed.
    GivenUp(String),
    /// What I am doing, for messages about me.
    Note(String),
    /// What a rank of mine has called in a topic.
    Called(u32, u64, Vec<Called>),
}

impl Frame {
    /// The most bytes behind the header of what ends a rendezvous: the list of so many ranks, or why it failed.
    pub(crate) fn longest_of_members(ranks: usize) -> usize {
        (2 + MAX_TEXT).max(ranks.saturating_mul(12 + 2 * MAX_NAME))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // The length is filled in at the end.
        let mut bytes = vec![0; FRAME_HEADER];
        let kind = match self {
            Self::Heartbeat => 1,
            Self::Goodbye => 2,
            Self::Barrier(number) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                3
            }
            Self::Message(number, message) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(message);
                4
            }
            Self::Released(number) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                5
            }
            Self::Gathered(number, messages) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(messages);
                6
            }
            Self::Failed(code, error) => {
                bytes.extend_from_slice(&code.to_le_bytes());
                match error {
                    Error::RankFailed { rank, host, reason } => {
                        bytes.extend_from_slice(&u32::try_from(*rank).unwrap_or(u32::MAX).to_le_bytes());
                        put_text(&mut bytes, host, MAX_NAME);
                        put_text(&mut bytes, reason, MAX_TEXT);
                    }
                    other => {
                        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
                        put_text(&mut bytes, "", MAX_NAME);
                        put_text(&mut bytes, &other.to_string(), MAX_TEXT);
                    }
                }
                7
            }
            Self::Abort(code, rank, reason) => {
                bytes.extend_from_slice(&code.to_le_bytes());
                bytes.extend_from_slice(&rank.unwrap_or(u32::MAX).to_le_bytes());
                put_text(&mut bytes, reason, MAX_TEXT);
                8
            }
            Self::Members(members) => {
                for member in members {
                    put_member(&mut bytes, member);
                }
                9
            }
            Self::GivenUp(reason) => {
                put_text(&mut bytes, reason, MAX_TEXT);
                10
            }
            Self::Note(text) => {
                put_text(&mut bytes, text, MAX_TEXT);
                11
            }
            Self::Called(rank, topic, calls) => {
                bytes.extend_from_slice(&rank.to_le_bytes());
                bytes.extend_from_slice(&topic.to_le_bytes());
                for Called { place, number, what } in calls {
                    bytes.extend_from_slice(&place.to_le_bytes());
                    bytes.extend_from_slice(&number.to_le_bytes());
                    put_text(&mut bytes, what, MAX_TEXT);
                }
                12
            }
        };
        // Callers keep frames below MAX_FRAME.
        let length = u32::try_from(bytes.len() - FRAME_HEADER).unwrap_or(u32::MAX);
        bytes[0] = kind;
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
            10 => Self::GivenUp(reader.text()?),
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

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
    /// How many of the bytes are used up.
    used: usize,
}

impl Frames {
    /// How many bytes are kept that no frame has used.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn kept(&self) -> usize {
        self.bytes.len() - self.used
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame; `None` while more bytes must come.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        self.next_within(MAX_FRAME)
    }

    /// The next frame, which may have so many bytes behind its header; `None` while more bytes must come.
    pub(crate) fn next_within(&mut self, most: usize) -> Result<Option<Frame>, Malformed> {
        let Some((&[kind, l0, l1, l2, l3], body)) = self.bytes[self.used..].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > most {
            return malformed(format!("a frame of {length} bytes"));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, body)?;
        self.used += FRAME_HEADER + length;
        Ok(Some(frame))
    }
}
