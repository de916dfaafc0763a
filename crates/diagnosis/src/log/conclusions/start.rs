//! Ranks with an incomplete start of a communicator.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::failures;
use super::hits::Placed;
use super::job::{self, Job, ranks_in_words};
use crate::finding::{Evidence, Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::log::digest::Communicator;

/// Number of lines below the last line of the starting ranks, as proof that the log continues without them.
const LATER: u64 = 1000;

/// Returns the finding about the first incomplete communicator. It is a failure only if the log shows one, or
/// the end of the job: a cut log, or one read during the job's start, ends in the same way.
pub(super) fn find_incomplete_start(job: &Job<'_>, found: &[Placed]) -> Option<Placed> {
    let stuck = |communicator: &&Communicator| {
        communicator.members.values().any(|member| member.started && !communicator.has_completed(member))
    };
    let communicator = job.digest.communicators.iter().find(stuck)?;
    let select = |complete: bool| -> Vec<u32> {
        let members = communicator.members.iter().filter(|(_, member)| member.started);
        members
            .filter(|(_, member)| communicator.has_completed(member) == complete)
            .map(|(&rank, _)| rank)
            .collect()
    };
    let (open, done) = (select(false), select(true));
    let writers = open.iter().filter_map(|rank| communicator.members.get(rank).map(|member| member.writer));
    let writers: Vec<usize> = writers.collect();
    let absent: Vec<u32> =
        (0..communicator.ranks).filter(|rank| !communicator.members.contains_key(rank)).collect();
    let is_failure = has_failed(job, communicator, found) || continues_after_start(job, &writers);
    if !is_failure && job.digest.repeated > 0 {
        // The lines about the end of the start may be among those dropped by Ray.
        return None;
    }
    let id = match (is_failure, &absent[..], &done[..]) {
        (true, [], []) => "start-never-complete",
        (true, [], _) => "start-never-complete/some",
        (true, [_], _) => "start-never-complete/absent-rank",
        (true, _, _) => "start-never-complete/absent-ranks",
        (false, [], _) => "log-ends-in-start",
        (false, _, _) => "log-ends-in-start/absent",
    };
    let values: [(&str, &dyn Display); 5] = [
        ("ranks", &ranks_in_words(&open)),
        ("count", &communicator.ranks),
        ("communicator", &job::describe_communicator(&communicator.id)),
        ("absent", &ranks_in_words(&absent)),
        ("done", &ranks_in_words(&done)),
    ];
    let finding = compose_finding(id, &values);
    let is_cascade = finding.severity == Severity::Broken;
    let evidence =
        writers.iter().take(4).filter_map(|&writer| last_line(job, communicator, writer)).collect();
    let finding =
        Finding { ranks: open, hosts: job.hosts_of_writers(writers.iter().copied()), evidence, ..finding };
    Some(Placed { is_cascade, ..Placed::without_line(finding) })
}

/// Returns true if the log shows a failure, or that members of the communicator came to its end.
fn has_failed(job: &Job<'_>, communicator: &Communicator, found: &[Placed]) -> bool {
    has_failure(found)
        || failures::first_failed_call(job).is_some()
        || communicator.members.values().any(|member| member.aborted || member.destroyed)
}

/// Returns true if a finding is about a failure.
pub(super) fn has_failure(found: &[Placed]) -> bool {
    found.iter().any(Placed::is_failure)
}

/// Returns true if a log continues well below the last line of all starting ranks in it.
fn continues_after_start(job: &Job<'_>, writers: &[usize]) -> bool {
    let mut last: BTreeMap<usize, u64> = BTreeMap::new();
    for writer in writers.iter().filter_map(|&writer| job.writer(writer)) {
        let line = last.entry(writer.last.input).or_default();
        *line = writer.last.line.max(*line);
    }
    last.iter().any(|(&input, line)| {
        job.digest.inputs.get(input).is_some_and(|input| input.lines.saturating_sub(*line) > LATER)
    })
}

/// Returns the last line of a starting rank.
pub(super) fn last_line(job: &Job<'_>, communicator: &Communicator, index: usize) -> Option<Evidence> {
    let writer = job.writer(index)?;
    let text = match writer.last_text.as_str() {
        "" => format!("{} - Init START", job::describe_communicator(&communicator.id)),
        text => text.to_owned(),
    };
    Some(job.cite_line(writer.last, Some(index), text))
}
