//! Findings about a topology.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::graph::Graphs;
use super::matrix::{Device, path_between};
use super::model::{Locality, NvLinkEnd, Topology, TopologyGpu, TopologyNic};
use super::path::Path;
use crate::finding::{Evidence, Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::words::{join_list, plural};

/// Returns all findings.
pub(super) fn find_problems(topology: &Topology) -> Vec<Finding> {
    let mut findings = Vec::new();
    for alike in group_by_product(&topology.gpus) {
        findings.extend(find_nvlink_differences(topology, &alike));
        findings.extend(width_among(topology, &alike));
    }
    findings.extend(one_sided_nvlinks(topology));
    findings.extend(find_slow_pcie(topology));
    findings.extend(far_from_nics(topology));
    findings.extend(find_unknown_numa(topology));
    findings
}

/// Returns GPUs of the same product, each group with at least one GPU: only these can be compared.
fn group_by_product(gpus: &[TopologyGpu]) -> Vec<Vec<&TopologyGpu>> {
    let mut groups: BTreeMap<(Option<u32>, Option<&str>), Vec<&TopologyGpu>> = BTreeMap::new();
    for gpu in gpus {
        groups.entry((gpu.device, gpu.name.as_deref())).or_default().push(gpu);
    }
    groups.into_values().collect()
}

/// Returns findings about GPUs without NVLink, or with fewer links, among other GPUs.
fn find_nvlink_differences(topology: &Topology, alike: &[&TopologyGpu]) -> Vec<Finding> {
    let counts: Vec<(&TopologyGpu, u32)> =
        alike.iter().filter_map(|gpu| Some((*gpu, gpu.nvlink_count()?))).collect();
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
    if most == 0 {
        return Vec::new();
    }
    let with_most = counts.iter().filter(|(_, count)| *count == most).count();
    let switched = alike.iter().any(|gpu| gpu.switch_links() > 0);
    let none: Vec<&TopologyGpu> =
        counts.iter().filter(|(_, count)| *count == 0).map(|(gpu, _)| *gpu).collect();
    let fewer: Vec<&(&TopologyGpu, u32)> =
        counts.iter().filter(|(_, count)| *count > 0 && *count < most).collect();
    let mut findings = Vec::new();
    if !none.is_empty() {
        // Bridges between cards are bought for some pairs only. A board with NVSwitch connects all.
        let id = if switched { "gpu-without-nvlink/switched" } else { "gpu-without-nvlink" };
        let values: [(&str, &dyn Display); 4] = [
            ("gpus", &gpus_have(&none)),
            ("others", &with_most),
            ("most", &most),
            ("indices", &gpu_indices(&none)),
        ];
        let mut finding = compose_finding(id, &values);
        finding.evidence = none.iter().map(|gpu| cite_gpu(topology, gpu, "0 active NVLinks")).collect();
        findings.push(finding);
    }
    if !fewer.is_empty() {
        let gpus: Vec<&TopologyGpu> = fewer.iter().map(|(gpu, _)| *gpu).collect();
        // GPUs of a mesh without switches may have different numbers by design.
        let is_fault = switched || is_uniform_mesh(alike);
        let id = if is_fault { "nvlink-count-differs" } else { "nvlink-count-differs/mesh" };
        let values: [(&str, &dyn Display); 3] =
            [("gpus", &gpus_have(&gpus)), ("most", &most), ("indices", &gpu_indices(&gpus))];
        let mut finding = compose_finding(id, &values);
        finding.evidence = fewer
            .iter()
            .map(|(gpu, count)| cite_gpu(topology, gpu, &format!("{count} active NVLinks")))
            .collect();
        findings.push(finding);
    }
    findings
}

/// Returns a finding about pairs of GPUs with different numbers of NVLinks in the two directions.
fn one_sided_nvlinks(topology: &Topology) -> Option<Finding> {
    let known: Vec<&TopologyGpu> = topology.gpus.iter().filter(|gpu| gpu.nvlinks.is_some()).collect();
    let pairs = known.iter().enumerate().flat_map(|(index, a)| known[..index].iter().map(move |b| (*b, *a)));
    let unequal: Vec<_> = pairs
        .map(|(a, b)| (a, b, a.links_to_gpu(b), b.links_to_gpu(a)))
        .filter(|(_, _, there, back)| there != back)
        .collect();
    let (a, b, there, back) = unequal.first()?;
    let links = plural(*there as usize, "NVLink", "NVLinks");
    let values: [(&str, &dyn Display); 6] = [
        ("one", &a.label),
        ("other", &b.label),
        ("there", there),
        ("links", &links),
        ("back", back),
        ("indices", &gpu_indices(&[a, b])),
    ];
    let mut finding = compose_finding("nvlink-one-sided", &values);
    finding.evidence = unequal
        .iter()
        .map(|(a, b, there, back)| {
            cite_gpu(topology, a, &format!("{there} NVLinks to {}, {back} from it", b.label))
        })
        .collect();
    Some(finding)
}

/// Returns true if all GPUs have the same number of NVLinks and the driver reports some as inactive: then
/// fewer links are not by design.
fn is_uniform_mesh(alike: &[&TopologyGpu]) -> bool {
    let total = |gpu: &TopologyGpu| gpu.nvlink_count().unwrap_or(0) + gpu.inactive_nvlinks;
    let first = alike.first().map_or(0, |gpu| total(gpu));
    alike.iter().all(|gpu| total(gpu) == first) && alike.iter().any(|gpu| gpu.inactive_nvlinks > 0)
}

/// Returns a finding about GPUs with a narrower PCIe link than others of the same product, if the largest
/// width is unknown.
fn width_among(topology: &Topology, alike: &[&TopologyGpu]) -> Option<Finding> {
    let unjudged = |gpu: &&&TopologyGpu| gpu.pcie.max_width.is_none() && gpu.pcie.width.is_some();
    let most = alike.iter().filter(unjudged).filter_map(|gpu| gpu.pcie.width).max()?;
    let narrow: Vec<&TopologyGpu> =
        alike.iter().filter(unjudged).filter(|gpu| gpu.pcie.width < Some(most)).copied().collect();
    if narrow.is_empty() {
        return None;
    }
    let values: [(&str, &dyn Display); 3] =
        [("gpus", &gpus_have(&narrow)), ("most", &most), ("bus_id", &narrow[0].bus_id)];
    let mut finding = compose_finding("pcie-width/among", &values);
    finding.evidence = narrow.iter().map(|gpu| cite_gpu(topology, gpu, &gpu.pcie.short_text())).collect();
    Some(finding)
}

/// Returns findings about PCIe links below the abilities of both ends.
fn find_slow_pcie(topology: &Topology) -> Vec<Finding> {
    let gpus = topology.gpus.iter().map(|gpu| (gpu.label.clone(), Some(&gpu.bus_id), &gpu.pcie, true));
    let nics = topology.nics.iter().map(|nic| (describe_nic(nic), nic.bus_id.as_ref(), &nic.pcie, false));
    let (mut narrow, mut slow, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for (label, bus_id, link, is_gpu) in gpus.chain(nics) {
        let bus_id = bus_id.cloned().unwrap_or_default();
        if let (Some(width), Some(most)) = (link.width, link.max_width)
            && width < most
        {
            narrow.push((label.clone(), bus_id.clone(), format!("x{width} of x{most}")));
        }
        if let (Some(rate), Some(most)) = (link.gts, link.max_gts)
            && rate + 0.1 < most
        {
            let text = format!("{rate} of {most} GT/s");
            if is_gpu { &mut idle } else { &mut slow }.push((label, bus_id, text));
        }
    }
    let source = "sysfs and NVML: current and largest PCIe link";
    let about = |id, devices: &[(String, String, String)]| {
        let (_, first, _) = devices.first()?;
        let labels: Vec<&str> = devices.iter().map(|(label, ..)| label.as_str()).collect();
        let mut finding = compose_finding(id, &[("devices", &devices_are(&labels)), ("bus_id", first)]);
        finding.evidence = devices
            .iter()
            .map(|(label, bus_id, text)| Evidence::at_place(source, format!("{label} {bus_id}: {text}")))
            .collect();
        Some(finding)
    };
    let found = [about("pcie-width", &narrow), about("pcie-rate", &slow), about("pcie-rate-idle", &idle)];
    found.into_iter().flatten().collect()
}

/// Returns findings about GPUs without a near NIC on a machine with NICs for its GPUs, and NICs without a
/// near GPU.
fn far_from_nics(topology: &Topology) -> Vec<Finding> {
    let nics: Vec<&TopologyNic> = topology.nics.iter().filter(|nic| nic.rdma && !is_down(nic)).collect();
    if topology.gpus.is_empty() || nics.is_empty() {
        return Vec::new();
    }
    let nearest = |gpu: &TopologyGpu| {
        nics.iter().map(|nic| path_between(topology, Device::Gpu(gpu), Device::Nic(nic))).min()
    };
    let is_near = |gpu: &&TopologyGpu| nearest(gpu).is_some_and(|path| path <= Path::Pxb);
    let (near, far): (Vec<&TopologyGpu>, Vec<&TopologyGpu>) = topology.gpus.iter().partition(is_near);
    let mut findings = Vec::new();
    if near.len() * 2 >= topology.gpus.len() && !far.is_empty() {
        let mut finding = no_near_nic(topology, &near, &far, nics.len());
        let text = |gpu: &TopologyGpu| {
            format!("nearest NIC: {}", nearest(gpu).map_or("none".to_owned(), Path::letters))
        };
        finding.evidence = far.iter().map(|gpu| cite_gpu(topology, gpu, &text(gpu))).collect();
        findings.push(finding);
    }
    let all_far = far.iter().all(|gpu| nearest(gpu) == Some(Path::Sys));
    if near.is_empty() && all_far {
        findings.push(compose_finding("nics-across-sockets", &[]));
        return findings;
    }
    let far_nics: Vec<&TopologyNic> = nics
        .iter()
        .filter(|nic| {
            let paths =
                topology.gpus.iter().map(|gpu| path_between(topology, Device::Gpu(gpu), Device::Nic(nic)));
            paths.min() == Some(Path::Sys)
        })
        .copied()
        .collect();
    if !far_nics.is_empty() {
        let labels: Vec<String> = far_nics.iter().map(|nic| describe_nic(nic)).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let names: Vec<&str> = far_nics.iter().map(|nic| nic.name.as_str()).collect();
        findings.push(compose_finding(
            "nic-far-from-gpus",
            &[("labels", &devices_are(&labels)), ("names", &names.join(","))],
        ));
    }
    findings
}

/// Returns the finding about GPUs without a near NIC. This can be by design: one NIC for two sockets is near
/// to half of the GPUs. A fault is likely if a near NIC is down, or if several NICs serve more than half of
/// the GPUs.
fn no_near_nic(topology: &Topology, near: &[&TopologyGpu], far: &[&TopologyGpu], nics: usize) -> Finding {
    let is_near = |nic: &TopologyNic, gpu: &TopologyGpu| {
        path_between(topology, Device::Gpu(gpu), Device::Nic(nic)) <= Path::Pxb
    };
    let has_down = (topology.nics.iter().filter(|nic| nic.rdma && is_down(nic)))
        .any(|nic| far.iter().any(|gpu| is_near(nic, gpu)));
    let is_fault = has_down || (nics > 1 && near.len() * 2 > topology.gpus.len());
    let id = if is_fault { "gpu-without-near-nic" } else { "gpu-without-near-nic/design" };
    compose_finding(id, &[("gpus", &gpus_have(far)), ("near", &near.len())])
}

/// Returns a finding about devices with an unknown NUMA node on a machine with several.
fn find_unknown_numa(topology: &Topology) -> Option<Finding> {
    let lost = |place: &Locality| place.numa.is_none() && topology.numa_nodes_of(place.host) > 1;
    let on_pci = |device: &Device<'_>| match device {
        Device::Gpu(_) => true,
        Device::Nic(nic) => nic.rdma && nic.bus_id.is_some(),
    };
    let devices: Vec<Device<'_>> =
        Device::all(topology).into_iter().filter(|device| on_pci(device) && lost(device.place())).collect();
    if devices.is_empty() {
        return None;
    }
    let labels: Vec<&str> = devices.iter().map(|device| device.label()).collect();
    let finding = compose_finding("numa-missing", &[("labels", &join_list(&labels))]);
    let place = if topology.is_dump { &topology.source } else { "/sys/bus/pci/devices/*/numa_node" };
    Some(finding.with_evidence(place, "-1"))
}

/// Returns a finding about NICs of the topology outside all channels of the graphs.
pub(super) fn unused_nics(topology: &Topology, graphs: &Graphs) -> Option<Finding> {
    let used = graphs.net_devices();
    let is_used = |nic: &&TopologyNic| nic.dev.is_some_and(|dev| used.contains(&(nic.place.host, dev)));
    if used.is_empty() {
        return None;
    }
    let (busy, idle): (Vec<&TopologyNic>, Vec<&TopologyNic>) =
        topology.nics.iter().filter(|nic| nic.dev.is_some()).partition(is_used);
    if idle.is_empty() {
        return None;
    }
    // NCCL omits slower NICs, and needs no more than the GPUs can feed.
    let slowest = busy.iter().filter_map(|nic| nic.gbps).fold(f64::INFINITY, f64::min);
    let equal = idle.iter().any(|nic| nic.gbps.is_some_and(|gbps| gbps >= slowest));
    let enough_gpus = graphs.gpu_devices().len() >= topology.nics.len();
    let labels: Vec<String> = idle.iter().map(|nic| describe_nic(nic)).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let finding = compose_finding(
        "nic-not-in-graph",
        &[("labels", &join_list(&labels)), ("busy", &busy.len()), ("all", &(busy.len() + idle.len()))],
    )
    .with_severity(if equal && enough_gpus { Severity::Degraded } else { Severity::Advice });
    Some(finding.with_evidence(&graphs.source, "<channel> without these <net dev=\"…\">"))
}

fn is_down(nic: &TopologyNic) -> bool {
    nic.state.as_deref().is_some_and(|state| !["ACTIVE", "UP"].contains(&state))
}

fn cite_gpu(topology: &Topology, gpu: &TopologyGpu, text: &str) -> Evidence {
    let place = if topology.is_dump { &topology.source } else { "NVML and sysfs" };
    Evidence::at_place(place, format!("{} {}: {text}", gpu.label, gpu.bus_id))
}

/// Returns `NIC3 (mlx5_3)`.
fn describe_nic(nic: &TopologyNic) -> String {
    format!("{} ({})", nic.label, nic.name)
}

/// Returns `GPU0 has`, `GPU0 and GPU3 have`.
fn gpus_have(gpus: &[&TopologyGpu]) -> String {
    let labels: Vec<&str> = gpus.iter().map(|gpu| gpu.label.as_str()).collect();
    format!("{} {}", join_list(&labels), plural(gpus.len(), "has", "have"))
}

/// Returns `NIC0 is`, `NIC0 and NIC1 are`.
fn devices_are(labels: &[&str]) -> String {
    format!("{} {}", join_list(labels), plural(labels.len(), "is", "are"))
}

fn gpu_indices(gpus: &[&TopologyGpu]) -> String {
    gpus.iter().map(|gpu| gpu.index.to_string()).collect::<Vec<_>>().join(",")
}

/// Returns true if GPUs are connected by NVLink without a switch.
pub(super) fn is_direct(gpus: &[TopologyGpu]) -> bool {
    gpus.iter().flat_map(|gpu| gpu.nvlinks.iter().flatten()).any(|link| matches!(link.to, NvLinkEnd::Gpu(_)))
}

#[cfg(test)]
mod tests;
