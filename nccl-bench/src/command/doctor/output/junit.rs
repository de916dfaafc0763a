//! The examinations as JUnit XML: a test suite per examination, a test case for the proofs and per finding,
//! named by its rule. The names stay the same in all runs.
//!
//! Broken and degraded are failures. An unknown warning, and an examination without proof, are errors:
//! pipelines treat a skipped case as a success, and nothing may pass without proof.

use diagnosis::examination::{Examination, Health};
use diagnosis::finding::{Finding, Severity};

use crate::command::markup::escape_xml;

/// The outcome of a test case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CaseOutcome {
    Passed,
    Failed,
    Error,
}

/// A test case.
struct Case {
    name: String,
    outcome: CaseOutcome,
    message: String,
    kind: String,
    detail: String,
}

/// Returns the whole file.
pub(super) fn render_junit(examinations: &[Examination]) -> String {
    let suites: Vec<(String, Vec<Case>)> = examinations
        .iter()
        .map(|examination| (format!("doctor.{}", examination.subject), list_cases(examination)))
        .collect();
    let all = suites.iter().flat_map(|(_, cases)| cases);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}<testsuites name=\"nccl-bench doctor\" {}>\n",
        super::MARK,
        attributes_of_counts(all)
    );
    for (name, cases) in &suites {
        text +=
            &format!("<testsuite name=\"{}\" {}>\n", escape_xml(name), attributes_of_counts(cases.iter()));
        text.extend(cases.iter().map(|case| render_case(name, case)));
        text += "</testsuite>\n";
    }
    text + "</testsuites>\n"
}

/// Returns the attributes with the numbers of cases.
fn attributes_of_counts<'a>(cases: impl Iterator<Item = &'a Case>) -> String {
    let (mut tests, mut failures, mut errors) = (0, 0, 0);
    for case in cases {
        tests += 1;
        failures += u32::from(case.outcome == CaseOutcome::Failed);
        errors += u32::from(case.outcome == CaseOutcome::Error);
    }
    format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"0\" time=\"0\"")
}

/// Returns the cases of an examination: its proof, an unknown health, and its findings.
fn list_cases(examination: &Examination) -> Vec<Case> {
    let mut cases = Vec::new();
    if !examination.proof.is_empty() {
        cases.push(Case {
            name: "proof".to_owned(),
            outcome: CaseOutcome::Passed,
            message: String::new(),
            kind: "proof".to_owned(),
            detail: examination.proof.join("\n"),
        });
    }
    let unknown = examination.findings.iter().any(|finding| finding.severity == Severity::Unknown);
    if examination.health() == Health::CannotTell && !unknown {
        cases.push(Case {
            name: "health".to_owned(),
            outcome: CaseOutcome::Error,
            message: super::verdict_line(std::slice::from_ref(examination)),
            kind: "cannot tell".to_owned(),
            detail: examination.unseen.join("\n"),
        });
    }
    cases.extend(super::sort_findings(std::slice::from_ref(examination)).into_iter().map(finding_case));
    cases
}

/// Returns the case of a finding.
fn finding_case(finding: &Finding) -> Case {
    let outcome = match finding.severity {
        Severity::Broken | Severity::Degraded => CaseOutcome::Failed,
        Severity::Unknown => CaseOutcome::Error,
        Severity::Advice => CaseOutcome::Passed,
    };
    let mut detail = vec![finding.diagnosis.clone()];
    detail.extend(
        finding.evidence.iter().map(|each| format!("{}: {}", super::evidence_place(each), each.text)),
    );
    let named = [
        ("Concerns", super::ranks_and_hosts(finding)),
        ("Cause", finding.cause.clone()),
        ("Remedy", finding.remedy.clone()),
    ];
    detail.extend(named.into_iter().filter_map(|(name, text)| Some(format!("{name}: {}", text?))));
    Case {
        name: finding.rule.clone(),
        outcome,
        message: finding.diagnosis.clone(),
        kind: finding.severity.to_string(),
        detail: detail.join("\n"),
    }
}

/// Returns the XML element of a case.
fn render_case(suite: &str, case: &Case) -> String {
    let start = format!(
        "<testcase classname=\"{}\" name=\"{}\" time=\"0\"",
        escape_xml(suite),
        escape_attribute(&case.name)
    );
    let detail = escape_xml(&case.detail);
    match case.outcome {
        CaseOutcome::Passed if detail.is_empty() => format!("{start}/>\n"),
        CaseOutcome::Passed => format!("{start}><system-out>{detail}</system-out></testcase>\n"),
        CaseOutcome::Failed | CaseOutcome::Error => {
            let tag = if case.outcome == CaseOutcome::Failed { "failure" } else { "error" };
            let (message, kind) = (escape_attribute(&case.message), escape_xml(&case.kind));
            format!("{start}>\n<{tag} message=\"{message}\" type=\"{kind}\">{detail}</{tag}>\n</testcase>\n")
        }
    }
}

/// Escapes a text for an attribute. Attributes in XML have no line breaks.
fn escape_attribute(text: &str) -> String {
    escape_xml(&text.replace(['\n', '\t', '\r'], " "))
}
