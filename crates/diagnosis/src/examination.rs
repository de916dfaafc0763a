//! Examinations: the facts and findings about a log, a job, an environment or a host, in a form for every
//! report.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::finding::{Finding, Severity};

/// Health of the subject. Its number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Proven to work.
    Healthy = 0,
    /// It works, slower or less safely than it should.
    Degraded = 1,
    /// It does not work, or not over the requested network.
    Broken = 2,
    /// Neither health nor a fault is proven.
    CannotTell = 3,
}

/// Facts and findings about one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Examination {
    /// The subject: `log`, `job`, `environment`, `host`, `topology`.
    pub subject: &'static str,
    /// Sentences about proven facts: `NVLink P2P between all 56 pairs of 8 ranks`.
    pub proof: Vec<String>,
    /// Sentences about unknown facts, with reasons.
    pub unseen: Vec<String>,
    /// Sentences about inapplicable checks, with reasons. They do not count for the health.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_applicable: Vec<String>,
    /// The signal that ended the examination early: `SIGINT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// The findings, worst first (see [`Examination::sort_findings`]).
    pub findings: Vec<Finding>,
    /// Facts for people.
    #[serde(skip)]
    pub sections: Vec<Section>,
    /// Facts for programs.
    pub facts: Value,
}

/// Title of the section about known faults of the detected versions.
pub const KNOWN_FAULTS: &str = "Known faults";

/// A part of the facts, with a heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The content.
    pub body: Body,
}

/// The content of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Names with values.
    Facts(Vec<(String, String)>),
    /// A table with a row of headings.
    Table {
        /// The headings.
        columns: Vec<String>,
        /// The rows, each with as many cells as there are columns.
        rows: Vec<Vec<String>>,
    },
    /// A square of pairs.
    Matrix(Matrix),
    /// Lines of text.
    Lines(Vec<String>),
}

/// A square table of pairs, drawn as a picture in a report with pictures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// Labels of rows and columns: `0`, `GPU3`, `mlx5_0`.
    pub labels: Vec<String>,
    /// Rows of cells.
    pub cells: Vec<Vec<Cell>>,
    /// Explanation of the texts in the cells, in the order of the legend.
    pub legend: Vec<(String, String)>,
}

/// A pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Short text: `NV18`, `P2P`, `NET`. Empty for an unknown pair.
    pub text: String,
    /// Quality of the path. It selects the colour.
    pub grade: Grade,
}

/// Quality of a path between a pair, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// NVLink.
    Fastest,
    /// PCIe between GPUs, or a network with GPUDirect RDMA.
    Fast,
    /// Through the host's memory.
    Staged,
    /// TCP sockets.
    Slow,
    /// Nothing is known, or the pair is a device with itself.
    #[default]
    None,
}

impl Examination {
    /// Creates an examination without facts.
    pub fn new(subject: &'static str) -> Self {
        Self {
            subject,
            proof: Vec::new(),
            unseen: Vec::new(),
            not_applicable: Vec::new(),
            interrupted: None,
            findings: Vec::new(),
            sections: Vec::new(),
            facts: Value::Null,
        }
    }

    /// Returns the health, from findings and proof. Without proof nothing is healthy, and an interrupted
    /// examination proves nothing.
    pub fn health(&self) -> Health {
        if self.interrupted.is_some() {
            return Health::CannotTell;
        }
        match self.findings.iter().map(|finding| finding.severity).min() {
            Some(Severity::Broken) => Health::Broken,
            Some(Severity::Degraded) => Health::Degraded,
            Some(Severity::Unknown) => Health::CannotTell,
            _ if self.proof.is_empty() => Health::CannotTell,
            _ => Health::Healthy,
        }
    }

    /// Orders the findings, worst first. Equal findings keep their order.
    pub fn sort_findings(&mut self) {
        self.findings.sort_by_key(|finding| finding.severity);
    }
}

impl Health {
    /// Returns the exit code.
    pub fn exit_code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Health {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Broken => "broken",
            Self::CannotTell => "cannot tell",
        })
    }
}
