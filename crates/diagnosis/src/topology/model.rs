//! The devices of one or more hosts, and their places in the PCIe tree.

use serde::Serialize;

pub use crate::host::pci::PcieLink;

/// Devices and their places.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Topology {
    /// `this machine`, or the name of the file.
    pub source: String,
    /// True if NCCL wrote the topology: it does not record host bridges.
    pub is_dump: bool,
    /// True in a virtual machine.
    pub is_virtual: bool,
    /// NUMA nodes with CPUs.
    pub numa_nodes: Vec<NumaNode>,
    /// GPUs, in the order of their labels.
    pub gpus: Vec<TopologyGpu>,
    /// NICs, in the order of their labels.
    pub nics: Vec<TopologyNic>,
    /// Invisible facts, with the reason.
    pub unseen: Vec<String>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Number of the host, from 0, in a topology of several hosts.
    pub host: u32,
    /// Number of the node, or `None` if the kernel does not know it (-1).
    pub id: Option<u32>,
    /// CPUs as a list of ranges: `0-47,96-143`.
    pub cpus: Option<String>,
    /// Vendor and architecture: `AuthenticAMD x86_64`.
    pub model: Option<String>,
}

/// Position of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Locality {
    /// Number of the host, from 0.
    pub host: u32,
    /// NUMA node, or `None` if the kernel does not know it (-1).
    pub numa: Option<u32>,
    /// CPUs near the device.
    pub cpus: Option<String>,
    /// The root of the PCIe tree: `pci0000:17`. A topology of NCCL does not contain it.
    pub host_bridge: Option<String>,
    /// PCIe ports above the device, the root port first: root port, then upstream and downstream port of each
    /// switch.
    pub ports: Vec<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TopologyGpu {
    /// `GPU0`: the driver's number. A GPU of another host has its host's number before: `1:GPU0`.
    pub label: String,
    /// PCI bus ID: `0000:1b:00.0`.
    pub bus_id: String,
    /// Product: `NVIDIA H100 80GB HBM3`.
    pub name: Option<String>,
    /// PCI device number: equal for equal products.
    pub device: Option<u32>,
    /// Number in the driver.
    pub index: u32,
    /// Ranks on this GPU, in a topology of NCCL.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// Position.
    pub place: Locality,
    /// PCIe link.
    pub pcie: PcieLink,
    /// Active NVLinks by their other end, or `None` without a source for them.
    pub nvlinks: Option<Vec<NvLink>>,
    /// Inactive NVLinks of the GPU.
    pub inactive_nvlinks: u32,
    /// Links of NVLink-C2C to the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub c2c_links: Option<u32>,
    /// GPUDirect RDMA, as NCCL found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
}

/// NVLinks from a GPU to the same other end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NvLink {
    /// The other end.
    pub to: NvLinkEnd,
    /// Number of links.
    pub count: u32,
}

/// The other end of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NvLinkEnd {
    /// A GPU, by its bus ID.
    Gpu(String),
    /// An NVSwitch, or an invisible device, as in a virtual machine: NCCL takes it for a switch.
    Switch,
    /// A CPU (POWER9).
    Cpu,
}

/// A NIC: an RDMA device, an interface, or a network device of NCCL.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TopologyNic {
    /// `NIC0`.
    pub label: String,
    /// `mlx5_0`, `rdmap79s0`, `eth0`.
    pub name: String,
    /// Name of its network interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// PCI bus ID.
    pub bus_id: Option<String>,
    /// Number in NCCL, in a topology of NCCL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev: Option<u32>,
    /// Position.
    pub place: Locality,
    /// PCIe link.
    pub pcie: PcieLink,
    /// Rate of the port in Gb/s.
    pub gbps: Option<f64>,
    /// State of the port: `ACTIVE`, `DOWN`.
    pub state: Option<String>,
    /// `InfiniBand`, `Ethernet`.
    pub link_layer: Option<String>,
    /// True for an RDMA device, false for a device for TCP sockets only.
    pub rdma: bool,
    /// GPUDirect RDMA, as NCCL found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
}

impl Topology {
    /// Returns the number of hosts.
    pub fn host_count(&self) -> u32 {
        let places = self.gpus.iter().map(|gpu| &gpu.place).chain(self.nics.iter().map(|nic| &nic.place));
        places.map(|place| place.host).chain(self.numa_nodes.iter().map(|node| node.host)).max().unwrap_or(0)
            + 1
    }

    /// Returns the number of NUMA nodes with CPUs on a host. An unknown node (-1) does not count.
    pub fn numa_nodes_of(&self, host: u32) -> usize {
        self.numa_nodes.iter().filter(|node| node.host == host && node.id.is_some()).count()
    }

    /// Returns the number of NVLinks between two GPUs, directly or through NVSwitch, as `nvidia-smi topo -m`
    /// counts them.
    pub fn nvlinks_between(&self, a: &TopologyGpu, b: &TopologyGpu) -> u32 {
        let direct = a.links_to_gpu(b);
        if direct > 0 {
            return direct;
        }
        a.switch_links().min(b.switch_links())
    }
}

impl Locality {
    /// Returns the PCIe switches above the device by their upstream port, the highest first. NCCL's topology
    /// has one `pci` element for each of them.
    pub fn pcie_switches(&self) -> Vec<&str> {
        let mut switches: Vec<&str> =
            self.ports.iter().rev().skip(1).step_by(2).map(String::as_str).collect();
        switches.reverse();
        switches
    }
}

impl TopologyGpu {
    /// Returns the number of active NVLinks, or `None` without a source for them.
    pub fn nvlink_count(&self) -> Option<u32> {
        self.nvlinks
            .as_ref()
            .map(|links| links.iter().fold(0, |sum: u32, link| sum.saturating_add(link.count)))
    }

    /// Returns the number of NVLinks to a switch.
    pub fn switch_links(&self) -> u32 {
        self.links_to(|end| *end == NvLinkEnd::Switch)
    }

    /// Returns the number of NVLinks from this GPU to another one of its host without a switch.
    pub fn links_to_gpu(&self, other: &Self) -> u32 {
        match self.place.host == other.place.host {
            true => self.links_to(|end| matches!(end, NvLinkEnd::Gpu(bus_id) if *bus_id == other.bus_id)),
            false => 0,
        }
    }

    fn links_to(&self, is_end: impl Fn(&NvLinkEnd) -> bool) -> u32 {
        let links = self.nvlinks.iter().flatten().filter(|link| is_end(&link.to));
        links.fold(0, |sum: u32, link| sum.saturating_add(link.count))
    }

    /// Returns the product in short: `H100 80GB HBM3`.
    pub fn product_name(&self) -> Option<&str> {
        self.name.as_deref().map(|name| name.strip_prefix("NVIDIA ").unwrap_or(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(ports: &[&str]) -> Locality {
        Locality { ports: ports.iter().map(|port| (*port).to_owned()).collect(), ..Locality::default() }
    }

    #[test]
    fn a_switch_is_every_second_port_above_the_device() {
        assert_eq!(place(&[]).pcie_switches(), Vec::<&str>::new());
        assert_eq!(place(&["root"]).pcie_switches(), Vec::<&str>::new());
        assert_eq!(place(&["root", "up", "down"]).pcie_switches(), ["up"]);
        assert_eq!(place(&["root", "up1", "down1", "up2", "down2"]).pcie_switches(), ["up1", "up2"]);
        // A virtual machine may have no root port.
        assert_eq!(place(&["up", "down"]).pcie_switches(), ["up"]);
    }
}
