//! Findings about the paths between GPUs, and from GPUs to network devices and other hosts.

use super::super::super::gpu::{Gpu, Gpus};
use super::super::super::nic::Nic;
use super::super::System;
use super::name_case_of_host;
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::words::join_list;

/// Returns findings about redirection by bridges on bare metal. A virtual machine needs it, and cannot change
/// it.
pub(super) fn find_acs_redirection(system: &System) -> Vec<Finding> {
    let mut findings = Vec::new();
    if system.virtual_machine != Some(false) || system.container.is_some() && !system.root {
        return findings;
    }
    let places: Vec<&str> = system
        .bridges
        .iter()
        .filter(|bridge| bridge.redirects_traffic())
        .map(|bridge| bridge.bus_id.as_str())
        .collect();
    if !places.is_empty() {
        findings.push(compose_finding("acs-on", &[("places", &join_list(&places))]));
    }
    if system.iommu.translates_addresses() {
        findings.push(compose_finding("iommu-translates", &[]));
    }
    findings
}

/// Returns findings about access of network devices to the memory of GPUs.
pub(super) fn gpu_direct(system: &System, gpus: &Gpus, nics: &[Nic]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let driver = &system.driver;
    let verbs = nics.iter().any(|nic| nic.is_up() && !nic.is_efa());
    let dma_buf = driver.open && at_least(system.kernel.as_deref(), (5, 12));
    if verbs && driver.version.is_some() && !driver.peermem && !dma_buf {
        findings.push(compose_finding("no-gpudirect", &[]));
    }
    let blackwell = gpus.devices.iter().any(Gpu::is_grace_blackwell);
    if blackwell
        && !nics.is_empty()
        && driver.major_version().is_some_and(|major| major < 595)
        && driver.topology_check_override == Some(false)
    {
        findings.push(compose_finding("grdma-topology-check", &[]));
    }
    findings
}

/// Returns findings about NVLink among hosts. It needs IMEX.
pub(super) fn multi_node_nvlink(system: &System, gpus: &Gpus) -> Vec<Finding> {
    let clusters = gpus.devices.iter().filter_map(|gpu| gpu.fabric.as_ref()?.cluster.as_ref());
    if clusters.count() == 0 {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if system.services.imex_channels == 0 {
        findings.push(compose_finding(&name_case_of_host(system, "no-imex-channel"), &[]));
    }
    if !system.services.imex && system.container.is_none() {
        findings.push(compose_finding("no-imex-daemon", &[]));
    }
    findings
}

fn at_least(kernel: Option<&str>, wanted: (u32, u32)) -> bool {
    let mut numbers = kernel.unwrap_or_default().split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    (next(), next()) >= wanted
}
