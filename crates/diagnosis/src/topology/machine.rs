//! The topology of a machine, from the files of the kernel and the answer of the driver.

use std::path::{Component, Path};

use super::model::{
    Gpu, Nic, NumaNode, NvLink, NvLinkEnd, PcieLink, Place, Topology, read_rate, transfer_rate,
};
use crate::host::files::{names, text};
use crate::host::gpu::{self, Gpus};

const NVIDIA: &str = "0x10de";
/// Classes of GPUs: VGA and 3D controllers.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// Class of POWER9's end of an NVLink.
const CPU_CLASS: &str = "0x068001";

/// Reads the topology of the machine below a root folder; `driver` has what NVML tells.
pub fn read(root: &Path, driver: &Gpus) -> Topology {
    let pci = root.join("sys/bus/pci/devices");
    let mut topology = Topology {
        source: "this machine".to_owned(),
        numa_nodes: numa_nodes(root),
        is_virtual: is_virtual(root),
        ..Topology::default()
    };
    let on_bus = gpus_on_bus(&pci);
    if let Some(reason) = &driver.problem {
        if !on_bus.is_empty() {
            topology.unseen.push(format!(
                "NVLink and the driver's numbers of GPUs cannot be seen ({reason}); GPUs are numbered by bus ID"
            ));
        }
        topology.gpus =
            (0..).zip(&on_bus).map(|(index, bus_id)| silent_gpu(root, &pci, index, bus_id)).collect();
    } else {
        topology.unseen.extend(
            (driver.lost.iter())
                .map(|gpu| format!("the driver does not answer about GPU{}: {}", gpu.index, gpu.error)),
        );
        let hidden = on_bus.len().saturating_sub(driver.devices.len() + driver.lost.len());
        if hidden > 0 {
            topology.unseen.push(format!(
                "{hidden} of {} NVIDIA GPUs on the PCI bus are not given to this process (a container, or another driver)",
                on_bus.len()
            ));
        }
        topology.gpus = driver.devices.iter().map(|gpu| known_gpu(&pci, gpu, &driver.devices)).collect();
    }
    topology.nics = nics(root);
    note_what_is_hidden(&mut topology, &pci);
    topology
}

/// A GPU that the driver described.
fn known_gpu(pci: &Path, told: &gpu::Gpu, all: &[gpu::Gpu]) -> Gpu {
    let bus_id = told.pci.clone().unwrap_or_default();
    let folder = pci.join(&bus_id);
    let kernel = pcie_link(&folder);
    let lanes = |count: Option<u32>| count.filter(|count| *count > 0);
    let links: Vec<&gpu::Link> = told.links.iter().filter(|link| link.peer_access != Some(false)).collect();
    let inactive = links.iter().filter(|link| !link.active).count();
    Gpu {
        label: format!("GPU{}", told.index),
        index: told.index,
        bus_id,
        name: Some(told.name.clone()),
        device: told.device,
        place: place(&folder),
        pcie: PcieLink {
            gts: told.pcie.generation.and_then(transfer_rate).or(kernel.gts),
            width: lanes(told.pcie.width).or(kernel.width),
            max_gts: told.pcie.max_generation.and_then(transfer_rate).or(kernel.max_gts),
            max_width: lanes(told.pcie.max_width).or(kernel.max_width),
        },
        nvlinks: told.links_refused.is_none().then(|| by_end(pci, &links, all)),
        inactive_nvlinks: u32::try_from(inactive).unwrap_or(u32::MAX),
        c2c_links: told.c2c_links,
        ..Gpu::default()
    }
}

/// A GPU that only the kernel shows.
fn silent_gpu(root: &Path, pci: &Path, index: u32, bus_id: &str) -> Gpu {
    let folder = pci.join(bus_id);
    let information = text(&root.join("proc/driver/nvidia/gpus").join(bus_id).join("information"));
    let model =
        information.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("Model:")));
    Gpu {
        label: format!("GPU{index}"),
        index,
        bus_id: bus_id.to_owned(),
        name: model.map(|model| model.trim().to_owned()),
        device: text(&folder.join("device"))
            .and_then(|number| u32::from_str_radix(number.trim_start_matches("0x"), 16).ok()),
        place: place(&folder),
        pcie: pcie_link(&folder),
        ..Gpu::default()
    }
}

/// The active links, counted by their other end.
fn by_end(pci: &Path, links: &[&gpu::Link], gpus: &[gpu::Gpu]) -> Vec<NvLink> {
    let mut ends: Vec<NvLink> = Vec::new();
    for link in links.iter().filter(|link| link.active) {
        let to = match &link.remote {
            Some(bus_id) if gpus.iter().any(|gpu| gpu.pci.as_ref() == Some(bus_id)) => {
                NvLinkEnd::Gpu(bus_id.clone())
            }
            Some(bus_id) => {
                let class = text(&pci.join(bus_id).join("class")).unwrap_or_default();
                if class.starts_with(CPU_CLASS) {
                    NvLinkEnd::Cpu
                } else if GPU_CLASSES.iter().any(|gpu| class.starts_with(gpu)) {
                    NvLinkEnd::Gpu(bus_id.clone())
                } else {
                    NvLinkEnd::Switch
                }
            }
            None => NvLinkEnd::Switch,
        };
        match ends.iter_mut().find(|end| end.to == to) {
            Some(end) => end.count += 1,
            None => ends.push(NvLink { to, count: 1 }),
        }
    }
    ends
}

fn gpus_on_bus(pci: &Path) -> Vec<String> {
    let is_gpu = |bus_id: &String| {
        let read = |file: &str| text(&pci.join(bus_id).join(file)).unwrap_or_default();
        let class = read("class");
        read("vendor") == NVIDIA && GPU_CLASSES.iter().any(|gpu| class.starts_with(gpu))
    };
    bus_ids(pci).into_iter().filter(is_gpu).collect()
}

/// RDMA devices; where there is none, the network interfaces on the PCI bus, which sockets use.
fn nics(root: &Path) -> Vec<Nic> {
    let class = root.join("sys/class/infiniband");
    let mut nics: Vec<Nic> = names(&class).iter().map(|name| rdma_nic(&class, name)).collect();
    if nics.is_empty() {
        let class = root.join("sys/class/net");
        nics = names(&class).iter().filter_map(|name| interface(&class, name)).collect();
    }
    for (index, nic) in nics.iter_mut().enumerate() {
        nic.label = format!("NIC{index}");
    }
    nics
}

fn rdma_nic(class: &Path, name: &str) -> Nic {
    let folder = class.join(name);
    let device = folder.join("device");
    let port = names(&folder.join("ports")).into_iter().next().unwrap_or_else(|| "1".to_owned());
    let of_port = |file: &str| text(&folder.join("ports").join(&port).join(file));
    let place = place(&device);
    Nic {
        name: name.to_owned(),
        interface: names(&device.join("net")).into_iter().next(),
        bus_id: bus_id(&device),
        pcie: pcie_link(&device),
        place,
        // `400 Gb/sec (4X NDR)`
        gbps: of_port("rate").and_then(|rate| rate.split(' ').next()?.parse().ok()).filter(is_rate),
        // `4: ACTIVE`
        state: of_port("state").map(|state| state.rsplit(": ").next().unwrap_or_default().to_owned()),
        link_layer: of_port("link_layer").filter(|layer| layer != "Unspecified"),
        rdma: true,
        ..Nic::default()
    }
}

fn interface(class: &Path, name: &str) -> Option<Nic> {
    let folder = class.join(name);
    let device = folder.join("device");
    let bus_id = bus_id(&device)?;
    Some(Nic {
        name: name.to_owned(),
        bus_id: Some(bus_id),
        place: place(&device),
        pcie: pcie_link(&pci_folder(&device)),
        gbps: text(&folder.join("speed"))
            .and_then(|mbps| mbps.parse().ok())
            .map(|mbps: f64| mbps / 1000.0)
            .filter(is_rate),
        state: text(&folder.join("operstate")).map(|state| state.to_uppercase()),
        link_layer: Some("Ethernet".to_owned()),
        ..Nic::default()
    })
}

fn is_rate(gbps: &f64) -> bool {
    gbps.is_finite() && *gbps > 0.0
}

fn numa_nodes(root: &Path) -> Vec<NumaNode> {
    let folder = root.join("sys/devices/system/node");
    let model = text(&root.join("proc/cpuinfo")).and_then(|cpus| {
        cpus.lines()
            .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()))
    });
    let node = |name: String| {
        let id = name.strip_prefix("node")?.parse().ok()?;
        let cpus = text(&folder.join(&name).join("cpulist")).filter(|cpus| !cpus.is_empty())?;
        // Nodes without CPUs are memory: of GPUs, of CXL.
        Some(NumaNode { id: Some(id), cpus: Some(cpus), model: model.clone(), ..NumaNode::default() })
    };
    names(&folder).into_iter().filter_map(node).collect()
}

fn is_virtual(root: &Path) -> bool {
    let cpus = text(&root.join("proc/cpuinfo")).unwrap_or_default();
    let flags = cpus.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// The place of the device that a folder or a link to it stands for.
fn place(device: &Path) -> Place {
    let Ok(real) = device.canonicalize() else { return Place::default() };
    let parts: Vec<&str> = real
        .components()
        .filter_map(|part| if let Component::Normal(name) = part { name.to_str() } else { None })
        .collect();
    // A virtual device may follow the PCI device: `0000:00:03.0/virtio2`.
    let chain: Vec<&str> = parts.iter().copied().filter(|part| is_bus_id(part)).collect();
    let pci = pci_folder(device);
    let numa = text(&pci.join("numa_node")).and_then(|node| node.parse().ok());
    Place {
        host: 0,
        numa,
        cpus: text(&pci.join("local_cpulist")).filter(|cpus| !cpus.is_empty()),
        host_bridge: parts.iter().find(|part| is_host_bridge(part)).map(|part| (*part).to_owned()),
        ports: chain.iter().rev().skip(1).rev().map(|part| (*part).to_owned()).collect(),
    }
}

/// The real folder of the PCI device, without devices behind it.
fn pci_folder(device: &Path) -> std::path::PathBuf {
    let Ok(mut real) = device.canonicalize() else { return device.to_owned() };
    while !real.file_name().and_then(|name| name.to_str()).is_some_and(is_bus_id) {
        if !real.pop() {
            return device.to_owned();
        }
    }
    real
}

fn bus_id(device: &Path) -> Option<String> {
    let folder = pci_folder(device);
    folder.file_name().and_then(|name| name.to_str()).filter(|name| is_bus_id(name)).map(str::to_owned)
}

/// Returns true for `0000:1b:00.0`.
fn is_bus_id(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let hexadecimal = |part: Option<&str>, least: usize| {
        part.is_some_and(|part| part.len() >= least && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    hexadecimal(parts.next(), 4)
        && hexadecimal(parts.next(), 2)
        && hexadecimal(parts.next(), 2)
        && hexadecimal(parts.next(), 1)
        && parts.next().is_none()
        && name.contains('.')
}

/// Returns true for `pci0000:17`.
fn is_host_bridge(name: &str) -> bool {
    let Some((domain, bus)) = name.strip_prefix("pci").and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    [domain, bus].iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The link of a device, limited by the port above it.
fn pcie_link(device: &Path) -> PcieLink {
    let folder = pci_folder(device);
    let rate = |folder: &Path, file: &str| text(&folder.join(file)).as_deref().and_then(read_rate);
    // 255: the kernel could not read it.
    let width = |folder: &Path, file: &str| {
        text(&folder.join(file))?.parse().ok().filter(|width: &u32| (1..=32).contains(width))
    };
    let port = folder
        .parent()
        .filter(|parent| parent.file_name().and_then(|name| name.to_str()).is_some_and(is_bus_id));
    let both = |own: Option<f64>, of_port: Option<f64>| match (own, of_port) {
        (Some(own), Some(port)) => Some(own.min(port)),
        (own, _) => own,
    };
    let port_rate = port.and_then(|port| rate(port, "max_link_speed"));
    let port_width = port.and_then(|port| width(port, "max_link_width"));
    let max_width = width(&folder, "max_link_width");
    PcieLink {
        gts: rate(&folder, "current_link_speed"),
        width: width(&folder, "current_link_width"),
        max_gts: both(rate(&folder, "max_link_speed"), port_rate),
        max_width: max_width.map(|own| port_width.map_or(own, |port| own.min(port))),
    }
}

/// Adds what the kernel or the virtual machine does not show.
fn note_what_is_hidden(topology: &mut Topology, pci: &Path) {
    let places =
        || topology.gpus.iter().map(|gpu| &gpu.place).chain(topology.nics.iter().map(|nic| &nic.place));
    let flat = places().all(|place| place.ports.is_empty());
    let mut unseen = Vec::new();
    if names(pci).is_empty() {
        unseen.push("PCIe cannot be seen: /sys/bus/pci/devices is empty".to_owned());
    } else if flat && places().count() > 1 {
        let machine = if topology.is_virtual { "the virtual machine" } else { "the machine" };
        unseen.push(format!(
            "PCIe switches cannot be seen: {machine} shows all devices directly at the host bridge, so PHB may be nearer in \
             truth; NCCL sees the same, unless NCCL_TOPO_FILE describes the real machine"
        ));
    }
    let without_link: Vec<&str> = (topology.nics.iter())
        .filter(|nic| nic.rdma && (nic.pcie.gts.is_none() || nic.pcie.width.is_none()))
        .map(|nic| nic.name.as_str())
        .collect();
    if let Some(first) = without_link.first() {
        unseen.push(format!(
            "the PCIe link of {} {} cannot be seen (the first is {first})",
            without_link.len(),
            if without_link.len() == 1 { "NIC" } else { "NICs" }
        ));
    }
    topology.unseen.extend(unseen);
}

/// The PCI devices, by bus ID.
fn bus_ids(pci: &Path) -> Vec<String> {
    let mut bus_ids = names(pci);
    // The natural order would take the digits of hexadecimal numbers apart.
    bus_ids.sort();
    bus_ids
}

#[cfg(test)]
mod tests;
