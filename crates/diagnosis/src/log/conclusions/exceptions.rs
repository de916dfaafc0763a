//! Conclusions from the tracebacks of Python.

use super::hits::{Placed, cut_quote};
use super::job::Job;
use super::start;
use crate::finding::{Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::log::digest::{Example, Traceback};
use crate::log::exceptions::HEAD_RULE;

/// The rule about exceptions of any kind.
const GENERIC: &str = "python-exception";

/// Lines between a launcher's message about a failed process and the launcher's own traceback.
const BELOW: u64 = 3;

/// Reports an exception in place of its traceback. Without another failure, the first exception with which a
/// process ended is the failure.
pub(super) fn judge_exceptions(job: &Job<'_>, found: &mut Vec<Placed>) {
    let tracebacks = &job.digest.tracebacks;
    let head = take_explained_heads(tracebacks, found);
    if start::has_failure(found) {
        return;
    }
    let Some(end) = tracebacks.iter().find(|each| each.is_end) else { return };
    let is_of_end = |each: &Placed| each.examples.iter().any(|example| example.position == end.exception);
    let own = found.iter().position(is_of_end);
    if let Some(own) = own.filter(|&own| found[own].finding.rule != GENERIC) {
        let own = &mut found[own];
        if own.finding.severity == Severity::Unknown && !own.is_aftermath {
            (own.is_root, own.finding.severity) = (true, Severity::Broken);
        }
        return;
    }
    if end.rule.as_ref().is_some_and(|rule| rule != GENERIC) {
        return;
    }
    let text = cut_quote(&end.text);
    let generic = found.iter().position(|each| each.finding.rule == GENERIC).map(|at| found.remove(at));
    let cited = job.cite_line(end.exception, None, end.text.clone());
    let (examples, finding) = match generic {
        Some(each) => (each.examples, each.finding),
        None => (Vec::new(), Finding::new(GENERIC, Severity::Broken, String::new())),
    };
    let texts = compose_finding("python-ended", &[("text", &text)]);
    let line = end.exception;
    let mut others = finding.evidence;
    others.retain(|evidence| evidence.text != cited.text);
    let evidence = [cited].into_iter().chain(others).chain(head.map(|example| job.cite_example(&example)));
    let finding = Finding {
        evidence: evidence.collect(),
        ranks: finding.ranks,
        hosts: finding.hosts,
        occurrences: finding.occurrences.max(1),
        ..texts
    };
    let examples = examples.into_iter().filter(|example| example.position >= line).collect();
    found.push(Placed { examples, ..Placed::derived_root(finding) });
}

/// Removes the finding about tracebacks if an exception known to a rule ends each of them, or if they are a
/// launcher's own. Returns the first head.
fn take_explained_heads(tracebacks: &[Traceback], found: &mut Vec<Placed>) -> Option<Example> {
    let at = found.iter().position(|each| each.finding.rule == HEAD_RULE)?;
    let heads = &found[at];
    let is_of_launcher = |head: &Example| {
        let failed = found.iter().filter(|each| each.is_cascade || each.is_root);
        failed.flat_map(|each| &each.examples).any(|example| {
            let lines = head.position.line.checked_sub(example.position.line);
            example.position.input == head.position.input
                && example.text.contains("(exitcode: ")
                && lines.is_some_and(|lines| lines <= BELOW)
        })
    };
    let count = heads.finding.occurrences;
    let explained = tracebacks.iter().filter(|each| each.rule.is_some() || each.is_end).count() as u64;
    let is_whole = count == heads.examples.len() as u64;
    if explained >= count || is_whole && heads.examples.iter().all(is_of_launcher) {
        return found.remove(at).examples.into_iter().next();
    }
    None
}

#[cfg(test)]
mod tests;
