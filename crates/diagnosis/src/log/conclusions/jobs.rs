//! Several jobs in one log, one after another: each is judged by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::log::digest::{Communicator, Digest, Example, Hit, Position, Unknown, VariableSeen};

/// Largest number of jobs that are judged: the last ones.
const JOBS: usize = 16;

/// The digests of the jobs of a log, each with its first and last line, and the number of jobs before them; none where the
/// log has a single job.
///
/// Processes belong to one job if a communicator joins them. A further job begins only where all lines of a group of processes
/// are below those of the groups before, in one file, and it has a GPU that another process had there. Groups on other GPUs
/// are parts of one job, whose logs were put together in one file.
pub(super) fn split(digest: &Digest) -> (Vec<(Range<u64>, Digest)>, usize) {
    let mut spans = jobs(digest);
    if digest.inputs.len() != 1 || spans.len() < 2 {
        return (Vec::new(), 0);
    }
    let skipped = spans.len().saturating_sub(JOBS);
    spans.drain(..skipped);
    let ends = spans.iter().skip(1).map(|span| span.start).chain([u64::MAX]);
    let mut start = if skipped == 0 { 0 } else { spans.first().map_or(0, |span| span.start) };
    let mut jobs = Vec::new();
    for (span, end) in spans.iter().zip(ends) {
        jobs.push((span.clone(), part(digest, start..end)));
        start = end;
    }
    (jobs, skipped)
}

/// Processes with lines of their own in a log.
struct Group<'a> {
    lines: Range<u64>,
    /// The processes of each GPU, by host and PCI bus id.
    gpus: BTreeMap<(&'a str, &'a str), BTreeSet<u64>>,
}

impl<'a> Group<'a> {
    /// The processes of a communicator.
    fn of(digest: &'a Digest, communicator: &'a Communicator) -> Option<Self> {
        let members = communicator.members.values();
        let members = members.filter_map(|member| Some((member, digest.writers.get(member.writer)?)));
        let (mut lines, mut gpus): (Option<Range<u64>>, BTreeMap<_, BTreeSet<u64>>) = (None, BTreeMap::new());
        for (member, writer) in members {
            let (start, end) = (writer.first.line, writer.last.line);
            lines = Some(lines.map_or(start..end, |lines| lines.start.min(start)..lines.end.max(end)));
            if let Some(bus) = member.bus_id.as_deref() {
                gpus.entry((writer.host.as_str(), bus)).or_default().insert(writer.pid);
            }
        }
        Some(Self { lines: lines?, gpus })
    }

    /// Returns true if it has a GPU that another process of the other group had.
    fn starts_again(&self, other: &Self) -> bool {
        self.gpus.iter().any(|(gpu, own)| other.gpus.get(gpu).is_some_and(|theirs| own.is_disjoint(theirs)))
    }

    fn add(&mut self, other: Self) {
        self.lines.end = self.lines.end.max(other.lines.end);
        for (gpu, processes) in other.gpus {
            self.gpus.entry(gpu).or_default().extend(processes);
        }
    }
}

/// The first and the last line of each job, in their order.
fn jobs(digest: &Digest) -> Vec<Range<u64>> {
    let mut groups: Vec<Group<'_>> =
        digest.communicators.iter().filter_map(|communicator| Group::of(digest, communicator)).collect();
    groups.sort_by_key(|group| (group.lines.start, group.lines.end));
    let mut apart: Vec<Group<'_>> = Vec::new();
    for group in groups {
        match apart.last_mut() {
            Some(last) if group.lines.start <= last.lines.end => last.add(group),
            _ => apart.push(group),
        }
    }
    let mut jobs: Vec<Group<'_>> = Vec::new();
    for group in apart {
        match jobs.last_mut() {
            Some(last) if !group.starts_again(last) => last.add(group),
            _ => jobs.push(group),
        }
    }
    jobs.into_iter().map(|job| job.lines).collect()
}

/// The part of a digest that is about some lines.
fn part(digest: &Digest, lines: Range<u64>) -> Digest {
    let is_here = |position: &Position| lines.contains(&position.line);
    let mut places: Vec<Option<usize>> = Vec::new();
    let mut writers = Vec::new();
    for writer in &digest.writers {
        places.push(is_here(&writer.first).then_some(writers.len()));
        writers.extend(is_here(&writer.first).then(|| writer.clone()));
    }
    let place = |index: usize| places.get(index).copied().flatten();
    let all = |indices: &BTreeSet<usize>| -> BTreeSet<usize> {
        indices.iter().filter_map(|&index| place(index)).collect()
    };
    let examples = |examples: &[Example]| -> Vec<Example> {
        let here = examples.iter().filter(|example| is_here(&example.position)).cloned();
        here.map(|example| Example { writer: example.writer.and_then(place), ..example }).collect()
    };
    // Messages are counted for the whole log.
    let count = |count: u64, kept: usize, of: usize, writers: usize| {
        if kept == of { count } else { (kept.max(writers) as u64).min(count) }
    };
    let communicator = |communicator: &Communicator| {
        let mut own = communicator.clone();
        own.members.retain(|_, member| {
            let place = place(member.writer);
            member.writer = place.unwrap_or_default();
            place.is_some()
        });
        (!own.members.is_empty()).then_some(own)
    };
    let hit = |hit: &Hit| {
        let (examples, writers) = (examples(&hit.examples), all(&hit.writers));
        let count = count(hit.count, examples.len(), hit.examples.len(), writers.len());
        (count > 0).then(|| Hit { rule: hit.rule.clone(), examples, count, writers })
    };
    let unknown = |unknown: &Unknown| {
        let (examples, writers) = (examples(&unknown.examples), all(&unknown.writers));
        let count = count(unknown.count, examples.len(), unknown.examples.len(), writers.len());
        (!examples.is_empty()).then_some(Unknown { examples, count, writers })
    };
    let variable = |variable: &VariableSeen| {
        let writers = all(&variable.writers);
        let first = *writers.first()?;
        let first = if is_here(&variable.first) {
            variable.first
        } else {
            Position { line: 0, ..digest.writers.get(first)?.first }
        };
        Some(VariableSeen { writers, first, ..variable.clone() })
    };
    Digest {
        inputs: digest.inputs.clone(),
        communicators: digest.communicators.iter().filter_map(communicator).collect(),
        variables: digest.variables.iter().filter_map(variable).collect(),
        hits: digest.hits.iter().filter_map(hit).collect(),
        unknown: digest.unknown.iter().filter_map(unknown).collect(),
        diagnostics: digest.diagnostics.iter().filter(|line| is_here(&line.position)).cloned().collect(),
        watchdog: digest.watchdog.iter().filter(|report| is_here(&report.position)).cloned().collect(),
        versions: digest.versions.clone(),
        limits: digest.limits.clone(),
        paths: digest.paths.clone(),
        writers,
    }
}
