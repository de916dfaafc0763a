//! Known faults and conflicts of the versions in the log.

use std::collections::{BTreeMap, BTreeSet};

use semver::Version;

use super::hits::Placed;
use super::job::{Job, count};
use super::needs;
use crate::examination::{Body, KNOWN_FAULTS, Section};
use crate::finding::{Finding, Severity};
use crate::knowledge::conflicts::{Conflict, Conflicts, Together};
use crate::knowledge::faults::{Component, Fault, Faults};
use crate::knowledge::rules::Use;
use crate::log::digest::Writer;

/// A known fault with the affected version.
struct KnownFault {
    name: String,
    fault: &'static Fault,
    /// Property needed by the fault and missing in the job, as the log shows.
    lacks: Option<String>,
}

/// Returns the known faults of all versions in the log, each once: faults possible in the job, and the
/// others.
fn collect_known_faults(job: &Job<'_>, proven: &BTreeSet<Use>) -> (Vec<KnownFault>, Vec<KnownFault>) {
    let mut known: BTreeMap<&str, KnownFault> = BTreeMap::new();
    for writer in &job.digest.writers {
        let versions = [
            ("NCCL", Component::Nccl, &writer.nccl),
            ("aws-ofi-nccl", Component::AwsOfiNccl, &writer.plugin),
            ("libfabric", Component::Libfabric, &writer.libfabric),
        ];
        for (name, component, version) in versions {
            let Some(version) = version else { continue };
            if component == Component::Nccl && is_rccl(writer) {
                continue;
            }
            for fault in Faults::built_in().of_component(component, version) {
                let build = writer.nccl_build.as_deref();
                if component == Component::Nccl && !fault.applies_to_build(build) {
                    continue;
                }
                let lacks = needs::find_missing_need(job, fault, name_network(writer), proven);
                match known.get_mut(fault.id.as_str()) {
                    Some(known) => known.lacks = known.lacks.take().filter(|_| lacks.is_some()),
                    None => {
                        let name = format!("{name} {version}");
                        known.insert(&fault.id, KnownFault { name, fault, lacks });
                    }
                }
            }
        }
    }
    known.into_values().partition(|known| known.lacks.is_none())
}

/// Returns true for RCCL: it writes `NCCL version 2.22.3+hip6.4` and has its own faults.
fn is_rccl(writer: &Writer) -> bool {
    writer.nccl_build.as_deref().is_some_and(|build| build.contains("hip"))
}

/// Returns the network of a process, in the words of the known faults.
fn name_network(writer: &Writer) -> Option<&'static str> {
    let name = writer.network.as_deref()?;
    match name {
        "Socket" => Some("socket"),
        "IB" => Some("ib"),
        _ if writer.efa => Some("efa"),
        _ if name.contains("Libfabric") => Some("libfabric"),
        _ => None,
    }
}

/// Returns findings about known faults and conflicts. A fault with conditions invisible in a log is advice.
/// All such faults are one finding, and [`known_faults_section`] lists them.
pub(super) fn find_known_faults(job: &Job<'_>, proven: &BTreeSet<Use>) -> Vec<Placed> {
    let mut found: Vec<Placed> = find_version_conflicts(job, proven);
    let (open, certain): (Vec<KnownFault>, Vec<KnownFault>) =
        collect_known_faults(job, proven).0.into_iter().partition(|known| !known.fault.conditions.is_empty());
    found.extend(certain.into_iter().map(|KnownFault { name, fault, .. }| {
        // The job of the log ran with it.
        let severity = fault.severity_for(true).max(Severity::Degraded);
        Placed::without_line(Finding {
            remedy: Some(fault.remedy.clone()),
            source: Some(fault.source.clone()),
            ..Finding::new(fault.id.clone(), severity, format!("{name} has a known fault: {}", fault.effect))
        })
    }));
    if !open.is_empty() {
        let versions: BTreeSet<&str> = open.iter().map(|known| known.name.as_str()).collect();
        let versions: Vec<String> = versions.into_iter().map(str::to_owned).collect();
        let text = format!(
            "{} of {}, each under conditions that the log does not show",
            count(open.len(), "known fault"),
            versions.join(", ")
        );
        found.push(Placed::without_line(Finding {
            versions,
            remedy: Some("See the known faults below.".to_owned()),
            ..Finding::new("known-faults", Severity::Advice, text)
        }));
    }
    found
}

/// Returns the known faults with conditions invisible in the log, each on a line, and a line about the faults
/// impossible in the job.
pub(super) fn known_faults_section(job: &Job<'_>, proven: &BTreeSet<Use>) -> Option<Section> {
    let sentence = |text: &str| format!("{}.", text.trim_end_matches('.'));
    let line = |KnownFault { name, fault, .. }: &KnownFault| {
        let conditions = sentence(&fault.conditions.join("; "));
        // A remedy can end with a command.
        format!("{name}: {} If: {conditions} {}", sentence(&fault.effect), fault.remedy)
    };
    let (listed, others) = collect_known_faults(job, proven);
    let mut lines: Vec<String> =
        listed.iter().filter(|known| !known.fault.conditions.is_empty()).map(line).collect();
    let lacks: BTreeSet<&str> = others.iter().filter_map(|known| known.lacks.as_deref()).collect();
    if !lines.is_empty() && !lacks.is_empty() {
        let lacks: Vec<&str> = lacks.into_iter().collect();
        let number = count(others.len(), "known fault");
        lines.push(format!("Not listed: {number} for which the job lacks: {}.", lacks.join(", ")));
    }
    (!lines.is_empty()).then(|| Section { title: KNOWN_FAULTS.to_owned(), body: Body::Lines(lines) })
}

/// Returns findings about versions that do not work together.
fn find_version_conflicts(job: &Job<'_>, proven: &BTreeSet<Use>) -> Vec<Placed> {
    let mut found: BTreeMap<&str, (&Conflict, Vec<usize>)> = BTreeMap::new();
    for (index, writer) in job.digest.writers.iter().enumerate() {
        let driver = writer.driver.map(|driver| {
            Version::new(u64::from(driver / 1000), u64::from(driver % 1000 / 10), u64::from(driver % 10))
        });
        let together = Together {
            nccl: writer.nccl.as_ref().filter(|_| !is_rccl(writer)),
            plugin: writer.plugin.as_ref(),
            libfabric: writer.libfabric.as_ref(),
            driver: driver.as_ref(),
        };
        let conflicts = Conflicts::built_in().conflicts_among(&together).into_iter();
        for conflict in conflicts.filter(|one| !one.denies.is_some_and(|denied| proven.contains(&denied))) {
            found.entry(&conflict.id).or_insert((conflict, Vec::new())).1.push(index);
        }
    }
    found.into_values().map(|(conflict, writers)| from_conflict(job, conflict, &writers)).collect()
}

fn from_conflict(job: &Job<'_>, conflict: &Conflict, writers: &[usize]) -> Placed {
    let works =
        |writer: &Writer| writer.network.as_deref().is_some_and(|network| network.contains("Libfabric"));
    let all_work = writers.iter().filter_map(|&index| job.writer(index)).all(works);
    let is_refuted = conflict.severity == Severity::Broken && all_work;
    let is_open = !conflict.conditions.is_empty() || is_refuted;
    let severity = if is_open { Severity::Advice } else { conflict.severity };
    let conditions = match &conflict.conditions[..] {
        [] => None,
        conditions => Some(format!("If: {}.", conditions.join("; "))),
    };
    let finding = Finding {
        cause: conditions,
        remedy: Some(conflict.remedy.clone()),
        ranks: job.ranks_of_writers(writers.iter().copied()),
        source: Some(conflict.source.clone()),
        ..Finding::new(conflict.id.clone(), severity, conflict.effect.clone())
    };
    Placed { is_of_network: severity == Severity::Broken, ..Placed::without_line(finding) }
}
