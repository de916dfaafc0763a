//! Known faults of released versions.

use std::sync::OnceLock;

use semver::{Version, VersionReq};
use serde::{Deserialize, Serialize};

use super::file::{
    FieldFault as Problem, FileError, OneOrMore, check_id, check_text, check_version, list_values,
    locate_fault, parse_range, parse_toml,
};
use super::rule::Use;
use crate::finding::Severity;

/// The compiled-in file.
pub(super) const FILE: (&str, &str) = ("knowledge/faults.toml", include_str!("../../knowledge/faults.toml"));

/// Measurements affected by a fault. `any` is every measurement, `none` no measurement.
pub const TOUCHES: [&str; 13] = [
    "any",
    "none",
    "symmetric",
    "graph",
    "registered",
    "avg-one-rank",
    "all-reduce",
    "alltoall",
    "sendrecv",
    "fp8",
    "split",
    "multi-node",
    "fabric",
];

/// Possible networks of a fault: EFA, other providers of libfabric, InfiniBand and RoCE, TCP.
pub const NETWORKS: [&str; 4] = ["efa", "libfabric", "ib", "socket"];

/// Names of the properties of a job required by a fault, besides variables (`NCCL_...`), each with its words
/// for people.
pub const NEEDS: [(&str, &str); 6] = [
    (SEVERAL_NODES, "several nodes"),
    ("many-ranks", "more than 80 ranks"),
    ("one-rank", "a communicator of one rank"),
    ("split", "a split communicator"),
    ("nvls", "NVLink multicast (NVLS)"),
    ("one-gpu-per-host", "hosts with one GPU"),
];

/// The requirement of a network between nodes.
const SEVERAL_NODES: &str = "several-nodes";

/// A part of the software with its own versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// NCCL.
    Nccl,
    /// The network plugin for EFA.
    AwsOfiNccl,
    /// libfabric.
    Libfabric,
    /// The NVIDIA driver, with its own version: 580.159.4.
    Driver,
}

/// A known fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Stable name.
    pub id: String,
    /// The part with the fault.
    pub component: Component,
    /// The affected versions.
    pub versions: VersionReq,
    /// A text in the rest of NCCL's version line.
    pub build: Option<String>,
    /// Affected networks, from [`NETWORKS`], or empty for all.
    pub networks: Vec<String>,
    /// Properties required for the fault: names of [`NEEDS`], or of variables.
    pub needs: Vec<String>,
    /// Conditions besides the version. Until they are seen, the fault is reported as advice.
    pub conditions: Vec<String>,
    /// The use that the conditions deny. A log that proves it refutes the fault.
    pub denies: Option<Use>,
    /// Measurements falsified or stopped by it, from [`TOUCHES`].
    pub touches: Vec<String>,
    /// The effect, as a sentence.
    pub effect: String,
    /// The remedy.
    pub remedy: String,
    /// Effect on the health if the conditions hold.
    pub severity: Severity,
    /// Source of the knowledge: documentation, source code or thread.
    pub source: String,
}

/// All known faults.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    faults: Vec<Fault>,
}

/// The file in its written form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultFile {
    version: u32,
    fault: Vec<FaultEntry>,
}

/// A fault in its written form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultEntry {
    id: String,
    component: Component,
    versions: String,
    build: Option<String>,
    networks: Option<OneOrMore>,
    needs: Option<OneOrMore>,
    conditions: Option<OneOrMore>,
    denies: Option<Use>,
    touches: OneOrMore,
    effect: String,
    remedy: String,
    severity: Severity,
    source: String,
}

impl Faults {
    /// Returns the compiled-in faults.
    pub fn built_in() -> &'static Self {
        static FAULTS: OnceLock<Faults> = OnceLock::new();
        // The tests check the file.
        FAULTS.get_or_init(|| Self { faults: parse_faults(FILE.0, FILE.1).unwrap_or_default() })
    }

    /// Returns all faults.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }

    /// Returns the faults of this version of a component.
    pub fn of_component(&self, component: Component, version: &Version) -> Vec<&Fault> {
        self.faults
            .iter()
            .filter(|fault| fault.component == component && fault.versions.matches(version))
            .collect()
    }
}

impl Fault {
    /// Returns true for a possibly affected build: the rest of NCCL's version line has the text, or is
    /// unknown.
    pub fn applies_to_build(&self, build: Option<&str>) -> bool {
        match (&self.build, build) {
            (Some(text), Some(build)) => build.contains(text.as_str()),
            _ => true,
        }
    }

    /// Returns true for a possibly affected network of [`NETWORKS`], or an unknown one.
    pub fn applies_to_network(&self, network: Option<&str>) -> bool {
        let is_listed = |network: &str| self.networks.iter().any(|name| name == network);
        self.networks.is_empty() || network.is_none_or(is_listed)
    }

    /// Returns true for a fault of a network between nodes.
    pub fn needs_several_nodes(&self) -> bool {
        self.needs.iter().any(|need| need == SEVERAL_NODES)
    }

    /// Returns the effect on the health: advice, unless all conditions were seen or there are none.
    pub fn severity_for(&self, conditions_seen: bool) -> Severity {
        if conditions_seen || self.conditions.is_empty() { self.severity } else { Severity::Advice }
    }
}

/// Reads a file of faults.
pub(super) fn parse_faults(file: &str, text: &str) -> Result<Vec<Fault>, FileError> {
    let content: FaultFile = parse_toml(file, text)?;
    check_version(file, text, content.version)?;
    content
        .fault
        .into_iter()
        .map(|entry| {
            let id = entry.id.clone();
            convert_entry(entry).map_err(|problem| locate_fault(file, text, &id, problem))
        })
        .collect()
}

/// Checks the common parts of faults and conflicts: the name, the texts (effect, remedy, source), and the
/// severity.
pub(super) fn check_entry(id: &str, texts: [&str; 3], severity: Severity) -> Result<(), Problem> {
    check_id(id)?;
    for (field, text) in ["effect", "remedy", "source"].into_iter().zip(texts) {
        check_text(field, text)?;
    }
    match severity {
        Severity::Broken | Severity::Degraded => Ok(()),
        _ => Err(("severity", "write `broken` or `degraded`".to_owned())),
    }
}

/// Converts an entry, and checks it.
fn convert_entry(entry: FaultEntry) -> Result<Fault, Problem> {
    check_entry(&entry.id, [&entry.effect, &entry.remedy, &entry.source], entry.severity)?;
    let touches = entry.touches.into_vec();
    if touches.is_empty() || touches.iter().any(|name| !TOUCHES.contains(&name.as_str())) {
        return Err(("touches", format!("write names of this list: {}", TOUCHES.join(", "))));
    }
    let networks = list_values(entry.networks);
    if networks.iter().any(|name| !NETWORKS.contains(&name.as_str())) {
        return Err(("networks", format!("write names of this list: {}", NETWORKS.join(", "))));
    }
    let needs = list_values(entry.needs);
    let is_need = |need: &String| need.starts_with("NCCL_") || NEEDS.iter().any(|(name, _)| name == need);
    if !needs.iter().all(is_need) {
        let names = NEEDS.map(|(name, _)| name).join(", ");
        return Err(("needs", format!("write names of this list: {names}, or variables (NCCL_...)")));
    }
    Ok(Fault {
        versions: parse_range("versions", Some(&entry.versions))?.unwrap_or(VersionReq::STAR),
        id: entry.id,
        component: entry.component,
        build: entry.build,
        networks,
        needs,
        conditions: list_values(entry.conditions),
        denies: entry.denies,
        touches,
        effect: entry.effect,
        remedy: entry.remedy,
        severity: entry.severity,
        source: entry.source,
    })
}
