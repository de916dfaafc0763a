//! Findings: conclusions with their evidence, cause and remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Effect of a finding on the health of the subject, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It does not work, or not over the requested network.
    Broken,
    /// It works, slower or less safely than it should.
    Degraded,
    /// A warning without a rule, or a merely suspicious line.
    Unknown,
    /// Without effect on the health.
    Advice,
}

/// Place of a rule's message in a chain of cause and effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It can be the cause of a failure.
    Root,
    /// It follows from an earlier failure, and is not reported as the cause if there is an earlier root.
    Cascade,
    /// It supports other findings, and is not a finding itself.
    Confirmation,
    /// A possible improvement, without a failure.
    Advice,
    /// A message that only looks like a problem.
    Harmless,
}

/// An action for a node, mildest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing: the node is not at fault.
    #[default]
    None,
    /// Watch whether it happens again.
    Watch,
    /// Reset the GPU.
    Reset,
    /// Reboot the node.
    Reboot,
    /// Take the node out of service.
    Isolate,
}

/// The place of a fact behind a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Place of the text: a file, `environment`, a command.
    pub place: String,
    /// Line in the file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Rank in the largest communicator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Host of the fact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The text itself, shortened.
    pub text: String,
}

impl Evidence {
    /// Creates evidence without line, rank and host.
    pub fn at_place(place: impl Into<String>, text: impl Into<String>) -> Self {
        Self { place: place.into(), text: text.into(), ..Self::default() }
    }
}

/// A conclusion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the rule, stable across versions: `efa-not-found`.
    pub rule: String,
    /// Effect on the health.
    pub severity: Severity,
    /// The diagnosis in one sentence.
    pub diagnosis: String,
    /// The cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Action for the node.
    pub action: Action,
    /// Affected ranks, ascending, or empty if none is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// Affected hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The first places of the fact.
    pub evidence: Vec<Evidence>,
    /// Number of occurrences.
    pub occurrences: u64,
    /// The first places of resulting messages: timeouts, aborts, lost peers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Evidence>,
    /// Source of the knowledge: documentation, source code or thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Affected versions of libraries: `NCCL 2.28.9`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
}

impl Finding {
    /// Creates a finding without cause, remedy and evidence.
    pub fn new(rule: impl Into<String>, severity: Severity, diagnosis: impl Into<String>) -> Self {
        Self {
            rule: rule.into(),
            severity,
            diagnosis: diagnosis.into(),
            cause: None,
            remedy: None,
            action: Action::None,
            ranks: Vec::new(),
            hosts: Vec::new(),
            evidence: Vec::new(),
            occurrences: 1,
            consequences: Vec::new(),
            source: None,
            versions: Vec::new(),
        }
    }

    /// Changes the severity.
    pub fn with_severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    /// Adds a place of the fact, and its text.
    pub fn with_evidence(mut self, place: impl Into<String>, text: impl Into<String>) -> Self {
        self.evidence.push(Evidence::at_place(place, text));
        self
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Broken => "broken",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
            Self::Advice => "advice",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::None => "none",
            Self::Watch => "watch",
            Self::Reset => "reset",
            Self::Reboot => "reboot",
            Self::Isolate => "isolate",
        })
    }
}
