//! Reading of the kernel's messages: `/dev/kmsg`, else files of the system's logger.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::LazyLock;

use regex::bytes::Regex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{KernelMessage, KernelMessages};
use crate::knowledge::rules::{Origin, Rules};

/// Largest number of bytes of messages read.
const MOST: usize = 16 << 20;
/// Number of bytes read from the end of a log file.
const TAIL: u64 = 4 << 20;
/// Largest number of kinds of messages.
const MOST_KINDS: usize = 64;
/// Length limit of a message, in letters.
const LONGEST: usize = 400;
/// Files of system loggers.
const FILES: [&str; 4] = ["var/log/kern.log", "var/log/messages", "var/log/syslog", "var/log/dmesg"];

/// Reads the messages below `root`, and keeps messages known to rules, and reports of errors of GPUs.
pub(in super::super) fn read_messages(root: &Path, rules: &Rules) -> KernelMessages {
    let mut messages = KernelMessages::default();
    if let Some(bytes) = read_kmsg(&root.join("dev/kmsg")) {
        messages.place = Some("/dev/kmsg".to_owned());
        messages.complete = true;
        for line in bytes.split(|byte| *byte == b'\n') {
            if let Some((time, text)) = parse_record(line) {
                take_message(&mut messages, rules, text, Some(time));
            }
        }
        return messages;
    }
    let Some((name, bytes)) = FILES.iter().find_map(|name| Some((name, read_tail(&root.join(name))?))) else {
        return messages;
    };
    messages.place = Some(format!("/{name}"));
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some((time, text)) = parse_logged(line) {
            take_message(&mut messages, rules, text, time);
        }
    }
    messages
}

/// Reads all records of the kernel. Each call of read(2) returns one, and an error after the last one.
fn read_kmsg(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut all = Vec::new();
    let mut record = vec![0; 8192];
    while all.len() < MOST {
        match rustix::io::read(&file, &mut record) {
            Ok(0) | Err(Errno::AGAIN) => return Some(all),
            Ok(length) => all.extend_from_slice(&record[..length]),
            // Old records were overwritten before the read.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(_) => return (!all.is_empty()).then_some(all),
        }
    }
    Some(all)
}

fn read_tail(path: &Path) -> Option<Vec<u8>> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns seconds and text of a record such as `6,339,5140900,-;NVRM: loading`. Further lines of a record
/// begin with a blank. Lines written by programs have a facility other than 0, and are not the kernel's.
fn parse_record(line: &[u8]) -> Option<(f64, &[u8])> {
    let end = line.iter().position(|byte| *byte == b';')?;
    let (head, text) = (std::str::from_utf8(&line[..end]).ok()?, &line[end + 1..]);
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let microseconds: u64 = fields.nth(1)?.parse().ok()?;
    (priority < 8).then_some((microseconds as f64 / 1e6, text))
}

/// Returns seconds and text of a line such as `Nov 24 host kernel: [ 5.140900] NVRM: loading`, or `[ 5.14]
/// NVRM: loading`.
fn parse_logged(line: &[u8]) -> Option<(Option<f64>, &[u8])> {
    const MARK: &[u8] = b" kernel: ";
    let text = match line.windows(MARK.len()).position(|window| window == MARK) {
        Some(at) => &line[at + MARK.len()..],
        None if line.starts_with(b"[") => line,
        None => return None,
    };
    let inner = text.strip_prefix(b"[").and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b']')?;
        let time: f64 = std::str::from_utf8(&rest[..end]).ok()?.trim().parse().ok()?;
        Some((Some(time), rest[end + 1..].trim_ascii_start()))
    });
    Some(inner.unwrap_or((None, text)))
}

/// Adds a message to its kind, if it matters.
fn take_message(messages: &mut KernelMessages, rules: &Rules, text: &[u8], time: Option<f64>) {
    let rule = rules.find_rule(text, Origin::Kernel);
    let number = error_of_gpu(text);
    if rule.is_none() && number.is_none() {
        return;
    }
    let text: String = String::from_utf8_lossy(text).chars().take(LONGEST).collect();
    let name = rule.map(|rule| rule.id.clone());
    let same = |kind: &&mut KernelMessage| kind.rule == name && error_of_gpu(kind.text.as_bytes()) == number;
    let device = find_device(text.as_bytes());
    if let Some(kind) = messages.kinds.iter_mut().find(same) {
        kind.count += 1;
        kind.last = time.or(kind.last);
        if let Some(device) =
            device.filter(|device| kind.devices.len() < 64 && !kind.devices.contains(device))
        {
            kind.devices.push(device);
        }
    } else if messages.kinds.len() < MOST_KINDS {
        let devices = device.into_iter().collect();
        messages.kinds.push(KernelMessage { rule: name, text, first: time, last: time, count: 1, devices });
    }
}

/// Returns `Xid 79` or `SXid 12028` of a driver's line about an error of a GPU or an NVSwitch.
fn error_of_gpu(line: &[u8]) -> Option<String> {
    static XID: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(S?Xid) \((?:PCI:)?[0-9a-fA-F:.]+\): (\d+)").ok());
    let captures = XID.as_ref()?.captures(line)?;
    let text = |index: usize| captures.get(index).map(|part| String::from_utf8_lossy(part.as_bytes()));
    Some(format!("{} {}", text(1)?, text(2)?))
}

/// Returns the first place on the PCI bus in a line.
fn find_device(line: &[u8]) -> Option<String> {
    static PLACE: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?").ok());
    let found = PLACE.as_ref()?.find(line)?;
    Some(String::from_utf8_lossy(found.as_bytes()).into_owned())
}

/// Returns the name of the error in a message without a rule.
pub(super) fn error_name(text: &str) -> String {
    error_of_gpu(text.as_bytes()).unwrap_or_else(|| "a message".to_owned())
}

/// Returns true for a message with an error of NVIDIA's driver or of its switches.
pub(super) fn names_gpu_error(text: &str) -> bool {
    text.contains("NVRM:") || error_of_gpu(text.as_bytes()).is_some()
}
