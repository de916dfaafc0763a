//! Findings from messages known to rules, and from unknown warnings. A message about an effect of an earlier
//! failure is shown as its consequence.

use std::collections::BTreeSet;

use super::context;
use super::job::Job;
use crate::finding::{Evidence, Finding, Role, Severity};
use crate::knowledge::parts::{Part, find_part};
use crate::knowledge::rules::{Origin, Rule, Rules, Use};
use crate::log::digest::{Example, Hit};
use crate::log::line::CUDA_CALL;

/// Longest quote of a message in a diagnosis, in characters.
const QUOTE: usize = 150;

/// Largest number of consequences in a finding.
const CONSEQUENCES: usize = 6;

/// A finding with the place of its beginning.
pub(super) struct Placed {
    pub(super) finding: Finding,
    /// The first messages. Empty for a conclusion not shown by a single line.
    pub(super) examples: Vec<Example>,
    /// Indices of the writers of all messages.
    pub(super) writers: BTreeSet<usize>,
    /// The finding can be the cause of later findings.
    pub(super) is_root: bool,
    /// The message stands after messages about its effects.
    pub(super) is_reported_late: bool,
    /// The finding follows from an earlier failure.
    pub(super) is_cascade: bool,
    /// The failure's best description if its cause is not in the log.
    pub(super) is_lead: bool,
    /// The finding is about an unusable network.
    pub(super) is_of_network: bool,
    /// The message says less than another one about the same failure.
    pub(super) is_vague: bool,
    /// The message is about the end of another process.
    pub(super) is_aftermath: bool,
    /// The message is of a rank that waited for others in vain.
    pub(super) is_waiting: bool,
    /// The message has only the class of NCCL's error.
    pub(super) is_class: bool,
}

impl Placed {
    /// Creates a conclusion not shown by a single line.
    pub(super) fn without_line(finding: Finding) -> Self {
        Self {
            finding,
            examples: Vec::new(),
            writers: BTreeSet::new(),
            is_root: false,
            is_reported_late: false,
            is_cascade: false,
            is_lead: false,
            is_of_network: false,
            is_vague: false,
            is_aftermath: false,
            is_waiting: false,
            is_class: false,
        }
    }

    /// Creates a conclusion that explains later failures.
    pub(super) fn derived_root(finding: Finding) -> Self {
        Self { is_root: true, ..Self::without_line(finding) }
    }

    /// Returns true for a failure, as a cause or a consequence.
    pub(super) fn is_failure(&self) -> bool {
        self.is_root || self.is_cascade || self.finding.severity == Severity::Broken
    }

    /// Returns the first message.
    pub(super) fn first_example(&self) -> Option<&Example> {
        self.examples.first()
    }
}

/// Returns the findings of the hits and of the unknown warnings.
pub(super) fn find_known_messages(job: &Job<'_>, rules: &Rules, proven: &BTreeSet<Use>) -> Vec<Placed> {
    let known = job.digest.hits.iter().filter_map(|hit| rules.rule_by_id(&hit.rule).map(|rule| (hit, rule)));
    let known = known.filter_map(|(hit, rule)| Some((hit, context::choose_case(job, rules, rule)?)));
    let known = known.filter(|(_, rule)| !rule.denies.is_some_and(|denied| proven.contains(&denied)));
    let mut found: Vec<Placed> = known.filter_map(|(hit, rule)| from_hit(job, hit, rule)).collect();
    found.extend(job.digest.unknown.iter().map(|unknown| {
        let text = unknown.examples.first().map(|example| example.text.trim().to_owned()).unwrap_or_default();
        let told = if text.is_empty() { "a warning without text, or one that was cut" } else { &text };
        let (rule, verb) = match unknown.is_error {
            true => ("unknown-error", "reports an error"),
            false => ("unknown-warning", "warns"),
        };
        let part = unknown.examples.iter().find_map(|example| find_part(&example.place));
        let place = part.map(|part| format!(" in {}", part.name)).unwrap_or_default();
        let finding = Finding {
            cause: part.map(|part| part.cause.clone()),
            remedy: part.map(|part| part.remedy.clone()),
            ranks: ranks_of_messages(job, &unknown.writers, &unknown.examples),
            hosts: job.hosts_of_writers(unknown.writers.iter().copied()),
            evidence: unknown.examples.iter().map(|example| job.cite_example(example)).collect(),
            occurrences: unknown.count,
            ..Finding::new(rule, Severity::Unknown, format!("NCCL {verb}{place}: {told}"))
        };
        let (examples, writers) = (unknown.examples.clone(), unknown.writers.clone());
        let is_of_network = examples.first().is_some_and(is_of_network);
        Placed { is_of_network, examples, writers, ..Placed::without_line(finding) }
    }));
    found
}

/// Returns the finding of a hit, or none for a message without a problem.
fn from_hit(job: &Job<'_>, hit: &Hit, rule: &Rule) -> Option<Placed> {
    if matches!(rule.role, Role::Harmless | Role::Confirmation) || !rule_applies(job, hit, rule) {
        return None;
    }
    let mut placed = place_hit(job, hit, rule);
    if rule.step && context::goes_on(job, hit) {
        (placed.is_root, placed.is_cascade, placed.finding.severity) = (false, false, Severity::Advice);
        placed.finding.diagnosis = format!("A step failed, and the process went on: {}", rule.diagnosis);
        let cause = "NCCL did without it, or succeeded in another way: later lines of the process show it.";
        (placed.finding.cause, placed.finding.remedy) = (Some(cause.to_owned()), None);
    }
    Some(placed)
}

/// Returns the diagnosis with the ranks that the messages list.
pub(super) fn add_roll(diagnosis: &str, hit: &Hit) -> String {
    match hit.roll.describe() {
        Some(listed) => format!("{} ({listed}).", diagnosis.trim_end_matches('.')),
        None => diagnosis.to_owned(),
    }
}

/// Returns the diagnosis of a hit, with the listed ranks, the part of NCCL, and the words that the rule
/// quotes from the message.
fn compose_diagnosis(hit: &Hit, rule: &Rule, part: Option<&Part>) -> String {
    let mut diagnosis = add_roll(&rule.diagnosis, hit);
    let plain = |text: &str| text.trim_end_matches('.').to_owned();
    if let Some(part) = part {
        diagnosis = format!("{}, in {}.", plain(&diagnosis), part.name);
    }
    let quotes = quote_messages(hit, rule);
    if quotes.is_empty() { diagnosis } else { format!("{}: {quotes}", plain(&diagnosis)) }
}

/// Returns the words that the rule quotes from the first message, and different words of the next ones as far
/// as there is room.
fn quote_messages(hit: &Hit, rule: &Rule) -> String {
    let Some(pattern) = &rule.quote else { return String::new() };
    let mut quotes: Vec<String> = Vec::new();
    for example in &hit.examples {
        let groups = pattern.groups(&example.text);
        let groups: Vec<&str> = groups.into_iter().map(str::trim).filter(|group| !group.is_empty()).collect();
        let quote = groups.join(", ");
        let length = quotes.iter().map(String::len).sum::<usize>() + quote.len();
        if !quote.is_empty() && !quotes.contains(&quote) && (quotes.is_empty() || length <= QUOTE) {
            quotes.push(quote);
        }
    }
    cut_quote(&quotes.join("; "))
}

/// Returns the beginning of a quote, with dots for what is left out.
pub(super) fn cut_quote(quote: &str) -> String {
    match quote.char_indices().nth(QUOTE) {
        Some((end, _)) => format!("{}...", &quote[..end]),
        None => quote.to_owned(),
    }
}

/// Returns the part of NCCL in which a call to CUDA failed, for a rule that does not know it.
fn find_failed_cuda_part(hit: &Hit, rule: &Rule) -> Option<&'static Part> {
    let of_cuda = |example: &&Example| rule.vague && example.text.as_bytes().starts_with(CUDA_CALL);
    let parts = hit.examples.iter().filter(of_cuda).map(|example| find_part(&example.place));
    parts.flatten().find(|part| !part.shared)
}

/// Returns the finding of a hit, with its place.
fn place_hit(job: &Job<'_>, hit: &Hit, rule: &Rule) -> Placed {
    let part = find_failed_cuda_part(hit, rule);
    let finding = Finding {
        cause: part.map_or_else(|| rule.cause.clone(), |part| Some(part.cause.clone())),
        remedy: part.map_or_else(|| rule.remedy.clone(), |part| Some(part.remedy.clone())),
        action: rule.action,
        ranks: ranks_of_messages(job, &hit.writers, &hit.examples),
        hosts: job.hosts_of_writers(hit.writers.iter().copied()),
        evidence: hit.examples.iter().map(|example| job.cite_example(example)).collect(),
        occurrences: hit.count,
        source: Some(rule.source.clone()),
        ..Finding::new(rule.id.clone(), rule.severity, compose_diagnosis(hit, rule, part))
    };
    let examples = hit.examples.clone();
    Placed {
        is_root: rule.role == Role::Root && rule.severity == Severity::Broken,
        is_reported_late: rule.origin == Origin::Kernel || rule.reported_late,
        is_of_network: examples.first().is_some_and(is_of_network),
        is_cascade: rule.role == Role::Cascade,
        is_vague: rule.vague,
        is_aftermath: rule.aftermath,
        is_waiting: rule.waits,
        is_class: rule.class,
        examples,
        writers: hit.writers.clone(),
        ..Placed::without_line(finding)
    }
}

/// Returns the ranks of messages: the ranks of the writers, else the ranks in a launcher's prefixes.
fn ranks_of_messages(job: &Job<'_>, writers: &BTreeSet<usize>, examples: &[Example]) -> Vec<u32> {
    let of_writers = job.ranks_of_writers(writers.iter().copied());
    if !of_writers.is_empty() {
        return of_writers;
    }
    let named: BTreeSet<u32> = examples.iter().filter_map(|example| example.rank).collect();
    named.into_iter().collect()
}

/// Returns true unless the rule excludes the NCCL versions of all writers of the hit.
fn rule_applies(job: &Job<'_>, hit: &Hit, rule: &Rule) -> bool {
    let mut writers = hit.writers.iter().filter_map(|&index| job.writer(index)).peekable();
    writers.peek().is_none() || writers.any(|writer| rule.applies_to(writer.nccl.as_ref()))
}

/// Returns true for messages of networks and their plugins.
fn is_of_network(example: &Example) -> bool {
    ["NET/OFI", "NET/Plugin", "NET/IB"].iter().any(|prefix| example.text.starts_with(prefix))
}

/// Moves reports of a network's plugin into the finding that this network is not used. The rule of the first
/// such message has the exact cause. Confirmations are not findings by themselves, and become evidence.
pub(super) fn absorb_network(job: &Job<'_>, rules: &Rules, fallback: &mut Finding, found: &mut Vec<Placed>) {
    let is_network = |each: &mut Placed| each.is_of_network && each.finding.severity != Severity::Advice;
    let mut reports: Vec<Placed> = found.extract_if(.., is_network).collect();
    let known = job.digest.hits.iter().filter_map(|hit| rules.rule_by_id(&hit.rule).map(|rule| (hit, rule)));
    let confirmations =
        known.filter(|(hit, rule)| rule.role == Role::Confirmation && rule_applies(job, hit, rule));
    reports
        .extend(confirmations.map(|(hit, rule)| place_hit(job, hit, rule)).filter(|each| each.is_of_network));
    reports.sort_by_key(|each| each.first_example().map(|example| example.position));
    if let Some(conflict) = reports.iter().find(|each| each.examples.is_empty()) {
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

/// Returns the first message of each cascade.
pub(super) fn cite_consequences(cascades: Vec<Placed>) -> Vec<Evidence> {
    cascades
        .into_iter()
        .filter_map(|each| each.finding.evidence.into_iter().next())
        // The last line of a process that stopped can be a normal one.
        .filter(|evidence| !evidence.text.starts_with("Channel "))
        .take(CONSEQUENCES)
        .collect()
}
