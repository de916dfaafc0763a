//! DGX Spark: one GPU that shares the host's memory, and a ConnectX-7 with two devices for each port.
//!
//! Each port is connected to the processor by two PCIe connections of four lanes. Each half has about 100 of
//! the port's 200 Gbit/s: `rocep1s0f1` and `roceP2p1s0f1` are one port.

use super::facts::Facts;
use super::nic::Nic;
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::words::{join_list, or_dash, size_text};

/// The port's speed in Gbit/s: NVIDIA's DGX Spark user guide.
const RATE: f64 = 200.0;
/// MTU of the interfaces for full speed, from dgx-spark-playbooks issue 102.
const MTU: u32 = 9000;
/// Divisor of the available memory for one buffer: a collective has two or three buffers, and the system
/// needs some memory. The value is our own judgement.
const SHARE: u64 = 4;

/// Returns true for a DGX Spark, by the machine's name or the GPU's.
pub(super) fn is_spark(facts: &Facts) -> bool {
    let product = facts.system.product.as_deref().unwrap_or_default();
    product.replace(['_', '-'], " ").contains("DGX Spark")
        || facts.gpus.devices.iter().any(super::gpu::Gpu::is_spark)
}

/// Returns findings about a DGX Spark.
pub(super) fn judge_spark(facts: &Facts) -> Vec<Finding> {
    if !is_spark(facts) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let ports = group_ports(&facts.nics);
    for halves in &ports {
        findings.extend(halves_differ(halves));
    }
    let up: Vec<&Nic> = facts.nics.iter().filter(|nic| nic.is_up()).collect();
    findings.extend(up.iter().filter_map(|nic| find_slow_port(nic)));
    findings.extend(small_mtu(&up));
    findings.extend(without_address(&up));
    findings.extend(left_out(facts, &up));
    if let Some(available) = facts.system.available {
        findings.push(compose_finding(
            "spark-shared-memory",
            &[("available", &size_text(available)), ("most", &size_text(available / SHARE))],
        ));
    }
    findings
}

/// Returns the devices of each port: their places on the PCI bus differ only in the domain.
fn group_ports(nics: &[Nic]) -> Vec<Vec<&Nic>> {
    let mut ports: Vec<(&str, Vec<&Nic>)> = Vec::new();
    for nic in nics {
        let Some((_, place)) = nic.pci.as_deref().and_then(|place| place.split_once(':')) else { continue };
        match ports.iter_mut().find(|(known, _)| *known == place) {
            Some((_, halves)) => halves.push(nic),
            None => ports.push((place, vec![nic])),
        }
    }
    ports.into_iter().map(|(_, halves)| halves).collect()
}

/// Returns a finding about a port with only one half up.
fn halves_differ(halves: &[&Nic]) -> Option<Finding> {
    let (up, down): (Vec<&Nic>, Vec<&Nic>) = halves.iter().partition(|nic| nic.is_up());
    (!up.is_empty() && !down.is_empty()).then(|| {
        let name = |nics: &[&Nic]| nics.iter().map(|nic| nic.name.clone()).collect::<Vec<_>>();
        compose_finding(
            "spark-half-port",
            &[("up", &join_list(&name(&up))), ("down", &join_list(&name(&down)))],
        )
    })
}

fn find_slow_port(nic: &Nic) -> Option<Finding> {
    let rate = nic.rate().filter(|rate| *rate < RATE)?;
    Some(compose_finding(
        "spark-slow-link",
        &[("name", &nic.name), ("rate", &format!("{rate:.0}")), ("most", &format!("{RATE:.0}"))],
    ))
}

fn small_mtu(up: &[&Nic]) -> Option<Finding> {
    let small: Vec<String> = up
        .iter()
        .flat_map(|nic| &nic.interfaces)
        .filter(|interface| interface.mtu.is_some_and(|mtu| mtu < MTU))
        .map(|interface| format!("{} ({})", interface.name, or_dash(interface.mtu)))
        .collect();
    (!small.is_empty())
        .then(|| compose_finding("spark-small-mtu", &[("mtu", &MTU), ("small", &join_list(&small))]))
}

fn without_address(up: &[&Nic]) -> Option<Finding> {
    let names: Vec<&str> = up
        .iter()
        .filter(|nic| nic.ports.iter().all(|port| port.ipv4_addresses().is_empty()))
        .map(|nic| nic.name.as_str())
        .collect();
    (!names.is_empty()).then(|| compose_finding("spark-without-address", &[("names", &join_list(&names))]))
}

/// Returns a finding about devices excluded by `NCCL_IB_HCA`.
fn left_out(facts: &Facts, up: &[&Nic]) -> Option<Finding> {
    let wanted =
        facts.environment.iter().find(|(name, _)| name == "NCCL_IB_HCA").map(|(_, value)| value.as_str())?;
    let out: Vec<&str> =
        up.iter().map(|nic| nic.name.as_str()).filter(|name| !selects_device(wanted, name)).collect();
    (!out.is_empty())
        .then(|| compose_finding("spark-hca-left-out", &[("wanted", &wanted), ("out", &join_list(&out))]))
}

/// Returns true if `NCCL_IB_HCA` selects a device: `^` excludes, `=` requires whole names, a port may follow.
fn selects_device(value: &str, name: &str) -> bool {
    let (excludes, value) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
    let (exact, value) = value.strip_prefix('=').map_or((false, value), |rest| (true, rest));
    let listed = value
        .split(',')
        .map(|part| part.split(':').next().unwrap_or_default())
        .filter(|part| !part.is_empty());
    let found = listed.clone().any(|part| if exact { name == part } else { name.starts_with(part) });
    listed.count() == 0 || found != excludes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_selected_as_nccl_does() {
        for (value, expected) in [
            ("rocep1s0f1", [true, false]),
            ("roce", [true, true]),
            ("=rocep1s0f1:1,roceP2p1s0f1:1", [true, true]),
            ("=rocep1s0", [false, false]),
            ("^roceP2p1s0f1", [true, false]),
            ("", [true, true]),
        ] {
            assert_eq!(
                ["rocep1s0f1", "roceP2p1s0f1"].map(|name| selects_device(value, name)),
                expected,
                "{value}"
            );
        }
    }
}
