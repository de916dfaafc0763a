//! Several jobs in one log, one after another: each is judged by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::log::digest::{Communicator, Digest, Example, Hit, Position, Unknown, VariableSeen};

/// Largest number of examined jobs, the last ones.
const JOBS: usize = 16;

/// One job of several.
pub(super) struct Part {
    /// Its first and last line.
    pub(super) lines: Range<u64>,
    pub(super) digest: Digest,
    /// False if messages may be missing.
    pub(super) is_whole: bool,
}

/// Returns the digests of the jobs of a log, and the number of jobs before them, or none if the log has a
/// single job.
///
/// Processes belong to one job if a communicator joins them. A further job begins only if all lines of a
/// group of processes are below the lines of all earlier groups, in one file, and it has a GPU that another
/// process had there. Groups on other GPUs are parts of one job, with logs joined into one file.
pub(super) fn split_jobs(digest: &Digest) -> (Vec<Part>, usize) {
    let mut spans = find_job_lines(digest);
    if digest.inputs.len() != 1 || spans.len() < 2 {
        return (Vec::new(), 0);
    }
    let skipped = spans.len().saturating_sub(JOBS);
    spans.drain(..skipped);
    let ends = spans.iter().skip(1).map(|span| span.start).chain([u64::MAX]);
    let mut start = if skipped == 0 { 0 } else { spans.first().map_or(0, |span| span.start) };
    let mut jobs = Vec::new();
    for (span, end) in spans.iter().zip(ends) {
        let lines = start..end;
        let is_whole = !lacks_messages(digest, &lines);
        jobs.push(Part { lines: span.clone(), is_whole, digest: extract_part(digest, lines) });
        start = end;
    }
    (jobs, skipped)
}

/// Processes with lines of their own in a log.
struct CommunicatorProcesses<'a> {
    lines: Range<u64>,
    /// The processes of each GPU, by host and PCI bus id.
    gpus: BTreeMap<(&'a str, &'a str), BTreeSet<u64>>,
}

impl<'a> CommunicatorProcesses<'a> {
    /// Returns the processes of a communicator.
    fn of_communicator(digest: &'a Digest, communicator: &'a Communicator) -> Option<Self> {
        let members = communicator.members.values();
        let members = members.filter_map(|member| Some((member, digest.writers.get(member.writer)?)));
        let (mut lines, mut gpus): (Option<Range<u64>>, BTreeMap<_, BTreeSet<u64>>) = (None, BTreeMap::new());
        for (member, writer) in members {
            let (start, end) = (writer.first.line, writer.last.line);
            lines = Some(lines.map_or(start..end, |lines| lines.start.min(start)..lines.end.max(end)));
            if let Some(bus) = member.bus_id.as_deref().filter(|_| writer.names_host()) {
                gpus.entry((writer.host.as_str(), bus)).or_default().insert(writer.pid);
            }
        }
        Some(Self { lines: lines?, gpus })
    }

    /// Returns true if it has a GPU that another process of the other group had.
    fn starts_again(&self, other: &Self) -> bool {
        self.gpus.iter().any(|(gpu, own)| other.gpus.get(gpu).is_some_and(|theirs| own.is_disjoint(theirs)))
    }

    fn add_processes(&mut self, other: Self) {
        self.lines.end = self.lines.end.max(other.lines.end);
        for (gpu, processes) in other.gpus {
            self.gpus.entry(gpu).or_default().extend(processes);
        }
    }
}

/// Returns the first and the last line of each job, in their order.
fn find_job_lines(digest: &Digest) -> Vec<Range<u64>> {
    let mut groups: Vec<CommunicatorProcesses<'_>> = digest
        .communicators
        .iter()
        .filter_map(|communicator| CommunicatorProcesses::of_communicator(digest, communicator))
        .collect();
    groups.sort_by_key(|group| (group.lines.start, group.lines.end));
    let mut apart: Vec<CommunicatorProcesses<'_>> = Vec::new();
    for group in groups {
        match apart.last_mut() {
            Some(last) if group.lines.start <= last.lines.end => last.add_processes(group),
            _ => apart.push(group),
        }
    }
    let mut jobs: Vec<CommunicatorProcesses<'_>> = Vec::new();
    for group in apart {
        match jobs.last_mut() {
            Some(last) if !group.starts_again(last) => last.add_processes(group),
            _ => jobs.push(group),
        }
    }
    jobs.into_iter().map(|job| job.lines).collect()
}

/// Returns true if messages of these lines may be missing, since a digest keeps only the first ones of a
/// kind, and the last one.
fn lacks_messages(digest: &Digest, lines: &Range<u64>) -> bool {
    let of_hits = digest.hits.iter().map(|hit| (&hit.examples, &hit.last, hit.count, &hit.writers));
    let of_unknown =
        digest.unknown.iter().map(|each| (&each.examples, &each.last, each.count, &each.writers));
    of_hits.chain(of_unknown).any(|(examples, last, count, writers)| {
        let Some((first, last)) = examples.last().zip(last.as_ref()) else { return false };
        let is_here = |example: &Example| lines.contains(&example.position.line);
        let is_of = |index: &usize| {
            digest.writers.get(*index).is_some_and(|writer| lines.contains(&writer.first.line))
        };
        let is_between = first.position.line < lines.start && lines.end <= last.position.line;
        is_between
            && count > examples.len() as u64 + 1
            && !examples.iter().any(is_here)
            && !writers.iter().any(is_of)
    })
}

/// Returns the part of a digest about some lines.
fn extract_part(digest: &Digest, lines: Range<u64>) -> Digest {
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
    let examples = |examples: &[Example], last: &Option<Example>| -> Vec<Example> {
        let here = examples.iter().chain(last).filter(|example| is_here(&example.position)).cloned();
        here.map(|example| Example { writer: example.writer.and_then(place), ..example }).collect()
    };
    // Messages are counted for the whole log, and only the first ones and the last one are kept.
    let count = |count: u64, kept: usize, writers: usize| (kept.max(writers) as u64).min(count);
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
        let (examples, writers) = (examples(&hit.examples, &hit.last), all(&hit.writers));
        let count = count(hit.count, examples.len(), writers.len());
        (count > 0).then(|| Hit { rule: hit.rule.clone(), examples, last: None, count, writers })
    };
    let unknown = |unknown: &Unknown| {
        let (mut examples, writers) = (examples(&unknown.examples, &unknown.last), all(&unknown.writers));
        let count = count(unknown.count, examples.len(), writers.len());
        if let (true, Some(&first), Some(known)) =
            (examples.is_empty(), writers.first(), unknown.examples.first())
        {
            // The text of another job: they differ only in numbers.
            let position = Position { line: 0, ..known.position };
            examples.push(Example {
                position,
                writer: Some(first),
                text: known.text.clone(),
                ..Example::default()
            });
        }
        (!examples.is_empty()).then_some(Unknown {
            is_error: unknown.is_error,
            examples,
            last: None,
            count,
            writers,
        })
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
        communicators: digest.communicators.iter().filter_map(communicator).collect(),
        variables: digest.variables.iter().filter_map(variable).collect(),
        hits: digest.hits.iter().filter_map(hit).collect(),
        unknown: digest.unknown.iter().filter_map(unknown).collect(),
        diagnostics: digest.diagnostics.iter().filter(|line| is_here(&line.position)).cloned().collect(),
        watchdog: digest.watchdog.iter().filter(|report| is_here(&report.position)).cloned().collect(),
        writers,
        ..copy_common_facts(digest)
    }
}

/// Returns the facts of a digest that are of each of its jobs.
fn copy_common_facts(digest: &Digest) -> Digest {
    Digest {
        inputs: digest.inputs.clone(),
        versions: digest.versions.clone(),
        limits: digest.limits.clone(),
        paths: digest.paths.clone(),
        head: digest.head.clone(),
        repeated: digest.repeated,
        ..Digest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{examine, pair};
    use crate::examination::Health;
    use crate::finding::Severity;

    /// Returns the log of three jobs on the same GPUs, each followed by its own lines.
    fn jobs(after: [&str; 3]) -> String {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let job = |number: usize| {
            let (a, b) = (format!("a:{number}00:100"), format!("b:{number}01:101"));
            text.replace("a:100:100", &a).replace("b:101:101", &b).replace("0x77", &format!("0x7{number}"))
        };
        (1..).zip(after).map(|(number, after)| job(number) + after).collect()
    }

    #[test]
    fn messages_that_are_not_kept_are_those_of_any_job() {
        let full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n".repeat(5);
        let found = examine(&jobs([&full, &full, &full]));
        let of = |job: &str| {
            let mut all = found.findings.iter().filter(|each| each.severity == Severity::Broken);
            all.any(|each| each.diagnosis.starts_with(job))
        };
        assert!(of("Job 1: ") && of("Job 3: "), "{:?}", found.findings);
        let lacks = "Job 2: messages that other jobs also have are not kept";
        assert!(found.unseen.iter().any(|text| text.starts_with(lacks)), "{:?}", found.unseen);
        // The last message belongs to the first job.
        let found = examine(&jobs([&full, "", ""]));
        assert!(found.unseen.iter().all(|text| !text.starts_with("Job 2: messages")), "{:?}", found.unseen);
        assert_eq!(found.findings.iter().filter(|each| each.severity == Severity::Broken).count(), 1);
    }

    #[test]
    fn a_warning_that_no_rule_knows_is_that_of_each_job() {
        let warn = |job: u32| {
            format!("a:{job}00:100 [0] foo.cc:7 NCCL WARN The frobnicator returned 7 in an odd state\n")
                .repeat(5)
        };
        let found = examine(&jobs([&warn(1), &warn(2), &warn(3)]));
        assert_eq!(found.health(), Health::CannotTell);
        for job in 1..4 {
            let says = format!("Job {job}: NCCL warns: The frobnicator");
            assert!(
                found.findings.iter().any(|each| each.diagnosis.starts_with(&says)),
                "{:?}",
                found.findings
            );
        }
    }
}
