//! Writers without a host or a process in their lines: blanked, or cut off.

use std::sync::LazyLock;

use regex::bytes::Regex;

use super::digest::{Communicator, Digest, Member, Writer};
use super::label;
use super::source::{HOST, Level, LineSource, NO_PID, is_end_of_prefix, is_of_clock, number_at_end};
use super::text;

/// The expression for `host:pid:tid [0]`, each of them blanked or not.
static NAMES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = r"[\w*<>\[\]#]{1,24}";
    let host = r#"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|[^\s:,>"]*"#;
    Regex::new(&format!(r"(?-u)({host}):({part}):({part}) \[(-?\d{{1,9}})\]")).ok()
});

/// Returns the writer in the text before `NCCL INFO`, and its position there, if the host or the process is
/// blanked (`<host>:12:14 [0]`, `HOST:PID:TID [0]`), or if only the device remains (`[0]`).
pub(super) fn parse_blanked_source(header: &[u8], level: Level) -> Option<(LineSource<'_>, usize)> {
    let header = header.trim_ascii_end();
    let is_info = level == Level::Info;
    if is_info && !header.ends_with(b"]") || !matches!(level, Level::Info | Level::Warn | Level::Error) {
        return None;
    }
    let device = || match is_info {
        true => parse_device(header, header.len()),
        false => memchr::memchr_iter(b']', header).take(8).find_map(|end| parse_device(header, end + 1)),
    };
    parse_names(header)
        .filter(|(_, end, _)| !is_info || *end == header.len())
        .map_or_else(device, |(start, _, source)| Some((source, start)))
}

/// Reads `host:pid:tid [0]`: its position, its end, and the writer.
fn parse_names(header: &[u8]) -> Option<(usize, usize, LineSource<'_>)> {
    let found = NAMES.as_ref()?.captures(header)?;
    let (whole, host) = (found.get(0)?, found.get(1)?.as_bytes());
    let number = |index| {
        let (number, rest) = text::parse_number(found.get(index)?.as_bytes())?;
        rest.is_empty().then_some(number)
    };
    let is_time = number(2).zip(number(3)).is_some_and(|(minutes, _)| minutes < 60) && is_of_clock(host);
    let device = number(4).and_then(|device| u32::try_from(device).ok());
    let source = LineSource {
        key: whole.as_bytes(),
        host,
        pid: number(2).unwrap_or_else(|| number_process(device, None)),
        device,
        is_whole: is_end_of_prefix(&header[..whole.start()]),
        is_blanked: true,
    };
    (host.len() <= HOST && !is_time).then_some((whole.start(), whole.end(), source))
}

/// Reads the device before this end, after labels.
fn parse_device(header: &[u8], end: usize) -> Option<(LineSource<'_>, usize)> {
    let (device, rest) = number_at_end(header[..end].strip_suffix(b"]")?)?;
    let (device, rest) = match rest.strip_suffix(b"-") {
        Some(rest) => (None, rest),
        None => (u32::try_from(device).ok(), rest),
    };
    let before = rest.strip_suffix(b"[")?;
    let labels = label::parse_writer(before)?;
    let source = LineSource {
        key: &header[before.len()..end],
        host: &labels.host[..labels.host.len().min(HOST)],
        pid: labels.pid.unwrap_or_else(|| number_process(device, labels.number)),
        device,
        is_whole: true,
        is_blanked: true,
    };
    Some((source, before.len()))
}

/// Returns the number of a process that its lines do not name, by its device and the number in a label.
fn number_process(device: Option<u32>, label: Option<u32>) -> u64 {
    let part = |number: Option<u32>| number.map_or(0, |number| u64::from(number) + 1);
    NO_PID + (part(label) << 20) + part(device)
}

/// Removes communicators known by lines without a host only, if other lines have one: their beginnings were
/// lost.
pub(super) fn remove_torn_communicators(digest: &mut Digest) {
    let writers = &digest.writers;
    let is_torn = |member: &Member| writers.get(member.writer).is_some_and(Writer::is_blanked);
    let is_whole = |member: &Member| (member.started || member.complete) && !is_torn(member);
    if digest.communicators.iter().any(|each| each.members.values().any(is_whole)) {
        // A blanked process has more than two connections.
        let is_lost = |each: &Communicator| {
            each.id.is_empty() && each.connections.len() <= 2 && each.members.values().all(is_torn)
        };
        digest.communicators.retain(|each| !is_lost(each));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_header(header: &str, level: Level) -> Option<LineSource<'_>> {
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
            let found = parse_header(header, Level::Info).unwrap();
            let number = (found.pid < NO_PID).then_some(found.pid);
            assert_eq!((found.host, number, found.device), (host.as_bytes(), pid, device), "{header}");
        }
        let warning = "<host>:1:2 [0] transport/net.cc:5 (f [x]) ";
        assert_eq!(parse_header(warning, Level::Warn).unwrap().key, b"<host>:1:2 [0]");
        for other in ["", "text [1] ", "text ", "[rank1]: ", "a[1] "] {
            assert_eq!(parse_header(other, Level::Info), None, "{other}");
        }
    }
}
