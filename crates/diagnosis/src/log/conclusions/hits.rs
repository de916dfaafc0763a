//! Findings from messages that rules know, and from warnings that no rule knows. A message that follows from an earlier
//! failure is shown as its consequence.

use std::collections::BTreeSet;

use super::job::Job;
use crate::finding::{Evidence, Finding, Role, Severity};
use crate::knowledge::rules::{Origin, Rule, Rules};
use crate::log::digest::{Example, Hit};

/// Largest number of consequences that a finding lists.
const CONSEQUENCES: usize = 6;

/// Rules about messages of launchers, which report the first death among their processes when all have ended.
const REPORTED_LATE: [&str; 1] = ["mpirun-killed"];

/// A finding with the place where it begins.
pub(super) struct Placed {
    pub(super) finding: Finding,
    /// The first message; `None` for a conclusion that no single line shows.
    pub(super) first: Option<Example>,
    /// The finding can be the cause of what follows.
    pub(super) is_root: bool,
    /// The message stands after those of what it caused.
    pub(super) is_reported_late: bool,
    /// The finding follows from an earlier failure.
    pub(super) is_cascade: bool,
    /// The finding is about a network that cannot be used.
    pub(super) is_of_network: bool,
}

impl Placed {
    /// A conclusion that no single line shows.
    pub(super) fn derived(finding: Finding) -> Self {
        Self {
            finding,
            first: None,
            is_root: false,
            is_reported_late: false,
            is_cascade: false,
            is_of_network: false,
        }
    }

    /// A conclusion that explains failures that follow.
    pub(super) fn derived_root(finding: Finding) -> Self {
        Self { is_root: true, ..Self::derived(finding) }
    }
}

/// The findings of the hits and of the unknown warnings.
pub(super) fn find(job: &Job<'_>, rules: &Rules) -> Vec<Placed> {
    let known = job.digest.hits.iter().filter_map(|hit| rules.get(&hit.rule).map(|rule| (hit, rule)));
    let mut found: Vec<Placed> = known.filter_map(|(hit, rule)| from_hit(job, hit, rule)).collect();
    found.extend(job.digest.unknown.iter().map(|unknown| {
        let text = unknown.examples.first().map(|example| example.text.trim().to_owned()).unwrap_or_default();
        let finding = Finding {
            ranks: ranks(job, &unknown.writers, &unknown.examples),
            hosts: job.hosts(unknown.writers.iter().copied()),
            evidence: unknown.examples.iter().map(|example| job.example(example)).collect(),
            occurrences: unknown.count,
            ..Finding::new("unknown-warning", Severity::Unknown, format!("NCCL warns: {text}"))
        };
        let first = unknown.examples.first().cloned();
        Placed { is_of_network: first.as_ref().is_some_and(is_of_network), first, ..Placed::derived(finding) }
    }));
    found
}

/// The finding of a hit; none for messages that are no problem.
fn from_hit(job: &Job<'_>, hit: &Hit, rule: &Rule) -> Option<Placed> {
    if matches!(rule.role, Role::Harmless | Role::Confirmation) || !applies(job, hit, rule) {
        return None;
    }
    Some(placed(job, hit, rule))
}

/// The finding of a hit, with its place.
fn placed(job: &Job<'_>, hit: &Hit, rule: &Rule) -> Placed {
    let finding = Finding {
        cause: rule.cause.clone(),
        remedy: rule.remedy.clone(),
        action: rule.action,
        ranks: ranks(job, &hit.writers, &hit.examples),
        hosts: job.hosts(hit.writers.iter().copied()),
        evidence: hit.examples.iter().map(|example| job.example(example)).collect(),
        occurrences: hit.count,
        source: Some(rule.source.clone()),
        ..Finding::new(rule.id.clone(), rule.severity, rule.diagnosis.clone())
    };
    let first = hit.examples.iter().min_by_key(|example| example.position).cloned();
    let is_root = rule.role == Role::Root && rule.severity == Severity::Broken;
    let is_reported_late = rule.origin == Origin::Kernel || REPORTED_LATE.contains(&rule.id.as_str());
    let is_of_network = first.as_ref().is_some_and(is_of_network);
    let is_cascade = rule.role == Role::Cascade;
    Placed { finding, first, is_root, is_reported_late, is_cascade, is_of_network }
}

/// The ranks of messages: those of the writers, or those that a launcher's prefixes name.
fn ranks(job: &Job<'_>, writers: &BTreeSet<usize>, examples: &[Example]) -> Vec<u32> {
    let of_writers = job.ranks(writers.iter().copied());
    if !of_writers.is_empty() {
        return of_writers;
    }
    let named: BTreeSet<u32> = examples.iter().filter_map(|example| example.rank).collect();
    named.into_iter().collect()
}

/// Returns true unless the rule is about other versions of NCCL than those of all writers of the hit.
fn applies(job: &Job<'_>, hit: &Hit, rule: &Rule) -> bool {
    let mut writers = hit.writers.iter().filter_map(|&index| job.writer(index)).peekable();
    writers.peek().is_none() || writers.any(|writer| rule.applies_to(writer.nccl.as_ref()))
}

/// Puts each cascade below the root that stands earlier. Without a root, the first cascade becomes a finding whose cause is
/// not in the log, and the others are its consequences.
pub(super) fn order(job: &Job<'_>, found: Vec<Placed>) -> Vec<Finding> {
    let failing = found.iter().filter(|each| each.is_cascade || each.is_root);
    let failing: BTreeSet<u32> = failing.flat_map(|each| each.finding.ranks.iter().copied()).collect();
    let (mut cascades, mut others): (Vec<Placed>, Vec<Placed>) =
        found.into_iter().partition(|each| each.is_cascade);
    // A failure that a conclusion tells of, without a line of its own, comes after the messages.
    cascades.sort_by_key(|each| (each.first.is_none(), each.first.as_ref().map(|example| example.position)));
    let has_root = |cascade: &Placed| {
        let earlier = |root: &Placed| {
            let (root_line, cascade_line) = (root.first.as_ref(), cascade.first.as_ref());
            root.is_reported_late || is_earlier(root_line, cascade_line) || is_near(root_line, cascade_line)
        };
        others.iter().any(|each| each.is_root && earlier(each))
    };
    let (followed, alone): (Vec<Placed>, Vec<Placed>) = cascades.into_iter().partition(has_root);
    if let Some(root) = others.iter_mut().find(|each| each.is_root) {
        root.finding.consequences.extend(consequences(followed));
    }
    // A failure with consequences comes before what is wrong besides.
    others.sort_by_key(|each| each.finding.consequences.is_empty());
    let suspect = alone.first().and_then(|cascade| {
        let is_suspect = |each: &Placed| {
            each.finding.severity == Severity::Unknown
                && is_earlier(each.first.as_ref(), cascade.first.as_ref())
        };
        others.iter().position(is_suspect)
    });
    let suspect = suspect.map(|index| others.remove(index));
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(match suspect {
        Some(suspect) => after_warning(suspect, alone),
        None => without_cause(job, alone, &failing),
    });
    findings.extend(others.into_iter().map(|each| each.finding));
    findings
}

/// Lines within which the order of two messages of a file says nothing: ranks write at the same time.
const NEAR: u64 = 40;

/// Returns true for messages of one file that are near to each other.
fn is_near(one: Option<&Example>, other: Option<&Example>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    let (one, other) = (one.position, other.position);
    one.input == other.input && one.line.abs_diff(other.line) <= NEAR
}

/// The finding of a failure after a warning that no rule knows.
fn after_warning(suspect: Placed, alone: Vec<Placed>) -> Option<Finding> {
    let severity = alone.iter().map(|each| each.finding.severity).min()?;
    let mut finding = suspect.finding;
    finding.severity = severity;
    finding.diagnosis = format!("The job failed after a warning that no rule knows: {}", warning(&finding));
    finding.consequences = consequences(alone);
    Some(finding)
}

/// The text of an unknown warning.
fn warning(finding: &Finding) -> &str {
    finding.evidence.first().map_or("", |evidence| evidence.text.trim())
}

/// The finding of a failure whose cause is not in the log.
fn without_cause(job: &Job<'_>, alone: Vec<Placed>, failing: &BTreeSet<u32>) -> Option<Finding> {
    let severity = alone.iter().map(|each| each.finding.severity).min()?;
    let mut alone = alone.into_iter();
    let first = alone.next()?;
    if first.first.is_none() {
        // Ranks that did not complete: the conclusion is the diagnosis.
        return Some(first.finding);
    }
    // Of the ranks of the log, the lost one reports nothing.
    let all = job.main.iter().flat_map(|main| main.members.keys().copied());
    let silent: Vec<u32> = all.filter(|rank| !failing.is_empty() && !failing.contains(rank)).collect();
    let mut finding = first.finding;
    finding.severity = severity;
    let own = finding.diagnosis.trim_end_matches('.').to_owned();
    finding.cause = Some(match &finding.cause {
        Some(cause) => format!("First sign: {own}. {cause}"),
        None => format!("First sign: {own}."),
    });
    let failed = "The job failed, and the cause is not in this log";
    finding.diagnosis = match &silent[..] {
        [] => failed.to_owned(),
        [rank] => format!("{failed}; look first at rank {rank}, which reports nothing"),
        several => {
            let ranks = super::job::ranks_in_words(several);
            format!("{failed}; look first at {ranks}, which report nothing")
        }
    };
    finding.consequences = consequences(alone.collect());
    Some(finding)
}

/// Returns true for messages of networks and their plugins.
fn is_of_network(example: &Example) -> bool {
    ["NET/OFI", "NET/Plugin", "NET/IB"].iter().any(|prefix| example.text.starts_with(prefix))
}

/// Moves what the plugin of a network reported into the finding that this network is not used. The rule of the first such
/// message has the exact cause.
/// Messages that confirm it are no findings by themselves, and become evidence.
pub(super) fn absorb_network(job: &Job<'_>, rules: &Rules, fallback: &mut Finding, found: &mut Vec<Placed>) {
    let is_network = |each: &mut Placed| each.is_of_network && each.finding.severity != Severity::Advice;
    let mut reports: Vec<Placed> = found.extract_if(.., is_network).collect();
    let known = job.digest.hits.iter().filter_map(|hit| rules.get(&hit.rule).map(|rule| (hit, rule)));
    let confirmations =
        known.filter(|(hit, rule)| rule.role == Role::Confirmation && applies(job, hit, rule));
    reports.extend(confirmations.map(|(hit, rule)| placed(job, hit, rule)).filter(|each| each.is_of_network));
    reports.sort_by_key(|each| each.first.as_ref().map(|example| example.position));
    if let Some(conflict) = reports.iter().find(|each| each.first.is_none()) {
        fallback.cause = Some(conflict.finding.diagnosis.clone());
        fallback.remedy.clone_from(&conflict.finding.remedy);
        fallback.source.clone_from(&conflict.finding.source);
    } else if let Some(root) = reports.iter().find(|each| each.is_root) {
        fallback.cause.clone_from(&root.finding.cause);
        if root.finding.remedy.is_some() {
            fallback.remedy.clone_from(&root.finding.remedy);
        }
        fallback.source.clone_from(&root.finding.source);
    }
    let evidence = reports.into_iter().flat_map(|each| each.finding.evidence.into_iter().take(1));
    fallback.evidence.splice(0..0, evidence.take(CONSEQUENCES));
    fallback.occurrences = fallback.evidence.len() as u64;
}

/// The first message of each cascade.
fn consequences(cascades: Vec<Placed>) -> Vec<Evidence> {
    cascades
        .into_iter()
        .filter_map(|each| each.finding.evidence.into_iter().next())
        .take(CONSEQUENCES)
        .collect()
}

/// Returns true unless the root is known to be later. Lines of several files have no common order, unless they have times in
/// one format.
fn is_earlier(root: Option<&Example>, cascade: Option<&Example>) -> bool {
    let (Some(root), Some(cascade)) = (root, cascade) else { return true };
    if root.position.input == cascade.position.input {
        return root.position <= cascade.position;
    }
    let time = |example: &Example| example.time.as_deref().and_then(Time::of);
    match (time(root), time(cascade)) {
        (Some(root), Some(cascade)) if root.zone == cascade.zone => {
            // A time without parts of a second can be anywhere in its second.
            let length = root.clock.len().min(cascade.clock.len());
            root.clock.get(..length) <= cascade.clock.get(..length)
        }
        _ => true,
    }
}

/// A time of the form `2025-12-28 16:04:25.123`, which sorts as text.
struct Time {
    /// Date and time, with a space between them.
    clock: String,
    /// The text after it: `Z`, `+09:00`, or nothing.
    zone: String,
}

impl Time {
    /// Reads a time; `None` for other forms, which do not sort, or lack the date.
    fn of(text: &str) -> Option<Self> {
        const FORM: &[u8] = b"0000-00-00 00:00:00";
        let is_like = |(form, byte): (&u8, &u8)| match form {
            b'0' => byte.is_ascii_digit(),
            b' ' => matches!(byte, b' ' | b'T'),
            form => form == byte,
        };
        let bytes = text.as_bytes();
        if bytes.len() < FORM.len() || !FORM.iter().zip(bytes).all(is_like) {
            return None;
        }
        let (clock, rest) = text.split_at_checked(FORM.len())?;
        let part = rest.strip_prefix(['.', ',']).unwrap_or_default();
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let zone = if digits > 0 { part.get(digits..)? } else { rest };
        let dot = if digits > 0 { "." } else { "" };
        Some(Self {
            clock: format!("{}{dot}{}", clock.replace('T', " "), part.get(..digits)?),
            zone: zone.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::digest::Position;

    #[test]
    fn times_of_several_files_are_compared_only_in_one_format() {
        let example = |input: usize, line: u64, time: &str| Example {
            position: Position { input, line },
            time: Some(time.to_owned()),
            ..Example::default()
        };
        let earlier =
            |root: &str, cascade: &str| is_earlier(Some(&example(0, 1, root)), Some(&example(1, 1, cascade)));
        assert!(earlier("2025-12-28 16:04:25", "2025-12-28 16:04:26"));
        assert!(!earlier("2025-12-28 16:04:27", "2025-12-28 16:04:26"));
        assert!(!earlier("2025-12-28T16:04:25.9Z", "2025-12-28T16:04:25.123Z"));
        assert!(earlier("2025-12-28 16:04:25.9", "2025-12-28 16:04:25"));
        // The order is not known.
        for (root, cascade) in [
            ("Tue Nov 24 13:42:01 2026", "2026-11-24 13:42:00"),
            ("Wed Nov 25 13:42:01 2026", "Tue Nov 24 13:42:01 2026"),
            ("2026-11-24T13:42:01+09:00", "2026-11-24T13:42:00Z"),
            ("13:48:01.36", "13:48:00.36"),
            ("999.5", "123.4"),
        ] {
            assert!(earlier(root, cascade), "{root} {cascade}");
        }
        // In one file, the position tells.
        let (first, second) = (example(0, 1, "2025-12-28 16:04:27"), example(0, 2, "2025-12-28 16:04:26"));
        assert!(is_earlier(Some(&first), Some(&second)) && !is_earlier(Some(&second), Some(&first)));
    }
}
