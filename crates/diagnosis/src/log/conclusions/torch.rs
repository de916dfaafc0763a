//! Conclusions from the reports of PyTorch's watchdog: ranks with different collectives, or different sizes,
//! at one number of a process group, and ranks without this call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use super::hits::Placed;
use super::job::{Job, ranks_in_words};
use crate::finding::{Evidence, Finding};
use crate::knowledge::texts::compose_finding;
use crate::log::digest::WatchdogReport;

/// Operations with the same number of elements on all ranks. Sizes of other operations, as a gather, may
/// differ.
const EQUAL_SIZES: [&str; 5] =
    ["ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"];

/// Operations that no rank completes before all ranks have called them.
const TOGETHER: [&str; 3] = ["ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"];

/// Operations called by some ranks of a group only, or with different arguments.
const BETWEEN_PAIRS: [&str; 4] = ["SEND", "RECV", "COALESCED", "UNKNOWN"];

/// The reports about one process group.
#[derive(Debug, Default)]
struct ReportGroup<'a> {
    /// The group in the lines, or empty if they do not name it.
    name: String,
    /// The first collective each rank waited for.
    waits: BTreeMap<u32, &'a WatchdogReport>,
    /// The last collective of each rank in a comparison of the ranks.
    latest: BTreeMap<u32, &'a WatchdogReport>,
    /// The number of each rank's last call of a collective.
    called: BTreeMap<u32, u64>,
    /// The first report about a rank that did not make a call of other ranks.
    missed: Option<&'a WatchdogReport>,
}

/// Returns findings about the calls of the ranks. Different calls are the cause of a failure. A rank that did
/// not arrive needs a look. The reason for its absence can be another finding.
pub(super) fn judge_watchdog_reports(job: &Job<'_>) -> Vec<Placed> {
    let groups = group_reports(&job.digest.watchdog);
    let differing: Vec<Placed> = groups
        .iter()
        .filter_map(|group| {
            let mut latest = group.waits.clone();
            latest.extend(&group.latest);
            find_differing_calls(job, group, &group.waits)
                .or_else(|| find_differing_calls(job, group, &latest))
        })
        .map(Placed::derived_root)
        .collect();
    if !differing.is_empty() {
        return differing;
    }
    let lead = groups.iter().find_map(|group| {
        find_ranks_apart(job, group).or_else(|| find_late_ranks(job, group)).or_else(|| all_wait(job, group))
    });
    lead.map(|finding| Placed { is_lead: true, is_cascade: true, ..Placed::without_line(finding) })
        .into_iter()
        .collect()
}

/// Returns the reports by group. A line without a group belongs to the group of another line about the same
/// rank and number, a comparison of the ranks to the group of the call above it.
fn group_reports(reports: &[WatchdogReport]) -> Vec<ReportGroup<'_>> {
    let named: BTreeMap<(u32, Option<u64>), &str> = reports
        .iter()
        .filter_map(|report| Some(((report.rank, report.sequence), report.group.as_deref()?)))
        .collect();
    let mut groups: BTreeMap<&str, ReportGroup<'_>> = BTreeMap::new();
    let mut above = "";
    for report in reports {
        let name = report.group.as_deref().or_else(|| named.get(&(report.rank, report.sequence)).copied());
        let is_call = report.group.is_some() || report.text.contains("WorkNCCL(");
        let name = name.unwrap_or(if is_call { "" } else { above });
        if is_call {
            above = name;
        }
        let group = groups
            .entry(name)
            .or_insert_with(|| ReportGroup { name: name.to_owned(), ..ReportGroup::default() });
        if let Some(called) = report.enqueued.max(report.sequence) {
            let last = group.called.entry(report.rank).or_default();
            *last = called.max(*last);
        }
        if report.missed.is_some() {
            group.missed.get_or_insert(report);
        }
        let is_collective = |operation: &String| !BETWEEN_PAIRS.contains(&operation.trim_start_matches('_'));
        if report.sequence.is_some() && report.operation.as_ref().is_some_and(is_collective) {
            let is_wait = report.text.contains("WorkNCCL(");
            let calls = if is_wait { &mut group.waits } else { &mut group.latest };
            let first = calls.entry(report.rank).or_insert(report);
            if report.sequence < first.sequence {
                *first = report;
            }
        }
    }
    groups.into_values().collect()
}

impl ReportGroup<'_> {
    /// Returns ` of group default_pg`, if the group is known.
    fn name_suffix(&self) -> String {
        let name =
            self.name.split_once('(').map_or(self.name.as_str(), |(_, name)| name.trim_end_matches(')'));
        if name.is_empty() { String::new() } else { format!(" of group {name}") }
    }

    /// Returns true unless the group is known to have a part of the ranks.
    fn is_of_all(&self) -> bool {
        self.name.contains("default_pg") || self.name.is_empty()
    }

    /// Returns all ranks of the group, if the log has them.
    fn member_ranks(&self, job: &Job<'_>) -> Option<Vec<u32>> {
        let main = job.main.filter(|main| self.is_of_all() && !main.is_size_guessed)?;
        Some((0..main.ranks).collect())
    }
}

/// Returns a finding about the first collective with different calls on ranks of a group.
fn find_differing_calls(
    job: &Job<'_>,
    group: &ReportGroup<'_>,
    calls: &BTreeMap<u32, &WatchdogReport>,
) -> Option<Finding> {
    let mut by_sequence: BTreeMap<u64, Vec<(u32, &WatchdogReport)>> = BTreeMap::new();
    for (&rank, &report) in calls {
        by_sequence.entry(report.sequence?).or_default().push((rank, report));
    }
    by_sequence.into_iter().find_map(|(sequence, calls)| {
        let operation = |report: &WatchdogReport| report.operation.clone().unwrap_or_default();
        let operations = by_value(&calls, |report| Some(operation(report)));
        let of = group.name_suffix();
        let is_named = !group.name.is_empty();
        if operations.len() > 1 {
            let id = if is_named { "torch-order-differs" } else { "torch-order-differs/unnamed" };
            let values: [(&str, &dyn Display); 3] =
                [("sequence", &sequence), ("of", &of), ("values", &in_words(&operations))];
            return Some(build_finding(job, compose_finding(id, &values), &operations, &calls));
        }
        let operation = operations.keys().next()?;
        let sizes = by_value(&calls, |report| {
            let (input, output) = report.elements?;
            Some(match input == output {
                true => format!("{input} elements"),
                false => format!("{input} elements in, {output} out"),
            })
        });
        if sizes.len() < 2 || !EQUAL_SIZES.contains(&operation.as_str()) {
            return None;
        }
        let id = if is_named { "torch-sizes-differ" } else { "torch-sizes-differ/unnamed" };
        let values: [(&str, &dyn Display); 4] =
            [("operation", operation), ("sequence", &sequence), ("of", &of), ("values", &in_words(&sizes))];
        Some(build_finding(job, compose_finding(id, &values), &sizes, &calls))
    })
}

/// Returns the ranks by a property of their calls.
fn by_value(
    calls: &[(u32, &WatchdogReport)],
    value: impl Fn(&WatchdogReport) -> Option<String>,
) -> BTreeMap<String, Vec<u32>> {
    let mut values: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (rank, report) in calls {
        if let Some(value) = value(report) {
            values.entry(value).or_default().push(*rank);
        }
    }
    values
}

/// Returns `ALLREDUCE on ranks 0-2; BROADCAST on rank 3`, in the order of the ranks.
fn in_words(values: &BTreeMap<String, Vec<u32>>) -> String {
    let mut values: Vec<_> = values.iter().collect();
    values.sort_by_key(|(_, ranks)| ranks.first().copied());
    let texts = values.into_iter().map(|(value, ranks)| format!("{value} on {}", ranks_in_words(ranks)));
    texts.collect::<Vec<_>>().join("; ")
}

fn build_finding(
    job: &Job<'_>,
    finding: Finding,
    values: &BTreeMap<String, Vec<u32>>,
    calls: &[(u32, &WatchdogReport)],
) -> Finding {
    let most = values.values().map(Vec::len).max();
    let mut odd: BTreeSet<u32> =
        values.values().filter(|ranks| Some(ranks.len()) != most).flatten().copied().collect();
    if odd.is_empty() {
        odd = values.values().flatten().copied().collect();
    }
    let firsts = values.values().filter_map(|ranks| ranks.first());
    let reports = firsts.filter_map(|first| calls.iter().find(|(rank, _)| rank == first));
    Finding {
        ranks: odd.into_iter().collect(),
        evidence: reports.map(|(_, report)| cite_report(job, report)).take(4).collect(),
        ..finding
    }
}

fn cite_report(job: &Job<'_>, report: &WatchdogReport) -> Evidence {
    Evidence { rank: Some(report.rank), ..job.cite_line(report.position, None, report.text.clone()) }
}

/// Returns the awaited call of the other ranks: `ALLREDUCE of 1024 elements (SeqNum 6 of group default_pg)`.
fn describe_call(group: &ReportGroup<'_>, report: &WatchdogReport) -> String {
    let operation = report.operation.as_deref().unwrap_or("the collective");
    let size = report.elements.map(|(input, _)| format!(" of {input} elements")).unwrap_or_default();
    format!("{operation}{size} (SeqNum {}{})", report.sequence.unwrap_or_default(), group.name_suffix())
}

/// Returns a finding about ranks of a named group in a collective that another rank completed, with at least
/// one more after it.
fn find_ranks_apart(job: &Job<'_>, group: &ReportGroup<'_>) -> Option<Finding> {
    let waits = || group.waits.iter().filter_map(|(&rank, &report)| Some((report.sequence?, rank, report)));
    let (first, _, behind) = waits().min_by_key(|&(sequence, rank, _)| (sequence, rank))?;
    let (last, _, ahead) = waits().max_by_key(|&(sequence, ..)| sequence)?;
    let is_together = behind.operation.as_deref().is_some_and(|operation| TOGETHER.contains(&operation));
    if group.name.is_empty() || !is_together || last < first + 2 {
        return None;
    }
    let at = |number: u64| -> Vec<u32> {
        waits().filter(|&(sequence, ..)| sequence == number).map(|(_, rank, _)| rank).collect()
    };
    let (ranks, others) = (at(first), at(last));
    let values: [(&str, &dyn Display); 4] = [
        ("ranks", &capitalize_rank(&ranks_in_words(&ranks))),
        ("call", &describe_call(group, behind)),
        ("others", &ranks_in_words(&others)),
        ("later", &describe_call(group, ahead)),
    ];
    Some(Finding {
        evidence: vec![cite_report(job, behind), cite_report(job, ahead)],
        ranks,
        ..compose_finding("torch-ranks-apart", &values)
    })
}

/// Returns a finding about ranks without the call that the other ranks wait for.
fn find_late_ranks(job: &Job<'_>, group: &ReportGroup<'_>) -> Option<Finding> {
    // A comparison of the ranks says more where the lines of the waiting ranks have no numbers.
    let compared = group.missed.and_then(|report| report.missed);
    let compared = compared.or(group.latest.values().filter_map(|report| report.sequence).max());
    let last = group.waits.values().filter_map(|report| report.sequence).max().or(compared)?;
    let calls = if group.waits.is_empty() { &group.latest } else { &group.waits };
    let waits = |report: &&WatchdogReport| report.sequence.is_some_and(|sequence| sequence >= last);
    let waiting: Vec<u32> = calls.iter().filter(|(_, report)| waits(report)).map(|(&rank, _)| rank).collect();
    let report = calls.values().copied().find(|report| report.sequence == Some(last)).or(group.missed)?;
    let call = describe_call(group, &WatchdogReport { sequence: Some(last), ..report.clone() });
    let waiting = if waiting.is_empty() { "other ranks".to_owned() } else { ranks_in_words(&waiting) };
    let behind: Vec<u32> =
        group.called.iter().filter(|(_, called)| **called < last).map(|(&rank, _)| rank).collect();
    let silent = || {
        let members = group.member_ranks(job)?.into_iter();
        Some(members.filter(|rank| !group.called.contains_key(rank)).collect())
    };
    // Without the name of the group, the numbers of two ranks that wait can be of different groups.
    if group.name.is_empty()
        && group.missed.is_none()
        && behind.iter().any(|rank| group.waits.contains_key(rank))
    {
        return None;
    }
    // A comparison numbers the ranks within their group.
    let is_of_group = !behind.is_empty() && group.missed.is_some() && !group.is_of_all();
    let late = if behind.is_empty() { silent()? } else { behind.clone() };
    if late.is_empty() {
        return None;
    }
    let called = behind.first().and_then(|rank| group.called.get(rank)).copied().unwrap_or_default();
    let last_call = match called {
        0 => "no call of a collective is known there".to_owned(),
        called => format!("the last call there was SeqNum {called}"),
    };
    let id = match behind.is_empty() {
        true if has_ended(job, &late).is_some() => "torch-rank-late/ended",
        true => "torch-rank-late/silent",
        false if is_of_group => "torch-rank-late/group",
        false => "torch-rank-late",
    };
    let ranks = if is_of_group { Vec::new() } else { late.clone() };
    let first = ranks.first().map_or_else(|| "that rank".to_owned(), |rank| format!("rank {rank}"));
    let values: [(&str, &dyn Display); 5] = [
        ("ranks", &capitalize_rank(&ranks_in_words(&late))),
        ("call", &call),
        ("waiting", &waiting),
        ("last_call", &last_call),
        ("first", &first),
    ];
    let ended = has_ended(job, &ranks);
    let compared = group.missed.filter(|missed| *missed != report).map(|missed| cite_report(job, missed));
    let evidence = [cite_report(job, report)].into_iter().chain(compared).chain(ended);
    Some(Finding { ranks, evidence: evidence.collect(), ..compose_finding(id, &values) })
}

/// Returns the line about a program's end.
fn has_ended(job: &Job<'_>, ranks: &[u32]) -> Option<Evidence> {
    let hit = job.digest.hits.iter().find(|hit| hit.rule == "torch-not-destroyed")?;
    let example =
        hit.examples.iter().find(|example| example.rank.is_some_and(|rank| ranks.contains(&rank)))?;
    Some(job.cite_example(example))
}

/// Returns a finding about a group with all ranks in the same call.
fn all_wait(job: &Job<'_>, group: &ReportGroup<'_>) -> Option<Finding> {
    let report = *group.waits.values().next()?;
    // A comparison lists all ranks of the group.
    let compared = || {
        let is_whole =
            group.missed.is_none() && group.latest.keys().copied().eq(0..group.latest.len() as u32);
        is_whole.then(|| group.latest.keys().copied().collect())
    };
    let members = group.member_ranks(job).or_else(compared)?;
    let is_here = |rank: &u32| {
        let calls = [group.waits.get(rank), group.latest.get(rank)];
        calls.iter().flatten().any(|other| other.sequence == report.sequence)
    };
    if members.len() < 2 || !members.iter().all(is_here) {
        return None;
    }
    let values: [(&str, &dyn Display); 2] =
        [("count", &members.len()), ("call", &describe_call(group, report))];
    Some(Finding {
        ranks: members,
        evidence: vec![cite_report(job, report)],
        ..compose_finding("torch-all-wait", &values)
    })
}

/// Returns the text with a capital at its beginning.
fn capitalize_rank(text: &str) -> String {
    text.strip_prefix('r').map_or_else(|| text.to_owned(), |rest| format!("R{rest}"))
}

#[cfg(test)]
mod tests;
