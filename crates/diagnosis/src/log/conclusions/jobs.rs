//! Several jobs in one log, one after another: each is judged by itself.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::log::digest::{Communicator, Digest, Example, Hit, Position, Unknown, VariableSeen};

/// Largest number of jobs that are judged: the last ones.
const JOBS: usize = 16;

/// The digests of the jobs of a log, each with its first and last line, and the number of jobs before them; none where the
/// log has a single job.
///
/// Processes belong to one job if a communicator joins them. Jobs are told apart only where all lines of the processes of
/// one are above those of the next, in one file: the processes of several groups of one job run at the same time.
pub(super) fn split(digest: &Digest) -> (Vec<(Range<u64>, Digest)>, usize) {
    let mut spans = spans(digest);
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

/// The lines of the jobs, in their order, the last line included; those that overlap are one.
fn spans(digest: &Digest) -> Vec<Range<u64>> {
    let lines = |communicator: &Communicator| {
        let writers: BTreeSet<usize> = communicator.members.values().map(|member| member.writer).collect();
        let writers = writers.iter().filter_map(|&index| digest.writers.get(index));
        let (first, last): (Vec<u64>, Vec<u64>) =
            writers.map(|writer| (writer.first.line, writer.last.line)).unzip();
        Some(*first.iter().min()?..*last.iter().max()?)
    };
    let mut spans: Vec<Range<u64>> = digest.communicators.iter().filter_map(lines).collect();
    spans.sort_by_key(|span| (span.start, span.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
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
