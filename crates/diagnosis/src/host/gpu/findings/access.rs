//! Conclusions about access among GPUs: NVLink, its fabric, and peer-to-peer.

use super::super::super::compare::majority;
use super::super::{Access, Fabric, Gpus};
use super::describe_gpu;
use crate::finding::{Action, Finding, Severity};
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
        return (active < all).then(|| {
            Finding::new(
                "nvlink-down-alike",
                Severity::Advice,
                format!("{active} of {all} NVLinks are up, the same number on all GPUs"),
            )
            .with_cause(
                "an NVSwitch is lost, or the machine, its partition or its virtual machine has no more \
                 NVLinks",
            )
            .with_remedy(
                "compare with another host of the same kind: nvidia-smi nvlink -s; see \
                 /var/log/fabricmanager.log",
            )
        });
    }
    (!fewer.is_empty()).then(|| {
        Finding::new("nvlink-down", Severity::Degraded, format!("NVLinks are down: {}", join_list(&fewer)))
            .with_cause("the link was not trained, or was taken down after errors")
            .with_remedy(
                "nvidia-smi nvlink -s; dmesg | grep -iE 'nvlink|SXid'; reset all GPUs of the node, or reboot \
                 it",
            )
            .with_action(Action::Reboot)
    })
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
    (!slow.is_empty()).then(|| {
        Finding::new(
            "nvlink-slow",
            Severity::Degraded,
            format!("NVLinks are slower than the usual {usual} Mbit/s: {}", join_list(&slow)),
        )
        .with_cause("a lane of the link was not trained")
        .with_remedy("reset all GPUs of the node, or reboot it; isolate the node if the link stays slow")
        .with_action(Action::Reboot)
    })
}

fn find_growing_errors(gpus: &Gpus) -> Option<Finding> {
    let grown: Vec<String> = gpus
        .counters
        .iter()
        .filter(|counter| counter.has_grown())
        .map(|counter| format!("{} {} +{}", counter.device, counter.name, or_dash(counter.growth)))
        .collect();
    (!grown.is_empty()).then(|| {
        Finding::new(
            "nvlink-errors-grow",
            Severity::Degraded,
            format!("NVLink errors grow: {}", join_list(&grown)),
        )
        .with_cause("a link works with errors, and sends data again")
        .with_remedy("watch it with --interval 60; isolate the node if the errors continue")
        .with_action(Action::Watch)
    })
}

fn find_fabric_faults(gpus: &Gpus) -> Vec<Finding> {
    let those = |wanted: &dyn Fn(&Fabric) -> bool| -> Vec<String> {
        gpus.devices.iter().filter(|gpu| gpu.fabric.as_ref().is_some_and(wanted)).map(describe_gpu).collect()
    };
    let mut findings = Vec::new();
    let waiting = those(&|fabric| fabric.state != 3);
    if !waiting.is_empty() {
        findings.push(
            Finding::new(
                "fabric-not-ready",
                Severity::Broken,
                format!("the NVSwitch fabric is not ready: {}", join_list(&waiting)),
            )
            .with_cause(
                "the fabric manager has not registered the GPUs; CUDA fails with error 802 (system not yet \
                 initialized)",
            )
            .with_remedy(
                "systemctl restart nvidia-fabricmanager; its version must equal the driver's version; see \
                 /var/log/fabricmanager.log",
            ),
        );
    }
    let failed = those(&|fabric| fabric.state == 3 && fabric.status != 0);
    if !failed.is_empty() {
        findings.push(
            Finding::new(
                "fabric-failed",
                Severity::Broken,
                format!("the registration with the NVSwitch fabric failed: {}", join_list(&failed)),
            )
            .with_remedy("nvidia-smi -q | grep -A 12 Fabric; systemctl restart nvidia-fabricmanager"),
        );
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
        findings.push(
            Finding::new(
                "fabric-unhealthy",
                Severity::Degraded,
                format!("the NVSwitch fabric reports {text}: {}", join_list(&names)),
            )
            .with_remedy("nvidia-smi -q | grep -A 12 Fabric; see the fabric manager's or NMX's log")
            .with_action(Action::Isolate),
        );
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
        findings.push(
            Finding::new(
                "fabric-cliques-differ",
                Severity::Degraded,
                "the GPUs of this host are in different cliques of the NVSwitch fabric",
            )
            .with_cause("GPUs of different cliques cannot reach each other over NVLink")
            .with_remedy(
                "nvidia-smi -q | grep -E 'CliqueId|ClusterUUID'; give the node's GPUs one partition",
            ),
        );
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
            let (severity, cause, remedy) = match access {
                Access::Disabled => (
                    Severity::Degraded,
                    "a setting of the driver forbids it",
                    "look into /etc/modprobe.d for NVreg_RegistryDwords, and load the module without it",
                ),
                Access::NoGpu => (
                    Severity::Advice,
                    "the GPUs do not support it",
                    "none: NCCL goes through the host's memory",
                ),
                // If some pairs work, the machine's layout explains the other pairs.
                _ if any_works => (
                    Severity::Advice,
                    "the GPUs are on different parts of the machine",
                    "nvidia-smi topo -p2p r; nvidia-smi topo -m",
                ),
                _ => (
                    Severity::Advice,
                    "the chipset, the virtual machine or the driver does not support it",
                    "nvidia-smi topo -p2p r; in a virtual machine the GPUs must share a PCIe switch or \
                     NVLink",
                ),
            };
            let text =
                format!("no peer-to-peer access ({}) between GPUs {}", access.code(), join_list(&pairs));
            Finding::new("no-peer-access", severity, text).with_cause(cause).with_remedy(remedy)
        })
        .collect()
}
