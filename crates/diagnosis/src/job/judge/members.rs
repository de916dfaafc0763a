//! Findings about processes and ranks: dead, silent, with errors, or not yet in the communicator.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use super::words::RankNames;
use crate::finding::{Evidence, Finding, Severity};
use crate::job::status::{Absence, JobCommunicator, REMOTE_ERROR, Rank, State, Status};
use crate::knowledge::texts::compose_finding;
use crate::words::{capitalize, join_list, plural};

/// Finds dead and silent processes, errors, and communicators that are not ready. `first` is the earlier
/// answer.
pub(super) fn find_failed_members(
    first: Option<&Status>,
    last: &Status,
    rank_names: &RankNames<'_>,
) -> Vec<Finding> {
    let mut findings = find_absent_processes(first, last, rank_names);
    add_reported_errors(last, rank_names, &mut findings);
    for communicator in &last.communicators {
        let before = first.and_then(|first| first.find_communicator(&communicator.identity));
        findings.extend(find_unfinished_ranks(before, communicator, rank_names));
        findings.extend(find_ranks_that_left(before, communicator, rank_names));
    }
    findings.extend(find_ending_communicators(last, rank_names, &findings));
    findings
}

/// A process without data, with its ranks.
struct AbsentProcess {
    absence: Absence,
    name: String,
    host: Option<String>,
    pid: Option<i64>,
    ranks: BTreeSet<u32>,
    names: BTreeSet<String>,
}

/// The key is host and process. For ranks without a known place, it is communicator and rank.
type ProcessKey = (String, i64);

fn find_absent_processes(first: Option<&Status>, last: &Status, rank_names: &RankNames<'_>) -> Vec<Finding> {
    let now = absent_processes(last, rank_names);
    let before = first.map(|first| absent_processes(first, rank_names));
    let mut findings = Vec::new();
    for absence in [Absence::Dead, Absence::Unresponsive] {
        let each: Vec<(&ProcessKey, &AbsentProcess)> =
            now.iter().filter(|(_, process)| process.absence == absence).collect();
        let unnamed =
            count_unnamed(last, absence).saturating_sub(u32::try_from(each.len()).unwrap_or(u32::MAX));
        if each.is_empty() && unnamed == 0 {
            continue;
        }
        let is_lasting = absence == Absence::Dead
            || before.as_ref().is_some_and(|before| match each.is_empty() {
                true => first.is_some_and(|first| self::count_unnamed(first, absence) > 0),
                false => each.iter().any(|(key, _)| before.contains_key(*key)),
            });
        let id = match is_lasting {
            _ if absence == Absence::Dead => "job-process-dead",
            true => "job-process-silent",
            false => "job-process-silent/once",
        };
        findings.push(absence_finding(id, &each, unnamed));
    }
    findings
}

/// Returns the number of processes counted by a text answer.
fn count_unnamed(status: &Status, absence: Absence) -> u32 {
    match absence {
        Absence::Dead => status.dead.count,
        _ => status.silent.count,
    }
}

fn absence_finding(id: &str, each: &[(&ProcessKey, &AbsentProcess)], unnamed: u32) -> Finding {
    let mut names: Vec<String> = each.iter().map(|(_, process)| process.title()).collect();
    if unnamed > 0 {
        names.push(format!(
            "{unnamed} {} that RAS does not name",
            plural(unnamed as usize, "process", "processes")
        ));
    }
    let (pid, host) = match each.first() {
        Some((_, process)) => (
            process.pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string()),
            process.host.clone().unwrap_or_else(|| "its host".to_owned()),
        ),
        None => ("PID".to_owned(), "its host".to_owned()),
    };
    let values: [(&str, &dyn Display); 5] = [
        ("processes", &capitalize(&join_list(&names))),
        ("is", &plural(names.len(), "is", "are")),
        ("does", &plural(names.len(), "does", "do")),
        ("pid", &pid),
        ("host", &host),
    ];
    let mut finding = compose_finding(id, &values);
    finding.ranks = each
        .iter()
        .flat_map(|(_, process)| &process.ranks)
        .copied()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    finding.hosts = each
        .iter()
        .filter_map(|(_, process)| process.host.clone())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    finding.evidence = each
        .iter()
        .take(8)
        .map(|(_, process)| Evidence {
            place: "RAS".to_owned(),
            line: None,
            rank: process.ranks.first().copied(),
            host: process.host.clone(),
            text: format!("{}: {}", process.title(), process.absence),
        })
        .collect();
    finding.occurrences = each.len().max(1) as u64;
    finding
}

impl AbsentProcess {
    /// Returns `rank 1 (GPU 0, process 4603 on 192.0.2.2)`, or the process if no rank is known.
    fn title(&self) -> String {
        if self.names.is_empty() {
            self.name.clone()
        } else {
            join_list(&self.names.iter().cloned().collect::<Vec<_>>())
        }
    }
}

fn absent_processes(status: &Status, rank_names: &RankNames<'_>) -> BTreeMap<ProcessKey, AbsentProcess> {
    let mut found: BTreeMap<ProcessKey, AbsentProcess> = BTreeMap::new();
    for (processes, absence) in [(&status.dead, Absence::Dead), (&status.silent, Absence::Unresponsive)] {
        for process in &processes.named {
            found.entry((process.host.clone(), process.pid)).or_insert_with(|| AbsentProcess {
                absence,
                name: process.to_string(),
                host: Some(process.host.clone()),
                pid: Some(process.pid),
                ranks: BTreeSet::new(),
                names: BTreeSet::new(),
            });
        }
    }
    for communicator in &status.communicators {
        for rank in communicator.missing.iter().filter(|rank| rank.absence != Absence::NotAMember) {
            let place = rank.place.as_ref().filter(|place| place.pid >= 0);
            let name = rank_names.name(communicator, rank.rank, place);
            let key = place.map_or_else(
                || (communicator.identity.to_string(), -1 - i64::from(rank.rank)),
                |place| (place.host.clone(), place.pid),
            );
            let process = found.entry(key).or_insert_with(|| AbsentProcess {
                absence: rank.absence,
                name: name.clone(),
                host: place.map(|place| place.host.clone()),
                pid: place.map(|place| place.pid),
                ranks: BTreeSet::new(),
                names: BTreeSet::new(),
            });
            process.absence = process.absence.min(rank.absence);
            if let Some(number) = rank_names.number_in_largest(communicator, rank.rank, place) {
                process.ranks.insert(number);
                process.names.insert(name);
            }
        }
    }
    found
}

/// Adds errors reported by ranks. The error of a rank with a failed peer is evidence of that failure, not
/// another cause.
fn add_reported_errors(last: &Status, rank_names: &RankNames<'_>, findings: &mut Vec<Finding>) {
    let mut by_error: BTreeMap<(bool, &str), Vec<(&JobCommunicator, &Rank)>> = BTreeMap::new();
    for communicator in &last.communicators {
        for rank in &communicator.ranks {
            for (is_init, error) in [(true, &rank.init_error), (false, &rank.async_error)] {
                if let Some(error) = error {
                    by_error.entry((is_init, error)).or_default().push((communicator, rank));
                }
            }
        }
    }
    for ((is_init, error), ranks) in by_error {
        let names: BTreeSet<String> = ranks
            .iter()
            .map(|(communicator, rank)| rank_names.name(communicator, rank.rank, rank.place.as_ref()))
            .collect();
        let names: Vec<String> = names.into_iter().collect();
        let text = format!("{} {} {error}", join_list(&names), plural(names.len(), "reports", "report"));
        let root = findings.iter_mut().find(|finding| finding.rule.starts_with("job-process-"));
        if let (REMOTE_ERROR, Some(root)) = (error, root) {
            root.severity = Severity::Broken;
            root.evidence.push(Evidence::at_place("RAS", capitalize(&text)));
            continue;
        }
        let id = if is_init { "job-init-error" } else { "job-async-error" };
        let mut finding =
            compose_finding(id, &[("reported", &capitalize(&text)), ("cause", &cause_of(error))]);
        let numbers: BTreeSet<u32> = ranks
            .iter()
            .filter_map(|(communicator, rank)| {
                rank_names.number_in_largest(communicator, rank.rank, rank.place.as_ref())
            })
            .collect();
        finding.ranks = numbers.into_iter().collect();
        finding.hosts = hosts_of_ranks(ranks.iter().map(|(_, rank)| *rank));
        finding.evidence = vec![Evidence::at_place("RAS", capitalize(&text))];
        finding.occurrences = ranks.len() as u64;
        findings.push(finding);
    }
}

fn cause_of(error: &str) -> &'static str {
    match error {
        "Unhandled CUDA error" => {
            "A CUDA call failed: a fault of the GPU, or an earlier error of the program."
        }
        "System error" => "A system call or the network failed: a lost connection, a limit, no memory.",
        REMOTE_ERROR => "Another process of the job has failed or closed its connection.",
        "Invalid argument" | "Invalid usage" => "The program calls NCCL in a way that NCCL does not allow.",
        _ => "NCCL gives no reason here; the reason is in its log.",
    }
}

fn hosts_of_ranks<'a>(ranks: impl Iterator<Item = &'a Rank>) -> Vec<String> {
    let hosts: BTreeSet<String> =
        ranks.filter_map(|rank| rank.place.as_ref()).map(|place| place.host.clone()).collect();
    hosts.into_iter().collect()
}

/// Finds a communicator not ready in both answers, and names the ranks outside it.
fn find_unfinished_ranks(
    before: Option<&JobCommunicator>,
    now: &JobCommunicator,
    rank_names: &RankNames<'_>,
) -> Option<Finding> {
    let waiting = |communicator: &JobCommunicator| -> BTreeSet<u32> {
        let ranks = communicator.ranks.iter();
        let waiting = ranks.filter(|rank| rank.state == Some(State::Init) && rank.init_error.is_none());
        waiting.map(|rank| rank.rank).collect()
    };
    let inside = waiting(now);
    if inside.is_empty() || before.is_none_or(|before| waiting(before).is_disjoint(&inside)) {
        return None;
    }
    let outside: Vec<String> = not_members(now, rank_names);
    let id = if outside.is_empty() { "job-init-unfinished" } else { "job-init-unfinished/outside" };
    let values: [(&str, &dyn Display); 5] = [
        ("communicator", &now.identity),
        ("size", &now.size),
        ("inside", &inside.len()),
        ("outside", &join_list(&outside)),
        ("has", &plural(outside.len(), "has", "have")),
    ];
    let mut finding = compose_finding(id, &values);
    finding.ranks = now
        .missing
        .iter()
        .filter_map(|rank| rank_names.number_in_largest(now, rank.rank, rank.place.as_ref()))
        .collect();
    Some(finding)
}

/// Returns the names of ranks whose process answers without the communicator.
fn not_members(communicator: &JobCommunicator, rank_names: &RankNames<'_>) -> Vec<String> {
    let missing = communicator.missing.iter().filter(|rank| rank.absence == Absence::NotAMember);
    missing.map(|rank| rank_names.name(communicator, rank.rank, rank.place.as_ref())).collect()
}

/// Finds ranks outside a communicator in use by its other ranks.
fn find_ranks_that_left(
    before: Option<&JobCommunicator>,
    now: &JobCommunicator,
    rank_names: &RankNames<'_>,
) -> Option<Finding> {
    let is_used = now.ranks.iter().any(|rank| rank.state == Some(State::Running));
    let is_ending =
        now.ranks.iter().any(|rank| matches!(rank.state, Some(State::Finalize | State::Abort | State::Init)));
    let names = not_members(now, rank_names);
    let is_lasting = before.is_some_and(|before| !not_members(before, rank_names).is_empty());
    if names.is_empty() || !is_lasting || !is_used || is_ending {
        return None;
    }
    Some(compose_finding(
        "job-rank-left",
        &[
            ("names", &capitalize(&join_list(&names))),
            ("verb", &plural(names.len(), "is", "are")),
            ("identity", &now.identity),
            ("size", &now.size),
        ],
    ))
}

/// Finds aborted or destroyed communicators.
fn find_ending_communicators(last: &Status, rank_names: &RankNames<'_>, others: &[Finding]) -> Vec<Finding> {
    let in_state = |wanted: State| -> Vec<String> {
        let all = last.communicators.iter().flat_map(|communicator| {
            let ranks = communicator.ranks.iter().filter(move |rank| rank.state == Some(wanted));
            ranks.map(move |rank| rank_names.name(communicator, rank.rank, rank.place.as_ref()))
        });
        all.collect::<BTreeSet<String>>().into_iter().collect()
    };
    let mut findings = Vec::new();
    let aborted = in_state(State::Abort);
    if !aborted.is_empty() {
        let is_cascade = others.iter().any(|finding| finding.severity == Severity::Broken);
        let severity = if is_cascade { Severity::Advice } else { Severity::Unknown };
        let values: [(&str, &dyn Display); 2] =
            [("ranks", &capitalize(&join_list(&aborted))), ("has", &plural(aborted.len(), "has", "have"))];
        findings.push(compose_finding("job-aborted", &values).with_severity(severity));
    }
    let ending = in_state(State::Finalize);
    if !ending.is_empty() {
        let values: [(&str, &dyn Display); 2] =
            [("ranks", &capitalize(&join_list(&ending))), ("is", &plural(ending.len(), "is", "are"))];
        findings.push(compose_finding("job-ending", &values));
    }
    findings
}
