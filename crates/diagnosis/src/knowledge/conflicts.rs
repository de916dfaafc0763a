//! Incompatible versions of libraries.

use std::sync::OnceLock;

use semver::{Version, VersionReq};
use serde::Deserialize;

use super::faults::check_entry;
use super::file::{
    FieldFault as Problem, FileError, OneOrMore, check_version, list_values, locate_fault, parse_range,
    parse_toml,
};
use super::rule::Use;
use crate::finding::Severity;

/// The compiled-in file.
pub(super) const FILE: (&str, &str) =
    ("knowledge/conflicts.toml", include_str!("../../knowledge/conflicts.toml"));

/// Versions in use together. `None` is an unknown or missing one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together<'a> {
    /// NCCL.
    pub nccl: Option<&'a Version>,
    /// aws-ofi-nccl.
    pub plugin: Option<&'a Version>,
    /// libfabric.
    pub libfabric: Option<&'a Version>,
    /// CUDA version of the driver: 13.0.0.
    pub driver: Option<&'a Version>,
}

/// A combination of incompatible versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Stable name.
    pub id: String,
    /// Versions of NCCL, if they matter.
    pub nccl: Option<VersionReq>,
    /// Versions of aws-ofi-nccl, if they matter.
    pub plugin: Option<VersionReq>,
    /// Versions of libfabric, if they matter.
    pub libfabric: Option<VersionReq>,
    /// CUDA versions of the driver, if they matter.
    pub driver: Option<VersionReq>,
    /// Conditions besides the versions. Until they are seen, the conflict is reported as advice.
    pub conditions: Vec<String>,
    /// The use that the conditions deny. A log that proves it refutes the conflict.
    pub denies: Option<Use>,
    /// The effect, as a sentence.
    pub effect: String,
    /// The remedy.
    pub remedy: String,
    /// Effect on the health if the conditions hold.
    pub severity: Severity,
    /// Source of the knowledge: documentation, source code or thread.
    pub source: String,
}

/// All known conflicts.
#[derive(Clone, Debug, Default)]
pub struct Conflicts {
    conflicts: Vec<Conflict>,
}

/// The file in its written form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConflictFile {
    version: u32,
    conflict: Vec<ConflictEntry>,
}

/// A conflict in its written form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConflictEntry {
    id: String,
    nccl: Option<String>,
    plugin: Option<String>,
    libfabric: Option<String>,
    driver: Option<String>,
    conditions: Option<OneOrMore>,
    denies: Option<Use>,
    effect: String,
    remedy: String,
    severity: Severity,
    source: String,
}

impl Conflicts {
    /// Returns the compiled-in conflicts.
    pub fn built_in() -> &'static Self {
        static CONFLICTS: OnceLock<Conflicts> = OnceLock::new();
        // The tests check the file.
        CONFLICTS.get_or_init(|| parse_conflicts(FILE.0, FILE.1).unwrap_or_default())
    }

    /// Returns all conflicts.
    pub fn iter(&self) -> impl Iterator<Item = &Conflict> {
        self.conflicts.iter()
    }

    /// Returns the conflicts among these versions. A conflict that requires an unknown version does not
    /// apply.
    pub fn conflicts_among(&self, versions: &Together<'_>) -> Vec<&Conflict> {
        self.conflicts.iter().filter(|conflict| conflict.applies_to(versions)).collect()
    }
}

impl Conflict {
    /// Returns the effect on the health: advice, unless all conditions were seen or there are none.
    pub fn severity_for(&self, conditions_seen: bool) -> Severity {
        if conditions_seen || self.conditions.is_empty() { self.severity } else { Severity::Advice }
    }

    /// Returns true if every version in the conflict is known and in its range.
    fn applies_to(&self, versions: &Together<'_>) -> bool {
        [
            (&self.nccl, versions.nccl),
            (&self.plugin, versions.plugin),
            (&self.libfabric, versions.libfabric),
            (&self.driver, versions.driver),
        ]
        .into_iter()
        .all(|(range, version)| match (range, version) {
            (None, _) => true,
            (Some(range), Some(version)) => range.matches(version),
            (Some(_), None) => false,
        })
    }
}

/// Reads a file of conflicts.
pub(super) fn parse_conflicts(file: &str, text: &str) -> Result<Conflicts, FileError> {
    let content: ConflictFile = parse_toml(file, text)?;
    check_version(file, text, content.version)?;
    let conflicts = content.conflict.into_iter().map(|entry| {
        let id = entry.id.clone();
        convert_entry(entry).map_err(|problem| locate_fault(file, text, &id, problem))
    });
    Ok(Conflicts { conflicts: conflicts.collect::<Result<_, _>>()? })
}

/// Converts an entry, and checks it.
fn convert_entry(entry: ConflictEntry) -> Result<Conflict, Problem> {
    check_entry(&entry.id, [&entry.effect, &entry.remedy, &entry.source], entry.severity)?;
    let conflict = Conflict {
        nccl: parse_range("nccl", entry.nccl.as_deref())?,
        plugin: parse_range("plugin", entry.plugin.as_deref())?,
        libfabric: parse_range("libfabric", entry.libfabric.as_deref())?,
        driver: parse_range("driver", entry.driver.as_deref())?,
        conditions: list_values(entry.conditions),
        denies: entry.denies,
        id: entry.id,
        effect: entry.effect,
        remedy: entry.remedy,
        severity: entry.severity,
        source: entry.source,
    };
    let named = [&conflict.nccl, &conflict.plugin, &conflict.libfabric, &conflict.driver];
    match named.into_iter().flatten().count() {
        0 | 1 => Err(("id", "write ranges of at least two of nccl, plugin, libfabric and driver".to_owned())),
        _ => Ok(conflict),
    }
}
