//! Knowledge about single variables, read from the files in `knowledge/variables`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use semver::{Version, VersionReq};
use serde::{Deserialize, Serialize};

use super::situation::Situation;
use crate::finding::Severity;

/// The files, with their names for a test.
pub(super) const FILES: [(&str, &str); 4] = [
    ("nccl.toml", include_str!("../../knowledge/variables/nccl.toml")),
    ("network.toml", include_str!("../../knowledge/variables/network.toml")),
    ("libfabric.toml", include_str!("../../knowledge/variables/libfabric.toml")),
    ("programs.toml", include_str!("../../knowledge/variables/programs.toml")),
];

/// The judgement about a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// It must be set here.
    Needed,
    /// A sound choice.
    Useful,
    /// Nothing is wrong with it. Its effect has to be measured.
    Tuning,
    /// It belongs into the search for a fault, not into production.
    Debugging,
    /// It is set to a value that holds anyway.
    Redundant,
    /// Nothing reads it, or it changes nothing here.
    NoEffect,
    /// It makes something slower or break.
    Harmful,
    /// An invalid value of the variable.
    Invalid,
    /// A known name, misspelt.
    Misspelt,
    /// A name without a known reader.
    Unknown,
    /// Another version reads it.
    OtherVersion,
    /// It belongs to a program outside the examination.
    Foreign,
    /// A variable without a rule.
    Plain,
    /// A known name with an unverifiable value.
    Unjudged,
}

/// A file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub variable: Vec<Variable>,
    #[serde(default)]
    pub family: Vec<Family>,
}

/// A variable.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    /// Name, or several names with the same rules.
    pub names: Vec<String>,
    /// The meaning in one sentence.
    pub meaning: String,
    /// The default in words.
    pub default: Option<String>,
    /// The form of the value.
    pub form: Option<Form>,
    /// Accepted values, for the forms with a list of values.
    #[serde(default)]
    pub values: Vec<String>,
    /// The smallest number.
    pub minimum: Option<i64>,
    /// The largest number.
    pub maximum: Option<i64>,
    /// The handling of other values, as a sentence.
    pub otherwise: Option<String>,
    /// The severity of other values.
    pub invalid: Option<Severity>,
    /// True for free values: paths of folders, identifiers, formats.
    #[serde(default)]
    pub free: bool,
    /// The relation of the values on all ranks.
    #[serde(default)]
    pub ranks: Ranks,
    /// Rules. The first rule that holds is taken.
    #[serde(default)]
    pub rule: Vec<VariableRule>,
    /// Values with the right verdict, for the test.
    #[serde(default)]
    #[cfg_attr(not(test), expect(dead_code, reason = "for the test"))]
    pub example: Vec<VariableExample>,
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// A number, as `strtoll` reads it.
    Number,
    /// One of the values, with any case.
    Word,
    /// One of the values, with their case.
    ExactWord,
    /// A list of the values.
    Words,
    /// A distance: `PIX`, or a number of old.
    Level,
    /// Algorithms, by collective.
    Algorithms,
    /// Protocols, by collective.
    Protocols,
    /// A list of network interfaces.
    Interfaces,
    /// A list of RDMA devices.
    Devices,
    /// A list of GPUs.
    Gpus,
    /// Name of a network: a known one, or a plugin's own.
    Network,
    /// A file.
    File,
    /// An address and the length of its prefix.
    AddressRange,
}

/// The relation of the values on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ranks {
    /// They are expected to be equal.
    #[default]
    Equal,
    /// Different values make ranks hang, fail or compute wrong results.
    MustBeEqual,
    /// They name objects of a host, and may differ between hosts.
    ByHost,
    /// They may differ.
    MayDiffer,
}

/// Returns true for a variable that must have the same value on all ranks of a job.
pub(crate) fn must_be_equal(name: &str) -> bool {
    find_variable(name).is_some_and(|variable| variable.ranks == Ranks::MustBeEqual)
}

/// A judgement with its conditions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VariableRule {
    pub id: String,
    /// Pattern of the whole value, with any case.
    #[serde(default, deserialize_with = "deserialize_pattern")]
    pub value: Option<Regex>,
    pub nccl: Option<VersionReq>,
    pub plugin: Option<VersionReq>,
    pub libfabric: Option<VersionReq>,
    /// Words of the platform. One of them must fit.
    pub platform: Option<Vec<String>>,
    /// True for jobs of several nodes, false for jobs of one node.
    pub several_nodes: Option<bool>,
    /// True for hosts with RDMA devices, false for hosts without them.
    pub rdma: Option<bool>,
    /// A further variable that must be set.
    pub with: Option<String>,
    pub verdict: VerdictKind,
    pub severity: Option<Severity>,
    pub reason: String,
    pub remedy: Option<String>,
    pub source: String,
}

/// A value and the right verdict.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(test), expect(dead_code, reason = "for the test"))]
pub(super) struct VariableExample {
    pub value: String,
    pub nccl: Option<String>,
    pub plugin: Option<String>,
    pub libfabric: Option<String>,
    pub platform: Option<String>,
    pub with: Option<String>,
    pub verdict: VerdictKind,
    pub severity: Option<Severity>,
    /// Words of the reason.
    pub says: Option<String>,
}

/// Names of other software's variables.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    #[serde(deserialize_with = "required_pattern")]
    pub names: Regex,
    /// All names of the software's variables, or empty if some are unknown.
    #[serde(default)]
    pub known: Vec<String>,
    pub meaning: String,
    /// The relation of the values on all ranks.
    #[serde(default)]
    pub ranks: Ranks,
}

impl Family {
    /// Returns true unless all names of the software's variables are known, and this is not one of them.
    pub(super) fn reads_name(&self, name: &str) -> bool {
        self.known.is_empty() || self.known.iter().any(|known| known == name)
    }

    /// Returns the known name nearest to a misspelt one.
    pub(super) fn find_nearest(&self, wrong: &str) -> Option<&str> {
        let distance = |known: &str| strsim::damerau_levenshtein(known, wrong);
        // A third of the letters after `NCCL_BENCH_` may be wrong.
        let most = wrong.splitn(3, '_').last().map_or(1, |rest| rest.len().div_ceil(3).min(3));
        let near = self.known.iter().map(|known| (distance(known), known.as_str()));
        near.min().filter(|(distance, _)| *distance <= most).map(|(_, known)| known)
    }
}

/// A variable's name, compared with the names that software reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading<'a> {
    /// It is read, or its prefix has unknown names.
    Read,
    /// Nothing reads it. Contains the nearest known name, if any.
    Unread(Option<&'a str>),
}

/// Compares a variable's name with the variables of nccl-bench and nccl-tests. Names with other prefixes
/// count as read.
pub fn look_up_own_variable(name: &str) -> Reading<'static> {
    match find_family(name).filter(|family| !family.reads_name(name)) {
        Some(family) => Reading::Unread(family.find_nearest(name)),
        None => Reading::Read,
    }
}

/// The knowledge of all files.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    variables: Vec<Variable>,
    by_name: BTreeMap<String, usize>,
    families: Vec<Family>,
}

static KNOWLEDGE: LazyLock<Knowledge> = LazyLock::new(|| {
    let mut all = Knowledge::default();
    for (_, text) in FILES {
        // A test reads each file.
        let file: File = toml::from_str(text).unwrap_or_default();
        for variable in file.variable {
            let index = all.variables.len();
            all.by_name.extend(variable.names.iter().map(|name| (name.clone(), index)));
            all.variables.push(variable);
        }
        all.families.extend(file.family);
    }
    all
});

/// Returns the knowledge about a variable.
pub(super) fn find_variable(name: &str) -> Option<&'static Variable> {
    KNOWLEDGE.by_name.get(name).and_then(|&index| KNOWLEDGE.variables.get(index))
}

/// Returns the other software that reads a variable.
pub(super) fn find_family(name: &str) -> Option<&'static Family> {
    KNOWLEDGE.families.iter().find(|family| family.names.is_match(name))
}

impl VariableRule {
    /// Returns true if all conditions hold.
    pub(super) fn all_conditions_hold(
        &self,
        value: &str,
        situation: &Situation,
        is_set: &dyn Fn(&str) -> bool,
    ) -> bool {
        let within = |range: &Option<VersionReq>, version: Version| {
            range.as_ref().is_none_or(|range| range.matches(&version))
        };
        let on = |words: &Vec<String>| {
            situation
                .platform
                .as_ref()
                .is_some_and(|platform| words.iter().any(|word| platform.has_word(word)))
        };
        let nodes = |several: bool| situation.nodes.is_some_and(|nodes| (nodes > 1) == several);
        self.value.as_ref().is_none_or(|pattern| pattern.is_match(value.trim()))
            && within(&self.nccl, situation.nccl_version())
            && within(&self.plugin, situation.plugin_version())
            && within(&self.libfabric, situation.libfabric_version())
            && self.platform.as_ref().is_none_or(on)
            && self.several_nodes.is_none_or(nodes)
            && self.rdma.is_none_or(|rdma| situation.rdma == Some(rdma))
            && self.with.as_ref().is_none_or(|name| is_set(name))
    }
}

/// Compiles a pattern of a whole text, with any case.
fn deserialize_pattern<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Regex>, D::Error> {
    required_pattern(deserializer).map(Some)
}

fn required_pattern<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Regex, D::Error> {
    let text = String::deserialize(deserializer)?;
    Regex::new(&format!("(?i)^(?:{text})$")).map_err(serde::de::Error::custom)
}
