//! The topology of a machine, from the files of the kernel and the answer of the driver.

use std::ffi::OsStr;
use std::path::Path;

use super::model::{Locality, NumaNode, NvLink, NvLinkEnd, PcieLink, Topology, TopologyGpu, TopologyNic};
use crate::host::files::{names_in_folder, read_number, read_text};
use crate::host::gpu::{self, Gpus};
use crate::host::nic;
use crate::host::pci::{self, Function, transfer_rate};
use crate::host::system;
use crate::words::counted;

/// Class of POWER9's end of an NVLink.
const CPU_CLASS: u32 = 0x06_8001;

/// Reads the topology of the machine below a root folder. `driver` contains NVML's facts.
pub fn read_topology(root: &Path, driver: &Gpus) -> Topology {
    let functions = pci::read_functions(root);
    let on_bus: Vec<&Function> = functions.iter().filter(|function| function.is_gpu()).collect();
    let mut topology = Topology {
        source: "this machine".to_owned(),
        numa_nodes: numa_nodes(root),
        is_virtual: system::virtual_machine(root) == Some(true),
        ..Topology::default()
    };
    if let Some(reason) = &driver.problem {
        if !on_bus.is_empty() {
            topology.unseen.push(format!(
                "NVLink and the driver's numbers of GPUs cannot be seen ({reason}); GPUs are numbered by bus \
                 ID"
            ));
        }
        topology.gpus =
            (0..).zip(&on_bus).map(|(index, function)| silent_gpu(root, index, function)).collect();
    } else {
        topology.unseen.extend(
            (driver.lost.iter())
                .map(|gpu| format!("the driver does not answer about GPU{}: {}", gpu.index, gpu.error)),
        );
        let hidden = on_bus.len().saturating_sub(driver.devices.len() + driver.lost.len());
        if hidden > 0 {
            topology.unseen.push(format!(
                "{hidden} of {} NVIDIA GPUs on the PCI bus are not given to this process (a container, or \
                 another driver)",
                on_bus.len()
            ));
        }
        let known = driver.devices.iter().filter_map(|gpu| known_gpu(root, &functions, gpu, &driver.devices));
        topology.gpus = known.collect();
        let without_bus = driver.devices.iter().filter(|gpu| gpu.pci.is_none());
        topology.unseen.extend(without_bus.map(|gpu| {
            format!("GPU{} is skipped: the driver does not report its place on the PCI bus", gpu.index)
        }));
    }
    topology.nics = read_nics(root);
    note_what_is_hidden(&mut topology, functions.is_empty());
    topology
}

/// Returns a GPU described by the driver, or `None` without a bus ID, since bus IDs distinguish GPUs.
fn known_gpu(root: &Path, functions: &[Function], told: &gpu::Gpu, all: &[gpu::Gpu]) -> Option<TopologyGpu> {
    let bus_id = told.pci.clone()?;
    let folder = pci::folder_of_function(&root.join(pci::DEVICES).join(&bus_id));
    let kernel = PcieLink::read_with_port(&folder);
    let lanes = |count: Option<u32>| count.filter(|count| *count > 0);
    let links: Vec<&gpu::Link> = told.links.iter().filter(|link| link.peer_access != Some(false)).collect();
    let inactive = links.iter().filter(|link| !link.active).count();
    Some(TopologyGpu {
        label: format!("GPU{}", told.index),
        index: told.index,
        bus_id,
        name: Some(told.name.clone()),
        device: told.device,
        place: read_locality(&folder),
        pcie: PcieLink {
            gts: told.pcie.generation.and_then(transfer_rate).or(kernel.gts),
            width: lanes(told.pcie.width).or(kernel.width),
            max_gts: told.pcie.max_generation.and_then(transfer_rate).or(kernel.max_gts),
            max_width: lanes(told.pcie.max_width).or(kernel.max_width),
        },
        nvlinks: told.links_refused.is_none().then(|| by_end(functions, &links, all)),
        inactive_nvlinks: u32::try_from(inactive).unwrap_or(u32::MAX),
        c2c_links: told.c2c_links,
        ..TopologyGpu::default()
    })
}

/// Returns a GPU visible to the kernel only.
fn silent_gpu(root: &Path, index: u32, function: &Function) -> TopologyGpu {
    let Function { bus_id, folder, device, .. } = function;
    let information = read_text(&root.join("proc/driver/nvidia/gpus").join(bus_id).join("information"));
    let model =
        information.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("Model:")));
    TopologyGpu {
        label: format!("GPU{index}"),
        index,
        bus_id: bus_id.clone(),
        name: model.map(|model| model.trim().to_owned()),
        device: Some(*device).filter(|number| *number > 0),
        place: read_locality(folder),
        pcie: PcieLink::read_with_port(folder),
        ..TopologyGpu::default()
    }
}

/// Returns the active links, counted by their other end.
fn by_end(functions: &[Function], links: &[&gpu::Link], gpus: &[gpu::Gpu]) -> Vec<NvLink> {
    let mut ends: Vec<NvLink> = Vec::new();
    for link in links.iter().filter(|link| link.active) {
        let to = match &link.remote {
            Some(bus_id) if gpus.iter().any(|gpu| gpu.pci.as_ref() == Some(bus_id)) => {
                NvLinkEnd::Gpu(bus_id.clone())
            }
            Some(bus_id) => match functions.iter().find(|function| function.bus_id == *bus_id) {
                Some(function) if function.class == CPU_CLASS => NvLinkEnd::Cpu,
                Some(function) if function.is_gpu() => NvLinkEnd::Gpu(bus_id.clone()),
                _ => NvLinkEnd::Switch,
            },
            None => NvLinkEnd::Switch,
        };
        match ends.iter_mut().find(|end| end.to == to) {
            Some(end) => end.count += 1,
            None => ends.push(NvLink { to, count: 1 }),
        }
    }
    ends
}

/// Returns RDMA devices. Without any, returns the network interfaces on the PCI bus, for sockets.
fn read_nics(root: &Path) -> Vec<TopologyNic> {
    let mut nics: Vec<TopologyNic> =
        nic::read_nics(root).into_iter().map(|nic| rdma_nic(root, nic)).collect();
    if nics.is_empty() {
        let interfaces = names_in_folder(&root.join("sys/class/net"));
        nics = interfaces.into_iter().filter_map(|name| ethernet_nic(root, name)).collect();
    }
    for (index, nic) in nics.iter_mut().enumerate() {
        nic.label = format!("NIC{index}");
    }
    nics
}

fn rdma_nic(root: &Path, nic: nic::Nic) -> TopologyNic {
    let folder = pci::folder_of_function(&root.join("sys/class/infiniband").join(&nic.name).join("device"));
    let port = nic.ports.into_iter().next().unwrap_or_default();
    let known = |text: String| Some(text).filter(|text| !["", "Unspecified"].contains(&text.as_str()));
    TopologyNic {
        gbps: port.gigabits_per_s(),
        interface: nic.interfaces.into_iter().next().map(|interface| interface.name),
        state: known(port.state),
        link_layer: known(port.link_layer),
        rdma: true,
        ..on_bus(nic.name, nic.pci, &folder)
    }
}

/// Returns an interface, if it is on the PCI bus.
fn ethernet_nic(root: &Path, name: String) -> Option<TopologyNic> {
    let device = root.join("sys/class/net").join(&name).join("device");
    let bus_id = pci::bus_id(&device)?;
    let interface = nic::read_interface(root, name);
    Some(TopologyNic {
        gbps: interface.speed.filter(|mbps| *mbps > 0).map(|mbps| mbps as f64 / 1000.0),
        state: interface.state.map(|state| state.to_uppercase()),
        link_layer: Some("Ethernet".to_owned()),
        ..on_bus(interface.name, Some(bus_id), &pci::folder_of_function(&device))
    })
}

fn on_bus(name: String, bus_id: Option<String>, folder: &Path) -> TopologyNic {
    TopologyNic {
        name,
        bus_id,
        place: read_locality(folder),
        pcie: PcieLink::read_with_port(folder),
        ..TopologyNic::default()
    }
}

fn numa_nodes(root: &Path) -> Vec<NumaNode> {
    let folder = root.join("sys/devices/system/node");
    let model = read_text(&root.join("proc/cpuinfo")).and_then(|cpus| {
        cpus.lines()
            .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()))
    });
    let node = |name: String| {
        let id = name.strip_prefix("node")?.parse().ok()?;
        let cpus = read_text(&folder.join(&name).join("cpulist")).filter(|cpus| !cpus.is_empty())?;
        // Nodes without CPUs are memory: of GPUs, of CXL.
        Some(NumaNode { id: Some(id), cpus: Some(cpus), model: model.clone(), ..NumaNode::default() })
    };
    names_in_folder(&folder).into_iter().filter_map(node).collect()
}

/// Returns the place of the PCI function in a folder.
fn read_locality(folder: &Path) -> Locality {
    let Ok(real) = folder.canonicalize() else { return Locality::default() };
    let mut ports = pci::bus_ids_in_path(&real);
    ports.pop();
    let mut parts = real.iter().filter_map(OsStr::to_str);
    Locality {
        host: 0,
        numa: read_number(&real.join("numa_node")),
        cpus: read_text(&real.join("local_cpulist")).filter(|cpus| !cpus.is_empty()),
        host_bridge: parts.find(|part| is_host_bridge(part)).map(str::to_owned),
        ports,
    }
}

/// Returns true for `pci0000:17`.
fn is_host_bridge(name: &str) -> bool {
    let Some((domain, bus)) = name.strip_prefix("pci").and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    [domain, bus].iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Adds facts hidden by the kernel or the virtual machine.
fn note_what_is_hidden(topology: &mut Topology, no_pci: bool) {
    let places =
        || topology.gpus.iter().map(|gpu| &gpu.place).chain(topology.nics.iter().map(|nic| &nic.place));
    let flat = places().all(|place| place.ports.is_empty());
    let mut unseen = Vec::new();
    if no_pci {
        unseen.push("PCIe cannot be seen: /sys/bus/pci/devices is empty".to_owned());
    } else if flat && places().count() > 1 {
        let machine = if topology.is_virtual { "the virtual machine" } else { "the machine" };
        unseen.push(format!(
            "PCIe switches cannot be seen: {machine} shows all devices directly at the host bridge, so the \
             real path of PHB may be shorter; NCCL sees the same, unless NCCL_TOPO_FILE describes the real \
             machine"
        ));
    }
    let without_link: Vec<&str> = (topology.nics.iter())
        .filter(|nic| nic.rdma && (nic.pcie.gts.is_none() || nic.pcie.width.is_none()))
        .map(|nic| nic.name.as_str())
        .collect();
    if let Some(first) = without_link.first() {
        unseen.push(format!(
            "the PCIe link of {} cannot be seen (the first is {first})",
            counted(without_link.len(), "NIC")
        ));
    }
    topology.unseen.extend(unseen);
}

#[cfg(test)]
mod tests;
