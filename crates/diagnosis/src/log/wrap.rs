//! Lines broken by a terminal at its width.

use memchr::memmem;

use super::label;
use super::line::parse_time;

/// Smallest accepted width.
const LEAST: usize = 60;
/// Longest joined line.
const LINE: usize = 16 * 1024;

/// Joiner of the parts of broken lines. It also passes the parts below the first one on by themselves.
#[derive(Debug)]
pub(super) struct Joiner {
    width: usize,
    /// The parts so far, and the number of the first line.
    parts: Vec<u8>,
    number: u64,
    escapes: bool,
    /// Length of the last part.
    last: usize,
}

impl Joiner {
    /// Returns a joiner, if the lines at the beginning of an input are broken: the longest lines are lines of
    /// NCCL of one length, each with an unlabelled line below it.
    pub(super) fn from_head(head: &[u8], line_end: u8) -> Option<Self> {
        let lines: Vec<&[u8]> = head.split(|byte| *byte == line_end).map(without_return).collect();
        let width = lines.iter().map(|line| line.len()).max().filter(|width| *width >= LEAST)?;
        let is_cut = |line: &[u8]| line.len() == width && has_level(line) && !is_whole(line);
        let full = || lines.iter().enumerate().filter(|(_, line)| is_cut(line));
        let below = full().filter_map(|(index, _)| lines.get(index + 1));
        let broken: Vec<_> = below.filter(|line| continues_line(line)).collect();
        // Usual widths of terminals: 80, 100, 120, 132, 160.
        let is_usual = width % 20 == 0 || width == 132;
        let is_mixed = broken.windows(2).any(|pair| pair[0] != pair[1]);
        let is_sentence = broken.iter().any(|line| line.first().is_some_and(u8::is_ascii_uppercase));
        let is_broken = (is_usual && !is_sentence || is_mixed && (is_usual || broken.len() > 2))
            && broken.len() * 2 > full().count();
        let joiner = Self { width, parts: Vec::new(), number: 0, escapes: false, last: 0 };
        is_broken.then_some(joiner)
    }

    /// Passes a line on, with the next ones if it is broken.
    pub(super) fn join_line(
        &mut self,
        line: &[u8],
        number: u64,
        escapes: bool,
        each: &mut impl FnMut(&[u8], u64, bool),
    ) {
        let text = without_return(line);
        if !self.parts.is_empty() {
            if continues_line(text) && text.len() <= self.width && self.parts.len() + text.len() < LINE {
                if self.last < self.width {
                    // The space at the end was cut off.
                    self.parts.push(b' ');
                }
                self.parts.extend_from_slice(text);
                (self.last, self.escapes) = (text.len(), self.escapes || escapes);
                // It can be a line of a program after all.
                each(line, number, escapes);
                if !self.is_full(text.len()) {
                    self.finish_line(each);
                }
                return;
            }
            self.finish_line(each);
        }
        if self.is_full(text.len()) && (has_level(text) || ends_in_level(text)) {
            self.parts.extend_from_slice(text);
            (self.number, self.last, self.escapes) = (number, text.len(), escapes);
        } else {
            each(line, number, escapes);
        }
    }

    /// Passes the last line on.
    pub(super) fn finish_line(&mut self, each: &mut impl FnMut(&[u8], u64, bool)) {
        if !self.parts.is_empty() {
            each(&self.parts, self.number, self.escapes);
            self.parts.clear();
        }
    }

    fn is_full(&self, length: usize) -> bool {
        length == self.width || length + 1 == self.width
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns true for a line of NCCL.
fn has_level(line: &[u8]) -> bool {
    [&b"NCCL INFO "[..], b"NCCL WARN "].iter().any(|level| memmem::find(line, level).is_some())
}

/// Returns true for a line that ends within the level of a line of NCCL: `... [0] NCCL W`.
fn ends_in_level(line: &[u8]) -> bool {
    let levels = [&b" NCCL INFO "[..], b" NCCL WARN "];
    levels.iter().any(|level| (2..level.len()).any(|length| line.ends_with(&level[..length])))
}

/// Returns true for a message with its end.
fn is_whole(line: &[u8]) -> bool {
    let ends = [&b" START"[..], b" COMPLETE", b" rings", b" trees", b"via P2P/IPC", b"via P2P/CUMEM"];
    ends.iter().any(|end| line.ends_with(end))
}

/// Returns true for a line that can be the rest of another one: without a label, a time and a level.
fn continues_line(line: &[u8]) -> bool {
    let begins = [&b"["[..], b"(", b"{", b"<", b"#"].iter().any(|sign| line.starts_with(sign));
    // Parts of NCCL's messages: `[3] -> 4[4]`, `[send] via`, `(comm 0x1)`.
    let is_part = || {
        let parts = [&b"[send]"[..], b"[receive]"];
        parts.iter().any(|part| line.starts_with(part))
            || line.starts_with(b"[") && label::parse_task(line).is_some_and(|task| task.is_bare)
    };
    let is_labelled = || {
        let label = label::parse_rank(line);
        label.rank.is_some() && !label.is_bare
    };
    let is_record = line.starts_with(b"Traceback") || is_labelled() || parse_time(line).is_some();
    !line.is_empty() && !has_level(line) && !is_record && (!begins || is_part())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(text: &str) -> Vec<(String, u64)> {
        let mut joiner = Joiner::from_head(text.as_bytes(), b'\n').unwrap();
        let mut lines = Vec::new();
        let mut each =
            |line: &[u8], number: u64, _| lines.push((String::from_utf8_lossy(line).into_owned(), number));
        for (line, number) in text.lines().zip(1..) {
            joiner.join_line(line.as_bytes(), number, false, &mut each);
        }
        joiner.finish_line(&mut each);
        lines
    }

    #[test]
    fn lines_broken_at_any_width_are_whole_again() {
        let lines = [
            "hosta:100:110 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x1 - Init START",
            "a line of the program",
            "hosta:100:110 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA",
            "hosta:101:111 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0x1 - Init START",
            "hosta:101:111 [1] NCCL INFO Connected all rings",
        ];
        for width in [60, 80, 100] {
            let broken = lines.iter().map(|line| {
                let parts: Vec<_> =
                    line.as_bytes().chunks(width).map(|part| String::from_utf8_lossy(part)).collect();
                parts.join("\n") + "\n"
            });
            let found = joined(&broken.collect::<String>()).into_iter().map(|(line, _)| line);
            let found: Vec<String> = found.filter(|line| lines.contains(&line.as_str())).collect();
            assert_eq!(found, lines, "{width}");
        }
    }

    #[test]
    fn a_log_with_a_long_line_is_not_broken() {
        let long = "a:1:1 [0] NCCL INFO cudaDriverVersion 13000, and more words up to a width of 80 letters";
        for text in [
            format!("{long}\nnext line\n"),
            format!("{}\nRuntimeError: NCCL error\n", &long[..80]),
            format!("{}\n[rank1]: Traceback\n", &long[..80]),
            format!("{}\n2026-11-24 13:42:01 text\n", &long[..80]),
            "short\n".to_owned(),
            String::new(),
        ] {
            assert!(Joiner::from_head(text.as_bytes(), b'\n').is_none(), "{text}");
        }
    }
}
