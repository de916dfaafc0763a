//! The writer in a line: `host:pid:tid [0]`.

use super::text;

/// Longest name of a host.
pub(super) const HOST: usize = 64;

/// Number of the first process without a number in the log. Each device then counts as a process.
pub(super) const NO_PID: u64 = 1 << 63;

/// Level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// `INFO`.
    Info,
    /// `WARN`, and `ABORT` of old versions.
    Warn,
    /// `ERROR`. NCCL itself does not write it, but other builds and plugins can.
    Error,
    /// `TRACE` and `CALL`.
    Trace,
    /// `DIAG`: NCCL's own diagnostics.
    Diagnostics,
}

/// The writer in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineSource<'a> {
    /// All of it, with the thread: `vm:12:14 [0]`.
    pub(super) key: &'a [u8],
    /// Host name.
    pub(super) host: &'a [u8],
    /// Process.
    pub(super) pid: u64,
    /// CUDA device.
    pub(super) device: Option<u32>,
    /// True if the host name begins at the end of a line or of a launcher's prefix. Otherwise text of another
    /// program can be glued to it.
    pub(super) is_whole: bool,
    /// True if the line lacks its host or its process: the key alone does not tell writers apart.
    pub(super) is_blanked: bool,
}

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

/// Returns the writer in the text before `NCCL INFO`, and its position there.
pub(super) fn parse_source(header: &[u8], level: Level) -> Option<(LineSource<'_>, usize)> {
    let header = header.trim_ascii_end();
    if header.last() == Some(&b']') && level == Level::Info {
        return source_before(header, header.len(), level);
    }
    if level == Level::Info {
        return None;
    }
    // `host:pid:tid [0] file.cc:59 (function) NCCL WARN`: the writer is the first such text.
    for end in memchr::memchr_iter(b']', header) {
        if let Some(found) = source_before(header, end + 1, level) {
            return Some(found);
        }
    }
    source_before(header, header.len(), level)
}

/// Returns the writer before this end: `host:pid:tid [0]`, `host:pid:tid`, `host:pid`.
fn source_before(header: &[u8], end: usize, level: Level) -> Option<(LineSource<'_>, usize)> {
    let (device, has_device, rest) = match header[..end].strip_suffix(b"]") {
        Some(rest) => {
            let (device, rest) = number_at_end(rest)?;
            // -1 if no device is current.
            let (device, rest) = match rest.strip_suffix(b"-") {
                Some(rest) => (None, rest),
                None => (u32::try_from(device).ok(), rest),
            };
            (device, true, rest.strip_suffix(b" [")?)
        }
        None => (None, false, &header[..end]),
    };
    let (last, rest) = number_at_end(rest)?;
    let rest = rest.strip_suffix(b":")?;
    let (pid, rest) = match number_at_end(rest).and_then(|(pid, rest)| Some((pid, rest.strip_suffix(b":")?)))
    {
        Some(both) => both,
        // Lines of the diagnostics have no thread.
        None if !has_device && level == Level::Diagnostics => (last, rest),
        None => return None,
    };
    let length = text::count_at_end(rest, HOST + 1, is_of_host);
    if length == 0 || length > HOST || pid < 60 && is_of_clock(&rest[rest.len() - length..]) {
        return None;
    }
    let start = rest.len() - length;
    let source = LineSource {
        key: &header[start..end],
        host: &rest[start..],
        pid,
        device,
        is_whole: is_end_of_prefix(&header[..start]),
        is_blanked: false,
    };
    Some((source, start))
}

/// Returns true for the hour of a time before the minutes: `16`, `2025-12-28T16`.
pub(super) fn is_of_clock(host: &[u8]) -> bool {
    match host {
        [before @ .., b'0'..=b'2', b'0'..=b'9'] => matches!(before, [] | [.., b'0'..=b'9', b'T']),
        _ => false,
    }
}

pub(super) fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')
}

/// Returns the decimal number at the end, of at most 19 digits, and the text before it.
pub(super) fn number_at_end(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut power) = (0_u64, 1_u64);
    let mut rest = bytes;
    while let [before @ .., digit @ b'0'..=b'9'] = rest {
        if bytes.len() - rest.len() == 19 {
            return None;
        }
        value = value.wrapping_add(u64::from(digit - b'0').wrapping_mul(power));
        (power, rest) = (power.wrapping_mul(10), before);
    }
    (rest.len() < bytes.len()).then_some((value, rest))
}

/// Returns true if a line of NCCL can begin here: at the beginning, after a carriage return, after the prefix
/// of a launcher or a timestamp.
pub(super) fn is_end_of_prefix(before: &[u8]) -> bool {
    match before {
        [] | [.., b'\r' | b'"' | b']' | b'>'] | [.., b']' | b'>', b':'] => true,
        [rest @ .., b' '] => match rest.trim_ascii_end() {
            // `[time]`, `<stderr>:`, `12:`, `pod |`.
            [] | [.., b']' | b'>' | b':' | b'|'] => true,
            // `(RayWorkerWrapper pid=12, ip=192.0.2.1)`.
            labels @ [b'(', .., b')'] => memchr::memmem::find(labels, b"pid=").is_some(),
            // `16:04:25`, `2025-12-28T16:04:25.123Z`.
            [.., b'0'..=b'9' | b'Z'] => {
                let start = memchr::memrchr(b' ', rest).map_or(0, |space| space + 1);
                rest[start..].contains(&b':')
            }
            rest => rest.ends_with(b" F") || rest.ends_with(b" P"),
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
