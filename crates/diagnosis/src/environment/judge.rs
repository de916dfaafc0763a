//! The judgement about a variable.

use std::borrow::Cow;

use serde::Serialize;

use super::bad_value::BadValue;
use super::knowledge::{self, Form, Variable, VariableRule, VerdictKind};
use super::names::{self, Name, NotInVersion, ValueForm, VariableReader};
use super::number;
use super::setting::Setting;
use super::situation::Situation;
use super::value;
use crate::finding::Severity;

/// A verdict with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The verdict.
    pub kind: VerdictKind,
    /// Effect on the health, or `None` if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Stable name of the rule.
    pub rule: String,
    /// The reason in a sentence.
    pub reason: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Source of the knowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A variable with the verdicts about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// The variable.
    #[serde(flatten)]
    pub setting: Setting,
    /// Software that reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<&'static str>,
    /// Meaning in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meaning: Option<&'static str>,
    /// Default in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<&'static str>,
    /// Verdicts, worst first, at least one.
    pub verdicts: Vec<Verdict>,
}

impl Judged {
    /// Returns the worst verdict.
    pub fn worst_verdict(&self) -> Option<&Verdict> {
        self.verdicts.first()
    }
}

/// Judges a variable. `is_set` returns true for a variable that is set.
pub(super) fn judge_variable(
    setting: &Setting,
    situation: &Situation,
    is_set: &dyn Fn(&str) -> bool,
) -> Judged {
    let name = names::find_name(&setting.name);
    let knowledge = knowledge::find_variable(&setting.name);
    let mut verdicts: Vec<Verdict> = match name {
        Some(name) => match name.reason_of_absence(situation) {
            Some(absence) => vec![verdict_of_absence(name, &absence, situation)],
            None => {
                let fault = value::check_value(name, knowledge, &setting.value, &situation.nccl_version());
                fault.into_iter().map(|fault| verdict_of_bad_value(name, fault)).collect()
            }
        },
        None if knowledge.is_none() => vec![judge_unlisted_variable(&setting.name, situation)],
        None => Vec::new(),
    };
    // Rules apply only to values accepted by their reader.
    let is_read = verdicts.iter().all(|verdict| verdict.severity == Some(Severity::Advice))
        && (verdicts.is_empty() || !setting.value.trim().is_empty());
    let rules = knowledge.map(|variable| variable.rule.as_slice()).unwrap_or_default();
    let value = normalize_value(name, knowledge, &setting.value);
    let rule = rules
        .iter()
        .filter(|_| name.is_none() || is_read)
        .find(|rule| rule.all_conditions_hold(&value, situation, is_set));
    verdicts.extend(rule.map(verdict_of_rule));
    if verdicts.is_empty() {
        verdicts.push(match name {
            Some(name) if name.content == ValueForm::Text && knowledge.is_none_or(checks_nothing) => {
                unjudged_verdict(name)
            }
            _ => plain_verdict(name, setting),
        });
    }
    verdicts.sort_by_key(|verdict| verdict.severity.map_or(u8::MAX, |severity| severity as u8));
    Judged {
        setting: setting.clone(),
        component: name.map(|name| name.component.name()),
        meaning: knowledge.map(|variable| variable.meaning.as_str()),
        default: knowledge.and_then(|variable| variable.default.as_deref()),
        verdicts,
    }
}

impl VerdictKind {
    /// Returns the effect on the health, for rules without one.
    fn default_severity(self) -> Option<Severity> {
        match self {
            Self::Harmful | Self::Invalid | Self::Misspelt | Self::Unknown | Self::OtherVersion => {
                Some(Severity::Degraded)
            }
            Self::Debugging | Self::Redundant | Self::NoEffect => Some(Severity::Advice),
            Self::Unjudged => Some(Severity::Unknown),
            Self::Needed | Self::Useful | Self::Tuning | Self::Foreign | Self::Plain => None,
        }
    }

    /// Returns the word for people.
    pub fn word_for_people(self) -> &'static str {
        match self {
            Self::Needed => "needed",
            Self::Useful => "useful",
            Self::Tuning => "tuning",
            Self::Debugging => "debugging only",
            Self::Redundant => "redundant",
            Self::NoEffect => "no effect",
            Self::Harmful => "harmful",
            Self::Invalid => "invalid value",
            Self::Misspelt => "misspelt",
            Self::Unknown => "unknown",
            Self::OtherVersion => "other version",
            Self::Foreign => "other program",
            Self::Plain => "known",
            Self::Unjudged => "not judged",
        }
    }
}

/// Returns true for knowledge without checks of values.
fn checks_nothing(variable: &Variable) -> bool {
    variable.form.is_none() && variable.rule.is_empty() && !variable.free
}

/// Returns the value for its reader: a number in decimal digits, in any notation.
fn normalize_value<'a>(name: Option<&Name>, knowledge: Option<&Variable>, value: &'a str) -> Cow<'a, str> {
    let form = knowledge.and_then(|variable| variable.form);
    let is_number = form == Some(Form::Number)
        || form.is_none()
            && name.is_some_and(|name| {
                name.component == VariableReader::Nccl && name.content == ValueForm::Number
            });
    match number::read_whole_number(value).filter(|_| is_number) {
        Some(number) => Cow::Owned(number.to_string()),
        None => Cow::Borrowed(value),
    }
}

fn verdict_of_rule(rule: &VariableRule) -> Verdict {
    Verdict {
        kind: rule.verdict,
        severity: rule.severity.or_else(|| rule.verdict.default_severity()),
        rule: rule.id.clone(),
        reason: rule.reason.clone(),
        remedy: rule.remedy.clone(),
        source: Some(rule.source.clone()),
    }
}

fn verdict_of_bad_value(name: &Name, fault: BadValue) -> Verdict {
    let BadValue { kind, severity, reason, remedy } = fault;
    let source = Some(name.component.source());
    Verdict { kind, severity: Some(severity), rule: "variable-value".to_owned(), reason, remedy, source }
}

fn verdict_of_absence(name: &Name, absence: &NotInVersion, situation: &Situation) -> Verdict {
    let component = name.component.name();
    let version =
        name.component.version_in_use(situation).map_or_else(String::new, |version| format!(" {version}"));
    let (reason, remedy) = match absence {
        NotInVersion::Since(since) => (
            format!("{component}{version} does not read it: it came with {since}"),
            format!("use {component} {since} or later, or unset {}", name.name),
        ),
        NotInVersion::Until(until) => (
            format!("{component}{version} does not read it: {until} was the last version that read it"),
            format!("unset {}", name.name),
        ),
    };
    Verdict {
        kind: VerdictKind::OtherVersion,
        severity: VerdictKind::OtherVersion.default_severity(),
        rule: "variable-of-another-version".to_owned(),
        reason,
        remedy: Some(remedy),
        source: Some(format!("names in the sources of {component}, by version")),
    }
}

/// Judges a variable outside the table.
fn judge_unlisted_variable(name: &str, situation: &Situation) -> Verdict {
    let family = knowledge::find_family(name);
    if let Some(family) = family.filter(|family| family.reads_name(name)) {
        return Verdict {
            kind: VerdictKind::Foreign,
            severity: None,
            rule: "variable-of-another-program".to_owned(),
            reason: family.meaning.clone(),
            remedy: None,
            source: None,
        };
    }
    let nearest = match family {
        Some(family) => family.find_nearest(name),
        None => {
            let nearest = names::find_nearest_name(name, situation).or_else(|| names::find_misspelt(name));
            nearest.map(|nearest| nearest.name)
        }
    };
    if let Some(nearest) = nearest {
        return Verdict {
            kind: VerdictKind::Misspelt,
            severity: VerdictKind::Misspelt.default_severity(),
            rule: "variable-misspelt".to_owned(),
            reason: format!("nothing reads {name}: did you mean {nearest}?"),
            remedy: Some(format!("rename it to {nearest}, or unset it")),
            source: None,
        };
    }
    let (severity, reason) = explain_unknown_name(name, situation);
    Verdict {
        kind: VerdictKind::Unknown,
        severity: Some(severity),
        rule: "variable-unknown".to_owned(),
        reason,
        remedy: Some(format!("unset {name}, unless a program or plugin of your own reads it")),
        source: None,
    }
}

fn explain_unknown_name(name: &str, situation: &Situation) -> (Severity, String) {
    use super::situation::{NEWEST_LIBFABRIC, NEWEST_NCCL, NEWEST_PLUGIN};
    let newer = |component: &str, newest: &semver::Version| {
        format!("no {component} up to {newest} reads it; the newer version in use may read it")
    };
    match name {
        _ if name.starts_with("OFI_NCCL_") => match situation.plugin_version() {
            version if version > NEWEST_PLUGIN => (Severity::Unknown, newer("aws-ofi-nccl", &NEWEST_PLUGIN)),
            _ => (Severity::Degraded, "no version of aws-ofi-nccl reads it: it has no effect".to_owned()),
        },
        _ if name.starts_with("NCCL_") => match situation.nccl_version() {
            version if version > NEWEST_NCCL => (Severity::Unknown, newer("NCCL", &NEWEST_NCCL)),
            _ => {
                let reason = "no version of NCCL and no known plugin or framework reads it: it has no effect";
                (Severity::Degraded, reason.to_owned())
            }
        },
        _ if name.starts_with("TORCH_") => {
            (Severity::Advice, "no known version of PyTorch reads it".to_owned())
        }
        _ => {
            let reason = format!("no known software reads it (libfabric up to {NEWEST_LIBFABRIC})");
            (Severity::Advice, reason)
        }
    }
}

fn unjudged_verdict(name: &Name) -> Verdict {
    Verdict {
        kind: VerdictKind::Unjudged,
        severity: VerdictKind::Unjudged.default_severity(),
        rule: "variable-unjudged".to_owned(),
        reason: format!("{} reads it, but its value cannot be checked here", name.component.name()),
        remedy: Some(format!("compare it with the documentation of {}", name.component.name())),
        source: None,
    }
}

fn plain_verdict(name: Option<&'static Name>, setting: &Setting) -> Verdict {
    let reason = match name {
        Some(name) if !name.is_documented => {
            format!(
                "{} reads it; it is not documented, and may change with any version",
                name.component.name()
            )
        }
        Some(name) => format!("{} reads it; no rule is about it", name.component.name()),
        None => format!("no rule is about {}", setting.value),
    };
    Verdict {
        kind: VerdictKind::Plain,
        severity: None,
        rule: "variable-known".to_owned(),
        reason,
        remedy: None,
        source: None,
    }
}
