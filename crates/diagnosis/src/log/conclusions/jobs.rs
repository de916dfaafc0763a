//! Several jobs in one log: jobs one after another on the same GPUs, and jobs beside each other on different
//! hosts. Each is judged by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::finding::Role;
use crate::knowledge::rules::Rules;
use crate::log::digest::{Communicator, Digest, Example, Hit, Position, Unknown, VariableSeen};
use crate::log::roll::Roll;

/// Largest number of examined jobs, the last ones.
const JOBS: usize = 16;

/// One job of several.
pub(super) struct Part {
    /// Its place: `lines 1 to 40`, `file a.log`, `hosts a, b`.
    pub(super) place: String,
    pub(super) digest: Digest,
    /// False if messages may be missing.
    pub(super) is_whole: bool,
}

/// The jobs of a log.
#[derive(Default)]
pub(super) struct Parts {
    /// The jobs, in the order of their first lines, or none if the log has a single job.
    pub(super) jobs: Vec<Part>,
    /// Number of earlier jobs above the limit.
    pub(super) skipped: usize,
}

/// Returns the jobs of a log.
///
/// Processes belong to one job if a communicator joins them. A further job is recognised in two ways:
///
/// 1. All lines of a group of processes are below the lines of all earlier groups, or in other files, and it
///    has a GPU that another process had there. Groups on other GPUs are parts of one job, with logs joined
///    into one file.
/// 2. Groups have no host in common, the log has all ranks of each, and at most one group has failures. An
///    absent rank can join the groups, and a failure in one group can cause failures in another group.
pub(super) fn split_jobs(digest: &Digest, rules: &Rules) -> Parts {
    let groups = list_groups(digest);
    let host_groups = merge_related(groups.clone(), JobProcesses::shares_host);
    let joined: Vec<_> = host_groups.iter().cloned().reduce(JobProcesses::joined_with).into_iter().collect();
    let are_whole = host_groups.len() > 1 && host_groups.iter().all(|host_group| host_group.is_whole);
    let parts = are_whole.then(|| split_host_groups(digest, rules, &groups, &host_groups)).flatten();
    parts.or_else(|| split_host_groups(digest, rules, &groups, &joined)).unwrap_or_default()
}

/// Splits a log into the jobs of these groups of hosts, or returns `None` if it has a single job, or its
/// failures need one judgement.
fn split_host_groups(
    digest: &Digest,
    rules: &Rules,
    groups: &[JobProcesses<'_>],
    host_groups: &[JobProcesses<'_>],
) -> Option<Parts> {
    let mut spans: Vec<(usize, JobProcesses<'_>)> = Vec::new();
    for (index, host_group) in host_groups.iter().enumerate() {
        let own = groups.iter().filter(|group| host_group.shares_host(group)).cloned();
        spans.extend(split_successive_jobs(own.collect()).into_iter().map(|job| (index, job)));
    }
    spans.sort_by_key(|(_, job)| job.first_position());
    let (of_host_group, spans): (Vec<usize>, Vec<JobProcesses<'_>>) = spans.into_iter().unzip();
    if spans.len() < 2 {
        return None;
    }
    let owners = Owners::new(digest, &spans);
    let failing = owners.find_failing_jobs(digest, rules)?;
    let failing: BTreeSet<usize> = failing.into_iter().map(|job| of_host_group[job]).collect();
    if failing.len() > 1 {
        return None;
    }
    let skipped = spans.len().saturating_sub(JOBS);
    let jobs = spans.iter().enumerate().skip(skipped).map(|(job, span)| Part {
        place: span.describe_place(digest, host_groups.len() > 1),
        is_whole: !owners.lacks_messages(digest, job),
        digest: owners.extract_part(digest, job),
    });
    Some(Parts { jobs: jobs.collect(), skipped })
}

/// Returns groups of hosts without a communicator that joins them, or none if the log has a single group.
pub(super) fn find_unjoined_hosts(digest: &Digest) -> Vec<BTreeSet<&str>> {
    let host_groups = merge_related(list_groups(digest), JobProcesses::shares_host);
    if host_groups.len() < 2 {
        Vec::new()
    } else {
        host_groups.into_iter().map(|host_group| host_group.hosts).collect()
    }
}

/// Processes joined by communicators, with their lines.
#[derive(Clone)]
struct JobProcesses<'a> {
    /// The processes: host and number.
    processes: BTreeSet<(&'a str, u64)>,
    hosts: BTreeSet<&'a str>,
    /// The first and last line in each input.
    lines: BTreeMap<usize, Range<u64>>,
    /// The processes of each GPU, by host and PCI bus id.
    gpus: BTreeMap<(&'a str, &'a str), BTreeSet<u64>>,
    /// True if the log has all ranks.
    is_whole: bool,
}

impl<'a> JobProcesses<'a> {
    /// Returns the processes of a communicator.
    fn of_communicator(digest: &'a Digest, communicator: &'a Communicator) -> Option<Self> {
        let mut own = Self {
            processes: BTreeSet::new(),
            hosts: BTreeSet::new(),
            lines: BTreeMap::new(),
            gpus: BTreeMap::new(),
            is_whole: communicator.members.len() == communicator.ranks as usize,
        };
        for member in communicator.members.values() {
            let Some(writer) = digest.writers.get(member.writer) else { continue };
            let host = writer.host.as_str();
            own.processes.insert((host, writer.pid));
            own.hosts.insert(host);
            let span = writer.first.line..writer.last.line;
            own.lines.entry(writer.first.input).and_modify(|lines| widen_lines(lines, &span)).or_insert(span);
            if let Some(bus) = member.bus_id.as_deref().filter(|_| writer.names_host()) {
                own.gpus.entry((host, bus)).or_default().insert(writer.pid);
            }
        }
        (!own.processes.is_empty()).then_some(own)
    }

    fn shares_host(&self, other: &Self) -> bool {
        !self.hosts.is_disjoint(&other.hosts)
    }

    /// Returns true if lines of both are mixed in an input.
    fn is_mixed_with(&self, other: &Self) -> bool {
        self.lines.iter().any(|(input, own)| {
            other.lines.get(input).is_some_and(|theirs| own.start <= theirs.end && theirs.start <= own.end)
        })
    }

    /// Returns true if it has a GPU that another process of the other group had.
    fn starts_again(&self, other: &Self) -> bool {
        self.gpus.iter().any(|(gpu, own)| other.gpus.get(gpu).is_some_and(|theirs| own.is_disjoint(theirs)))
    }

    fn joined_with(mut self, other: Self) -> Self {
        self.processes.extend(other.processes);
        self.hosts.extend(other.hosts);
        for (input, theirs) in other.lines {
            self.lines.entry(input).and_modify(|lines| widen_lines(lines, &theirs)).or_insert(theirs);
        }
        for (gpu, processes) in other.gpus {
            self.gpus.entry(gpu).or_default().extend(processes);
        }
        self.is_whole &= other.is_whole;
        self
    }

    fn first_position(&self) -> (usize, u64) {
        self.lines.first_key_value().map_or((0, 0), |(input, lines)| (*input, lines.start))
    }

    /// Describes its place: the hosts among jobs on different hosts, and the lines or files.
    fn describe_place(&self, digest: &Digest, is_by_host: bool) -> String {
        let name = |input: &usize| digest.inputs.get(*input).map_or("", |input| input.name.as_str());
        let lines = match self.lines.first_key_value() {
            Some((_, lines)) if digest.inputs.len() == 1 => format!("lines {} to {}", lines.start, lines.end),
            Some((first, _)) if self.lines.len() == 1 => name(first).to_owned(),
            first => {
                let first = first.map_or("", |(input, _)| name(input));
                format!("{} files, the first is {first}", self.lines.len())
            }
        };
        if !is_by_host {
            return lines;
        }
        let hosts: Vec<&str> = self.hosts.iter().take(8).copied().collect();
        let more = if self.hosts.len() > hosts.len() { ", ..." } else { "" };
        format!("{}{more} ({lines})", hosts.join(", "))
    }
}

fn widen_lines(lines: &mut Range<u64>, other: &Range<u64>) {
    *lines = lines.start.min(other.start)..lines.end.max(other.end);
}

/// Returns the processes of each communicator. One of a single rank says nothing about other processes.
fn list_groups(digest: &Digest) -> Vec<JobProcesses<'_>> {
    let several = digest.communicators.iter().any(|communicator| communicator.ranks > 1);
    let counted = digest.communicators.iter().filter(|communicator| communicator.ranks > 1 || !several);
    counted.filter_map(|communicator| JobProcesses::of_communicator(digest, communicator)).collect()
}

/// Joins groups until no two are related.
fn merge_related<'a>(
    groups: Vec<JobProcesses<'a>>,
    are_related: impl Fn(&JobProcesses<'a>, &JobProcesses<'a>) -> bool,
) -> Vec<JobProcesses<'a>> {
    let mut apart: Vec<JobProcesses<'a>> = Vec::new();
    for mut group in groups {
        while let Some(index) = apart.iter().position(|other| are_related(other, &group)) {
            group = apart.swap_remove(index).joined_with(group);
        }
        apart.push(group);
    }
    apart
}

/// Returns the jobs one after another among groups of processes.
fn split_successive_jobs(groups: Vec<JobProcesses<'_>>) -> Vec<JobProcesses<'_>> {
    let mut groups = merge_related(groups, JobProcesses::is_mixed_with);
    groups.sort_by_key(JobProcesses::first_position);
    let mut jobs: Vec<JobProcesses<'_>> = Vec::new();
    for group in groups {
        match jobs.pop() {
            Some(last) if !group.starts_again(&last) => jobs.push(last.joined_with(group)),
            last => jobs.extend(last.into_iter().chain([group])),
        }
    }
    jobs
}

/// The jobs of writers and lines.
struct Owners {
    /// The job of each writer.
    of_writers: Vec<Option<usize>>,
    /// First line and job of the jobs in each input, ascending. `None` if their lines are mixed.
    of_inputs: BTreeMap<usize, Option<Vec<(u64, usize)>>>,
    /// The first and last line of each job.
    spans: Vec<(Position, Position)>,
}

impl Owners {
    fn new(digest: &Digest, jobs: &[JobProcesses<'_>]) -> Self {
        let mut of_inputs: BTreeMap<usize, Option<Vec<(u64, usize)>>> = BTreeMap::new();
        for (index, job) in jobs.iter().enumerate() {
            for (&input, lines) in &job.lines {
                let starts = of_inputs.entry(input).or_insert_with(|| Some(Vec::new()));
                let is_mixed = |&(_, other): &(u64, usize)| {
                    let theirs = &jobs[other].lines;
                    theirs.get(&input).is_some_and(|theirs| theirs.end >= lines.start)
                };
                match starts {
                    Some(known) if !known.iter().any(is_mixed) => known.push((lines.start, index)),
                    _ => *starts = None,
                }
            }
        }
        let position = |(&input, line): (&usize, u64)| Position { input, line };
        let ends = |job: &JobProcesses<'_>| {
            let first = job.lines.first_key_value().map(|(input, lines)| position((input, lines.start)));
            let last = job.lines.last_key_value().map(|(input, lines)| position((input, lines.end)));
            (first.unwrap_or_default(), last.unwrap_or_default())
        };
        let spans = jobs.iter().map(ends).collect();
        let mut owners = Self { of_writers: Vec::new(), of_inputs, spans };
        let writers = digest.writers.iter().map(|writer| {
            let process = (writer.host.as_str(), writer.pid);
            let member = jobs.iter().position(|job| job.processes.contains(&process));
            member.or_else(|| owners.find_job_at(&writer.first))
        });
        owners.of_writers = writers.collect();
        owners
    }

    /// Returns the job of a line without a writer, or `None` if it can be of several jobs.
    fn find_job_at(&self, position: &Position) -> Option<usize> {
        let starts = self.of_inputs.get(&position.input)?.as_ref()?;
        let (_, first) = starts.first()?;
        let last = starts.iter().rev().find(|(start, _)| *start <= position.line);
        Some(last.map_or(*first, |(_, job)| *job))
    }

    fn find_job_of(&self, example: &Example) -> Option<usize> {
        match example.writer {
            Some(writer) => self.of_writers.get(writer).copied().flatten(),
            None => self.find_job_at(&example.position),
        }
    }

    /// Returns the jobs with messages about failures, or `None` if such a message can be of several jobs.
    fn find_failing_jobs(&self, digest: &Digest, rules: &Rules) -> Option<BTreeSet<usize>> {
        let is_failure = |hit: &&Hit| {
            let role = rules.rule_by_id(&hit.rule).map(|rule| rule.role);
            matches!(role, Some(Role::Root | Role::Cascade))
        };
        let hits = digest.hits.iter().filter(is_failure).flat_map(|hit| hit.examples.iter().chain(&hit.last));
        let unknown = digest.unknown.iter().flat_map(|each| each.examples.iter().chain(&each.last));
        let of_messages = hits.chain(unknown).map(|example| self.find_job_of(example));
        let diagnostics = digest.diagnostics.iter().map(|line| &line.position);
        let reports = diagnostics.chain(digest.watchdog.iter().map(|report| &report.position));
        of_messages.chain(reports.map(|position| self.find_job_at(position))).collect()
    }

    /// Returns true if messages of a job may be missing, since a digest keeps only the first ones of a kind,
    /// and the last one.
    fn lacks_messages(&self, digest: &Digest, job: usize) -> bool {
        let of_hits = digest.hits.iter().map(|hit| (&hit.examples, &hit.last, hit.count, &hit.writers));
        let of_unknown =
            digest.unknown.iter().map(|each| (&each.examples, &each.last, each.count, &each.writers));
        let (start, end) = self.spans[job];
        of_hits.chain(of_unknown).any(|(examples, last, count, writers)| {
            let Some((first, last)) = examples.last().zip(last.as_ref()) else { return false };
            first.position < end
                && start < last.position
                && count > examples.len() as u64 + 1
                && !examples.iter().chain([last]).any(|example| self.find_job_of(example) == Some(job))
                && !writers.iter().any(|&writer| self.of_writers.get(writer) == Some(&Some(job)))
        })
    }

    /// Returns the part of a digest about a job. Messages without an owner are messages of each job.
    fn extract_part(&self, digest: &Digest, job: usize) -> Digest {
        let is_here = |position: &Position| self.find_job_at(position) == Some(job);
        let mut writers = Vec::new();
        let mut places: Vec<Option<usize>> = Vec::new();
        for (writer, owner) in digest.writers.iter().zip(&self.of_writers) {
            places.push((*owner == Some(job)).then_some(writers.len()));
            writers.extend((*owner == Some(job)).then(|| writer.clone()));
        }
        let place = |index: usize| places.get(index).copied().flatten();
        let all = |indices: &BTreeSet<usize>| -> BTreeSet<usize> {
            indices.iter().filter_map(|&index| place(index)).collect()
        };
        let examples = |examples: &[Example], last: &Option<Example>| -> Vec<Example> {
            let all = examples.iter().chain(last);
            let here = all.filter(|example| self.find_job_of(example).is_none_or(|owner| owner == job));
            here.cloned().map(|own| Example { writer: own.writer.and_then(place), ..own }).collect()
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
            // The lists of several jobs cannot be told apart.
            let roll = if count == hit.count { hit.roll.clone() } else { Roll::default() };
            (count > 0).then(|| Hit { rule: hit.rule.clone(), examples, last: None, count, writers, roll })
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
            let own = Unknown { is_error: unknown.is_error, examples, last: None, count, writers };
            (!own.examples.is_empty()).then_some(own)
        };
        let variable = |variable: &VariableSeen| {
            let own = all(&variable.writers);
            let first = *own.first()?;
            let first = if is_here(&variable.first) {
                variable.first
            } else {
                Position { line: 0, ..writers.get(first)?.first }
            };
            Some(VariableSeen { writers: own, first, ..variable.clone() })
        };
        Digest {
            communicators: digest.communicators.iter().filter_map(communicator).collect(),
            variables: digest.variables.iter().filter_map(variable).collect(),
            hits: digest.hits.iter().filter_map(hit).collect(),
            unknown: digest.unknown.iter().filter_map(unknown).collect(),
            diagnostics: digest.diagnostics.iter().filter(|line| is_here(&line.position)).cloned().collect(),
            watchdog: digest.watchdog.iter().filter(|report| is_here(&report.position)).cloned().collect(),
            tracebacks: digest.tracebacks.iter().filter(|each| is_here(&each.head)).cloned().collect(),
            writers,
            ..copy_common_facts(digest)
        }
    }
}

/// Returns the facts of a digest that are of each of its jobs.
fn copy_common_facts(digest: &Digest) -> Digest {
    Digest {
        inputs: digest.inputs.clone(),
        has_program_lines: digest.has_program_lines,
        versions: digest.versions.clone(),
        limits: digest.limits.clone(),
        // Hosts of one name in two files can be different machines.
        paths: if digest.inputs.len() == 1 { digest.paths.clone() } else { BTreeSet::new() },
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
