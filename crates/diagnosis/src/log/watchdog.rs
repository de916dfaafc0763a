//! Reports of PyTorch's watchdog: the collective that a rank waited for, and how far it came.

use std::collections::HashSet;

use memchr::memmem;

use super::digest::{Position, WatchdogReport};
use super::line;
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

impl Watchdog {
    /// Notes a line of PyTorch, if it is such a report. `line` has the prefix of the launcher.
    pub(super) fn note(&mut self, line: &[u8], position: Position) {
        let Some(report) = parse(line, position) else { return };
        let key = WatchdogReport { position: Position::default(), text: String::new(), ..report.clone() };
        if self.reports.len() == REPORTS {
            self.lost += u64::from(!self.seen.contains(&key));
        } else if self.seen.insert(key) {
            self.reports.push(report);
        }
    }

    /// The reports, in the order of their lines.
    pub(super) fn finish(self) -> Vec<WatchdogReport> {
        self.reports
    }
}

fn parse(line: &[u8], position: Position) -> Option<WatchdogReport> {
    let after = |words: &[u8]| memmem::find(line, words).map(|start| &line[start + words.len()..]);
    let number = |words: &[u8]| Some(text::number(after(words)?)?.0);
    let work = after(b"WorkNCCL(").map(|work| &work[..memchr::memchr(b')', work).unwrap_or(work.len())]);
    let operation = work.and_then(|_| after(b"OpType=")).map(|rest| {
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        text::name(&rest[..end.unwrap_or(rest.len())])
    });
    let sequence = match work {
        Some(_) => number(b"SeqNum="),
        None => number(b"failure detected by watchdog at work sequence id: "),
    };
    let enqueued = number(b"last enqueued work: ").or_else(|| number(b"Last enqueued NCCL work: "));
    if sequence.is_none() && enqueued.is_none() {
        return None;
    }
    let group = after(b"PG GUID ")
        .or_else(|| after(b"[PG "))
        .and_then(|rest| Some(text::name(&rest[..memmem::find(rest, b" Rank ")?])));
    let rank = line::rank(line).or_else(|| Some(text::small(after(b"Rank ")?)?.0))?;
    let elements = number(b"NumelIn=").zip(number(b"NumelOut="));
    Some(WatchdogReport {
        rank,
        group,
        sequence,
        operation,
        elements,
        enqueued,
        position,
        text: text::shortened(line),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_above_the_limit_are_counted() {
        let mut watchdog = Watchdog::default();
        let line = |number: usize| format!("[rank1]: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE)");
        for number in (0..REPORTS + 2).chain([0]) {
            watchdog.note(line(number).as_bytes(), Position::default());
        }
        assert_eq!((watchdog.lost, watchdog.finish().len()), (2, REPORTS));
    }

    fn read(line: &str) -> Option<WatchdogReport> {
        parse(line.as_bytes(), Position::default())
    }

    #[test]
    fn reports_of_all_forms_are_read() {
        let report = read("[rank9]:[E1 a.cpp:689] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=262144, NumelOut=7, Timeout(ms)=12000) ran for 12054 milliseconds before timing out.").unwrap();
        assert_eq!((report.rank, report.sequence, report.elements), (9, Some(6), Some((262_144, 7))));
        assert_eq!((report.operation.as_deref(), report.group), (Some("ALLREDUCE"), None));
        let report = read("[E1 a.cpp:2303] [PG ID 3 PG GUID 17(tp) Rank 1]  failure detected by watchdog at work sequence id: 6 PG status: last enqueued work: 8, last completed work: 5").unwrap();
        assert_eq!((report.rank, report.sequence, report.enqueued), (1, Some(6), Some(8)));
        assert_eq!(report.group.as_deref(), Some("17(tp)"));
        let report = read("[rank1]:[E1 a.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a collective timeout from  rank 0. Last enqueued NCCL work: 5, last completed NCCL work: 5.").unwrap();
        assert_eq!((report.sequence, report.enqueued), (None, Some(5)));
        let old = read(
            "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1 milliseconds",
        );
        assert_eq!(old, None);
        assert_eq!(read("WorkNCCL(SeqNum="), None);
        assert_eq!(read("WorkNCCL(SeqNum=6, OpType="), None);
    }
}
