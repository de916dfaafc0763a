//! Conclusions about access among GPUs: NVLink, its fabric, and peer-to-peer.

use super::super::super::compare::majority;
use super::super::{Access, Fabric, Gpus};
use super::describe_gpu;
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::words::{join_list, or_dash};

pub(super) fn judge_access(gpus: &Gpus) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(find_missing_links(gpus));
    findings.extend(find_slow_links(gpus));
    findings.extend(find_growing_errors(gpus));
    findings.extend(find_fabric_faults(gpus));
    findings.extend(find_pairs_without_access(gpus));
    findings
}

/// Returns a finding about GPUs with fewer working links than others. Equal numbers may be by design. If all
/// GPUs are in a fabric, missing links are also then reported: a lost NVSwitch takes links from all.
fn find_missing_links(gpus: &Gpus) -> Option<Finding> {
    let counts: Vec<usize> = gpus.devices.iter().map(super::Gpu::active_links).collect();
    let most = counts.iter().copied().max().filter(|most| *most > 0)?;
    let fewer: Vec<String> = gpus
        .devices
        .iter()
        .filter(|gpu| gpu.active_links() < most && gpu.links.len() >= most)
        .map(|gpu| {
            let inactive = gpu.links.iter().filter(|link| !link.active);
            let down: Vec<String> = inactive.map(|link| link.number.to_string()).collect();
            format!("{}: {} of {most}, down: {}", describe_gpu(gpu), gpu.active_links(), join_list(&down))
        })
        .collect();
    let in_fabric = gpus.devices.iter().all(|gpu| gpu.fabric.is_some());
    if fewer.is_empty() && in_fabric && gpus.devices.len() > 1 {
        let (active, all) = gpus.count_links();
        return (active < all)
            .then(|| compose_finding("nvlink-down-alike", &[("active", &active), ("all", &all)]));
    }
    (!fewer.is_empty()).then(|| compose_finding("nvlink-down", &[("fewer", &join_list(&fewer))]))
}

fn find_slow_links(gpus: &Gpus) -> Option<Finding> {
    let links: Vec<(&super::Gpu, u32, u64)> = gpus
        .devices
        .iter()
        .flat_map(|gpu| gpu.links.iter().filter_map(move |link| Some((gpu, link.number, link.speed?))))
        .collect();
    let speeds: Vec<&u64> = links.iter().map(|(.., speed)| speed).collect();
    let usual = *majority(&speeds)?;
    let slow: Vec<String> = links
        .iter()
        .filter(|(.., speed)| *speed < usual)
        .map(|(gpu, link, speed)| format!("{} link {link}: {speed} Mbit/s", describe_gpu(gpu)))
        .collect();
    (!slow.is_empty())
        .then(|| compose_finding("nvlink-slow", &[("usual", &usual), ("slow", &join_list(&slow))]))
}

fn find_growing_errors(gpus: &Gpus) -> Option<Finding> {
    let grown: Vec<String> = gpus
        .counters
        .iter()
        .filter(|counter| counter.has_grown())
        .map(|counter| format!("{} {} +{}", counter.device, counter.name, or_dash(counter.growth)))
        .collect();
    (!grown.is_empty()).then(|| compose_finding("nvlink-errors-grow", &[("grown", &join_list(&grown))]))
}

fn find_fabric_faults(gpus: &Gpus) -> Vec<Finding> {
    let those = |wanted: &dyn Fn(&Fabric) -> bool| -> Vec<String> {
        gpus.devices.iter().filter(|gpu| gpu.fabric.as_ref().is_some_and(wanted)).map(describe_gpu).collect()
    };
    let mut findings = Vec::new();
    let waiting = those(&|fabric| fabric.state != 3);
    if !waiting.is_empty() {
        findings.push(compose_finding("fabric-not-ready", &[("waiting", &join_list(&waiting))]));
    }
    let failed = those(&|fabric| fabric.state == 3 && fabric.status != 0);
    if !failed.is_empty() {
        findings.push(compose_finding("fabric-failed", &[("failed", &join_list(&failed))]));
    }
    // Bits of NVML: two each for bandwidth (0), route recovery (2), route (4), and four for the configuration
    // (8).
    let bits =
        |fabric: &Fabric, shift: u32, mask: u32| fabric.health.map_or(0, |health| (health >> shift) & mask);
    let unhealthy = [
        (those(&|fabric| bits(fabric, 0, 3) == 1), "reduced bandwidth"),
        (those(&|fabric| bits(fabric, 2, 3) == 1), "a route that recovers"),
        (those(&|fabric| bits(fabric, 4, 3) == 1), "an unhealthy route"),
        (those(&|fabric| bits(fabric, 8, 15) > 1), "a wrong configuration"),
    ];
    for (names, text) in unhealthy.into_iter().filter(|(names, _)| !names.is_empty()) {
        findings.push(compose_finding("fabric-unhealthy", &[("text", &text), ("names", &join_list(&names))]));
    }
    let mut groups: Vec<(&Option<String>, u32)> = gpus
        .devices
        .iter()
        .filter_map(|gpu| gpu.fabric.as_ref())
        .map(|fabric| (&fabric.cluster, fabric.clique))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    if groups.len() > 1 {
        findings.push(compose_finding("fabric-cliques-differ", &[]));
    }
    findings
}

/// Returns findings about pairs without peer-to-peer access.
fn find_pairs_without_access(gpus: &Gpus) -> Vec<Finding> {
    let number = |row: usize| gpus.devices.get(row).map_or(row, |gpu| gpu.index as usize);
    let mut refused: Vec<(Access, Vec<String>)> = Vec::new();
    for (from, row) in gpus.peers.iter().enumerate() {
        for (to, peer) in row.iter().enumerate().filter(|(to, _)| *to != from) {
            let Some(access) = [peer.read, peer.write]
                .into_iter()
                .find(|access| !matches!(access, Access::Supported | Access::Unknown))
            else {
                continue;
            };
            let pair = format!("{}-{}", number(from), number(to));
            match refused.iter_mut().find(|(known, _)| *known == access) {
                Some((_, pairs)) => pairs.push(pair),
                None => refused.push((access, vec![pair])),
            }
        }
    }
    let any_works = gpus.peers.iter().flatten().any(|peer| peer.read == Access::Supported);
    refused
        .into_iter()
        .map(|(access, pairs)| {
            let id = match access {
                Access::Disabled => "no-peer-access/disabled",
                Access::NoGpu => "no-peer-access/unsupported",
                // If some pairs work, the machine's layout explains the other pairs.
                _ if any_works => "no-peer-access/apart",
                _ => "no-peer-access",
            };
            compose_finding(id, &[("access", &access.code()), ("pairs", &join_list(&pairs))])
        })
        .collect()
}
