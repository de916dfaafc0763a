//! Parts of a line: its writer, its level, and the message.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};

use super::blank::parse_blanked_source;
use super::source::{Level, LineSource, is_end_of_prefix, number_at_end, parse_source};
use super::text;

/// Beginning of the warning about a failed CUDA call.
pub(super) const CUDA_CALL: &[u8] = b"Cuda failure";

/// The level in a warning of NCCL before 2.4.
static OLD_WARNING: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b" WARN "));

/// A part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinePart<'a> {
    /// A line of NCCL.
    Nccl {
        /// The writer.
        source: Option<LineSource<'a>>,
        /// The level.
        level: Level,
        /// The text after the prefix.
        message: &'a [u8],
        /// The text before the writer.
        before: &'a [u8],
        /// The text between the writer and `NCCL`: of warnings, the file of the source and its line.
        file: &'a [u8],
    },
    /// The version of NCCL, of a line without writer.
    Version(&'a [u8]),
    /// A line of another program.
    Other(&'a [u8]),
}

/// Finder of the parts of lines.
#[derive(Debug)]
pub(super) struct Splitter {
    nccl: Finder<'static>,
    version: Finder<'static>,
}

/// The place of `NCCL INFO ` in a line, and its writer.
#[derive(Clone, Copy)]
struct Mark<'a> {
    /// Start of the writer, or of `NCCL` without one.
    start: usize,
    source: Option<LineSource<'a>>,
    level: Level,
    /// Start of `NCCL`.
    nccl: usize,
    /// Start of the message.
    message: usize,
}

/// Parts of a line: one, or more if lines were written into each other.
pub(super) struct LineParts<'a> {
    line: &'a [u8],
    /// Start of the part.
    start: usize,
    /// Mark of the part, unless it is the first.
    mark: Option<Mark<'a>>,
    is_begun: bool,
}

impl<'a> LineParts<'a> {
    pub(super) fn from_line(line: &'a [u8]) -> Self {
        Self { line, start: 0, mark: None, is_begun: false }
    }

    /// Returns the next part. If a host name may have text of another line before it, `glued` returns the
    /// length of this text, or `None` if no known host name is at its end.
    #[inline]
    pub(super) fn next(
        &mut self,
        splitter: &Splitter,
        glued: impl Fn(&LineSource<'a>) -> Option<usize>,
    ) -> Option<LinePart<'a>> {
        let mark = match self.mark.take() {
            Some(mark) => mark,
            None if self.is_begun => return None,
            None => {
                self.is_begun = true;
                match splitter.find_mark(self.line, 0, false, &glued) {
                    Some(mark) => mark,
                    None => return Some(splitter.without_mark(self.line)),
                }
            }
        };
        // The first line of a host is not known yet.
        let host = mark.source.map_or(&b""[..], |source| source.host);
        let is_same = |source: &LineSource<'a>| {
            let length = source.host.len().checked_sub(host.len())?;
            (!host.is_empty() && source.host.ends_with(host)).then_some(length)
        };
        let next = splitter.find_mark(self.line, mark.message, true, |source: &LineSource<'a>| {
            glued(source).or_else(|| is_same(source))
        });
        let end = next.as_ref().map_or(self.line.len(), |next| next.start);
        let entry = LinePart::Nccl {
            source: mark.source,
            level: mark.level,
            message: self.line[mark.message..end].trim_ascii(),
            before: &self.line[self.start..mark.start],
            file: &self.line[mark.start + mark.source.map_or(0, |source| source.key.len())..mark.nccl],
        };
        if next.is_some() {
            self.start = end;
            self.mark = next;
        }
        Some(entry)
    }
}

impl Splitter {
    pub(super) fn new() -> Self {
        Self { nccl: Finder::new(b"NCCL "), version: Finder::new(b"CCL version ") }
    }

    fn find_mark<'a>(
        &self,
        line: &'a [u8],
        from: usize,
        is_torn: bool,
        glued: impl Fn(&LineSource<'a>) -> Option<usize>,
    ) -> Option<Mark<'a>> {
        let (nccl, level, message) = self.find_level(line, from)?;
        let without = Mark { start: nccl, source: None, level, nccl, message };
        let header = &line[from..nccl];
        let found = parse_source(header, level).or_else(|| parse_blanked_source(header, level));
        let Some((mut source, position)) = found else {
            let is_warning = matches!(level, Level::Warn | Level::Error);
            return match is_torn || !is_warning || can_begin_warning(header) {
                true => Some(without),
                false => self.find_mark(line, message, false, glued),
            };
        };
        let mut start = from + position;
        if is_torn || !source.is_whole {
            match glued(&source) {
                Some(0) => {}
                Some(length) => {
                    (source.key, source.host) = (&source.key[length..], &source.host[length..]);
                    start += length;
                }
                None if is_torn => return Some(without),
                None => {}
            }
        }
        Some(Mark { start, source: Some(source), ..without })
    }

    /// Returns the position of `NCCL`, the level after it, and the position of the message.
    pub(super) fn find_level(&self, line: &[u8], from: usize) -> Option<(usize, Level, usize)> {
        let mut position = from;
        loop {
            let start = position + self.nccl.find(&line[position..])?;
            position = start + 5;
            let (level, length) = match &line[position..] {
                [b'I', b'N', b'F', b'O', b' ', ..] => (Level::Info, 5),
                [b'W', b'A', b'R', b'N', b' ', ..] => (Level::Warn, 5),
                // From 2.32 on: faults with which NCCL continues.
                [b'A', b'T', b'T', b'N', b' ', ..] => (Level::Warn, 5),
                [b'T', b'R', b'A', b'C', b'E', b' ', ..] => (Level::Trace, 6),
                [b'C', b'A', b'L', b'L', b' ', ..] => (Level::Trace, 5),
                [b'A', b'B', b'O', b'R', b'T', b' ', ..] => (Level::Warn, 6),
                [b'E', b'R', b'R', b'O', b'R', b' ' | b':', ..] => (Level::Error, 6),
                [b'D', b'I', b'A', b'G', b' ', ..] => (Level::Diagnostics, 5),
                // A warning without text, or a cut one.
                [b'W', b'A', b'R', b'N'] => (Level::Warn, 4),
                _ => continue,
            };
            if start == 0 || !line[start - 1].is_ascii_alphanumeric() {
                return Some((start, level, position + length));
            }
        }
    }

    /// Returns the content of a line without a level.
    pub(super) fn without_mark<'a>(&self, line: &'a [u8]) -> LinePart<'a> {
        // `NCCL version 2.28.9+cuda13.0`, `RCCL version 2.18.3+hip5.7`.
        if let Some(found) = self.version.find(line)
            && let [before @ .., b'N' | b'R'] = &line[..found]
            && matches!(before, [] | [.., b' ' | b':' | b'>' | b'\r' | b'"' | b'|'])
            && line.get(found + 12).is_some_and(u8::is_ascii_digit)
        {
            return LinePart::Version(&line[found + 12..]);
        }
        LinePart::Other(line)
    }
}

/// Returns true for text before a warning without a writer: none, the prefix of a launcher with a number, a
/// time, a device, or the place in the source (`init.cc:497`, `init.cc:497 (function)`). Other text belongs
/// to a program with these words in its own messages.
fn can_begin_warning(before: &[u8]) -> bool {
    let text = before.trim_ascii();
    let is_place = |word: &[u8]| {
        number_at_end(word).is_some_and(|(_, rest)| {
            matches!(rest, [.., b'.', b'c' | b'h', b':'] | [.., b'.', b'c', b'c' | b'u', b':'])
        })
    };
    text.is_empty()
        || text.split(u8::is_ascii_whitespace).any(is_place)
        || text.iter().any(u8::is_ascii_digit) && is_end_of_prefix(before) && !text.ends_with(b"\"")
}

/// Returns the time at the beginning of a line, or before the writer.
pub(super) fn parse_time(line: &[u8]) -> Option<String> {
    let line = &line[..line.len().min(200)];
    // `[2025-12-28 16:04:25]`, `[rank0]:[E1124 13:48:00.36 ...`, `[  123.456789]`: the first bracket with a
    // time.
    for open in memchr::memchr_iter(b'[', line) {
        let inside = &line[open + 1..];
        let inside = &inside[..memchr::memchr(b']', inside).unwrap_or(inside.len())];
        let inside =
            inside.strip_prefix(b"E").or(inside.strip_prefix(b"W")).unwrap_or(inside).trim_ascii_start();
        let length = inside.iter().take_while(|byte| is_of_time(**byte)).count();
        let time = inside[..length].trim_ascii_end();
        if time.len() >= 8 && time.contains(&b':') || is_uptime(time) {
            return Some(text::shorten_message(time));
        }
    }
    // `2025-12-28T16:04:25.123Z stdout F`, `2025-12-28 16:04:25`.
    if let [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'-', ..] = line {
        let first = text::first_word(line).len();
        let time =
            if line[..first].contains(&b':') { &line[..first] } else { &line[..line.len().min(first + 9)] };
        return time.contains(&b':').then(|| text::shorten_message(time.trim_ascii()));
    }
    // `Tue Nov 24 13:42:01 2026[1,0]<stderr>:`.
    let weekday = [&b"Mon "[..], b"Tue ", b"Wed ", b"Thu ", b"Fri ", b"Sat ", b"Sun "];
    (line.len() >= 24 && line[13] == b':' && weekday.iter().any(|day| line.starts_with(day)))
        .then(|| text::shorten_message(&line[..24]))
}

fn is_of_time(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'/' | b':' | b'.' | b' ' | b'T' | b'Z' | b'+')
}

fn is_uptime(time: &[u8]) -> bool {
    text::parse_number(time)
        .and_then(|(_, rest)| text::parse_number(rest.strip_prefix(b".")?))
        .is_some_and(|(_, rest)| rest.is_empty())
}

/// Returns the file of the source before a warning. Without a writer, it is the last word before `NCCL`.
pub(super) fn find_warning_file<'a>(file: &'a [u8], before: &'a [u8]) -> &'a [u8] {
    match file.trim_ascii() {
        [] => before.trim_ascii_end().rsplit(|byte| *byte == b' ').next().unwrap_or_default(),
        // `bootstrap.cc:77 (bootstrapRecv)`.
        file => text::first_word(file),
    }
}

/// Returns the file and the message of a warning of NCCL before 2.4: `vm:1:2 [0] include/socket.h:360 WARN
/// Call to connect failed`.
pub(super) fn parse_old_warning(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = OLD_WARNING.find(line)?;
    let file = line[..start].rsplit(|byte| *byte == b' ').next()?;
    let (name, number) = file.split_at(memchr::memchr(b':', file)?);
    let is_source = [&b".cu"[..], b".cc", b".h"].iter().any(|end| name.ends_with(end));
    let is_number = number.len() > 1 && number[1..].iter().all(u8::is_ascii_digit);
    (is_source && is_number).then(|| (file, &line[start + 6..]))
}

/// Returns true for a file of RAS: `ras/client_support.cc:178`.
pub(super) fn is_of_ras(file: &[u8]) -> bool {
    file.starts_with(b"ras/") || memmem::find(file, b"/ras/").is_some()
}
