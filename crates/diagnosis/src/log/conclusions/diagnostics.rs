//! Findings from NCCL's own diagnostics: the lines `NCCL DIAG [INFO]` of 2.31 and later.
//!
//! With this status NCCL marks lines for a review. A transfer between GPUs with a failed verification breaks
//! the job. Every other line of this status becomes advice with its text, and a line of another status
//! becomes an unknown warning.

use std::collections::{BTreeMap, BTreeSet};

use super::hits::Placed;
use super::job::Job;
use crate::finding::Finding;
use crate::knowledge::rules::{Origin, Rules};
use crate::knowledge::texts::compose_finding;
use crate::log::digest::DiagnosticLine;

/// Largest number of lines quoted by a finding.
const LINES: usize = 4;

/// Returns one finding for each check with a report.
pub(super) fn find_reported_checks(job: &Job<'_>, rules: &Rules) -> Vec<Placed> {
    let mut by_check: BTreeMap<&str, Vec<&DiagnosticLine>> = BTreeMap::new();
    for line in &job.digest.diagnostics {
        let is_told = || {
            let message = format!("[{}] {}", line.status, line.text);
            rules.find_rule(message.as_bytes(), Origin::Nccl).is_some()
        };
        if !line.status.is_empty() && line.status != "OK" && !is_told() {
            let check = line.text.split_once(':').map_or("", |(check, _)| check);
            by_check.entry(check).or_default().push(line);
        }
    }
    by_check
        .into_iter()
        .map(|(check, lines)| Placed::without_line(describe_check(job, check, &lines)))
        .collect()
}

fn describe_check(job: &Job<'_>, check: &str, lines: &[&DiagnosticLine]) -> Finding {
    let number = |text: &str, name: &str| -> Option<u32> {
        let rest = text.split_once(name)?.1;
        rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
    };
    let named = |line: &&DiagnosticLine| {
        ["srcRank=", "dstRank="].into_iter().filter_map(|name| number(&line.text, name)).collect::<Vec<_>>()
    };
    let ranks: BTreeSet<u32> = lines.iter().flat_map(named).collect();
    let hosts = ranks.iter().filter_map(|&rank| Some(job.main?.members.get(&rank)?.writer));
    let hosts = job.hosts_of_writers(hosts);
    let failed = lines.iter().filter(|line| has_failed(&line.text)).collect::<Vec<_>>();
    let text = |line: Option<&DiagnosticLine>| line.map_or(String::new(), |line| line.text.clone());
    let base = if check == "p2p" && !failed.is_empty() {
        let text = text(failed.first().map(|line| **line));
        compose_finding("nccl-diagnostics-p2p", &[("text", &without_check(&text))])
    } else {
        let is_info = lines.iter().all(|line| line.status == "INFO");
        let id = if is_info { "nccl-diagnostics/info" } else { "nccl-diagnostics" };
        compose_finding(id, &[("text", &text(lines.first().copied()))])
    };
    Finding {
        ranks: ranks.into_iter().collect(),
        hosts,
        evidence: lines
            .iter()
            .take(LINES)
            .map(|line| job.cite_line(line.position, None, line.text.clone()))
            .collect(),
        occurrences: lines.len() as u64,
        ..base
    }
}

/// Returns true for lines about a failed transfer, false for a check that did not run.
fn has_failed(text: &str) -> bool {
    let others =
        [" check returned ", "reason=indirect", "local CUDA setup failed", "destination buffer unavailable"];
    !is_missing(text) && !others.iter().any(|words| text.contains(words))
}

/// Returns true for lines about a check that could not run here.
fn is_missing(text: &str) -> bool {
    ["unavailable via", "skipped", "not supported"].iter().any(|words| text.contains(words))
}

/// Returns the text after the name of the check.
fn without_check(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(_, rest)| rest)
}
