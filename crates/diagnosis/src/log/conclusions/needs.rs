//! Properties needed by known faults and missing in the job, as its log shows.

use std::collections::{BTreeMap, BTreeSet};

use super::job::Job;
use crate::knowledge::faults::{Fault, NEEDS};
use crate::knowledge::rules::Use;
use crate::log::digest::Communicator;

/// Returns the first property needed by the fault and missing in the job, in words, or `None` if the job
/// lacks none, or the log does not show it.
pub(super) fn find_missing_need(
    job: &Job<'_>,
    fault: &Fault,
    network: Option<&str>,
    proven: &BTreeSet<Use>,
) -> Option<String> {
    if let Some(denied) = fault.denies.filter(|denied| proven.contains(denied)) {
        let lacks = match denied {
            Use::P2p => "GPUs without direct access to each other",
            Use::Nvlink => "GPUs without NVLink",
            Use::Gdr => "a network without GPUDirect RDMA",
        };
        return Some(lacks.to_owned());
    }
    if !fault.applies_to_network(network) {
        let names: Vec<&str> = fault.networks.iter().map(|name| describe_network(name)).collect();
        return Some(names.join(" or "));
    }
    let need = fault.needs.iter().find(|need| lacks_need(job, need))?;
    let known = NEEDS.iter().find(|(name, _)| name == need);
    Some(known.map_or_else(|| need.clone(), |(_, words)| (*words).to_owned()))
}

/// Returns a network in words.
fn describe_network(network: &str) -> &str {
    match network {
        "ib" => "InfiniBand or RoCE",
        "efa" => "EFA",
        "socket" => "TCP",
        other => other,
    }
}

/// Returns true if the job lacks it, as its log shows.
fn lacks_need(job: &Job<'_>, need: &str) -> bool {
    let (groups, more) = job.communicators_to_prove();
    if groups.is_empty() || more > 0 || !job.digest.limits.is_empty() {
        return false;
    }
    let all = &job.digest.communicators;
    match need {
        "several-nodes" => groups.iter().all(|group| has_one_node(job, group)),
        "many-ranks" => groups.iter().all(|group| group.ranks <= 80 && !group.is_size_guessed),
        "one-gpu-per-host" => groups.iter().any(|group| has_host_of_several(job, group)),
        "nvls" => all.iter().all(|each| each.ranks == 1 || each.nvls_channels == Some(0)),
        // The following properties can be in the log of an absent rank.
        _ if groups
            .iter()
            .any(|group| group.members.len() != group.ranks as usize || group.is_size_guessed) =>
        {
            false
        }
        "one-rank" => all.iter().all(|each| each.ranks > 1),
        "split" => all.iter().all(|each| !each.made_by.is_empty() && !each.made_by.contains("Split")),
        variable => {
            let mut named =
                job.digest.variables.iter().filter(|seen| !seen.by_plugin && seen.name.starts_with("NCCL_"));
            // A log with NCCL_DEBUG_SUBSYS can lack all of them.
            let is_named = |name: &str| job.digest.variables.iter().any(|seen| seen.name == name);
            named.next().is_some() && !is_named(variable)
        }
    }
}

/// Returns true for one node, as NCCL counts. Old versions do not write the number: then all ranks of the
/// group are on one host.
fn has_one_node(job: &Job<'_>, group: &Communicator) -> bool {
    let is_whole = group.members.len() == group.ranks as usize;
    let hosts: BTreeSet<_> = group.members.keys().map(|&rank| job.host_of_rank(group, rank)).collect();
    group.nodes.map_or(is_whole && hosts.len() == 1, |nodes| nodes == 1)
}

/// Returns true if two ranks use different GPUs of a host.
fn has_host_of_several(job: &Job<'_>, group: &Communicator) -> bool {
    let mut gpus: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (&rank, member) in &group.members {
        if let (Some(host), Some(bus)) = (job.host_of_rank(group, rank), member.bus_id.as_deref()) {
            gpus.entry(host).or_default().insert(bus);
        }
    }
    gpus.values().any(|gpus| gpus.len() > 1)
}
