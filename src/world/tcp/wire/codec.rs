//! Encoding and decoding of fields.

use crate::world::host::Host;
use crate::world::limits::MAX_NAME;

pub(crate) const MAX_TEXT: usize = 16 << 10;

/// A protocol violation, with its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

pub(crate) fn malformed<T>(description: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(description.into()))
}

/// One rank, known to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) host: Host,
    /// Local rank and local size, if the launcher gives them.
    pub(crate) local: Option<(u32, u32)>,
}

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let Some((bytes, rest)) = self.0.split_at_checked(count) else {
            return malformed("it ends too early");
        };
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((array, rest)) = self.0.split_first_chunk::<N>() else {
            return malformed("it ends too early");
        };
        self.0 = rest;
        Ok(*array)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn name(&mut self) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        if length > MAX_NAME {
            return malformed(format!("a name of {length} bytes"));
        }
        let bytes = self.bytes(length)?;
        // Names are printed, so control characters are refused.
        match std::str::from_utf8(bytes) {
            Ok(name) if !name.chars().any(char::is_control) => Ok(name.to_owned()),
            _ => malformed("a name that is not text"),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        if length > MAX_TEXT {
            return malformed(format!("a text of {length} bytes"));
        }
        Ok(String::from_utf8_lossy(self.bytes(length)?).replace(|c: char| c.is_control() && c != '\n', " "))
    }

    pub(crate) fn member(&mut self) -> Result<Member, Malformed> {
        let local = (self.u32()?, self.u32()?);
        let local = (local.0 < local.1).then_some(local);
        Ok(Member { host: Host { name: self.name()?, id: self.name()? }, local })
    }

    pub(crate) fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { malformed(format!("{} bytes too many", self.0.len())) }
    }
}

/// Appends a length-prefixed text, truncated to at most `max` bytes at a character boundary.
pub(crate) fn put_text(bytes: &mut Vec<u8>, text: &str, max: usize) {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // At most MAX_TEXT, which a u16 holds.
    bytes.extend_from_slice(&u16::try_from(end).unwrap_or(0).to_le_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..end]);
}

pub(crate) fn put_member(bytes: &mut Vec<u8>, member: &Member) {
    let (rank, size) = member.local.unwrap_or((u32::MAX, 0));
    bytes.extend_from_slice(&rank.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    put_text(bytes, &member.host.name, MAX_NAME);
    put_text(bytes, &member.host.id, MAX_NAME);
}
