//! Ranks without an end of a communicator that other ranks destroyed.

use std::fmt::Display;

use super::hits::Placed;
use super::job::{self, Job, ranks_in_words};
use super::start;
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::log::digest::{Communicator, Member};

/// Returns the finding about the first such communicator. A log without any end proves nothing, since a
/// program need not destroy its communicators. In a log with a failure, other findings explain the cause.
pub(super) fn find_ranks_without_end(job: &Job<'_>, found: &[Placed]) -> Option<Placed> {
    if start::has_failure(found) {
        return None;
    }
    let mut silent = job.digest.communicators.iter().map(|each| (each, find_silent_ranks(each)));
    let (communicator, silent) = silent.find(|(_, silent)| !silent.is_empty())?;
    let members = communicator.members.iter();
    let destroyed: Vec<u32> = members.filter(|(_, member)| member.destroyed).map(|(&rank, _)| rank).collect();
    let writers: Vec<usize> =
        silent.iter().filter_map(|rank| Some(communicator.members.get(rank)?.writer)).collect();
    let values: [(&str, &dyn Display); 3] = [
        ("ranks", &ranks_in_words(&silent)),
        ("communicator", &job::describe_communicator(&communicator.id)),
        ("others", &ranks_in_words(&destroyed)),
    ];
    let last_line = |&writer: &usize| start::last_line(job, communicator, writer);
    let finding = Finding {
        evidence: writers.iter().take(4).filter_map(last_line).collect(),
        hosts: job.hosts_of_writers(writers),
        ranks: silent,
        ..compose_finding("rank-without-end", &values)
    };
    Some(Placed::without_line(finding))
}

/// Returns the ranks that completed the communicator without an end of it, if another rank destroyed it.
/// Lines of several ranks have no order: their files can be passed in any order, and one file can hold one
/// rank's lines after another's.
fn find_silent_ranks(communicator: &Communicator) -> Vec<u32> {
    let members = communicator.members.iter();
    let any = |is: fn(&Member) -> bool| communicator.members.values().any(is);
    if any(|member| member.aborted) || !any(|member| member.destroyed) {
        return Vec::new();
    }
    let is_silent = |member: &Member| communicator.has_completed(member) && !member.destroyed;
    members.filter(|(_, member)| is_silent(member)).map(|(&rank, _)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{examine, examine_files, pair};
    use crate::examination::{Examination, Health};

    fn end(rank: u32) -> String {
        super::super::tests::end(rank, "Destroy")
    }

    fn told(found: &Examination) -> Option<&str> {
        let finding = found.findings.iter().find(|each| each.rule == "rank-without-end");
        finding.map(|finding| finding.diagnosis.as_str())
    }

    #[test]
    fn a_rank_that_stops_before_the_end_of_others_cannot_be_told() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let found = examine(&(text.clone() + &end(0)));
        assert_eq!(
            told(&found),
            Some("The lines of rank 1 stop before the end of communicator 0x77, which rank 0 destroyed")
        );
        assert_eq!(found.health(), Health::CannotTell, "{:?}", found.findings);
        let finding = &found.findings[0];
        assert_eq!((&finding.ranks[..], finding.evidence[0].line), (&[1][..], Some(14)));
        // No end and all ends say nothing.
        for more in [String::new(), end(0) + &end(1), end(1) + &end(0)] {
            let found = examine(&(text.clone() + &more));
            assert_eq!((told(&found), found.health()), (None, Health::Healthy), "{:?}", found.findings);
        }
    }

    #[test]
    fn a_missing_end_is_told_in_any_order_of_lines_and_files() {
        let whole = pair("IB", "NET/IB/0/GDRDMA").text();
        let of = |host: &str| -> String {
            whole.lines().filter(|line| line.starts_with(host)).map(|line| format!("{line}\n")).collect()
        };
        let (first, second) = (of("a:") + &end(0), of("b:"));
        let logs = [
            vec![first.clone(), second.clone()],
            vec![second.clone(), first.clone()],
            vec![first.clone() + &second],
            vec![second.clone() + &first],
            // An overlong line, not read in full, changes nothing.
            vec![first.clone() + &"x".repeat(20_000) + "\n" + &second],
            vec![whole + &end(0) + "b:101:101 [1] NCCL INFO P2P Chunksize set to 131072\n"],
        ];
        for files in &logs {
            let found = examine_files(files);
            let told = told(&found).is_some_and(|text| text.starts_with("The lines of rank 1 stop before"));
            assert!(told && found.health() == Health::CannotTell, "{files:?}: {:?}", found.findings);
        }
        // The ranks one behind the other, with the end of the last line cut off.
        let one_behind = first.clone() + &second + &end(1);
        assert_eq!(examine(&one_behind).health(), Health::Healthy);
        for cut in 2..end(1).len() {
            let found = examine(&one_behind[..one_behind.len() - cut]);
            assert_eq!(found.health(), Health::CannotTell, "{cut} bytes: {:?}", found.findings);
        }
    }

    #[test]
    fn a_communicator_is_not_ended_by_the_end_of_another() {
        let other = pair("IB", "NET/IB/0/GDRDMA").text().replace("0x01", "0x0a").replace("0x11", "0x1a");
        let log = pair("IB", "NET/IB/0/GDRDMA").text() + &other.replace("0x77", "0x78");
        let end_of_other = |rank| end(rank).replace("1 rank", "a rank");
        let ends = end(0) + &end_of_other(0) + &end_of_other(1);
        let found = examine(&(log.clone() + &ends));
        assert_eq!(
            (told(&found), found.health()),
            (
                Some("The lines of rank 1 stop before the end of communicator 0x77, which rank 0 destroyed"),
                Health::CannotTell
            )
        );
        assert_eq!(examine(&(log + &ends + &end(1))).health(), Health::Healthy);
    }

    #[test]
    fn a_failure_tells_more_than_a_missing_end() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let killed = "mpirun noticed that process rank 1 with PID 0 on node b exited on signal 9 (Killed).\n";
        let found = examine(&(text + &end(0) + killed));
        assert_eq!((told(&found), found.findings[0].rule.as_str()), (None, "mpirun-killed"));
    }
}
