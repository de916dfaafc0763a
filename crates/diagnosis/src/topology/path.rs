//! Classes of paths between two devices, with the letters of `nvidia-smi topo -m`.

use serde::{Serialize, Serializer};

use super::model::{Locality, Topology};
use crate::examination::Grade;

/// Class of the path between two devices, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// The device itself.
    Same,
    /// A number of NVLinks, directly or through NVSwitch.
    NvLink(u32),
    /// At most one PCIe bridge.
    Pix,
    /// Several PCIe bridges, and not the host bridge.
    Pxb,
    /// A PCIe host bridge.
    Phb,
    /// PCIe host bridges of one NUMA node.
    Node,
    /// The interconnect between NUMA nodes.
    Sys,
    /// Another host.
    Net,
    /// The NUMA node of one device is not known.
    Unknown,
}

/// The kinds of devices at the ends of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairKind {
    /// Two GPUs.
    GpuGpu,
    /// A GPU and a NIC.
    GpuNic,
}

/// Properties of a machine that affect NCCL's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathPlatform {
    /// True with CPUs of AMD and at most two GPUs: NCCL permits P2P at any distance.
    pub is_amd_pair: bool,
    /// True if GPUs are connected to CPUs by NVLink-C2C.
    pub has_c2c: bool,
}

impl Path {
    /// Classifies the path over PCIe between two places.
    pub fn between_places(topology: &Topology, a: &Locality, b: &Locality) -> Self {
        if a.host != b.host {
            return Self::Net;
        }
        let common = a.ports.iter().zip(&b.ports).take_while(|(a, b)| a == b).count();
        if common > 0 {
            // The common bridge is a switch's upstream port or a root port. One more port may follow on each
            // side.
            let beyond = (a.ports.len() - common).max(b.ports.len() - common);
            return if beyond <= 1 { Self::Pix } else { Self::Pxb };
        }
        if a.host_bridge.is_some() && a.host_bridge == b.host_bridge {
            return Self::Phb;
        }
        // NCCL's topology does not have host bridges, and NCCL calls all paths within a NUMA node PHB.
        let within_node = if topology.is_dump { Self::Phb } else { Self::Node };
        match (a.numa, b.numa) {
            (Some(a), Some(b)) if a == b => within_node,
            (Some(_), Some(_)) => Self::Sys,
            (None, None) if topology.is_dump => within_node,
            // For NCCL, the unknown node (-1) is a node of its own.
            _ if topology.is_dump => Self::Sys,
            _ if topology.numa_nodes_of(a.host) <= 1 => within_node,
            _ => Self::Unknown,
        }
    }

    /// Returns the letters: `PIX`, `NV18`.
    pub fn letters(self) -> String {
        match self {
            Self::Same => "X".to_owned(),
            Self::NvLink(count) => format!("NV{count}"),
            Self::Pix => "PIX".to_owned(),
            Self::Pxb => "PXB".to_owned(),
            Self::Phb => "PHB".to_owned(),
            Self::Node => "NODE".to_owned(),
            Self::Sys => "SYS".to_owned(),
            Self::Net => "NET".to_owned(),
            Self::Unknown => "?".to_owned(),
        }
    }

    /// Returns the letters in the legend, with one entry for all numbers of links.
    pub fn class_letters(self) -> String {
        if let Self::NvLink(_) = self { "NV#".to_owned() } else { self.letters() }
    }

    /// Returns the route in words.
    pub fn route_in_words(self) -> &'static str {
        match self {
            Self::Same => "the device itself",
            Self::NvLink(_) => "# NVLinks, directly or through NVSwitch",
            Self::Pix => "at most one PCIe bridge: both under the same PCIe switch",
            Self::Pxb => "several PCIe bridges, without the host bridge: switches behind switches",
            Self::Phb => "through a PCIe host bridge: the CPU's root complex",
            Self::Node => {
                "between PCIe host bridges of the same NUMA node (not another node of the cluster); NCCL \
                 calls it PHB"
            }
            Self::Sys => "between NUMA nodes, over the interconnect of the sockets (UPI, xGMI)",
            Self::Net => "another host, over the network",
            Self::Unknown => "not known: the kernel does not report the NUMA node of one of the devices (-1)",
        }
    }

    /// Returns the transport chosen by NCCL 2.23 and later if no variable is set. (Before, P2P was permitted
    /// at any distance on CPUs of AMD.)
    pub fn transport_of_nccl(self, pair: PairKind, platform: PathPlatform) -> &'static str {
        const PCIE: &str = "P2P over PCIe, if the driver permits it; else SHM";
        match (self, pair) {
            (Self::Same, _) => "-",
            (Self::NvLink(_), _) => "P2P over NVLink",
            (Self::Pix | Self::Pxb, PairKind::GpuGpu) => PCIE,
            (Self::Phb | Self::Node | Self::Sys, PairKind::GpuGpu) if platform.is_amd_pair => PCIE,
            (Self::Phb | Self::Node, PairKind::GpuGpu) => {
                "SHM, through host memory; NCCL_P2P_LEVEL=PHB permits P2P"
            }
            (Self::Sys, PairKind::GpuGpu) => "SHM, through host memory; NCCL_P2P_LEVEL=SYS permits P2P",
            (Self::Pix | Self::Pxb, PairKind::GpuNic) => "GPUDirect RDMA, if NIC and plugin support it",
            (Self::Phb | Self::Node, PairKind::GpuNic) if platform.has_c2c => {
                "GPUDirect RDMA through NVLink-C2C from NCCL 2.27 on, if NIC and plugin support it"
            }
            (Self::Phb | Self::Node, PairKind::GpuNic) => {
                "staged in host memory, or PXN; NCCL_NET_GDR_LEVEL=PHB permits GPUDirect RDMA"
            }
            (Self::Sys, PairKind::GpuNic) => {
                "staged in host memory, or PXN; NCCL_NET_GDR_LEVEL=SYS permits GPUDirect RDMA"
            }
            (Self::Net, _) => "NET",
            (Self::Unknown, _) => "cannot tell",
        }
    }

    /// Returns the quality of the path. It selects the colour.
    pub fn grade(self) -> Grade {
        match self {
            Self::Same | Self::Unknown => Grade::None,
            Self::NvLink(_) => Grade::Fastest,
            Self::Pix | Self::Pxb => Grade::Fast,
            Self::Phb | Self::Node => Grade::Staged,
            Self::Sys | Self::Net => Grade::Slow,
        }
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.letters())
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::NumaNode;
    use super::*;

    fn place(numa: Option<u32>, bridge: &str, ports: &str) -> Locality {
        Locality {
            numa,
            host_bridge: (!bridge.is_empty()).then(|| bridge.to_owned()),
            ports: ports.split_whitespace().map(str::to_owned).collect(),
            ..Locality::default()
        }
    }

    fn two_sockets(is_dump: bool) -> Topology {
        let node = |id| NumaNode { id: Some(id), ..NumaNode::default() };
        Topology { is_dump, numa_nodes: vec![node(0), node(1)], ..Topology::default() }
    }

    #[test]
    fn each_class_follows_from_the_bridges_in_common() {
        let topology = two_sockets(false);
        let gpu = place(Some(0), "pci0000:17", "r up d1");
        for (other, expected) in [
            // Another downstream port of the same switch.
            (place(Some(0), "pci0000:17", "r up d2"), Path::Pix),
            // Another function of the same card.
            (place(Some(0), "pci0000:17", "r up d1"), Path::Pix),
            // A switch behind the switch.
            (place(Some(0), "pci0000:17", "r up d2 up2 d3"), Path::Pxb),
            // Another switch below the same root port.
            (place(Some(0), "pci0000:17", "r"), Path::Pxb),
            // Another root port of the same host bridge.
            (place(Some(0), "pci0000:17", "r2"), Path::Phb),
            (place(Some(0), "pci0000:17", ""), Path::Phb),
            (place(Some(0), "pci0000:38", "r3 up3 d4"), Path::Node),
            (place(Some(1), "pci0000:97", "r4"), Path::Sys),
            (place(None, "pci0000:97", "r4"), Path::Unknown),
        ] {
            assert_eq!(Path::between_places(&topology, &gpu, &other), expected, "{other:?}");
            assert_eq!(Path::between_places(&topology, &other, &gpu), expected, "{other:?}");
        }
    }

    #[test]
    fn without_numa_numbers_one_node_is_one_node() {
        let mut topology = two_sockets(false);
        topology.numa_nodes.pop();
        let (a, b) = (place(None, "pci0000:00", ""), place(None, "pci0001:00", ""));
        assert_eq!(Path::between_places(&topology, &a, &b), Path::Node);
    }

    #[test]
    fn nccl_knows_no_host_bridges() {
        let topology = two_sockets(true);
        let node = |id| place(id, "", "");
        assert_eq!(Path::between_places(&topology, &node(Some(0)), &node(Some(0))), Path::Phb);
        assert_eq!(Path::between_places(&topology, &node(Some(0)), &node(Some(1))), Path::Sys);
        assert_eq!(Path::between_places(&topology, &node(None), &node(None)), Path::Phb);
        assert_eq!(Path::between_places(&topology, &node(None), &node(Some(0))), Path::Sys);
        let far = Locality { host: 1, ..node(Some(0)) };
        assert_eq!(Path::between_places(&topology, &node(Some(0)), &far), Path::Net);
    }

    #[test]
    fn the_transport_depends_on_the_platform() {
        let usual = PathPlatform::default();
        let amd = PathPlatform { is_amd_pair: true, ..usual };
        let grace = PathPlatform { has_c2c: true, ..usual };
        for (path, pair, platform, expected) in [
            (Path::NvLink(4), PairKind::GpuGpu, usual, "P2P over NVLink"),
            (Path::Pxb, PairKind::GpuGpu, usual, "P2P over PCIe"),
            (Path::Node, PairKind::GpuGpu, usual, "SHM"),
            (Path::Sys, PairKind::GpuGpu, usual, "SHM"),
            (Path::Sys, PairKind::GpuGpu, amd, "P2P over PCIe"),
            (Path::Pix, PairKind::GpuNic, usual, "GPUDirect RDMA"),
            (Path::Phb, PairKind::GpuNic, usual, "staged"),
            (Path::Phb, PairKind::GpuNic, grace, "GPUDirect RDMA through NVLink-C2C"),
            (Path::Sys, PairKind::GpuNic, grace, "staged"),
        ] {
            let text = path.transport_of_nccl(pair, platform);
            assert!(text.starts_with(expected), "{path:?} {pair:?}: {text}");
        }
    }

    #[test]
    fn the_legend_does_not_take_node_for_another_host() {
        assert!(Path::Node.route_in_words().contains("same NUMA node"));
        assert!(Path::Sys.route_in_words().contains("between NUMA nodes"));
        assert_eq!(
            (Path::NvLink(18).letters(), Path::NvLink(18).class_letters()),
            ("NV18".to_owned(), "NV#".to_owned())
        );
    }
}
