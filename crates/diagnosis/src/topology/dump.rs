//! NCCL's topology file: the file of `NCCL_TOPO_DUMP_FILE`, and the same format as input (`NCCL_TOPO_FILE`),
//! as clouds ship it.
//!
//! Element by element: `system` > `cpu` (a NUMA node) > `pci` (a switch or a device) > `gpu` > `nvlink`,
//! `c2c`; `nic` > `net`. NCCL 2.18 has no `host_hash`: it distinguishes several hosts in one file (multi-node
//! NVLink). Values other than numbers are omitted, and unknown elements are skipped, as in NCCL.

use roxmltree::Node;

use super::graph::{self, Graphs};
use super::model::{Locality, NumaNode, NvLink, NvLinkEnd, PcieLink, Topology, TopologyGpu, TopologyNic};
use super::xml::{self, Unreadable, child_elements, hexadecimal_attribute, number_attribute};
use crate::host::pci::{normal_bus_id, read_rate};
use crate::words::ranges_text;

/// Most devices of a file. NCCL itself holds 640 GPUs at most.
const MOST_DEVICES: usize = 2048;
/// Bus ID of an invisible other end of a link, as NCCL writes it.
const INVISIBLE: &str = "fffffff:ffff:ff";

/// A file of NCCL.
#[derive(Clone, Debug, PartialEq)]
pub enum TopologyDump {
    /// A topology.
    Topology(Topology),
    /// Rings and trees.
    Graphs(Graphs),
}

/// Reads a file of NCCL.
///
/// # Errors
/// An error if the text is not XML, is not a file of NCCL, or has too many devices.
pub fn read_dump(text: &str, name: &str) -> Result<TopologyDump, Unreadable> {
    let unreadable = |problem: String| Unreadable { name: name.to_owned(), problem };
    let document = xml::parse_xml(text).map_err(unreadable)?;
    let root = document.root_element();
    match root.tag_name().name() {
        "system" => read_system(root, name).map(TopologyDump::Topology).map_err(unreadable),
        "graphs" => graph::read_graphs(root, name).map(TopologyDump::Graphs).map_err(unreadable),
        other => Err(unreadable(format!(
            "<{other}> is neither a topology (<system>) nor graphs (<graphs>) of NCCL; write them with \
             NCCL_TOPO_DUMP_FILE=topo.xml and NCCL_GRAPH_DUMP_FILE=graph.xml"
        ))),
    }
}

fn read_system(system: Node<'_, '_>, name: &str) -> Result<Topology, String> {
    xml::check_version(system)?;
    let mut topology = Topology { source: name.to_owned(), is_dump: true, ..Topology::default() };
    let mut hosts: Vec<u64> = Vec::new();
    for cpu in child_elements(system, "cpu") {
        let hash = hexadecimal_attribute(cpu, "host_hash").unwrap_or(0);
        let host = hosts.iter().position(|known| *known == hash).unwrap_or_else(|| {
            hosts.push(hash);
            hosts.len() - 1
        });
        read_cpu(cpu, host as u32, &mut topology)?;
    }
    if topology.numa_nodes.is_empty() {
        return Err("<system> has no <cpu>: NCCL cannot use it, and there is nothing to show".to_owned());
    }
    if topology.gpus.is_empty() && !topology.nics.is_empty() {
        topology.unseen.push(
            "GPUs are not in this file: it describes switches and NICs only, and NCCL adds the GPUs when it \
             starts; read the file of NCCL_TOPO_DUMP_FILE to see them"
                .to_owned(),
        );
    }
    topology.unseen.push(
        "host bridges are not in NCCL's topology: NODE and PHB look the same (NCCL treats both as PHB)"
            .to_owned(),
    );
    name_devices(&mut topology);
    Ok(topology)
}

fn read_cpu(cpu: Node<'_, '_>, host: u32, topology: &mut Topology) -> Result<(), String> {
    let id = number_attribute(cpu, "numaid");
    let model: Vec<&str> = ["vendor", "arch"].iter().filter_map(|name| cpu.attribute(*name)).collect();
    topology.numa_nodes.push(NumaNode {
        host,
        id,
        cpus: cpu.attribute("affinity").and_then(cpu_ranges),
        model: (!model.is_empty()).then(|| model.join(" ")),
    });
    let place = Locality {
        host,
        numa: id,
        cpus: cpu.attribute("affinity").and_then(cpu_ranges),
        ..Locality::default()
    };
    read_below(cpu, &place, topology)
}

/// Reads the devices below a NUMA node or a switch.
fn read_below(parent: Node<'_, '_>, place: &Locality, topology: &mut Topology) -> Result<(), String> {
    for pci in child_elements(parent, "pci") {
        read_pci(pci, place, topology)?;
    }
    // A network device outside the PCI bus, such as the one of sockets.
    for nic in child_elements(parent, "nic") {
        read_nets(nic, None, place, PcieLink::default(), topology)?;
    }
    Ok(())
}

fn read_pci(pci: Node<'_, '_>, place: &Locality, topology: &mut Topology) -> Result<(), String> {
    let bus_id = normal_bus_id(pci.attribute("busid").unwrap_or_default());
    let link = PcieLink {
        gts: pci.attribute("link_speed").and_then(read_rate),
        width: number_attribute(pci, "link_width").filter(|width: &u32| (1..=64).contains(width)),
        ..PcieLink::default()
    };
    let device = hexadecimal_attribute(pci, "device").and_then(|device| u32::try_from(device).ok());
    // The downstream port is not in the file: the upstream port of the switch represents both.
    let place_of_device = || match place.ports.last() {
        None => place.clone(),
        Some(switch) => {
            let mut place = place.clone();
            place.ports.push(format!("{switch}>{bus_id}"));
            place
        }
    };
    for gpu in child_elements(pci, "gpu") {
        read_gpu(gpu, &bus_id, device, link, place_of_device(), topology)?;
    }
    for nic in child_elements(pci, "nic") {
        read_nets(nic, Some(&bus_id), &place_of_device(), link, topology)?;
    }
    if child_elements(pci, "pci").next().is_some() {
        let mut below = place_of_device();
        below.ports.push(bus_id);
        for sub in child_elements(pci, "pci") {
            read_pci(sub, &below, topology)?;
        }
    }
    Ok(())
}

fn read_gpu(
    gpu: Node<'_, '_>,
    bus_id: &str,
    device: Option<u32>,
    pcie: PcieLink,
    place: Locality,
    topology: &mut Topology,
) -> Result<(), String> {
    let rank = number_attribute(gpu, "rank");
    // Several ranks on one GPU have an element each.
    let same = |known: &&mut TopologyGpu| {
        known.bus_id == bus_id && known.place.host == place.host && !bus_id.is_empty()
    };
    if let Some(known) = topology.gpus.iter_mut().find(same) {
        known.ranks.extend(rank);
        return Ok(());
    }
    let links = child_elements(gpu, "nvlink")
        .map(|link| NvLink { to: nvlink_end(link), count: number_attribute(link, "count").unwrap_or(1) });
    let c2c = child_elements(gpu, "c2c").filter_map(|link| number_attribute::<u32>(link, "count")).next();
    let index = number_attribute(gpu, "dev").unwrap_or(topology.gpus.len() as u32);
    topology.gpus.push(TopologyGpu {
        index,
        bus_id: bus_id.to_owned(),
        name: compute_capability(gpu),
        device,
        ranks: rank.into_iter().collect(),
        place,
        pcie,
        nvlinks: Some(links.collect()),
        c2c_links: c2c,
        gdr: number_attribute::<u32>(gpu, "gdr").map(|gdr| gdr > 0),
        ..TopologyGpu::default()
    });
    check_devices(topology)
}

/// Returns the generation of a GPU by its compute capability: `Hopper (sm90)`.
fn compute_capability(gpu: Node<'_, '_>) -> Option<String> {
    let sm: u32 = number_attribute(gpu, "sm")?;
    let generation = match sm {
        60..=62 => "Pascal",
        70 | 72 => "Volta",
        75 => "Turing",
        80 | 86 | 87 => "Ampere",
        89 => "Ada",
        90 => "Hopper",
        100..=129 => "Blackwell",
        _ => return Some(format!("sm{sm}")),
    };
    Some(format!("{generation} (sm{sm})"))
}

fn nvlink_end(link: Node<'_, '_>) -> NvLinkEnd {
    let target = link.attribute("target").unwrap_or(INVISIBLE).trim();
    match link.attribute("tclass").map(str::trim) {
        Some(class) if class.starts_with("0x03") => NvLinkEnd::Gpu(normal_bus_id(target)),
        Some("0x068001") => NvLinkEnd::Cpu,
        _ => NvLinkEnd::Switch,
    }
}

fn read_nets(
    nic: Node<'_, '_>,
    bus_id: Option<&str>,
    place: &Locality,
    pcie: PcieLink,
    topology: &mut Topology,
) -> Result<(), String> {
    for net in child_elements(nic, "net") {
        // Devices of GPU-initiated networking only have net="0".
        if number_attribute::<i32>(net, "net") == Some(0) {
            continue;
        }
        let dev: Option<i64> = number_attribute(net, "dev");
        topology.nics.push(TopologyNic {
            name: net.attribute("name").unwrap_or("?").to_owned(),
            bus_id: bus_id.map(str::to_owned),
            dev: dev.and_then(|dev| u32::try_from(dev).ok()),
            place: place.clone(),
            pcie,
            gbps: number_attribute(net, "speed")
                .map(|mbps: f64| mbps / 1000.0)
                .filter(|gbps| gbps.is_finite() && *gbps > 0.0),
            rdma: bus_id.is_some(),
            gdr: number_attribute::<u32>(net, "gdr").map(|gdr| gdr > 0),
            ..TopologyNic::default()
        });
        check_devices(topology)?;
    }
    Ok(())
}

fn check_devices(topology: &Topology) -> Result<(), String> {
    let count = topology.gpus.len() + topology.nics.len();
    if count > MOST_DEVICES {
        return Err(format!("more than {MOST_DEVICES} GPUs and NICs; NCCL itself holds 640 GPUs at most"));
    }
    Ok(())
}

/// Orders the devices by host and number, and gives them labels.
fn name_devices(topology: &mut Topology) {
    topology.gpus.sort_by_key(|gpu| (gpu.place.host, gpu.index));
    topology.nics.sort_by_key(|nic| (nic.place.host, nic.dev.unwrap_or(u32::MAX)));
    let several = topology.host_count() > 1;
    let host = |place: &Locality| if several { format!("{}:", place.host) } else { String::new() };
    for gpu in &mut topology.gpus {
        gpu.label = format!("{}GPU{}", host(&gpu.place), gpu.index);
    }
    for (index, nic) in topology.nics.iter_mut().enumerate() {
        let number = nic.dev.map_or(index, |dev| dev as usize);
        nic.label = format!("{}NIC{number}", host(&nic.place));
    }
}

/// Returns the CPUs of a hexadecimal mask in words of 32 bits, as ranges: `0000ffff,0000000f` is `0-3,32-47`.
/// Returns `None` for an empty mask, or for another text.
fn cpu_ranges(mask: &str) -> Option<String> {
    let mut cpus: Vec<u32> = Vec::new();
    let words: Vec<&str> = mask.trim().split(',').collect();
    if words.len() > 256 {
        return None;
    }
    for (position, word) in (0..).zip(words.iter().rev()) {
        let bits = u32::from_str_radix(word, 16).ok()?;
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| position * 32 + bit));
    }
    (!cpus.is_empty()).then(|| ranges_text(&cpus).replace(", ", ","))
}

#[cfg(test)]
mod tests;
