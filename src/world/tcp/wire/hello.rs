//! The handshake.

use super::codec::{MAX_TEXT, Malformed, Member, Reader, malformed, put_member, put_text};
use crate::world::limits::MAX_NAME;
use std::time::Duration;

/// How long a connection may take to say its greeting, and rank 0 to answer it.
pub(crate) const GREETING: Duration = Duration::from_secs(5);
const MAGIC: [u8; 8] = *b"NCCLbnch";
const VERSION: u16 = 1;
/// Magic, version, length of what follows.
const GREETING_HEADER: usize = 12;
const MAX_GREETING: usize = 1024;
/// Magic, version, verdict, length of the text.
const ANSWER_HEADER: usize = 13;
/// The first thing that a rank says to rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) key: String,
    pub(crate) member: Member,
}

/// What rank 0 says to a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Wait for the others.
    Accepted,
    /// There is no place for you in this job.
    Refused(String),
    /// This is another job. Yours may come to listen here later.
    Stranger,
}

/// Reads magic and version, as far as they have come.
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

impl Greeting {
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

    /// From the first bytes of a connection; `None` while more must come.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        check_magic(bytes)?;
        let Some((header, body)) = bytes.split_at_checked(GREETING_HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([header[10], header[11]]));
        if length > MAX_GREETING {
            return malformed(format!("a greeting of {length} bytes"));
        }
        let Some((body, behind)) = body.split_at_checked(length) else { return Ok(None) };
        if !behind.is_empty() {
            return malformed(format!("{} bytes too many", behind.len()));
        }
        let mut reader = Reader(body);
        let greeting =
            Self { rank: reader.u32()?, size: reader.u32()?, key: reader.name()?, member: reader.member()? };
        reader.end(Some(greeting))
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (verdict, text) = match self {
            Self::Accepted => (0_u8, ""),
            Self::Refused(text) => (1, text.as_str()),
            Self::Stranger => (2, ""),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.push(verdict);
        put_text(&mut bytes, text, MAX_TEXT);
        bytes
    }

    /// From the first bytes of a connection, with how many they were; `None` while more must come.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        check_magic(bytes)?;
        let Some(header) = bytes.get(..ANSWER_HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([header[11], header[12]]));
        if length > MAX_TEXT {
            return malformed(format!("an answer of {length} bytes"));
        }
        let Some(body) = bytes.get(11..ANSWER_HEADER + length) else { return Ok(None) };
        let text = Reader(body).text()?;
        let answer = match header[10] {
            0 => Self::Accepted,
            1 => Self::Refused(text),
            2 => Self::Stranger,
            verdict => return malformed(format!("an answer of unknown kind {verdict}")),
        };
        Ok(Some((answer, ANSWER_HEADER + length)))
    }
}
