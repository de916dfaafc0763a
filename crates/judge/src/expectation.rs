//! Bus bandwidths that machines are known to reach, as data.

use std::sync::OnceLock;

use record::collective::Collective;
use serde::{Deserialize, Serialize};

use crate::gpu::all_gpu_kinds;
use crate::machine::{Machine, NcclVersion, Nics};
use crate::size::parse_size;

/// The compiled-in file.
const FILE: &str = include_str!("../data/expectations.toml");

/// Reliability of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// One report. It never fails a machine.
    Low,
    /// One source with its conditions.
    Medium,
    /// Several sources, or one with raw data.
    High,
}

impl Trust {
    /// Returns the least share of the typical bandwidth that a machine must reach.
    const fn least_share(self) -> f64 {
        match self {
            Self::High => 0.92,
            Self::Medium | Self::Low => 0.85,
        }
    }
}

/// The bus bandwidth of one collective on one kind of machine, by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    gpu: String,
    ranks_per_host: usize,
    hosts: usize,
    nvls: Option<bool>,
    nics: Option<Nics>,
    nccl: Option<[NcclVersion; 2]>,
    collective: Collective,
    points: Vec<Point>,
    /// Source of the values.
    pub source: String,
    /// Date of the source: `2026-11`.
    pub date: String,
    /// Reliability of the source.
    pub trust: Trust,
}

/// Bandwidths of a size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bytes: u64,
    typical: f64,
    least: f64,
}

/// An expectation for one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// Typical bus bandwidth in GB/s.
    pub typical_gbps: f64,
    /// Least bus bandwidth in GB/s.
    pub least_gbps: f64,
}

/// Reason for which a file of expectations cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpectationError {
    /// It is not TOML, or has other fields.
    #[error("{0}")]
    Form(String),
    /// An entry has a wrong value.
    #[error("expectation {number}: {problem}")]
    Value {
        /// Number of the entry, from 1.
        number: usize,
        /// The problem.
        problem: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    expectation: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    gpu: String,
    gpus_per_host: usize,
    hosts: usize,
    nvls: Option<bool>,
    nics: Option<String>,
    nccl: Option<String>,
    collective: String,
    points: Vec<Vec<Number>>,
    source: String,
    date: String,
    trust: Trust,
}

/// A size as text, or a bandwidth.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Size(String),
    Whole(u32),
    Bandwidth(f64),
}

/// Returns the compiled-in expectations.
pub fn known_expectations() -> &'static [Expectation] {
    static KNOWN: OnceLock<Vec<Expectation>> = OnceLock::new();
    // A test fails for a file that cannot be read.
    KNOWN.get_or_init(|| parse_expectations(FILE).unwrap_or_default())
}

/// Parses a file of expectations in the format of `expectations.toml`.
///
/// # Errors
/// When the text is not TOML, or an entry has unknown fields or values that make no sense.
pub fn parse_expectations(text: &str) -> Result<Vec<Expectation>, ExpectationError> {
    let file: File =
        toml::from_str(text).map_err(|error| ExpectationError::Form(error.to_string().trim().to_owned()))?;
    let entries = file.expectation.into_iter().enumerate();
    entries
        .map(|(index, entry)| {
            convert_entry(entry).map_err(|problem| ExpectationError::Value { number: index + 1, problem })
        })
        .collect()
}

fn convert_entry(entry: Entry) -> Result<Expectation, String> {
    if !all_gpu_kinds().iter().any(|kind| kind.key == entry.gpu) {
        let keys: Vec<&str> = all_gpu_kinds().iter().map(|kind| kind.key.as_str()).collect();
        return Err(format!("'{}' is not a known GPU; known are {}", entry.gpu, keys.join(", ")));
    }
    if entry.gpus_per_host == 0 || entry.hosts == 0 {
        return Err("gpus_per_host and hosts are at least 1".to_owned());
    }
    let least_share = entry.trust.least_share();
    let points = entry.points.iter().map(|point| convert_point(point, least_share));
    let points = points.collect::<Result<Vec<_>, _>>()?;
    if points.is_empty() || !points.is_sorted_by(|one, other| one.bytes < other.bytes) {
        return Err("points are at least one, in ascending order of size".to_owned());
    }
    Ok(Expectation {
        gpu: entry.gpu,
        ranks_per_host: entry.gpus_per_host,
        hosts: entry.hosts,
        nvls: entry.nvls,
        nics: entry.nics.map(|nics| nics.parse().map_err(|error| format!("{error}"))).transpose()?,
        nccl: entry.nccl.as_deref().map(parse_versions).transpose()?,
        collective: entry.collective.parse().map_err(|error| format!("{error}"))?,
        points,
        source: entry.source,
        date: entry.date,
        trust: entry.trust,
    })
}

fn convert_point(point: &[Number], least_share: f64) -> Result<Point, String> {
    let bandwidth = |number: &Number| match number {
        Number::Whole(number) => Some(f64::from(*number)),
        Number::Bandwidth(number) => Some(*number),
        Number::Size(_) => None,
    };
    let converted = match point {
        [Number::Size(size), rates @ ..] if (1..=2).contains(&rates.len()) => {
            let typical = bandwidth(&rates[0]);
            let least = rates.get(1).map_or(typical.map(|typical| typical * least_share), bandwidth);
            parse_size(size).zip(typical).zip(least)
        }
        _ => None,
    };
    let point = converted.map(|((bytes, typical), least)| Point { bytes, typical, least });
    let is_sensible = |point: &Point| {
        point.bytes > 0 && point.typical.is_finite() && point.least > 0.0 && point.least <= point.typical
    };
    point.filter(is_sensible).ok_or_else(|| {
        "a point is a size, a typical bandwidth above 0 and perhaps a least one: [\"1G\", 466, 450]"
            .to_owned()
    })
}

/// Parses `2.27..2.31`: the second version with all its patches.
fn parse_versions(text: &str) -> Result<[NcclVersion; 2], String> {
    let parsed = text.split_once("..").and_then(|(from, to)| {
        let (from, NcclVersion([major, minor, patch])) = (NcclVersion::parse(from)?, NcclVersion::parse(to)?);
        let has_patch = to.matches('.').count() > 1;
        Some([from, NcclVersion([major, minor, if has_patch { patch } else { u32::MAX }])])
    });
    parsed.ok_or_else(|| format!("'{text}' is not a range of versions as 2.27..2.31"))
}

impl Expectation {
    /// Returns true when the machine has the facts of this expectation. An unknown state of NVLS and unknown
    /// NICs match all.
    pub fn fits_machine(&self, machine: &Machine, collective: Collective) -> bool {
        self.collective == collective
            && machine.gpu.is_some_and(|kind| kind.key == self.gpu)
            && machine.ranks_per_host == Some(self.ranks_per_host)
            && machine.hosts == Some(self.hosts)
            && !machine.shares_gpus
            && (self.nvls.is_none() || machine.nvls.is_none() || self.nvls == machine.nvls)
            && self.nics.is_none_or(|nics| machine.nics.is_none_or(|other| nics.match_sum(other)))
            && self
                .nccl
                .is_none_or(|[from, to]| machine.nccl.is_some_and(|version| (from..=to).contains(&version)))
    }

    /// Returns true for a machine with NVLS, false for one without it; `None` when both reach the same.
    pub fn nvls(&self) -> Option<bool> {
        self.nvls
    }

    /// Returns the collective.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// Returns the machine that the values are for.
    #[cfg(test)]
    pub(crate) fn describe_machine(&self) -> Machine {
        let gpu = all_gpu_kinds().iter().find(|kind| kind.key == self.gpu);
        Machine {
            ranks: Some(self.hosts * self.ranks_per_host),
            hosts: Some(self.hosts),
            ranks_per_host: Some(self.ranks_per_host),
            gpu_name: Some(self.gpu.clone()),
            gpu,
            shares_gpus: false,
            nvls: self.nvls,
            collnet: Some(false),
            nics: self.nics,
            nvlink_gbps: gpu.and_then(|kind| kind.nvlink_gbps),
            host_gbps: gpu.map(|kind| kind.host_gbps),
            nccl: self.nccl.map(|[from, _]| from),
        }
    }

    /// Returns the NICs that the values are for; `None` when they do not depend on them.
    pub fn nics(&self) -> Option<Nics> {
        self.nics
    }

    /// Returns the typical bandwidth of the largest size in GB/s.
    pub fn largest_size_gbps(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.typical)
    }

    /// Returns the expectation for a size: between two sizes on a straight line of logarithms, above the
    /// largest one its values. `None` below the smallest one.
    pub fn find_expected(&self, bytes: u64) -> Option<Expected> {
        let above = self.points.iter().position(|point| point.bytes >= bytes);
        let expected = |typical_gbps, least_gbps| Some(Expected { typical_gbps, least_gbps });
        match above {
            None => self.points.last().and_then(|last| expected(last.typical, last.least)),
            Some(index) if self.points[index].bytes == bytes => {
                expected(self.points[index].typical, self.points[index].least)
            }
            Some(0) => None,
            Some(index) => {
                let (one, other) = (self.points[index - 1], self.points[index]);
                let share =
                    (bytes as f64 / one.bytes as f64).ln() / (other.bytes as f64 / one.bytes as f64).ln();
                let between = |one: f64, other: f64| one * (other / one).powf(share);
                expected(between(one.typical, other.typical), between(one.least, other.least))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"
        [[expectation]]
        gpu = "H200"
        gpus_per_host = 8
        hosts = 1
        nvls = false
        nccl = "2.18..2.28"
        collective = "all_reduce_perf"
        points = [["64M", 100], ["256M", 400.0, 300.0]]
        source = "here"
        date = "2026"
        trust = "high"
    "#;

    #[test]
    fn the_compiled_in_file_is_whole() {
        let known = parse_expectations(FILE).unwrap();
        assert!(known.len() > 30);
        for expectation in known {
            assert!(!expectation.source.is_empty() && !expectation.date.is_empty());
        }
    }

    #[test]
    fn a_size_between_two_lies_between_their_values() {
        let parsed = parse_expectations(ENTRY).unwrap();
        let at = |bytes: u64| parsed[0].find_expected(bytes).map(|expected| expected.typical_gbps);
        assert_eq!(at((64 << 20) - 1), None);
        assert_eq!(at(64 << 20), Some(100.0));
        assert!((at(128 << 20).unwrap() - 200.0).abs() < 1e-9);
        assert_eq!(at(1 << 40), Some(400.0));
        assert_eq!(parsed[0].find_expected(64 << 20).unwrap().least_gbps, 92.0);
        assert_eq!(parsed[0].find_expected(256 << 20).unwrap().least_gbps, 300.0);
    }

    #[test]
    fn versions_bound_an_expectation() {
        let parse = |text| parse_versions(text);
        let [from, to] = parse("2.27..2.28").unwrap();
        let inside = |text: &str| (from..=to).contains(&NcclVersion::parse(text).unwrap());
        assert!(inside("2.27.3+cuda12.9") && inside("2.28.9") && !inside("2.29.1") && !inside("2.26.5"));
        assert!(parse("2.27").is_err() && parse("..").is_err() && parse("a..b").is_err());
    }

    #[test]
    fn a_wrong_entry_is_named() {
        for (from, to, problem) in [
            ("\"H200\"", "\"H2000\"", "expectation 1: 'H2000' is not a known GPU; known are GB300"),
            ("hosts = 1", "hosts = 0", "at least 1"),
            ("100]", "-1]", "a point is a size"),
            ("300.0", "500.0", "a point is a size"),
            ("64M", "512M", "ascending"),
            ("64M", "64Q", "a point is a size"),
            ("all_reduce_perf", "allredice", "is not a collective"),
            ("2.18..2.28", "new", "range of versions"),
            ("date", "when", "unknown field"),
        ] {
            let error = parse_expectations(&ENTRY.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
