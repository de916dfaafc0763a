//! Removal of additions by terminals and log drivers.

use std::borrow::Cow;

use memchr::{memchr, memmem};
use serde::Deserialize;

use super::input::ESCAPE;

/// Beginnings of lines of Docker's driver `json-file`, as Docker and other programs write them.
const BEGINNINGS: [&[u8]; 2] = [b"{\"log\":\"", b"{\"log\": \""];

/// A line of Docker's driver `json-file`: `{"log":"text\n","stream":"stderr","time":"..."}`, with its members
/// in any order.
#[derive(Deserialize)]
struct DockerRecord<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
}

/// Removes the colours of a terminal and the wrapping of Docker's JSON files. `scratch` holds the result
/// after a removal.
///
/// `escapes` is false for a line known to have no escape sequence.
#[inline]
pub(super) fn clean_line<'a>(line: &'a [u8], escapes: bool, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_json = line.first() == Some(&b'{') && memmem::find(line, b"\"log\"").is_some();
    if !is_json && (!escapes || memchr(ESCAPE, line).is_none()) {
        return line;
    }
    clean_into(line, is_json, scratch)
}

fn clean_into<'a>(line: &[u8], is_json: bool, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    if !is_json || !unwrap_json(line, scratch) {
        scratch.extend_from_slice(line);
    }
    if memchr(ESCAPE, scratch).is_some() {
        remove_colours(scratch);
    }
    let end = scratch.trim_ascii_end().len();
    &scratch[..end]
}

/// Extracts the text of a [`DockerRecord`]. Returns false for other JSON.
fn unwrap_json(line: &[u8], out: &mut Vec<u8>) -> bool {
    if let Ok(record) = serde_json::from_slice::<DockerRecord<'_>>(line) {
        // The text stays one line.
        let is_end = |byte: u8| matches!(byte, b'\n' | b'\r');
        out.extend(record.log.bytes().map(|byte| if is_end(byte) { b' ' } else { byte }));
        return true;
    }
    let text = BEGINNINGS.iter().find_map(|beginning| line.strip_prefix(*beginning));
    let Some(text) = text else { return false };
    unwrap_damaged(text, out);
    true
}

/// Extracts the text of a record with a missing end, or with bytes outside UTF-8.
fn unwrap_damaged(text: &[u8], out: &mut Vec<u8>) {
    let end = memmem::find(text, b"\",\"stream\"").or_else(|| memmem::find(text, b"\", \"stream\""));
    let end = end.or_else(|| memmem::find(text, b"\",\"")).unwrap_or(text.len());
    let mut rest = &text[..end];
    while let Some(position) = memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..position]);
        rest = &rest[position..];
        let (byte, length) = match rest {
            [_, b'n' | b'r', ..] => (b' ', 2),
            [_, b't', ..] => (b'\t', 2),
            [_, b'u', b'0', b'0', high, low, ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                (digit(*high) << 4 | digit(*low), 6)
            }
            [_, other, ..] => (*other, 2),
            _ => (b'\\', 1),
        };
        out.push(byte);
        rest = &rest[length..];
    }
    out.extend_from_slice(rest);
}

/// Removes the control sequences: `ESC [ ... letter`, and `ESC` with one byte.
fn remove_colours(line: &mut Vec<u8>) {
    let (mut read, mut write) = (0, 0);
    while read < line.len() {
        if line[read] != ESCAPE {
            line[write] = line[read];
            (read, write) = (read + 1, write + 1);
            continue;
        }
        read += 1;
        if line.get(read) == Some(&b'[') {
            read += 1;
            while line.get(read).is_some_and(|byte| !(0x40..=0x7e).contains(byte)) {
                read += 1;
            }
        }
        read += 1;
    }
    line.truncate(write);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(line: &[u8]) -> String {
        String::from_utf8_lossy(clean_line(line, true, &mut Vec::new())).into_owned()
    }

    #[test]
    fn colours_carriage_returns_and_json_are_removed() {
        assert_eq!(cleaned(b"plain\r"), "plain");
        assert_eq!(cleaned(b"\x1b[1;31mred\x1b[0m text\x1b"), "red text");
        assert_eq!(cleaned(b"\x1b["), "");
        assert_eq!(
            cleaned(
                b"{\"log\":\"vm:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2\\u003c0\\u003e\\n\",\
                  \"stream\":\"stdout\",\"time\":\"2026-11-24T13:42:01Z\"}"
            ),
            "vm:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>"
        );
        assert_eq!(cleaned(br#"{"log":"say \"x\" \"#), "say \"x\" \\");
        // Other programs write the records again.
        let text = "vm:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring";
        for line in [
            format!(r#"{{"log": "{text}\n", "stream": "stdout", "time": "2026-11-29T03:00:00.1Z"}}"#),
            format!(r#"{{"stream":"stderr","time":"2026-11-29T03:00:00.1Z","log":"{text}\r\n"}}"#),
            format!(r#"{{ "time" : "2026-11-29T03:00:00.1Z" , "log" : "\u001b[1m{text}\u001b[0m\n" }}"#),
        ] {
            assert_eq!(cleaned(line.as_bytes()), text, "{line}");
        }
        assert_eq!(cleaned(b"{\"log\": \"cut \\u003c\xff"), "cut <\u{fffd}");
        assert_eq!(cleaned(br#"{"log":"","stream":"stdout"}"#), "");
        // Other JSON.
        for line in
            [r#"{"log": {"level": 3}, "text": "a"}"#, r#"{"loss": 2.5, "log_every": 3}"#, r#"{"a": "log"}"#]
        {
            assert_eq!(cleaned(line.as_bytes()), line);
        }
    }
}
