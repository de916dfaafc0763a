//! Reader of knowledge files in TOML, with errors for readers without programming experience.

use std::fmt;
use std::path::Path;

use semver::{Op, VersionReq};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::finding::{Action, Role, Severity};

use super::rule::{Origin, Pattern, Rule, Use};
use super::words::SHORTEST;

/// The only version of the files' form.
const FORM: u32 = 1;

/// An unusable file.
#[derive(Debug)]
pub struct FileError {
    /// Name of the file.
    pub file: String,
    /// Line, from 1, or 0 for the whole file.
    pub line: usize,
    /// The entry, by its id.
    pub entry: Option<String>,
    /// The field.
    pub field: Option<String>,
    /// The fault, and the allowed content.
    pub problem: String,
}

/// One value or a list of values.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// A file of rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    version: u32,
    #[serde(default)]
    rule: Vec<RuleEntry>,
}

/// A rule in its written form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    id: String,
    origin: Origin,
    contains: Option<OneOrMore>,
    short: Option<OneOrMore>,
    pattern: Option<String>,
    quote: Option<String>,
    nccl: Option<String>,
    plugin: Option<String>,
    role: Role,
    severity: Severity,
    diagnosis: String,
    cause: Option<String>,
    remedy: Option<String>,
    #[serde(default)]
    action: Action,
    #[serde(default)]
    reported_late: bool,
    #[serde(default)]
    step: bool,
    #[serde(default)]
    vague: bool,
    #[serde(default)]
    aftermath: bool,
    #[serde(default)]
    waits: bool,
    #[serde(default)]
    class: bool,
    case_of: Option<OneOrMore>,
    with: Option<OneOrMore>,
    without: Option<OneOrMore>,
    frame_of: Option<OneOrMore>,
    denies: Option<Use>,
    source: String,
    matches: OneOrMore,
    not: Option<OneOrMore>,
}

/// A fault of one field, without its place.
pub(super) type FieldFault = (&'static str, String);

/// Reads a file of rules.
pub(super) fn read_rules(file: &str, text: &str) -> Result<Vec<Rule>, FileError> {
    let content: RuleFile = parse_toml(file, text)?;
    check_version(file, text, content.version)?;
    content
        .rule
        .into_iter()
        .map(|entry| {
            let id = entry.id.clone();
            convert_rule(entry).map_err(|fault| locate_fault(file, text, &id, fault))
        })
        .collect()
}

/// Reads TOML into the form of a file.
pub(super) fn parse_toml<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, FileError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let (start, line) = line_at(text, at);
        FileError {
            file: file.to_owned(),
            line,
            entry: entry_at(text, at),
            field: text[start..].lines().next().and_then(key_of_line),
            problem: error.message().to_owned(),
        }
    })
}

/// Refuses a file of another form.
pub(super) fn check_version(file: &str, text: &str, version: u32) -> Result<(), FileError> {
    if version == FORM {
        return Ok(());
    }
    let line = text
        .lines()
        .position(|line| key_of_line(line).as_deref() == Some("version"))
        .map_or(0, |index| index + 1);
    Err(FileError {
        file: file.to_owned(),
        line,
        entry: None,
        field: Some("version".to_owned()),
        problem: format!("form {version} is not known; write `version = {FORM}`"),
    })
}

/// Adds file, line and entry to a fault.
pub(super) fn locate_fault(file: &str, text: &str, id: &str, (field, problem): FieldFault) -> FileError {
    let quoted = format!("\"{id}\"");
    let start = text
        .lines()
        .position(|line| key_of_line(line).as_deref() == Some("id") && line.contains(&quoted))
        .unwrap_or(0);
    let line = text
        .lines()
        .enumerate()
        .skip(start)
        .skip_while(|(index, _)| *index != start)
        .take_while(|(index, line)| *index == start || !line.trim_start().starts_with("[["))
        .find(|(_, line)| key_of_line(line).as_deref() == Some(field))
        .map_or(start, |(index, _)| index);
    FileError {
        file: file.to_owned(),
        line: line + 1,
        entry: Some(id.to_owned()),
        field: Some(field.to_owned()),
        problem,
    }
}

/// Parses a range of versions, each with an operator: `>=2.28.3, <2.30.7`.
pub(super) fn parse_range(field: &'static str, text: Option<&str>) -> Result<Option<VersionReq>, FieldFault> {
    let Some(text) = text else { return Ok(None) };
    let example = "write a range as `>=2.28.3, <2.30.7`, or one version as `=2.29.2`";
    let range = VersionReq::parse(text).map_err(|error| (field, format!("{error}; {example}")))?;
    match range.comparators.iter().all(|one| !matches!(one.op, Op::Caret | Op::Tilde))
        && !range.comparators.is_empty()
    {
        true => Ok(Some(range)),
        false => Err((field, format!("`{text}` is unclear; {example}"))),
    }
}

/// Checks a name: small letters, digits and single hyphens.
pub(super) fn check_id(id: &str) -> Result<(), FieldFault> {
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    match id.split('-').all(word) {
        true => Ok(()),
        false => Err(("id", "write small letters, digits and single hyphens: `efa-not-found`".to_owned())),
    }
}

/// Checks that a text is not empty.
pub(super) fn check_text(field: &'static str, text: &str) -> Result<(), FieldFault> {
    match text.trim().is_empty() {
        true => Err((field, "must not be empty".to_owned())),
        false => Ok(()),
    }
}

/// Converts an entry, and checks it.
fn convert_rule(entry: RuleEntry) -> Result<Rule, FieldFault> {
    check_id(&entry.id)?;
    let contains = list_values(entry.contains);
    let case_of = list_values(entry.case_of);
    if case_of.is_empty() == contains.is_empty() || contains.iter().any(|words| words.len() < SHORTEST) {
        let words = format!("write words of the message, at least {SHORTEST} letters each");
        return Err(("contains", format!("{words}; or `case_of`, and no words")));
    }
    let (with, without) = (list_values(entry.with), list_values(entry.without));
    if case_of.is_empty() && entry.role != Role::Advice && !(with.is_empty() && without.is_empty()) {
        return Err(("with", "`with` and `without` need `case_of`, or the role `advice`".to_owned()));
    }
    if entry.denies.is_some() && entry.severity == Severity::Broken {
        return Err(("denies", "a rule that is `broken` cannot be refuted".to_owned()));
    }
    let short = list_values(entry.short);
    if !short.is_empty() && (entry.origin != Origin::Any || entry.pattern.is_none()) {
        return Err(("short", "short words need `origin = \"any\"` and a `pattern`".to_owned()));
    }
    if short.iter().any(String::is_empty) {
        return Err(("short", "must not be empty".to_owned()));
    }
    check_text("diagnosis", &entry.diagnosis)?;
    check_text("source", &entry.source)?;
    check_role(entry.role, entry.severity)?;
    let explained = entry.cause.is_some() || entry.remedy.is_some();
    if !explained && !matches!(entry.role, Role::Harmless | Role::Confirmation) {
        return Err(("cause", "write a `cause` or a `remedy`".to_owned()));
    }
    let pattern = entry.pattern.map(Pattern::new);
    let rule = Rule {
        nccl: parse_range("nccl", entry.nccl.as_deref())?,
        plugin: parse_range("plugin", entry.plugin.as_deref())?,
        matches: entry.matches.into_vec(),
        not: list_values(entry.not),
        id: entry.id,
        origin: entry.origin,
        contains,
        short,
        pattern,
        quote: entry.quote.map(Pattern::new),
        role: entry.role,
        severity: entry.severity,
        diagnosis: entry.diagnosis,
        cause: entry.cause,
        remedy: entry.remedy,
        action: entry.action,
        reported_late: entry.reported_late,
        step: entry.step,
        vague: entry.vague,
        aftermath: entry.aftermath,
        waits: entry.waits,
        class: entry.class,
        case_of,
        with,
        without,
        frame_of: list_values(entry.frame_of),
        denies: entry.denies,
        source: entry.source,
    };
    Ok(rule)
}

/// Checks pattern and example lines of a rule by itself. The check is slow, so a test checks the compiled-in
/// rules.
pub(super) fn check_lines(rule: &Rule) -> Result<(), FieldFault> {
    if let Some(pattern) = &rule.pattern {
        pattern.check().map_err(|error| ("pattern", format!("not a regular expression: {error}")))?;
    }
    if let Some(quote) = &rule.quote {
        quote.check().map_err(|error| ("quote", format!("not a regular expression: {error}")))?;
        if !rule.matches.iter().any(|line| !quote.groups(rule.message_of_example(line)).is_empty()) {
            return Err(("quote", "its groups are in no line of `matches`".to_owned()));
        }
    }
    if rule.matches.is_empty() {
        return Err((
            "matches",
            "write at least one line that the rule is about, copied from a log".to_owned(),
        ));
    }
    if !rule.case_of.is_empty() {
        // Its examples are logs.
        return Ok(());
    }
    match rule.matches.iter().find(|line| !rule.matches_line(rule.message_of_example(line))) {
        Some(line) => {
            let problem = "the rule does not match its own line";
            Err(("matches", format!("{problem} `{line}`; compare `contains` and `pattern`")))
        }
        None => Ok(()),
    }
}

/// Checks that the severity fits the role.
fn check_role(role: Role, severity: Severity) -> Result<(), FieldFault> {
    let allowed: &[Severity] = match role {
        Role::Root => &[Severity::Broken, Severity::Degraded, Severity::Unknown],
        Role::Cascade => &[Severity::Broken, Severity::Degraded],
        Role::Advice | Role::Confirmation | Role::Harmless => &[Severity::Advice],
    };
    match allowed.contains(&severity) {
        true => Ok(()),
        false => {
            let names: Vec<String> = allowed.iter().map(|severity| format!("`{severity}`")).collect();
            let role = format!("{role:?}").to_lowercase();
            Err((
                "severity",
                format!("a rule with the role `{role}` has the severity {}", names.join(" or ")),
            ))
        }
    }
}

/// Returns the start and number of the line at an offset.
fn line_at(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at];
    let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    (start, before.iter().filter(|&&byte| byte == b'\n').count() + 1)
}

/// Returns the id of the entry around an offset.
fn entry_at(text: &str, at: usize) -> Option<String> {
    let (start, _) = line_at(text, at);
    let rest_of_line = &text[start..];
    let begin = match rest_of_line.starts_with("[[") {
        true => start,
        false => text[..start].rfind("\n[[").map(|newline| newline + 1)?,
    };
    let entry = &text[begin..];
    let end = entry[2..].find("\n[[").map_or(entry.len(), |end| end + 2);
    entry[..end].lines().find(|line| key_of_line(line).as_deref() == Some("id")).and_then(|line| {
        let value = line.split_once('=')?.1;
        Some(value.trim().trim_matches(['"', '\'']).to_owned())
    })
}

/// Returns the key of a line `key = value`.
fn key_of_line(line: &str) -> Option<String> {
    let key = line.split_once('=')?.0.trim();
    let plain = !key.is_empty()
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    plain.then(|| key.to_owned())
}

/// Returns the values of an optional list.
pub(super) fn list_values(values: Option<OneOrMore>) -> Vec<String> {
    values.map(OneOrMore::into_vec).unwrap_or_default()
}

impl OneOrMore {
    /// Returns the values.
    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(value) => vec![value],
            Self::More(values) => values,
        }
    }
}

impl FileError {
    /// Creates the error of an unreadable file.
    pub(super) fn unreadable_file(path: &Path, error: &std::io::Error) -> Self {
        Self {
            file: path.display().to_string(),
            line: 0,
            entry: None,
            field: None,
            problem: format!("cannot read: {error}"),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file)?;
        if self.line > 0 {
            write!(formatter, ", line {}", self.line)?;
        }
        if let Some(entry) = &self.entry {
            write!(formatter, ", `{entry}`")?;
        }
        if let Some(field) = &self.field {
            write!(formatter, ", field `{field}`")?;
        }
        write!(formatter, ": {}", self.problem)?;
        if self.line > 0 {
            write!(formatter, "; nccl-bench doctor log --help has an example of a rule")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileError {}
