//! Encoding and decoding of fields.

use crate::world::call::MAX_NAMED;
use crate::world::host::Host;
use crate::world::limits::MAX_NAME;
use crate::world::{Awaited, Called, Error, Mismatch, Reason, Timeout, Wait};
use std::time::Duration;

pub(crate) const MAX_TEXT: usize = 16 << 10;

/// A protocol violation, with its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

pub(crate) fn malformed<T>(description: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(description.into()))
}

/// One rank, known to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobMember {
    pub(crate) host: Host,
    /// Local rank and local size, if the launcher gives them.
    pub(crate) local: Option<(u32, u32)>,
}

pub(crate) trait Field: Sized {
    fn encode(&self, bytes: &mut Vec<u8>);

    /// Decodes the field, and removes it from the beginning of `bytes`.
    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed>;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn encode(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
                let Some((number, rest)) = bytes.split_first_chunk() else {
                    return malformed("it ends too early");
                };
                *bytes = rest;
                Ok(Self::from_le_bytes(*number))
            }
        }
    )*};
}

integers!(u16 u32 u64 i32);

/// A rank, or `u32::MAX`.
impl Field for Option<u32> {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.unwrap_or(u32::MAX).encode(bytes);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(Some(u32::decode(bytes)?).filter(|&rank| rank != u32::MAX))
    }
}

/// A text of at most [`MAX_TEXT`] bytes. Texts are printed, so control characters are replaced.
impl Field for String {
    fn encode(&self, bytes: &mut Vec<u8>) {
        put_text(bytes, self, MAX_TEXT);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let text = take_sized(bytes, "text", MAX_TEXT)?;
        Ok(Self::from_utf8_lossy(text).replace(|c: char| c.is_control() && c != '\n', " "))
    }
}

/// The rest of the frame.
impl Field for Vec<u8> {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(std::mem::take(bytes).to_vec())
    }
}

/// Fields up to the end of the frame.
impl<T: Field> Field for Vec<T> {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|field| field.encode(bytes));
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let mut fields = Self::new();
        while !bytes.is_empty() {
            fields.push(T::decode(bytes)?);
        }
        Ok(fields)
    }
}

impl Field for JobMember {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let (rank, size) = self.local.unwrap_or((u32::MAX, 0));
        rank.encode(bytes);
        size.encode(bytes);
        put_text(bytes, &self.host.name, MAX_NAME);
        put_text(bytes, &self.host.id, MAX_NAME);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let local = (u32::decode(bytes)?, u32::decode(bytes)?);
        let local = (local.0 < local.1).then_some(local);
        Ok(Self { host: Host { name: take_name(bytes)?, id: take_name(bytes)? }, local })
    }
}

impl Field for Called {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.place.encode(bytes);
        self.number.encode(bytes);
        self.what.encode(bytes);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(Self { place: u64::decode(bytes)?, number: u64::decode(bytes)?, what: String::decode(bytes)? })
    }
}

/// A rank, as a `u32`: larger numbers become `u32::MAX`.
impl Field for usize {
    fn encode(&self, bytes: &mut Vec<u8>) {
        u32::try_from(*self).unwrap_or(u32::MAX).encode(bytes);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(u32::decode(bytes)? as Self)
    }
}

/// In nanoseconds.
impl Field for Duration {
    fn encode(&self, bytes: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).encode(bytes);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(Self::from_nanos(u64::decode(bytes)?))
    }
}

impl Field for Awaited {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.rank.encode(bytes);
        self.place.encode(bytes);
        self.number.encode(bytes);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(Self { rank: usize::decode(bytes)?, place: u64::decode(bytes)?, number: u64::decode(bytes)? })
    }
}

impl Field for Wait {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.rank.encode(bytes);
        self.topic.encode(bytes);
        self.limit.encode(bytes);
        self.operation.encode(bytes);
        self.awaited.encode(bytes);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let (rank, topic, limit) = (usize::decode(bytes)?, u64::decode(bytes)?, Duration::decode(bytes)?);
        Ok(Self { rank, topic, limit, operation: String::decode(bytes)?, awaited: Vec::decode(bytes)? })
    }
}

impl Field for Mismatch {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.rank.encode(bytes);
        self.called.encode(bytes);
        self.peer.encode(bytes);
        u16::from(self.peer_called.is_some()).encode(bytes);
        if let Some(called) = &self.peer_called {
            called.encode(bytes);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let (rank, called) = (usize::decode(bytes)?, String::decode(bytes)?);
        let (peer, is_known) = (usize::decode(bytes)?, u16::decode(bytes)? != 0);
        let peer_called = if is_known { Some(String::decode(bytes)?) } else { None };
        Ok(Self { rank, called, peer, peer_called })
    }
}

/// The late ranks end the frame.
impl Field for Timeout {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.operation.encode(bytes);
        self.limit.encode(bytes);
        for (rank, host) in &self.late {
            rank.encode(bytes);
            put_text(bytes, host, MAX_NAME);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let (operation, limit) = (String::decode(bytes)?, Duration::decode(bytes)?);
        let mut late = Vec::new();
        while !bytes.is_empty() {
            if late.len() == MAX_NAMED {
                return malformed("too many late ranks");
            }
            late.push((usize::decode(bytes)?, take_name(bytes)?));
        }
        Ok(Self { operation, limit, late })
    }
}

/// The kind, and the value.
impl Field for Reason {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let kind: u16 = match self {
            Self::Reported(_) => 0,
            Self::Mismatch(_) => 1,
            Self::TimedOut(_) => 2,
            Self::Other(_) => 3,
            Self::Died(_) => 4,
            Self::Aborted { .. } => 5,
            Self::Left(_) => 6,
            Self::Late(_) => 7,
        };
        kind.encode(bytes);
        match self {
            Self::Reported(text)
            | Self::Died(text)
            | Self::Left(text)
            | Self::Late(text)
            | Self::Other(text) => text.encode(bytes),
            Self::Aborted { code, message } => {
                code.encode(bytes);
                message.encode(bytes);
            }
            Self::Mismatch(mismatch) => mismatch.encode(bytes),
            Self::TimedOut(timeout) => timeout.encode(bytes),
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        match u16::decode(bytes)? {
            0 => Ok(Self::Reported(Field::decode(bytes)?)),
            1 => Ok(Self::Mismatch(Field::decode(bytes)?)),
            2 => Ok(Self::TimedOut(Field::decode(bytes)?)),
            3 => Ok(Self::Other(Field::decode(bytes)?)),
            4 => Ok(Self::Died(Field::decode(bytes)?)),
            5 => Ok(Self::Aborted { code: Field::decode(bytes)?, message: Field::decode(bytes)? }),
            6 => Ok(Self::Left(Field::decode(bytes)?)),
            7 => Ok(Self::Late(Field::decode(bytes)?)),
            kind => malformed(format!("a reason of unknown kind {kind}")),
        }
    }
}

/// The kind, and the value. Errors of other kinds become an [`Error::Mismatch`] with their text.
impl Field for Error {
    fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::RankFailed { rank, host, reason } => {
                0_u16.encode(bytes);
                rank.encode(bytes);
                put_text(bytes, host, MAX_NAME);
                reason.encode(bytes);
            }
            Self::CallMismatch(mismatch) => {
                1_u16.encode(bytes);
                mismatch.encode(bytes);
            }
            other => {
                2_u16.encode(bytes);
                other.to_string().encode(bytes);
            }
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        match u16::decode(bytes)? {
            0 => {
                let (rank, host) = (usize::decode(bytes)?, take_name(bytes)?);
                Ok(Self::RankFailed { rank, host, reason: Reason::decode(bytes)? })
            }
            1 => Ok(Self::CallMismatch(Mismatch::decode(bytes)?)),
            2 => Ok(Self::Mismatch(String::decode(bytes)?)),
            kind => malformed(format!("an error of unknown kind {kind}")),
        }
    }
}

#[cfg(any(feature = "fabric", feature = "nccl"))]
impl Error {
    /// The encoding for a message of a world.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// Decodes [`to_bytes`](Self::to_bytes); `None` if the message is malformed.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        Self::decode(&mut bytes).ok()
    }
}

/// Appends a length-prefixed text, truncated to at most `max` bytes at a character boundary.
pub(crate) fn put_text(bytes: &mut Vec<u8>, text: &str, max: usize) {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // At most MAX_TEXT: it fits a u16.
    u16::try_from(end).unwrap_or(0).encode(bytes);
    bytes.extend_from_slice(&text.as_bytes()[..end]);
}

fn take_name(bytes: &mut &[u8]) -> Result<String, Malformed> {
    let name = take_sized(bytes, "name", MAX_NAME)?;
    // Names are printed, so control characters are refused.
    match std::str::from_utf8(name) {
        Ok(name) if !name.chars().any(char::is_control) => Ok(name.to_owned()),
        _ => malformed("a name that is not text"),
    }
}

fn take_sized<'a>(bytes: &mut &'a [u8], kind: &str, max: usize) -> Result<&'a [u8], Malformed> {
    let length = usize::from(u16::decode(bytes)?);
    if length > max {
        return malformed(format!("a {kind} of {length} bytes"));
    }
    let Some((text, rest)) = bytes.split_at_checked(length) else { return malformed("it ends too early") };
    *bytes = rest;
    Ok(text)
}
