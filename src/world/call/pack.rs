//! Packing of several messages into one.

/// Concatenates messages, each with its length as a prefix.
pub(crate) fn pack_messages<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.extend_from_slice(&(message.len() as u64).to_le_bytes());
        bytes.extend_from_slice(message);
    }
    bytes
}

/// Splits packed messages; `None` if they are malformed.
pub(crate) fn unpack_messages(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (message, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        messages.push(message.to_vec());
        bytes = rest;
    }
    Some(messages)
}
