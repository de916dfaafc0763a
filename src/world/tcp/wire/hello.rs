//! Handshake of the rendezvous: a rank sends [`Hello`], rank 0 answers with [`HelloReply`].

use super::codec::{MAX_TEXT, Malformed, Member, Reader, malformed, put_member, put_text};
use crate::world::limits::MAX_NAME;
use std::time::Duration;

/// Time limit for each side's part of the handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

const MAGIC: [u8; 8] = *b"NCCLbnch";
const VERSION: u16 = 1;
/// Magic, version, length of the body.
const HELLO_HEADER: usize = 12;
const MAX_HELLO: usize = 1024;
/// Magic, version, kind, length of the text.
const REPLY_HEADER: usize = 13;

/// First message of a rank to rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) key: String,
    pub(crate) member: Member,
}

/// Rank 0's reply to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelloReply {
    /// The rank has joined and waits for the others.
    Accepted,
    /// The rank cannot join this job, for the given reason.
    Rejected(String),
    /// The rank belongs to another job, whose rank 0 may listen at this address later.
    OtherJob,
}

/// Checks magic and version in a possibly incomplete header.
fn check_magic(bytes: &[u8]) -> Result<(), Malformed> {
    let count = bytes.len().min(MAGIC.len());
    if bytes[..count] != MAGIC[..count] {
        return malformed("it does not speak this program's protocol");
    }
    if let Some(&[low, high]) = bytes.get(8..10).and_then(|version| version.first_chunk::<2>()) {
        let version = u16::from_le_bytes([low, high]);
        if version != VERSION {
            return malformed(format!(
                "it speaks version {version} of the protocol, this program version {VERSION}"
            ));
        }
    }
    Ok(())
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend_from_slice(&self.rank.to_le_bytes());
        body.extend_from_slice(&self.size.to_le_bytes());
        put_text(&mut body, &self.key, MAX_NAME);
        put_member(&mut body, &self.member);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Decodes the first bytes of a connection; `None` if more are needed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        check_magic(bytes)?;
        let Some((header, body)) = bytes.split_at_checked(HELLO_HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([header[10], header[11]]));
        if length > MAX_HELLO {
            return malformed(format!("a hello of {length} bytes"));
        }
        let Some((body, rest)) = body.split_at_checked(length) else { return Ok(None) };
        if !rest.is_empty() {
            return malformed(format!("{} bytes too many", rest.len()));
        }
        let mut reader = Reader(body);
        let hello =
            Self { rank: reader.u32()?, size: reader.u32()?, key: reader.name()?, member: reader.member()? };
        reader.end(Some(hello))
    }
}

impl HelloReply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Self::Accepted => (0_u8, ""),
            Self::Rejected(text) => (1, text.as_str()),
            Self::OtherJob => (2, ""),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.push(kind);
        put_text(&mut bytes, text, MAX_TEXT);
        bytes
    }

    /// Decodes the first bytes of a connection, and returns the number of bytes used; `None` if more are needed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        check_magic(bytes)?;
        let Some(header) = bytes.get(..REPLY_HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([header[11], header[12]]));
        if length > MAX_TEXT {
            return malformed(format!("a reply of {length} bytes"));
        }
        let Some(body) = bytes.get(11..REPLY_HEADER + length) else { return Ok(None) };
        let text = Reader(body).text()?;
        let reply = match header[10] {
            0 => Self::Accepted,
            1 => Self::Rejected(text),
            2 => Self::OtherJob,
            kind => return malformed(format!("a reply of unknown kind {kind}")),
        };
        Ok(Some((reply, REPLY_HEADER + length)))
    }
}
