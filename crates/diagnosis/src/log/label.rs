//! Labels in front of lines, by launchers and collectors: `[rank3]:`, `3: `, `[pod/train-0/main] `.

use std::sync::LazyLock;

use regex::bytes::Regex;

use super::source::is_end_of_prefix;
use super::text;

/// Longest part of a line with labels.
const LABELS: usize = 200;

/// The rank in the labels of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RankLabel {
    /// The rank.
    pub(super) rank: Option<u32>,
    /// True for the number of a task: only a job with one rank in each task has equal numbers.
    pub(super) is_task: bool,
    /// True for a task in the form `[3] `.
    pub(super) is_bare: bool,
    /// True for a line with a task and another rank.
    pub(super) is_other_task: bool,
}

/// The number of a task, as a launcher writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) number: u32,
    /// True for `[3] `, which can also be a number of another kind.
    pub(super) is_bare: bool,
}

/// Returns the rank in the labels of a line: `[rank3]:`, else the number of a task. The number of
/// `[default3]:` is a local rank.
pub(super) fn parse_rank(line: &[u8]) -> RankLabel {
    let line = &line[..line.len().min(LABELS)];
    let task = parse_task(line);
    match parse_torch_rank(line) {
        Some(rank) => {
            let is_other_task = task.is_some_and(|task| !task.is_bare && task.number != rank);
            RankLabel { rank: Some(rank), is_other_task, ..RankLabel::default() }
        }
        None => RankLabel {
            rank: task.map(|task| task.number),
            is_task: task.is_some(),
            is_bare: task.is_some_and(|task| task.is_bare),
            is_other_task: false,
        },
    }
}

/// Reads `[rank3]`.
fn parse_torch_rank(line: &[u8]) -> Option<u32> {
    memchr::memchr_iter(b'[', line).take(4).find_map(|open| {
        let rest = line[open + 1..].strip_prefix(b"rank")?;
        text::parse_small_number(rest).filter(|(_, rest)| rest.starts_with(b"]")).map(|(rank, _)| rank)
    })
}

/// Reads the number of a task: `3: ` of srun, `[1,3]<stderr>:` of mpirun, `[3] ` of MPICH and Intel MPI.
pub(super) fn parse_task(line: &[u8]) -> Option<Task> {
    let line = &line[..line.len().min(LABELS)];
    if let Some((number, [b':', b' ', ..])) = text::parse_small_number(line.trim_ascii_start()) {
        return Some(Task { number, is_bare: false });
    }
    if let Some((number, [b']', b' ', ..])) = line.strip_prefix(b"[").and_then(text::parse_small_number) {
        return Some(Task { number, is_bare: true });
    }
    for open in memchr::memchr_iter(b'[', line).take(4) {
        let inside = &line[open + 1..];
        let inside = &inside[..memchr::memchr(b']', inside)?];
        let is_of_mpirun = line[open + 1 + inside.len()..].starts_with(b"]<std");
        if is_of_mpirun
            && let Some(comma) = memchr::memchr(b',', inside)
            && let Some((number, [])) = text::parse_small_number(&inside[comma + 1..])
        {
            return Some(Task { number, is_bare: false });
        }
    }
    None
}

/// The writer of a line by its labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelledWriter<'a> {
    /// Host, address or pod, or empty.
    pub(super) host: &'a [u8],
    /// Process.
    pub(super) pid: Option<u64>,
    /// Number of a task or of a rank.
    pub(super) number: Option<u32>,
}

/// The expression for labels with a host or a process: of Ray, `kubectl --prefix`, docker compose, pdsh and
/// stern, and of syslog in its two forms.
static WRITER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let name = r"[\w.-]*[A-Za-z][\w.-]*";
    let forms = [
        r"\((?:\w+ )?pid=(?<p0>\d+)(?:, ip=(?<h0>[\w.]+))?\)",
        r"\[pod/(?<h1>[\w.-]+)[^\]]*\]",
        &format!(r"(?<h2>{name}) *\|.*"),
        &format!("(?<h3>{name}):"),
        &format!(r"(?<h4>[\w.]+-[\w.-]+) {name}"),
        r"(?:<\d+>)?[A-Z][a-z]{2} [ \d]\d [\d:]{8} (?<h5>\S+) [^\s\[]+(?:\[(?<p1>\d+)\])?:",
        r"<\d+>1 \S+ (?<h6>\S+) \S+ (?<p2>\d+|-) .*",
    ];
    Regex::new(&format!("^(?-u)(?:{})$", forms.join("|"))).ok()
});

/// Returns the writer of a line without host, by the labels before it, or `None` if other text stands there.
pub(super) fn parse_writer(before: &[u8]) -> Option<LabelledWriter<'_>> {
    let Some(found) = WRITER.as_ref().and_then(|writer| writer.captures(before.trim_ascii())) else {
        let number = parse_rank(before).rank;
        return is_end_of_prefix(before).then_some(LabelledWriter { number, ..LabelledWriter::default() });
    };
    let group = |name: &str| found.name(name).map(|text| text.as_bytes());
    let host = ["h0", "h1", "h2", "h3", "h4", "h5", "h6"].iter().find_map(|name| group(name));
    let pid = ["p0", "p1", "p2"].iter().find_map(|name| group(name)).and_then(text::parse_number);
    let pid = pid.map(|(pid, _)| pid);
    Some(LabelledWriter { host: host.unwrap_or_default(), pid, number: None })
}

/// Cuts ` [repeated 15x across cluster]` from the end of a line, with Ray's note about it. Also returns the
/// number of lines left out by Ray.
#[inline]
pub(super) fn cut_repetition(line: &[u8]) -> (&[u8], u64) {
    if !matches!(line.last(), Some(b']' | b')')) {
        return (line, 0);
    }
    let is_repeated = line.ends_with(b"across cluster]") || line.ends_with(b"for more options.)");
    let cut = || {
        let start = memchr::memmem::rfind(line, b" [repeated ")?;
        let (count, rest) = text::parse_number(&line[start + 11..])?;
        rest.starts_with(b"x across cluster]").then_some((&line[..start], count))
    };
    is_repeated.then(cut).flatten().unwrap_or((line, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_task_is_no_rank_beside_a_rank() {
        for (line, rank, is_task, is_other_task) in [
            ("1: [rank12]: Traceback", Some(12), false, true),
            ("12: [rank12]: Traceback", Some(12), false, false),
            ("  3: text", Some(3), true, false),
            ("[1,3]<stderr>:text", Some(3), true, false),
            ("Tue Nov 24 13:42:01 2026[1,4]<stdout>:text", Some(4), true, false),
            ("[prterun-host-123@1,5]<stdout>:text", Some(5), true, false),
            ("[3] text", Some(3), true, false),
            ("[default3]:[rank7]: text", Some(7), false, false),
            ("[default3]: text", None, false, false),
            ("(Worker pid=3) text", None, false, false),
            ("[3]", None, false, false),
        ] {
            let found = parse_rank(line.as_bytes());
            assert_eq!(
                (found.rank, found.is_task, found.is_other_task),
                (rank, is_task, is_other_task),
                "{line}"
            );
        }
    }

    #[test]
    fn a_label_names_the_writer_of_a_line_without_host() {
        for (before, host, pid, number) in [
            ("", "", None, None),
            ("[pod/train-0/main] ", "train-0", None, None),
            ("(RayWorkerWrapper pid=367, ip=192.0.2.7) ", "192.0.2.7", Some(367), None),
            ("(TaskRunner pid=12) ", "", Some(12), None),
            ("worker-1  | ", "worker-1", None, None),
            ("node1: ", "node1", None, None),
            ("train-0 main ", "train-0", None, None),
            ("Nov 24 10:00:00 node7 trainer[12]: ", "node7", Some(12), None),
            ("<34>1 2026-11-24T10:00:00.003Z node7 trainer 12 - - ", "node7", Some(12), None),
            ("2026-11-24T10:00:00.003Z stdout F ", "", None, None),
            ("2026-11-24 10:00:00 ", "", None, None),
            ("3: ", "", None, Some(3)),
            ("[1,3]<stderr>:", "", None, Some(3)),
            ("[rank3]:", "", None, Some(3)),
        ] {
            let expected = LabelledWriter { host: host.as_bytes(), pid, number };
            assert_eq!(parse_writer(before.as_bytes()), Some(expected), "{before}");
        }
        for other in ["text ", "the device is ", "text"] {
            assert_eq!(parse_writer(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn repetitions_of_ray_are_cut_and_counted() {
        let note = " (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable log deduplication, or \
                    see https://docs.ray.io for more options.)";
        for end in ["", note] {
            let line = format!("a [3] b [repeated 15x across cluster]{end}");
            assert_eq!(cut_repetition(line.as_bytes()), (&b"a [3] b"[..], 15));
        }
        for line in ["a [repeated x across cluster]", "a", "across cluster]"] {
            assert_eq!(cut_repetition(line.as_bytes()), (line.as_bytes(), 0));
        }
    }
}
