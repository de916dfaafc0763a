//! Writers without a host or a process in their lines: blanked, or cut off.

use super::digest::NO_PID;
use super::label;
use super::line::{HOST, Level, LineSource, is_end_of_prefix, is_of_clock, is_of_host, number_at_end};
use super::text;

/// Words in the place of a host.
const WORDS: [&str; 8] =
    ["host", "hostname", "redacted", "masked", "hidden", "anonymized", "removed", "censored"];

/// Returns true for the text of a host that names none: `<host>`, `***`, `HOST`, `xxxx`, or nothing.
pub(super) fn is_blanked_host(host: &str) -> bool {
    let is_name =
        host.bytes().all(is_of_host) && host.starts_with(|first: char| first.is_ascii_alphanumeric());
    let is_masked = host.len() > 1 && host.bytes().all(|byte| matches!(byte, b'x' | b'X'));
    !is_name || is_masked || WORDS.iter().any(|word| host.eq_ignore_ascii_case(word))
}

/// Returns the writer in the text before `NCCL INFO`, and its position there, if the host or the process is
/// blanked (`<host>:12:14 [0]`, `HOST:PID:TID [0]`), or if only the device remains (`[0]`).
pub(super) fn parse_blanked_source(header: &[u8], level: Level) -> Option<(LineSource<'_>, usize)> {
    let header = header.trim_ascii_end();
    match level {
        Level::Info if header.ends_with(b"]") => source_before(header, header.len()),
        Level::Warn | Level::Error => {
            memchr::memchr_iter(b']', header).find_map(|end| source_before(header, end + 1))
        }
        _ => None,
    }
}

fn source_before(header: &[u8], end: usize) -> Option<(LineSource<'_>, usize)> {
    let (device, rest) = number_at_end(header[..end].strip_suffix(b"]")?)?;
    let (device, rest) = match rest.strip_suffix(b"-") {
        Some(rest) => (None, rest),
        None => (u32::try_from(device).ok(), rest),
    };
    let before = rest.strip_suffix(b"[")?;
    if let Some((start, host, pid)) = before.strip_suffix(b" ").and_then(parse_names) {
        let source = LineSource {
            key: &header[start..end],
            host,
            pid: pid.unwrap_or_else(|| number_of(device, None)),
            device,
            is_whole: is_end_of_prefix(&header[..start]),
            is_blanked: true,
        };
        return Some((source, start));
    }
    let labels = label::parse_writer(before)?;
    let source = LineSource {
        key: &header[before.len()..end],
        host: &labels.host[..labels.host.len().min(HOST)],
        pid: labels.pid.unwrap_or_else(|| number_of(device, labels.number)),
        device,
        is_whole: true,
        is_blanked: true,
    };
    Some((source, before.len()))
}

/// Returns the number of a process that its lines do not name, by its device and the number in a label.
fn number_of(device: Option<u32>, label: Option<u32>) -> u64 {
    let part = |number: Option<u32>| number.map_or(0, |number| u64::from(number) + 1);
    NO_PID + (part(label) << 20) + part(device)
}

/// Reads `host:pid:tid` at the end of the text, each of them blanked or not: its position, the host, and the
/// process.
fn parse_names(text: &[u8]) -> Option<(usize, &[u8], Option<u64>)> {
    let (thread, rest) = part_at_end(text)?;
    let (process, rest) = part_at_end(rest.strip_suffix(b":")?)?;
    let rest = rest.strip_suffix(b":")?;
    let start = host_start(rest);
    let host = &rest[start..];
    let number =
        |part: &[u8]| text::parse_number(part).filter(|(_, rest)| rest.is_empty()).map(|(pid, _)| pid);
    let is_time = number(process).zip(number(thread)).is_some_and(|(minutes, _)| minutes < 60);
    if host.len() > HOST || is_time && is_of_clock(host) {
        return None;
    }
    Some((start, host, number(process)))
}

/// Returns the number or the word at the end of the text, and the text before it.
fn part_at_end(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_of_part = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'*' | b'<' | b'>' | b'[' | b']' | b'_' | b'#')
    };
    let length = text::count_at_end(text, 24, is_of_part);
    (length > 0).then(|| (&text[text.len() - length..], &text[..text.len() - length]))
}

/// Returns the position of the host at the end of the text: of a word, or of words in brackets.
fn host_start(text: &[u8]) -> usize {
    let open = match text.last() {
        Some(b'>') => b'<',
        Some(b']') => b'[',
        Some(b'}') => b'{',
        _ => {
            let is_of_word =
                |byte: u8| !byte.is_ascii_whitespace() && !matches!(byte, b':' | b'"' | b',' | b'>');
            return text.len() - text::count_at_end(text, HOST + 1, is_of_word);
        }
    };
    memchr::memrchr(open, text).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(header: &str, level: Level) -> Option<LineSource<'_>> {
        parse_blanked_source(header.as_bytes(), level).map(|(source, _)| source)
    }

    #[test]
    fn what_is_not_blanked_identifies_the_writer() {
        for (header, host, pid, device) in [
            ("<cluster_name>:920:1145 [1] ", "<cluster_name>", Some(920), Some(1)),
            ("[pod/a/b] <my host>:920:1145 [1] ", "<my host>", Some(920), Some(1)),
            ("[1,3]<stdout>:<host>:1:2 [0] ", "<host>", Some(1), Some(0)),
            ("[1,3]<stdout>:***:1:2 [0] ", "***", Some(1), Some(0)),
            ("[REDACTED]:1:2 [0] ", "[REDACTED]", Some(1), Some(0)),
            (":1:2 [0] ", "", Some(1), Some(0)),
            ("HOST:PID:TID [3] ", "HOST", None, Some(3)),
            ("xxxx:xx:xx [-1] ", "xxxx", None, None),
            ("hosta:***:*** [0] ", "hosta", None, Some(0)),
            ("<host>:<pid>:<tid> [0] ", "<host>", None, Some(0)),
            ("[1] ", "", None, Some(1)),
            ("2025-12-28T16:04:25.1Z stdout F [1] ", "", None, Some(1)),
            ("2025-12-28 16:04:25 [1] ", "", None, Some(1)),
            ("worker-1  | [1] ", "worker-1", None, Some(1)),
        ] {
            let found = source(header, Level::Info).unwrap();
            let number = (found.pid < NO_PID).then_some(found.pid);
            assert_eq!((found.host, number, found.device), (host.as_bytes(), pid, device), "{header}");
        }
        let warning = "<host>:1:2 [0] transport/net.cc:5 (f [x]) ";
        assert_eq!(source(warning, Level::Warn).unwrap().key, b"<host>:1:2 [0]");
        for other in ["", "text [1] ", "text ", "[rank1]: ", "a[1] "] {
            assert_eq!(source(other, Level::Info), None, "{other}");
        }
    }

    #[test]
    fn words_and_signs_name_no_host() {
        for host in ["", "<host>", "***", "HOST", "xxxx", "REDACTED", "-worker-0"] {
            assert!(is_blanked_host(host), "{host}");
        }
        for host in ["vm", "localhost", "x", "node-1.example", "192.0.2.1"] {
            assert!(!is_blanked_host(host), "{host}");
        }
    }
}
