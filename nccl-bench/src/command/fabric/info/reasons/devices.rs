//! Requirements of EFA and verbs missing on this host.

use collectives::fabric::Version;
use diagnosis::host::nic::Nic;
use diagnosis::host::pci::OnPci;
use diagnosis::host::rdma::Host;
use diagnosis::words::{join_list, plural};
use rustix::io::Errno;

use super::Reason;

/// Returns the reasons why EFA cannot be used, or facts about its devices.
pub(super) fn explain_efa(host: &Host, version: Version) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let (devices, others): (Vec<&Nic>, Vec<&Nic>) = host.devices.iter().partition(|device| device.is_efa());
    if devices.is_empty() {
        reasons.extend(no_efa_device(host, &others));
        if !host.efa_is_served() && !host.modules.contains(&"efa") {
            reasons.push(
                Reason::new("the kernel module efa is not loaded (no /sys/module/efa)")
                    .with_advice(on_the_host(host, "modprobe efa; the EFA installer installs the module")),
            );
        }
    } else {
        let advice = "see dmesg, and whether the network interface is attached";
        reasons.push(describe_state(&devices, "EFA device", advice));
    }
    reasons.extend(device_files(host, "the resource vpc.amazonaws.com/efa of the EFA device plugin"));
    reasons.extend(memory_limit(host));
    if version < Version::new(1, 20) {
        reasons.push(
            Reason::new(format!(
                "libfabric {version} is old for EFA: registering CUDA memory through dmabuf needs 1.20, \
                 NCCL's plugin 1.18"
            ))
            .with_advice(
                "install a newer one, as the EFA installer does, and name it: FABRIC_LIBRARY=<path>",
            ),
        );
    }
    reasons.extend(in_a_container(host));
    reasons
}

/// Returns the reasons why `/sys/class/infiniband` has no EFA device.
fn no_efa_device(host: &Host, others: &[&Nic]) -> Vec<Reason> {
    let on_bus = host.efa_on_pci.iter();
    let by_driver = group_names(on_bus.map(|OnPci { bus_id, driver }| (driver.as_deref(), bus_id.as_str())));
    if !by_driver.is_empty() {
        return by_driver.iter().map(|(driver, places)| on_pci(host, *driver, &join_list(places))).collect();
    }
    let none = if others.is_empty() {
        Reason::new(
            "this host has no RDMA device (nothing in /sys/class/infiniband) and no EFA device on its PCI \
             bus",
        )
        .with_advice(
            "on EC2: an instance type with EFA, and a network interface of the type efa attached to it",
        )
    } else {
        Reason::new(format!("this host has no EFA device, but {}", describe_devices(others)))
            .with_advice("for InfiniBand and RoCE: -p 'verbs;ofi_rxm'")
    };
    vec![none]
}

/// Returns the reason why EFA devices on the PCI bus with this driver are not in `/sys/class/infiniband`.
fn on_pci(host: &Host, driver: Option<&str>, places: &str) -> Reason {
    match driver {
        None => {
            let advice = if host.modules.contains(&"efa") {
                "see dmesg: the driver efa is loaded, but did not take the devices"
            } else {
                "modprobe efa, then see dmesg; the EFA installer installs the driver"
            };
            Reason::new(format!("the PCI bus has EFA devices ({places}), but no driver serves them"))
                .with_advice(on_the_host(host, advice))
        }
        Some("efa") if host.shared_devices == Some(true) => Reason::new(format!(
            "the driver efa serves EFA devices on the PCI bus ({places}), but /sys/class/infiniband does not \
             show them, although all network namespaces share RDMA devices (rdma system: netns shared)"
        ))
        .with_advice(
            "see whether the host shows them (ls /sys/class/infiniband), and what was mounted over /sys here",
        ),
        Some("efa") => {
            let certain = if host.shared_devices.is_some() { "has" } else { "probably has" };
            Reason::new(format!(
                "the driver efa serves EFA devices on the PCI bus ({places}), but they are not visible in \
                 this network namespace: the host {certain} each RDMA device in one alone (rdma system: \
                 netns exclusive)"
            ))
            .with_advice(into_the_network(host))
        }
        Some(other) => Reason::new(format!(
            "the PCI bus has EFA devices ({places}), but the driver {other} holds them, not efa"
        ))
        .with_advice(on_the_host(host, "bind them to the driver efa (/sys/bus/pci/drivers/efa/bind)")),
    }
}

/// Returns advice on RDMA devices of the host's network namespace. It does not mention `rdma dev set NAME
/// netns`: the kernel moves a device only if its driver can revoke it from running programs, and efa cannot.
fn into_the_network(host: &Host) -> String {
    let join = match host.container {
        Some("Kubernetes") => "give the pod the host's network (hostNetwork: true)",
        Some(_) => "give the container the host's network (--network=host)",
        None => "start this in the host's network namespace (a container: --network=host)",
    };
    format!(
        "{join}; or on the host: rdma system set netns shared (allowed only while there is no other network \
         namespace)"
    )
}

/// Returns the reasons why verbs cannot be used, or facts about its devices.
pub(super) fn explain_verbs(host: &Host) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let (efa, devices): (Vec<&Nic>, Vec<&Nic>) = host.devices.iter().partition(|device| device.is_efa());
    if devices.is_empty() {
        let none = "this host has no RDMA device (nothing in /sys/class/infiniband)";
        let loaded = host.modules.contains(&"mlx5_ib");
        let reason = if efa.is_empty() && loaded && host.shared_devices == Some(false) {
            let alone = "though the driver mlx5_ib is loaded: each RDMA device is in one network namespace \
                         alone (rdma system: netns exclusive)";
            Reason::new(format!("{none}, {alone}")).with_advice(into_the_network(host))
        } else if efa.is_empty() && loaded {
            Reason::new(format!("{none}, though the driver mlx5_ib is loaded"))
                .with_advice(on_the_host(host, "see dmesg, and which devices the host shows (rdma link)"))
        } else if efa.is_empty() {
            Reason::new(none).with_advice(on_the_host(
                host,
                "load the driver of the device, for instance modprobe mlx5_ib",
            ))
        } else {
            Reason::new(format!("this host has no InfiniBand or RoCE device, but {}", describe_devices(&efa)))
                .with_advice("for EFA: -p efa")
        };
        reasons.push(reason);
    } else {
        let advice = "see the cable and the switch; InfiniBand needs a subnet manager (ibstat, sminfo)";
        reasons.push(describe_state(&devices, "device", advice));
    }
    reasons.extend(device_files(host, "a resource of the RDMA device plugin"));
    if host.has_uverbs() && !host.device_files.iter().any(|name| name == "rdma_cm") {
        reasons.push(
            Reason::new("there is no /dev/infiniband/rdma_cm: verbs connects through it")
                .with_advice(on_the_host(host, "modprobe rdma_ucm")),
        );
    }
    reasons.extend(memory_limit(host));
    reasons.extend(in_a_container(host));
    reasons
}

/// Describes the devices, with advice if none of them is up.
fn describe_state(devices: &[&Nic], kind: &str, advice: &str) -> Reason {
    if devices.iter().any(|device| device.is_up()) {
        return Reason::new(format!("this host has {}", describe_devices(devices)));
    }
    Reason::new(format!("no {kind} is up: {}", describe_devices(devices))).with_advice(advice)
}

/// Describes devices, grouped by their properties: `2 EFA devices (driver efa, ACTIVE 100 Gb/sec): rdmap0s6,
/// rdmap1s6`.
pub(in crate::command::fabric::info) fn describe_devices(devices: &[&Nic]) -> String {
    let groups = group_names(devices.iter().map(|device| {
        let kind = if device.is_efa() { "EFA" } else { "RDMA" };
        ((kind, device.description()), device.name.as_str())
    }));
    let groups = groups.iter().map(|((kind, description), names)| {
        let ending = plural(names.len(), "", "s");
        format!("{} {kind} device{ending} ({description}): {}", names.len(), join_list(names))
    });
    groups.collect::<Vec<_>>().join("; ")
}

/// Groups names by a property, in the order of the first of each group.
fn group_names<'a, K: PartialEq>(names: impl Iterator<Item = (K, &'a str)>) -> Vec<(K, Vec<&'a str>)> {
    let mut groups: Vec<(K, Vec<&str>)> = Vec::new();
    for (key, name) in names {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(name),
            None => groups.push((key, vec![name])),
        }
    }
    groups
}

/// Returns the reasons why device files are missing or cannot be opened. In Kubernetes, `resource` provides
/// the files.
fn device_files(host: &Host, resource: &str) -> Vec<Reason> {
    if host.has_uverbs() {
        explain_refused_files(host, resource)
    } else {
        vec![no_device_files(host, resource)]
    }
}

fn no_device_files(host: &Host, resource: &str) -> Reason {
    let none = |why: &str| {
        let none = "there is no /dev/infiniband/uverbs* (programs reach RDMA devices through it)";
        Reason::new(format!("{none}{why}"))
    };
    let loaded = host.modules.contains(&"ib_uverbs");
    let Some(container) = host.container else {
        return if !loaded {
            none("").with_advice("modprobe ib_uverbs")
        } else if host.efa_is_served() || !host.devices.is_empty() {
            none(
                ": the kernel module ib_uverbs is loaded, but udev has not made them, or this is a container \
                 without them",
            )
            .with_advice("udevadm trigger, or give them to the container: --device=/dev/infiniband")
        } else {
            none(": the kernel module ib_uverbs is loaded, and makes one for each device")
        };
    };
    let give = match container {
        "Kubernetes" => format!("give them to the container. Kubernetes: {resource}"),
        _ => "give them to the container: --device=/dev/infiniband".to_owned(),
    };
    if loaded {
        none(": they are missing from this container, as the kernel module ib_uverbs is loaded")
            .with_advice(give)
    } else {
        none("").with_advice(format!("on the host: modprobe ib_uverbs; then {give}"))
    }
}

/// Returns reasons for device files that cannot be opened, grouped by error.
fn explain_refused_files(host: &Host, resource: &str) -> Vec<Reason> {
    let by_error = group_names(host.refused.iter().map(|file| (file.error, file.name.as_str())));
    let reason = |(error, names): &(Errno, Vec<&str>)| {
        let is = plural(names.len(), "is", "are");
        let text = format!("/dev/infiniband/{} {is} there, but cannot be opened: {error}", join_list(names));
        Reason::new(text).with_advice(advise_on_opening(host, resource, *error, names[0]))
    };
    by_error.iter().map(reason).collect()
}

/// Returns advice on opening an existing device file.
fn advise_on_opening(host: &Host, resource: &str, error: Errno, name: &str) -> String {
    let forbidden = matches!(error, Errno::PERM | Errno::ACCESS);
    let rights = format!("see its owner and rights: ls -l /dev/infiniband/{name}");
    match host.container {
        // Devices invisible in a namespace cannot be opened there.
        _ if error == Errno::PERM && host.devices.is_empty() && host.shared_devices == Some(false) => {
            into_the_network(host)
        }
        Some("Kubernetes") if forbidden => {
            format!("give it to the container by {resource}, not as a volume; {rights}")
        }
        Some(_) if forbidden => {
            format!("give it to the container with --device=/dev/infiniband/{name}, not -v; {rights}")
        }
        None if error == Errno::PERM => {
            "the starter of this process forbids it: systemd (DeviceAllow=), Slurm (ConstrainDevices), or a \
             container that needs --device"
                .to_owned()
        }
        None if forbidden => format!("{rights}; the kernel makes it for all users (0666)"),
        _ if matches!(error, Errno::NXIO | Errno::NODEV) => {
            "no device is behind it (any more): see dmesg, and start the container again, if this is one"
                .to_owned()
        }
        _ => format!("see what it is: ls -l /dev/infiniband/{name}; and dmesg"),
    }
}

fn memory_limit(host: &Host) -> Option<Reason> {
    let bytes = host.limits.locked_memory?;
    let reason = Reason::new(format!(
        "this process may lock no more than {} KiB of memory (ulimit -l) unless it has CAP_IPC_LOCK; RDMA \
         locks registered memory",
        bytes / 1024
    ));
    Some(match host.container {
        Some("Kubernetes") => {
            reason.with_advice("raise the limit of the container runtime on the node (LimitMEMLOCK=infinity)")
        }
        Some(_) => reason.with_advice("start the container with --ulimit memlock=-1:-1"),
        None => reason.with_advice("ulimit -l unlimited, or memlock unlimited in /etc/security/limits.conf"),
    })
}

fn in_a_container(host: &Host) -> Option<Reason> {
    let container = host.container?;
    Some(Reason::new(format!("this is a container ({container}): the host may have what is missing here")))
}

/// Marks advice for the host of a container.
fn on_the_host(host: &Host, advice: &str) -> String {
    if host.container.is_some() { format!("on the host: {advice}") } else { advice.to_owned() }
}
