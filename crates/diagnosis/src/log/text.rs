//! Small readers of bytes.

use std::borrow::Cow;

/// Length limit of the kept text of a message.
pub(super) const TEXT: usize = 400;
/// Length limit of a kept name.
const NAME: usize = 64;

/// Reads the decimal number at the beginning. Also returns the rest.
pub(super) fn parse_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut rest) = (0_u64, bytes);
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        // 19 digits fit.
        if bytes.len() - rest.len() == 19 {
            return None;
        }
        (value, rest) = (value * 10 + u64::from(digit - b'0'), after);
    }
    (rest.len() < bytes.len()).then_some((value, rest))
}

/// Returns the number of bytes at the end, at most `most`, for which the condition is true.
pub(super) fn count_at_end(bytes: &[u8], most: usize, is: impl Fn(u8) -> bool) -> usize {
    let least = bytes.len().saturating_sub(most);
    let mut start = bytes.len();
    while start > least && is(bytes[start - 1]) {
        start -= 1;
    }
    bytes.len() - start
}

/// Reads the decimal number at the beginning. Also returns the rest.
pub(super) fn parse_small_number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (value, rest) = parse_number(bytes)?;
    Some((u32::try_from(value).ok()?, rest))
}

/// Reads a hexadecimal number, with or without `0x`.
pub(super) fn parse_hexadecimal(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.strip_prefix(b"0x").unwrap_or(bytes);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, &byte| Some(value << 4 | u64::from(char::from(byte).to_digit(16)?)))
}

/// Returns the text of a message, shortened, with a space for each control character.
pub(super) fn shorten_message(bytes: &[u8]) -> String {
    cut_text(bytes, TEXT)
}

/// Returns a name, shortened, with a space for each control character.
pub(super) fn name(bytes: &[u8]) -> String {
    cut_text(bytes, NAME)
}

fn cut_text(bytes: &[u8], length: usize) -> String {
    if bytes.len() <= length
        && bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return text.to_owned();
    }
    let mut text = match String::from_utf8_lossy(&bytes[..bytes.len().min(length)]) {
        Cow::Borrowed(text) => text.to_owned(),
        // The end may be in the middle of a character.
        Cow::Owned(text) if bytes.len() > length => text.trim_end_matches('\u{fffd}').to_owned(),
        Cow::Owned(text) => text,
    };
    if text.contains(|character: char| character.is_control()) {
        text = text.replace(|character: char| character.is_control(), " ");
    }
    if bytes.len() > length {
        text.push('…');
    }
    text
}

/// Returns the bytes up to the next space, or all.
pub(super) fn first_word(bytes: &[u8]) -> &[u8] {
    &bytes[..memchr::memchr(b' ', bytes).unwrap_or(bytes.len())]
}

/// Returns the text between two other texts.
pub(super) fn text_between<'a>(bytes: &'a [u8], before: &[u8], after: &[u8]) -> Option<&'a [u8]> {
    let rest = bytes.strip_prefix(before)?;
    Some(&rest[..memchr::memmem::find(rest, after)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_their_digits_end_and_do_not_overflow() {
        assert_eq!(parse_number(b"12:3"), Some((12, &b":3"[..])));
        assert_eq!(parse_number(b"x"), None);
        assert_eq!(parse_number(b"9999999999999999999"), Some((9_999_999_999_999_999_999, &b""[..])));
        assert_eq!(parse_number(b"99999999999999999999"), None);
        assert_eq!(parse_small_number(b"4294967296"), None);
        assert_eq!(parse_hexadecimal(b"0xff"), Some(255));
        assert_eq!(parse_hexadecimal(b"60"), Some(96));
        for wrong in [&b""[..], b"0x", b"6g", b"+6", b"10000000000000000"] {
            assert_eq!(parse_hexadecimal(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn texts_are_shortened_at_a_character() {
        assert_eq!(shorten_message(b"a\tb\x00c"), "a b c");
        let long = "é".repeat(300);
        assert_eq!(shorten_message(long.as_bytes()), format!("{}…", "é".repeat(200)));
        assert_eq!(shorten_message(b"bad \xff byte"), "bad \u{fffd} byte");
    }
}
