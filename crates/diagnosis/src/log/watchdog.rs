//! Reports of PyTorch's watchdog: the collective a rank waited for, and its progress.

use std::collections::HashSet;
use std::sync::LazyLock;

use memchr::memmem::{self, Finder};

use super::digest::{Position, WatchdogReport};
use super::label;
use super::text;

/// Largest number of reports.
const REPORTS: usize = 16_384;

/// All reports.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    reports: Vec<WatchdogReport>,
    /// The number in the last heading of a comparison.
    heading: Option<u64>,
    /// The reports without their places.
    seen: HashSet<WatchdogReport>,
    /// Reports above the limit.
    pub(super) lost: u64,
}

/// The words of the reports, prepared for the search: a job can write hundreds of thousands of them.
struct ReportWords {
    work: Finder<'static>,
    operation: Finder<'static>,
    sequence: Finder<'static>,
    failed: Finder<'static>,
    waited: Finder<'static>,
    enqueued: Finder<'static>,
    last_enqueued: Finder<'static>,
    guid: Finder<'static>,
    group: Finder<'static>,
    rank: Finder<'static>,
    received: Finder<'static>,
    sent: Finder<'static>,
}

static WORDS: LazyLock<ReportWords> = LazyLock::new(|| ReportWords {
    work: Finder::new("WorkNCCL("),
    operation: Finder::new("OpType="),
    sequence: Finder::new("SeqNum="),
    failed: Finder::new("failure detected by watchdog at work sequence id: "),
    waited: Finder::new("watchdog at work: "),
    enqueued: Finder::new("last enqueued work: "),
    last_enqueued: Finder::new("ast enqueued NCCL work: "),
    guid: Finder::new("PG GUID "),
    group: Finder::new("[PG "),
    rank: Finder::new("Rank "),
    received: Finder::new("NumelIn="),
    sent: Finder::new("NumelOut="),
});

impl Watchdog {
    /// Notes a line of PyTorch, if it is such a report. `line` has the prefix of the launcher.
    pub(super) fn note_report(&mut self, line: &[u8], position: Position) {
        match parse_report(line) {
            Some(report) => self.add_report(report, line, position),
            None => self.note_comparison(line, position),
        }
    }

    /// Notes a line of a comparison of the ranks.
    fn note_comparison(&mut self, line: &[u8], position: Position) {
        if let Some(number) = parse_heading(line) {
            self.heading = Some(number);
            return;
        }
        let Some((ranks, report)) = parse_comparison(line, self.heading) else { return };
        for rank in ranks {
            self.add_report(WatchdogReport { rank, ..report.clone() }, line, position);
        }
    }

    fn add_report(&mut self, report: WatchdogReport, line: &[u8], position: Position) {
        if self.reports.len() == REPORTS {
            self.lost += u64::from(!self.seen.contains(&report));
        } else if !self.seen.contains(&report) {
            self.reports.push(WatchdogReport {
                position,
                text: text::shorten_message(line),
                ..report.clone()
            });
            self.seen.insert(report);
        }
    }

    /// Returns the reports, in the order of their lines.
    pub(super) fn into_reports(self) -> Vec<WatchdogReport> {
        self.reports
    }
}

/// Reads a report, without its place and text.
fn parse_report(line: &[u8]) -> Option<WatchdogReport> {
    let words = &*WORDS;
    let work = text_after(line, &words.work);
    let inner = work.map(|work| &work[..memchr::memchr(b')', work).unwrap_or(work.len())]);
    let sequence = match inner {
        Some(inner) => number_after(inner, &words.sequence),
        None => number_after(line, &words.failed).or_else(|| number_after(line, &words.waited)),
    };
    // A report of a call has no numbers of the queue.
    let enqueued = match inner {
        Some(_) => None,
        None => number_after(line, &words.enqueued).or_else(|| number_after(line, &words.last_enqueued)),
    };
    if sequence.is_none() && enqueued.is_none() {
        return None;
    }
    let operation = inner.and_then(|inner| text_after(inner, &words.operation)).map(|rest| {
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        text::name(&rest[..end.unwrap_or(rest.len())])
    });
    // The writer stands before the call.
    let header = work.map_or(line, |work| &line[..line.len() - work.len()]);
    let group = text_after(header, &words.guid)
        .or_else(|| text_after(header, &words.group))
        .and_then(|rest| Some(text::name(&rest[..memmem::find(rest, b" Rank ")?])));
    // In the group of all ranks, a rank is that of the job.
    let is_of_job = group.as_ref().is_none_or(|group| group.contains("default_pg"));
    let label = label::parse_rank(line);
    let own = text_after(header, &words.rank).and_then(text::parse_small_number).map(|(rank, _)| rank);
    let rank = own.filter(|_| is_of_job && label.is_task).or(label.rank).or(own)?;
    let elements =
        inner.and_then(|inner| number_after(inner, &words.received).zip(number_after(inner, &words.sent)));
    Some(WatchdogReport { rank, group, sequence, operation, elements, enqueued, ..WatchdogReport::default() })
}

/// Returns the number of `#42 started ranks:`.
fn parse_heading(line: &[u8]) -> Option<u64> {
    let words = [&b" started ranks:"[..], b" finished ranks:"];
    let end = words.iter().find_map(|words| memmem::find(line, words))?;
    Some(text::parse_number(&line[memchr::memrchr(b'#', &line[..end])? + 1..])?.0)
}

/// Reads a line of a comparison of the ranks: the ranks, and a report about each. `heading` is the number of
/// the lines `[0, 2] started ALLREDUCE`.
fn parse_comparison(line: &[u8], heading: Option<u64>) -> Option<(Vec<u32>, WatchdogReport)> {
    let end = memchr::memchr_iter(b']', line).find(|&end| {
        let after = [&b" Timeout at"[..], b" finished", b" joined but", b" started", b" are the lagging"];
        after.iter().any(|words| line[end + 1..].starts_with(words))
    })?;
    let list = std::str::from_utf8(&line[memchr::memrchr(b'[', &line[..end])? + 1..end]).ok()?;
    let ranks: Vec<u32> = list.split(", ").map(str::parse).collect::<Result<_, _>>().ok()?;
    let rest = &line[end + 1..];
    let number = |words: &str| {
        Some(text::parse_number(&rest[memmem::find(rest, words.as_bytes())? + words.len()..])?.0)
    };
    let operation = |words: &str| {
        let name =
            rest.strip_prefix(words.as_bytes())?.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        name.into_iter().next().filter(|name| !name.is_empty()).map(text::name)
    };
    let empty = WatchdogReport::default();
    let report = if let Some(missed) = number("didn't join collective #") {
        WatchdogReport { enqueued: number(" finished collective #"), missed: Some(missed), ..empty }
    } else if let Some(called) = number("didn't finish collective #") {
        WatchdogReport { enqueued: Some(called), ..empty }
    } else if memmem::find(rest, b"They never joined any collectives").is_some() {
        WatchdogReport { enqueued: Some(0), missed: Some(1), ..empty }
    } else if let Some(operation) = operation(" Timeout at collective: ") {
        WatchdogReport { sequence: Some(number(", #")?), operation: Some(operation), ..empty }
    } else if let Some(operation) = operation(" started ") {
        WatchdogReport { sequence: Some(heading?), operation: Some(operation), ..empty }
    } else {
        operation(" finished ")?;
        WatchdogReport { enqueued: Some(heading?), ..empty }
    };
    Some((ranks, report))
}

/// Returns the text after some words.
fn text_after<'a>(text: &'a [u8], words: &Finder<'_>) -> Option<&'a [u8]> {
    words.find(text).map(|start| &text[start + words.needle().len()..])
}

fn number_after(text: &[u8], words: &Finder<'_>) -> Option<u64> {
    Some(text::parse_number(text_after(text, words)?)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_above_the_limit_are_counted() {
        let mut watchdog = Watchdog::default();
        let line = |number: usize| format!("[rank1]: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE)");
        for number in (0..REPORTS + 2).chain([0]) {
            watchdog.note_report(line(number).as_bytes(), Position::default());
        }
        assert_eq!((watchdog.lost, watchdog.into_reports().len()), (2, REPORTS));
    }

    fn read(line: &str) -> Option<WatchdogReport> {
        parse_report(line.as_bytes())
    }

    #[test]
    fn reports_of_all_forms_are_read() {
        let report = read(
            "[rank9]:[E1 a.cpp:689] [Rank 1] Watchdog caught collective operation timeout: \
             WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=262144, NumelOut=7, Timeout(ms)=12000) ran for \
             12054 milliseconds before timing out.",
        )
        .unwrap();
        assert_eq!((report.rank, report.sequence, report.elements), (9, Some(6), Some((262_144, 7))));
        assert_eq!((report.operation.as_deref(), report.group), (Some("ALLREDUCE"), None));
        let report = read(
            "[E1 a.cpp:2303] [PG ID 3 PG GUID 17(tp) Rank 1]  failure detected by watchdog at work sequence \
             id: 6 PG status: last enqueued work: 8, last completed work: 5",
        )
        .unwrap();
        assert_eq!((report.rank, report.sequence, report.enqueued), (1, Some(6), Some(8)));
        assert_eq!(report.group.as_deref(), Some("17(tp)"));
        let report = read(
            "[rank1]:[E1 a.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a \
             collective timeout from  rank 0. Last enqueued NCCL work: 5, last completed NCCL work: 5.",
        )
        .unwrap();
        assert_eq!((report.sequence, report.enqueued), (None, Some(5)));
        let old = read(
            "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, \
             Timeout(ms)=1800000) ran for 1 milliseconds",
        );
        assert_eq!(old, None);
        let compared = |line: &str| {
            parse_comparison(line.as_bytes(), Some(7)).map(|(ranks, report)| {
                (ranks, report.sequence, report.operation, report.enqueued, report.missed)
            })
        };
        let operation = || Some("ALLREDUCE".to_owned());
        for (line, expected) in [
            ("\t - [0] Timeout at collective: ALLREDUCE, #42", (vec![0], Some(42), operation(), None, None)),
            (
                "\t   - [0, 12] joined but didn't finish collective #41 (count from 1)",
                (vec![0, 12], None, None, Some(41), None),
            ),
            (
                "[1,0]<stderr>:\t     [1] finished collective #41, but didn't join collective #42 (count from 1)",
                (vec![1], None, None, Some(41), Some(42)),
            ),
            (
                "\t - To our best knowledge, ranks [1, 3] are the lagging ranks that caused this timeout. They \
                 never joined any collectives",
                (vec![1, 3], None, None, Some(0), Some(1)),
            ),
            ("\t     [0, 2] started ALLREDUCE", (vec![0, 2], Some(7), operation(), None, None)),
            ("\t     [1] finished ALLREDUCE", (vec![1], None, None, Some(7), None)),
        ] {
            assert_eq!(compared(line), Some(expected), "{line}");
        }
        assert_eq!(
            (parse_heading(b"\t   #42 started ranks:"), compared("[a] started ALLREDUCE")),
            (Some(42), None)
        );
        assert_eq!(read("WorkNCCL(SeqNum="), None);
        assert_eq!(read("WorkNCCL(SeqNum=6, OpType="), None);
    }
}
