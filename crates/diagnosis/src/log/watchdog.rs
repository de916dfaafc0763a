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
    enqueued: Finder::new("last enqueued work: "),
    last_enqueued: Finder::new("Last enqueued NCCL work: "),
    guid: Finder::new("PG GUID "),
    group: Finder::new("[PG "),
    rank: Finder::new("Rank "),
    received: Finder::new("NumelIn="),
    sent: Finder::new("NumelOut="),
});

impl Watchdog {
    /// Notes a line of PyTorch, if it is such a report. `line` has the prefix of the launcher.
    pub(super) fn note_report(&mut self, line: &[u8], position: Position) {
        let Some(report) = parse_report(line) else { return };
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
        None => number_after(line, &words.failed),
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
        assert_eq!(read("WorkNCCL(SeqNum="), None);
        assert_eq!(read("WorkNCCL(SeqNum=6, OpType="), None);
    }
}
