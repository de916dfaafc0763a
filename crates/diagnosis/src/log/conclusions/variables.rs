//! The variables in the log, judged for the versions and the platform of the log.

use super::hits::Placed;
use super::job::Job;
use crate::environment::{Location, Platform, Setting, Situation, find_harm, is_collected};
use crate::finding::{Finding, Severity};
use crate::log::digest::{VariableSeen, Writer};

/// Variables with a visible effect in the log: the start, and the transport between each pair.
const SHOWN: [&str; 9] = [
    "NCCL_SOCKET_IFNAME",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_GDR_READ",
    "NCCL_MNNVL_ENABLE",
];

/// Returns findings about harmful variables, or variables with a wrong value, for the version of NCCL in the
/// log. `found` are the other findings. A variable in one of them is not reported again.
pub(super) fn find_harmful_variables(job: &Job<'_>, found: &[Placed]) -> Vec<Placed> {
    // A plugin sets the variables it needs.
    let seen = job.digest.variables.iter().filter(|seen| !seen.by_plugin && is_collected(&seen.name));
    let seen: Vec<&VariableSeen> = seen.collect();
    let judge = |variable: &&VariableSeen| -> Vec<Placed> {
        let situation = situation_of(job, variable);
        let own = format!("{}={}", variable.name, variable.value);
        let mut named = found.iter().flat_map(|each| &each.finding.evidence);
        if named.any(|evidence| evidence.text == own) {
            return Vec::new();
        }
        let is_set = |name: &str| {
            seen.iter().any(|other| other.name == name && !other.writers.is_disjoint(&variable.writers))
        };
        let setting = Setting::new(
            variable.name.clone(),
            variable.value.clone(),
            Location::without_line("environment"),
        );
        let mut findings = find_harm(&setting, &situation, &is_set);
        // Without a version, only the form of the value is judged.
        findings.retain(|finding| situation.nccl.is_some() || finding.rule == "variable-value");
        let findings = findings.into_iter();
        findings.map(|finding| Placed::without_line(locate_finding(job, variable, finding))).collect()
    };
    seen.iter().flat_map(judge).collect()
}

/// Returns the software and the platform of the processes with the variable.
fn situation_of(job: &Job<'_>, variable: &VariableSeen) -> Situation {
    let writers: Vec<&Writer> = variable.writers.iter().filter_map(|&index| job.writer(index)).collect();
    Situation {
        nccl: writers.iter().find_map(|writer| writer.nccl.clone()),
        plugin: writers.iter().find_map(|writer| writer.plugin.clone()),
        libfabric: writers.iter().find_map(|writer| writer.libfabric.clone()),
        platform: writers.iter().any(|writer| writer.efa).then(|| Platform::from_product("aws")),
        nodes: job.main.and_then(|main| main.nodes),
        rdma: None,
    }
}

/// Returns the finding with its place in the log. The log would contain a failure, so a variable alone breaks
/// nothing here.
fn locate_finding(job: &Job<'_>, variable: &VariableSeen, finding: Finding) -> Finding {
    let least = if SHOWN.contains(&variable.name.as_str()) { Severity::Advice } else { Severity::Degraded };
    let writer = variable.writers.first().copied();
    let text = format!("{}={}", variable.name, variable.value);
    Finding {
        severity: finding.severity.max(least),
        ranks: job.ranks_of_writers(job.of_same_processes(&variable.writers)),
        evidence: vec![job.cite_line(variable.first, writer, text)],
        ..finding
    }
}
