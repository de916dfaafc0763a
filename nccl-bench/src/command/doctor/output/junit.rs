//! The examinations as JUnit XML: a test suite per examination, a test case for the proofs and per finding,
//! named by its rule. The names stay the same in all runs.
//!
//! Broken and degraded are failures. An unknown warning, and an examination without proof, are errors:
//! pipelines treat a skipped case as a success, and nothing may pass without proof.

use diagnosis::examination::{Examination, Health};
use diagnosis::finding::{Finding, Severity};

use crate::command::markup::escaped;

/// The outcome of a test case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Error,
}

/// A test case.
struct Case {
    name: String,
    outcome: Outcome,
    message: String,
    kind: String,
    detail: String,
}

/// Returns the whole file.
pub(super) fn write(examinations: &[Examination]) -> String {
    let suites: Vec<(String, Vec<Case>)> = examinations
        .iter()
        .map(|examination| (format!("doctor.{}", examination.subject), cases(examination)))
        .collect();
    let all = suites.iter().flat_map(|(_, cases)| cases);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}<testsuites name=\"nccl-bench doctor\" {}>\n",
        super::MARK,
        counts(all)
    );
    for (name, cases) in &suites {
        text += &format!("<testsuite name=\"{}\" {}>\n", escaped(name), counts(cases.iter()));
        text.extend(cases.iter().map(|case| element(name, case)));
        text += "</testsuite>\n";
    }
    text + "</testsuites>\n"
}

/// Returns the attributes with the numbers of cases.
fn counts<'a>(cases: impl Iterator<Item = &'a Case>) -> String {
    let (mut tests, mut failures, mut errors) = (0, 0, 0);
    for case in cases {
        tests += 1;
        failures += u32::from(case.outcome == Outcome::Failed);
        errors += u32::from(case.outcome == Outcome::Error);
    }
    format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"0\" time=\"0\"")
}

/// Returns the cases of an examination: its proof, an unknown health, and its findings.
fn cases(examination: &Examination) -> Vec<Case> {
    let mut cases = Vec::new();
    if !examination.proof.is_empty() {
        cases.push(Case {
            name: "proof".to_owned(),
            outcome: Outcome::Passed,
            message: String::new(),
            kind: "proof".to_owned(),
            detail: examination.proof.join("\n"),
        });
    }
    let unknown = examination.findings.iter().any(|finding| finding.severity == Severity::Unknown);
    if examination.health() == Health::CannotTell && !unknown {
        cases.push(Case {
            name: "health".to_owned(),
            outcome: Outcome::Error,
            message: super::verdict(std::slice::from_ref(examination)),
            kind: "cannot tell".to_owned(),
            detail: examination.unseen.join("\n"),
        });
    }
    cases.extend(super::sorted(std::slice::from_ref(examination)).into_iter().map(finding));
    cases
}

/// Returns the case of a finding.
fn finding(finding: &Finding) -> Case {
    let outcome = match finding.severity {
        Severity::Broken | Severity::Degraded => Outcome::Failed,
        Severity::Unknown => Outcome::Error,
        Severity::Advice => Outcome::Passed,
    };
    let mut detail = vec![finding.diagnosis.clone()];
    detail.extend(finding.evidence.iter().map(|each| format!("{}: {}", super::place(each), each.text)));
    let named = [
        ("Concerns", super::concerned(finding)),
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
fn element(suite: &str, case: &Case) -> String {
    let start =
        format!("<testcase classname=\"{}\" name=\"{}\" time=\"0\"", escaped(suite), attribute(&case.name));
    let detail = escaped(&case.detail);
    match case.outcome {
        Outcome::Passed if detail.is_empty() => format!("{start}/>\n"),
        Outcome::Passed => format!("{start}><system-out>{detail}</system-out></testcase>\n"),
        Outcome::Failed | Outcome::Error => {
            let tag = if case.outcome == Outcome::Failed { "failure" } else { "error" };
            let (message, kind) = (attribute(&case.message), escaped(&case.kind));
            format!("{start}>\n<{tag} message=\"{message}\" type=\"{kind}\">{detail}</{tag}>\n</testcase>\n")
        }
    }
}

/// Escapes a text for an attribute. Attributes in XML have no line breaks.
fn attribute(text: &str) -> String {
    escaped(&text.replace(['\n', '\t', '\r'], " "))
}
