//! What EFA and verbs need, and this machine does not have.

use collectives::fabric::Version;

use super::super::host::{Device, Host, Memlock};
use super::{Reason, some};

/// What EFA needs.
pub(super) fn efa(host: &Host, version: Version) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let (devices, others): (Vec<&Device>, Vec<&Device>) =
        host.devices.iter().partition(|device| device.is_efa());
    if devices.is_empty() {
        reasons.push(no_efa_device(host, &others));
        if !host.modules.contains(&"efa") {
            reasons.push(
                Reason::new("the kernel module efa is not loaded (no /sys/module/efa)")
                    .advice(on_the_host(host, "modprobe efa; the EFA installer installs the module")),
            );
        }
    } else if !devices.iter().any(|device| device.is_up()) {
        reasons.push(
            Reason::new(format!("no EFA device is up: {}", described(&devices)))
                .advice("see dmesg, and whether the network interface is attached"),
        );
    } else {
        reasons.push(Reason::new(format!("this host has {}", described(&devices))));
    }
    reasons.extend(no_device_files(
        host,
        "Kubernetes: the resource vpc.amazonaws.com/efa of the EFA device plugin",
    ));
    reasons.extend(memory_limit(host));
    if version < Version::new(1, 20) {
        reasons.push(
            Reason::new(format!(
                "libfabric {version} is old for EFA: registering CUDA memory through dmabuf needs 1.20, NCCL's plugin \
                 1.18"
            ))
            .advice("install a newer one, as the EFA installer does, and name it: FABRIC_LIBRARY=<path>"),
        );
    }
    reasons.extend(in_a_container(host));
    reasons
}

fn no_efa_device(host: &Host, others: &[&Device]) -> Reason {
    if !host.efa_on_pci.is_empty() {
        let places: Vec<&str> = host.efa_on_pci.iter().map(String::as_str).collect();
        return Reason::new(format!(
            "the PCI bus has EFA devices ({}), which no driver serves",
            some(&places)
        ))
        .advice(on_the_host(host, "modprobe efa, then see dmesg; the EFA installer installs the driver"));
    }
    if !others.is_empty() {
        return Reason::new(format!("this host has no EFA device, but {}", described(others)))
            .advice("for InfiniBand and RoCE: -p 'verbs;ofi_rxm'");
    }
    Reason::new(
        "this host has no RDMA device (nothing in /sys/class/infiniband) and no EFA device on its PCI bus",
    )
    .advice("on EC2: an instance type with EFA, and a network interface of the type efa attached to it")
}

/// What verbs needs.
pub(super) fn verbs(host: &Host) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let (efa, devices): (Vec<&Device>, Vec<&Device>) =
        host.devices.iter().partition(|device| device.is_efa());
    if devices.is_empty() {
        let reason = if efa.is_empty() {
            Reason::new("this host has no RDMA device (nothing in /sys/class/infiniband)")
                .advice(on_the_host(host, "load the driver of the device, for instance modprobe mlx5_ib"))
        } else {
            Reason::new(format!("this host has no InfiniBand or RoCE device, but {}", described(&efa)))
                .advice("for EFA: -p efa")
        };
        reasons.push(reason);
    } else if !devices.iter().any(|device| device.is_up()) {
        reasons.push(
            Reason::new(format!("no device is up: {}", described(&devices)))
                .advice("see the cable and the switch; InfiniBand needs a subnet manager (ibstat, sminfo)"),
        );
    } else {
        reasons.push(Reason::new(format!("this host has {}", described(&devices))));
    }
    reasons.extend(no_device_files(host, "Kubernetes: the RDMA device plugin"));
    if host.has_uverbs() && !host.device_files.iter().any(|name| name == "rdma_cm") {
        reasons.push(
            Reason::new("there is no /dev/infiniband/rdma_cm, through which verbs connects")
                .advice(on_the_host(host, "modprobe rdma_ucm")),
        );
    }
    reasons.extend(memory_limit(host));
    reasons.extend(in_a_container(host));
    reasons
}

/// Devices, those that are alike together: `2 EFA devices (driver efa, ACTIVE 100 Gb/sec): rdmap0s6, rdmap1s6`.
pub(in super::super) fn described(devices: &[&Device]) -> String {
    let mut groups: Vec<(&str, String, Vec<&str>)> = Vec::new();
    for device in devices {
        let (kind, description) = (if device.is_efa() { "EFA" } else { "RDMA" }, device.description());
        let same = |(other, text, _): &&mut (&str, String, Vec<&str>)| *other == kind && *text == description;
        match groups.iter_mut().find(same) {
            Some((.., names)) => names.push(&device.name),
            None => groups.push((kind, description, vec![&device.name])),
        }
    }
    let group = |(kind, description, names): &(&str, String, Vec<&str>)| {
        let plural = if names.len() == 1 { "" } else { "s" };
        format!("{} {kind} device{plural} ({description}): {}", names.len(), some(names))
    };
    groups.iter().map(group).collect::<Vec<_>>().join("; ")
}

fn no_device_files(host: &Host, kubernetes: &str) -> Option<Reason> {
    if host.has_uverbs() {
        return None;
    }
    let reason =
        Reason::new("there is no /dev/infiniband/uverbs*, through which programs reach RDMA devices");
    Some(match host.container {
        Some("Kubernetes") => reason.advice(format!("give them to the container. {kubernetes}")),
        Some(_) => reason.advice("give them to the container: --device=/dev/infiniband"),
        None => reason.advice("modprobe ib_uverbs"),
    })
}

fn memory_limit(host: &Host) -> Option<Reason> {
    let Some(Memlock::Bytes(bytes)) = host.memlock else { return None };
    let reason = Reason::new(format!(
        "this process may lock no more than {} KiB of memory (ulimit -l) unless it has CAP_IPC_LOCK; RDMA locks what it \
         registers",
        bytes / 1024
    ));
    Some(match host.container {
        Some("Kubernetes") => {
            reason.advice("raise the limit of the container runtime on the node (LimitMEMLOCK=infinity)")
        }
        Some(_) => reason.advice("start the container with --ulimit memlock=-1:-1"),
        None => reason.advice("ulimit -l unlimited, or memlock unlimited in /etc/security/limits.conf"),
    })
}

fn in_a_container(host: &Host) -> Option<Reason> {
    let container = host.container?;
    Some(Reason::new(format!("this is a container ({container}): the host may have what is missing here")))
}

/// Advice that a container cannot follow itself.
fn on_the_host(host: &Host, advice: &str) -> String {
    if host.container.is_some() { format!("on the host: {advice}") } else { advice.to_owned() }
}
