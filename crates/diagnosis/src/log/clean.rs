//! Removal of additions by terminals, log drivers and collectors.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memmem};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::csv;
use super::input::ESCAPE;
use super::source::is_end_of_prefix;

/// Names of the text in records of collectors, the first one in the record counts: Docker and Fluent Bit,
/// CloudWatch, journald, Loki, structured loggers, Google Cloud.
const NAMES: [&str; 7] = ["log", "message", "MESSAGE", "line", "msg", "@message", "textPayload"];

/// Largest number of records in one another.
const DEPTH: usize = 3;

/// A line of Docker's driver `json-file`: `{"log":"text\n","stream":"stderr","time":"..."}`, with its members
/// in any order.
#[derive(Deserialize)]
struct DockerRecord<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
}

/// Remover of additions to the lines of an input.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    scratch: Vec<u8>,
    /// Column of the text in a table with a head.
    column: Option<usize>,
}

impl Cleaner {
    /// Returns the text of a line, without the colours of a terminal and the wrapping of a collector. Also
    /// returns true if the text may have several lines.
    ///
    /// `escapes` is false for a line known to have no escape sequence and no backslash.
    #[inline]
    pub(super) fn clean_line<'a>(
        &'a mut self,
        line: &'a [u8],
        number: u64,
        escapes: bool,
    ) -> (&'a [u8], bool) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if number == 1 {
            self.column = csv::find_text_column(line);
        }
        let may_be_record = match (line.first(), line.last()) {
            (Some(b'{'), _) => true,
            (Some(b' ' | b'\t' | b'"'), _) | (_, Some(b'}')) => memchr(b'"', line).is_some(),
            (Some(b'0'..=b'9'), _) => csv::is_row_with_time(line),
            _ => false,
        };
        let may_be_record = may_be_record || self.column.is_some();
        let has_escapes = escapes && memchr2(ESCAPE, b'\\', line).is_some();
        if !may_be_record && !has_escapes {
            return (line, false);
        }
        self.clean_into(line, may_be_record)
    }

    fn clean_into<'a>(&'a mut self, line: &'a [u8], may_be_record: bool) -> (&'a [u8], bool) {
        let text = &mut self.scratch;
        text.clear();
        let is_row = may_be_record && csv::extract_text(line, self.column, text);
        let mut is_record = may_be_record && !is_row && unwrap_json(line, text);
        if !is_record && !is_row {
            text.extend_from_slice(line);
        }
        let is_collected = is_record || is_row;
        for _ in 1..DEPTH {
            if !is_record {
                break;
            }
            let inner = std::mem::take(text);
            is_record = unwrap_json(&inner, text);
            if !is_record {
                *text = inner;
            }
        }
        if memchr(ESCAPE, text).is_some() {
            remove_colours(text);
        }
        let has_breaks = memmem::find(text, b"\\n").is_some() && memmem::find(text, b"NCCL ").is_some();
        if has_breaks {
            *text = decode_escapes(text);
        }
        let end = text.trim_ascii_end().len();
        (&text[..end], is_collected || has_breaks)
    }
}

/// Appends a text of several lines.
fn append_text(text: &[u8], out: &mut Vec<u8>) {
    out.extend(text.iter().map(|byte| if *byte == b'\r' { b' ' } else { *byte }));
}

/// Extracts the text of a record of a collector, after the labels in front of it. Returns false for other
/// text.
fn unwrap_json(line: &[u8], out: &mut Vec<u8>) -> bool {
    let start = if line.ends_with(b"}") { memmem::find(line, b"{\"").unwrap_or(0) } else { 0 };
    let (labels, record) = line.split_at(start);
    if !is_end_of_prefix(labels) {
        return false;
    }
    if record.starts_with(b"{") {
        out.extend_from_slice(labels);
        if let Ok(DockerRecord { log }) = serde_json::from_slice(record) {
            append_text(log.as_bytes(), out);
            return true;
        }
        if let Ok(record) = serde_json::from_slice::<Map<String, Value>>(record) {
            let text = NAMES.iter().find_map(|name| Some((*name, text_of_value(record.get(*name)?)?)));
            let Some((name, text)) = text else { return reject_record(out) };
            append_text(&text, out);
            // Errors and stacks.
            let others =
                record.iter().filter(|(other, _)| *other != name).filter_map(|(_, value)| value.as_str());
            for text in others.filter(|text| text.contains(' ')) {
                out.push(b'\n');
                append_text(text.as_bytes(), out);
            }
            return true;
        }
    }
    // A record on several lines, or one without its end: `"message": "text",`.
    let member = record.trim_ascii_start();
    let member = member.strip_prefix(b"{").unwrap_or(member).trim_ascii_start();
    let value = NAMES.iter().find_map(|name| {
        let rest = member.strip_prefix(b"\"")?.strip_prefix(name.as_bytes())?.strip_prefix(b"\"")?;
        let value = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        value.starts_with(b"\"").then_some(value)
    });
    let Some(value) = value else { return reject_record(out) };
    match serde_json::Deserializer::from_slice(value).into_iter::<Cow<'_, str>>().next() {
        Some(Ok(text)) => append_text(text.as_bytes(), out),
        _ => unwrap_damaged(&value[1..], out),
    }
    true
}

/// Removes the labels from the output and returns false: the text is no record.
fn reject_record(out: &mut Vec<u8>) -> bool {
    out.clear();
    false
}

/// Returns the text of a value. journald writes a text with control characters as a list of bytes.
fn text_of_value(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Array(bytes) if !bytes.is_empty() => {
            bytes.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect()
        }
        _ => None,
    }
}

/// Replaces the two characters `\n` and `\t` by a line feed and a tab, and `\r` by a space.
fn decode_escapes(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..position]);
        let (byte, length) = match rest[position..] {
            [_, b'n', ..] => (b'\n', 2),
            [_, b'r', ..] => (b' ', 2),
            [_, b't', ..] => (b'\t', 2),
            _ => (b'\\', 1),
        };
        out.push(byte);
        rest = &rest[position + length..];
    }
    out.extend_from_slice(rest);
    out
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
            [_, b'n', ..] => (b'\n', 2),
            [_, b'r', ..] => (b' ', 2),
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
        String::from_utf8_lossy(Cleaner::default().clean_line(line, 2, true).0).into_owned()
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

    #[test]
    fn records_of_collectors_are_their_text() {
        let text = r#"vm:1:1 [0] NCCL INFO NCCL_ALGO set by environment to "Ring""#;
        let json = Value::from(text).to_string();
        let bytes = format!("{:?}", text.as_bytes());
        for (line, labels) in [
            (format!(r#"{{"message": {json}, "logStreamName": "a", "timestamp": 17}}"#), ""),
            (format!(r#"{{"MESSAGE":{json},"_HOSTNAME":"node7","_PID":"12"}}"#), ""),
            (format!(r#"{{"_HOSTNAME":"node7","MESSAGE":{bytes}}}"#), ""),
            (format!(r#"{{"labels":{{"pod":"a"}},"line":{json},"timestamp":"x"}}"#), ""),
            (format!(r#"{{"log":{},"stream":"a"}}"#, Value::from(format!(r#"{{"msg":{json}}}"#))), ""),
            (
                format!(r#"2026-11-24T13:42:01Z stdout F {{"message":{json}}}"#),
                "2026-11-24T13:42:01Z stdout F ",
            ),
            (format!(r#"[pod/a/b] {{"message":{json}}}"#), "[pod/a/b] "),
            (format!(r#"            "message": {json},"#), ""),
            (format!(r#"{{"message": {json}"#), ""),
            (
                format!(r#"2026-11-24 13:42:01.123,"{}""#, text.replace('"', "\"\"")),
                "2026-11-24 13:42:01.123 ",
            ),
        ] {
            assert_eq!(cleaned(line.as_bytes()), format!("{labels}{text}"), "{line}");
        }
        let other = r#"vm:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"#;
        assert_eq!(cleaned(other.as_bytes()), other);
    }

    #[test]
    fn an_error_in_a_record_is_a_line_of_its_own() {
        let line = br#"{"message":"step failed","error":"CUDA out of memory","pod":"a"}"#;
        assert_eq!(cleaned(line), "step failed\nCUDA out of memory");
    }

    #[test]
    fn the_letters_of_a_break_are_a_break() {
        let line = br"a:1:1 [0] NCCL INFO x\ta:1:1 [0] NCCL INFO y\n";
        assert_eq!(
            cleaned(br"a:1:1 [0] NCCL INFO x\ty\na:1:2 [0] NCCL INFO z\n"),
            "a:1:1 [0] NCCL INFO x\ty\na:1:2 [0] NCCL INFO z"
        );
        assert!(Cleaner::default().clean_line(line, 2, true).1);
        assert_eq!(cleaned(br"C:\new\table"), r"C:\new\table");
    }
}
