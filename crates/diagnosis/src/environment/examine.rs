//! The examination of an environment.

use std::collections::BTreeSet;
use std::fmt::Display;

use semver::Version;
use serde::Serialize;
use serde_json::json;

use super::collection::Collection;
use super::files::judge_missing_file;
use super::judge::{Judged, Verdict, judge_variable};
use super::knowledge::VerdictKind;
use super::names;
use super::network::Network;
use super::pairs::find_contradictions;
use super::setting::Setting;
use super::situation::Situation;
use crate::examination::{Body, Examination, Section};
use crate::finding::{Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::words::{counted, plural};

/// The answer of a loaded NCCL (`ncclParamGetAllParameterKeys`, `ncclParamGetParameter`, 2.30.4 and later).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Version and path of the library.
    pub library: String,
    /// Names and values in effect.
    pub parameters: Vec<(String, String)>,
}

/// Judges the variables of a collection. `network` describes the host of their use, and `answer` the NCCL of
/// this process, if they are the variables of this process.
pub fn examine_variables(
    collection: &Collection,
    situation: &Situation,
    network: Option<&Network>,
    answer: Option<&Answer>,
) -> Examination {
    let is_set = |name: &str| collection.settings.iter().any(|setting| setting.name == name);
    let judged: Vec<Judged> = collection
        .settings
        .iter()
        .map(|setting| {
            let mut judged = judge_variable(setting, situation, &is_set);
            let unjudged = judged.verdicts.iter_mut().filter(|verdict| verdict.kind == VerdictKind::Unjudged);
            for verdict in unjudged.filter(|_| collection.is_measured) {
                verdict.severity = None;
            }
            // A bad value explains most of the missing names in it.
            let bad = judged
                .worst_verdict()
                .filter(|worst| worst.kind == VerdictKind::Invalid)
                .and_then(|worst| worst.severity);
            let on_host = match collection.without_file.contains(&setting.name) {
                true => Some(judge_missing_file(setting)),
                false => network.and_then(|network| network.check_names(setting, situation)),
            };
            if let Some(verdict) = on_host.filter(|verdict| bad.is_none() || verdict.severity < bad) {
                // Facts of the host are more exact than a rule.
                judged.verdicts.retain(|rule| {
                    let is_worse = rule.severity.is_some_and(|severity| Some(severity) < verdict.severity);
                    rule.kind == VerdictKind::Invalid || is_worse
                });
                judged.verdicts.push(verdict);
                judged.verdicts.sort_by_key(|verdict| verdict.severity.unwrap_or(Severity::Advice));
            }
            judged
        })
        .collect();
    let mut examination = Examination::new("environment");
    examination.findings = judged.iter().flat_map(findings_of_variable).collect();
    examination.findings.extend(collection.findings.iter().cloned());
    examination
        .findings
        .extend(collection.settings.iter().filter_map(|setting| find_conflict(setting, collection)));
    examination.findings.extend(find_contradictions(&collection.settings));
    examination.sort_findings();
    examination.unseen = collection.unseen.clone();
    examination.unseen.extend(state_assumptions(&judged, situation, collection));
    examination.proof = state_proof(&judged, &examination, situation, collection);
    if collection.is_partial {
        examination.proof.clear();
    }
    examination.sections = environment_sections(&judged, collection, situation, answer);
    examination.facts = json!({
        "situation": situation,
        "files": collection.files,
        "variables": judged,
        "overridden": collection.overridden,
        "nccl_answer": answer,
    });
    examination
}

/// Returns findings about a variable with a harmful or wrong value or a misspelt name, without advice about
/// other variables. `is_set` returns true for a variable that is set.
pub fn find_harm(setting: &Setting, situation: &Situation, is_set: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut judged = judge_variable(setting, situation, is_set);
    judged.verdicts.retain(|verdict| {
        matches!(verdict.kind, VerdictKind::Harmful | VerdictKind::Misspelt | VerdictKind::Invalid)
    });
    findings_of_variable(&judged)
}

/// Returns findings for the verdicts with something to do.
fn findings_of_variable(judged: &Judged) -> Vec<Finding> {
    let setting = &judged.setting;
    let finding = |verdict: &Verdict| {
        let severity = verdict.severity?;
        let text = format!("{}={}: {}", setting.name, setting.value, verdict.reason);
        Some(Finding {
            cause: judged.meaning.map(|meaning| match judged.default {
                Some(default) => format!("{}: {meaning} (default: {default})", setting.name),
                None => format!("{}: {meaning}", setting.name),
            }),
            remedy: verdict.remedy.clone(),
            evidence: vec![setting.cite_setting()],
            source: verdict.source.clone(),
            ..Finding::new(verdict.rule.clone(), severity, text)
        })
    };
    judged.verdicts.iter().filter_map(finding).collect()
}

/// Returns a finding about a variable set twice, with different values.
fn find_conflict(setting: &super::Setting, collection: &Collection) -> Option<Finding> {
    let other = collection
        .overridden
        .iter()
        .find(|other| other.name == setting.name && other.value != setting.value)?;
    let values: [(&str, &dyn Display); 5] = [
        ("name", &setting.name),
        ("value", &setting.value),
        ("place", &setting.place),
        ("other", &other.value),
        ("other_place", &other.place),
    ];
    Some(Finding { evidence: vec![other.cite_setting()], ..compose_finding("variable-set-twice", &values) })
}

/// Returns sentences about assumed versions, for versions that mattered.
fn state_assumptions(judged: &[Judged], situation: &Situation, collection: &Collection) -> Vec<String> {
    let components: BTreeSet<&str> = judged.iter().filter_map(|judged| judged.component).collect();
    let is_aws = situation.platform.as_ref().is_some_and(|platform| platform.has_word("aws"));
    let mut all = Vec::new();
    let mut assume = |name: &str, option: &str, version: Version| {
        all.push(format!(
            "the version of {name} is not known: {version}, the newest known, was assumed ({option} VERSION)"
        ));
    };
    if situation.nccl.is_none() && !collection.settings.is_empty() && !collection.is_host_only {
        assume("NCCL", "--nccl", situation.nccl_version());
    }
    let names_it = |judged: &Judged| {
        judged.setting.name == "NCCL_NET"
            && ["libfabric", "ofi"].contains(&judged.setting.value.trim().to_ascii_lowercase().as_str())
    };
    let with_efa = is_aws && !collection.settings.is_empty() || judged.iter().any(names_it);
    if situation.plugin.is_none() && (components.contains("aws-ofi-nccl") || with_efa) {
        assume("aws-ofi-nccl", "--plugin", situation.plugin_version());
    }
    if situation.libfabric.is_none() && components.contains("libfabric") {
        assume("libfabric", "--libfabric", situation.libfabric_version());
    }
    if situation.platform.is_none() && !collection.settings.is_empty() {
        all.push(
            "the machine is not known: rules about EC2 instances and DGX Spark were not applied (--platform \
             p5.48xlarge)"
                .to_owned(),
        );
    }
    all
}

fn state_proof(
    judged: &[Judged],
    examination: &Examination,
    situation: &Situation,
    collection: &Collection,
) -> Vec<String> {
    if examination.findings.iter().any(|finding| finding.severity != Severity::Advice) {
        return Vec::new();
    }
    let assumed = if situation.nccl.is_some() { "" } else { " (assumed)" };
    let software = match collection.is_host_only {
        true => format!("libfabric {}", situation.libfabric_version()),
        false => format!("NCCL {}{assumed}", situation.nccl_version()),
    };
    match judged.len() {
        0 if collection.is_host_only => {
            vec!["no variable of libfabric is set: its defaults hold".to_owned()]
        }
        0 => vec!["no variable of NCCL, its plugins or libfabric is set: their defaults hold".to_owned()],
        count => {
            let (noun, verb) = if count == 1 { ("variable", "is") } else { ("variables", "are") };
            let known = if count == 1 { "known" } else { "all known" };
            let harm = match examination.findings.len() {
                0 => "none is harmful".to_owned(),
                advice => format!(
                    "none is known to break a job; {} {} a change",
                    counted(advice, "finding"),
                    plural(advice, "advises", "advise")
                ),
            };
            vec![format!(
                "{count} {noun} {verb} set, {known} to {software} or the software that reads them; {harm}"
            )]
        }
    }
}

fn environment_sections(
    judged: &[Judged],
    collection: &Collection,
    situation: &Situation,
    answer: Option<&Answer>,
) -> Vec<Section> {
    let version = |own: &Option<Version>, judged: Version| match own {
        Some(version) => version.to_string(),
        None => format!("{judged} (assumed)"),
    };
    let platform = situation.platform.as_ref().map_or("not known", |platform| platform.name.as_str());
    let mut facts = Vec::new();
    if !collection.is_host_only {
        facts.push(("NCCL".to_owned(), version(&situation.nccl, situation.nccl_version())));
        facts.push(("aws-ofi-nccl".to_owned(), version(&situation.plugin, situation.plugin_version())));
    }
    facts.push(("libfabric".to_owned(), version(&situation.libfabric, situation.libfabric_version())));
    facts.push(("machine".to_owned(), platform.to_owned()));
    if !collection.files.is_empty() {
        facts.push(("files".to_owned(), collection.files.join(", ")));
    }
    let mut sections = vec![Section { title: "Judged for".to_owned(), body: Body::Facts(facts) }];
    if !judged.is_empty() {
        let row = |judged: &Judged| {
            let setting = &judged.setting;
            vec![
                setting.name.clone(),
                setting.value.clone(),
                setting.place.to_string(),
                judgement_word(judged),
            ]
        };
        let rows = judged.iter().map(row).collect();
        sections.push(build_table("Variables", &["variable", "value", "from", "judgement"], rows));
    }
    if !collection.overridden.is_empty() {
        let row = |it: &super::Setting| vec![it.name.clone(), it.value.clone(), it.place.to_string()];
        let rows = collection.overridden.iter().map(row).collect();
        sections.push(build_table("Not in effect", &["variable", "value", "from"], rows));
    }
    if let Some(answer) = answer {
        let row = |(name, value): &(String, String)| {
            let is_listed = if names::find_name(name).is_some() { "yes" } else { "no" };
            let value = if value.is_empty() { "(empty)" } else { value };
            vec![name.clone(), value.to_owned(), is_listed.to_owned()]
        };
        let rows = answer.parameters.iter().map(row).collect();
        let title = format!("Values in effect, by {}", answer.library);
        sections.push(build_table(&title, &["parameter", "value", "in the table"], rows));
    }
    sections
}

fn build_table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Section {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    Section { title: title.to_owned(), body: Body::Table { columns, rows } }
}

/// Returns the judgement for the table, with the reason if no finding contains it.
fn judgement_word(judged: &Judged) -> String {
    let Some(worst) = judged.worst_verdict() else { return String::new() };
    match (worst.severity, worst.kind) {
        // The proof also says so.
        (Some(Severity::Advice), VerdictKind::Harmful) => "questionable".to_owned(),
        (Some(_), kind) | (None, kind @ VerdictKind::Plain) => kind.word_for_people().to_owned(),
        (None, kind) => format!("{}: {}", kind.word_for_people(), worst.reason),
    }
}
