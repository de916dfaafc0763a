//! Ranks whose lines stop before the end of a communicator that other ranks destroyed.

use std::collections::BTreeSet;

use super::hits::Placed;
use super::job::{self, Job, ranks_in_words};
use super::start;
use crate::finding::{Finding, Severity};
use crate::log::digest::{Communicator, Member};

/// The finding about the first such communicator. A log without any end says nothing, since a program need not destroy its
/// communicators; nor does one with a failure, whose cause is told by others.
pub(super) fn find(job: &Job<'_>, found: &[Placed]) -> Option<Placed> {
    // What was not kept can be the end of a rank.
    if start::has_failure(found) || !job.digest.limits.is_empty() {
        return None;
    }
    let all = job.digest.communicators.iter().flat_map(|each| each.members.values());
    let ended: BTreeSet<usize> = all.filter(|member| has_ended(member)).map(|member| member.writer).collect();
    let mut silent = job.digest.communicators.iter().map(|each| (each, silent(job, each, &ended)));
    let (communicator, silent) = silent.find(|(_, silent)| !silent.is_empty())?;
    let members = communicator.members.iter();
    let destroyed: Vec<u32> = members.filter(|(_, member)| member.destroyed).map(|(&rank, _)| rank).collect();
    let writers: Vec<usize> =
        silent.iter().filter_map(|rank| Some(communicator.members.get(rank)?.writer)).collect();
    let text = format!(
        "The lines of {} stop before the end of {}, which {} destroyed",
        ranks_in_words(&silent),
        job::name(&communicator.id),
        ranks_in_words(&destroyed)
    );
    let last_line = |&writer: &usize| start::last_line(job, communicator, writer);
    let finding = Finding {
        cause: Some(
            "The process was killed, or ended without destroying its communicators; or its log is cut there.".to_owned(),
        ),
        remedy: Some(
            "Look at the exit codes of these ranks, at the end of what their program wrote, and on their hosts: \
             dmesg -T | grep -iE 'killed process|Xid'"
                .to_owned(),
        ),
        evidence: writers.iter().take(4).filter_map(last_line).collect(),
        hosts: job.hosts(writers),
        ranks: silent,
        ..Finding::new("rank-without-end", Severity::Unknown, text)
    };
    Some(Placed::derived(finding))
}

/// The ranks that completed the communicator and have no end, neither of it nor of another one, where others destroyed it later.
fn silent(job: &Job<'_>, communicator: &Communicator, ended: &BTreeSet<usize>) -> Vec<u32> {
    let mut members = communicator.members.values();
    if members.any(|member| member.aborted) || !communicator.members.values().any(|member| member.destroyed) {
        return Vec::new();
    }
    let stops = |writer: usize| {
        let last = job.writer(writer).map(|writer| writer.last);
        // Lines of different files have no order.
        last.is_some_and(|last| last.input != communicator.last.input || last < communicator.last)
    };
    let is_silent = |member: &Member| {
        communicator.has_completed(member) && !ended.contains(&member.writer) && stops(member.writer)
    };
    communicator.members.iter().filter(|(_, member)| is_silent(member)).map(|(&rank, _)| rank).collect()
}

fn has_ended(member: &Member) -> bool {
    member.destroyed || member.aborted
}

#[cfg(test)]
mod tests {
    use super::super::tests::{examine, pair};
    use crate::examination::{Examination, Health};

    /// The end of the communicator on a rank.
    fn end(rank: u32) -> String {
        let (host, pid) = (["a", "b"][rank as usize], 100 + rank);
        format!(
            "{host}:{pid}:{pid} [{rank}] NCCL INFO comm 0x{rank}1 rank {rank} nranks 2 cudaDev {rank} busId 60 - Destroy COMPLETE\n"
        )
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
        // No end, all ends, and a rank that goes on, say nothing.
        let goes_on = "b:101:101 [1] NCCL INFO P2P Chunksize set to 131072\n";
        for more in [String::new(), end(0) + &end(1), end(1) + &end(0), end(0) + goes_on] {
            let found = examine(&(text.clone() + &more));
            assert_eq!((told(&found), found.health()), (None, Health::Healthy), "{:?}", found.findings);
        }
    }

    #[test]
    fn a_failure_tells_more_than_a_missing_end() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let killed = "mpirun noticed that process rank 1 with PID 0 on node b exited on signal 9 (Killed).\n";
        let found = examine(&(text + &end(0) + killed));
        assert_eq!((told(&found), found.findings[0].rule.as_str()), (None, "mpirun-killed"));
    }
}
