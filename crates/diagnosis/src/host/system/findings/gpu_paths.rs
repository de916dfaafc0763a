//! Findings about the paths between GPUs, and from GPUs to network devices and other hosts.

use super::super::super::gpu::{Gpu, Gpus};
use super::super::super::nic::Nic;
use super::super::System;
use super::{TROUBLESHOOTING, choose_remedy};
use crate::finding::{Finding, Severity};
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
        findings.push(
            Finding::new(
                "acs-on",
                Severity::Degraded,
                format!("PCI access control (ACS) redirects peer-to-peer traffic at {}", join_list(&places)),
            )
            .with_cause(
                "traffic among GPUs and network devices goes up to the root complex, slower or not at all",
            )
            .with_remedy("turn ACS off in the BIOS, or per bridge: setpci -s BRIDGE ECAP_ACS+0x6.w=0000")
            .with_source(TROUBLESHOOTING),
        );
    }
    if system.iommu.translates_addresses() {
        findings.push(
            Finding::new(
                "iommu-translates",
                Severity::Advice,
                "the IOMMU translates the addresses of devices",
            )
            .with_cause("peer-to-peer traffic between PCIe devices may be slower, or be refused")
            .with_remedy("turn the IOMMU off in the BIOS, or iommu=pt on the kernel's command line"),
        );
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
        findings.push(
            Finding::new(
                "no-gpudirect",
                Severity::Degraded,
                "network devices cannot access the memory of GPUs (GPUDirect RDMA)",
            )
            .with_cause(
                "nvidia_peermem is not loaded, and DMA-BUF needs the open kernel module and Linux 5.12",
            )
            .with_remedy("modprobe nvidia-peermem, or install the open kernel module of the driver")
            .with_source(TROUBLESHOOTING),
        );
    }
    let blackwell = gpus.devices.iter().any(Gpu::is_grace_blackwell);
    if blackwell
        && !nics.is_empty()
        && driver.major_version().is_some_and(|major| major < 595)
        && driver.topology_check_override == Some(false)
    {
        findings.push(
            Finding::new(
                "grdma-topology-check",
                Severity::Degraded,
                "the driver refuses DMA-BUF to network devices on Grace-Blackwell \
                 (GrdmaPciTopoCheckOverride: 0)",
            )
            .with_cause(
                "before driver 595 the driver's check of the PCI topology fails on this machine, and NCCL \
                 uses sockets",
            )
            .with_remedy(
                "options nvidia NVreg_GrdmaPciTopoCheckOverride=1 in /etc/modprobe.d, then load the module \
                 again",
            )
            .with_source("NVIDIA AICR, requirements of its NCCL checks on GB200"),
        );
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
        findings.push(
            Finding::new(
                "no-imex-channel",
                Severity::Degraded,
                "the GPUs are in a fabric of several hosts, but there is no IMEX channel",
            )
            .with_cause(
                "without /dev/nvidia-caps-imex-channels/channel0 NVLink ends at the host; CUDA fails with \
                 error 800",
            )
            .with_remedy(choose_remedy(
                system,
                "start the container with --device=/dev/nvidia-caps-imex-channels/channel0",
                "give the pod a ComputeDomain (resourceClaims)",
                "options nvidia NVreg_CreateImexChannel0=1, or nvidia-modprobe -i 0",
            )),
        );
    }
    if !system.services.imex && system.container.is_none() {
        findings.push(
            Finding::new(
                "no-imex-daemon",
                Severity::Degraded,
                "the GPUs are in a fabric of several hosts, but the IMEX daemon does not run",
            )
            .with_remedy("systemctl enable --now nvidia-imex; nvidia-imex-ctl -N shows all hosts"),
        );
    }
    findings
}

fn at_least(kernel: Option<&str>, wanted: (u32, u32)) -> bool {
    let mut numbers = kernel.unwrap_or_default().split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    (next(), next()) >= wanted
}
