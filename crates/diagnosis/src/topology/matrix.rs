//! The paths between all devices, as `nvidia-smi topo -m` shows them.

use super::model::{Locality, Topology, TopologyGpu, TopologyNic};
use super::path::{PairKind, Path, PathPlatform};
use crate::examination::{Body, Cell, Matrix, Section};

/// A device of the matrix.
#[derive(Clone, Copy, Debug)]
pub enum Device<'a> {
    /// A GPU.
    Gpu(&'a TopologyGpu),
    /// A NIC.
    Nic(&'a TopologyNic),
}

impl<'a> Device<'a> {
    /// Returns all devices in the order of the matrix: GPUs, then NICs.
    pub fn all(topology: &'a Topology) -> Vec<Self> {
        topology.gpus.iter().map(Self::Gpu).chain(topology.nics.iter().map(Self::Nic)).collect()
    }

    /// Returns the label: `GPU0`, `NIC3`.
    pub fn label(self) -> &'a str {
        match self {
            Self::Gpu(gpu) => &gpu.label,
            Self::Nic(nic) => &nic.label,
        }
    }

    /// Returns the position.
    pub fn place(self) -> &'a Locality {
        match self {
            Self::Gpu(gpu) => &gpu.place,
            Self::Nic(nic) => &nic.place,
        }
    }
}

/// Returns the path between two devices.
pub fn path_between(topology: &Topology, a: Device<'_>, b: Device<'_>) -> Path {
    if let (Device::Gpu(a), Device::Gpu(b)) = (a, b) {
        match topology.nvlinks_between(a, b) {
            0 => {}
            links => return Path::NvLink(links),
        }
    }
    Path::between_places(topology, a.place(), b.place())
}

/// Returns the paths between all devices.
pub fn all_paths(topology: &Topology) -> Vec<Vec<Path>> {
    let devices = Device::all(topology);
    let row = |(at, a): (usize, &Device<'_>)| {
        let to = |(to, b): (usize, &Device<'_>)| {
            if at == to { Path::Same } else { path_between(topology, *a, *b) }
        };
        devices.iter().enumerate().map(to).collect()
    };
    devices.iter().enumerate().map(row).collect()
}

/// Returns the matrix with its legend.
pub fn topology_matrix(topology: &Topology) -> Matrix {
    let rows = all_paths(topology);
    let cell = |path: &Path| Cell { text: path.letters(), grade: path.grade() };
    Matrix {
        labels: Device::all(topology).iter().map(|device| device.label().to_owned()).collect(),
        cells: rows.iter().map(|row| row.iter().map(cell).collect()).collect(),
        legend: path_classes(topology, &rows)
            .into_iter()
            .map(|path| (path.class_letters(), path.route_in_words().to_owned()))
            .collect(),
    }
}

/// Returns NCCL's transport for each class of path in the topology.
pub fn transport_table(topology: &Topology) -> Section {
    let rows = all_paths(topology);
    let gpus = topology.gpus.len();
    let occurs = |class: Path, pair: PairKind| {
        let to_nic = pair == PairKind::GpuNic;
        let of_pair = |row: &Vec<Path>| {
            row.iter()
                .enumerate()
                .any(|(to, path)| (to >= gpus) == to_nic && path.class_letters() == class.class_letters())
        };
        rows.iter().take(gpus).any(of_pair)
    };
    let is_amd = |model: &String| model.contains("AMD");
    let platform = PathPlatform {
        is_amd_pair: gpus <= 2
            && topology.numa_nodes.iter().filter_map(|node| node.model.as_ref()).any(is_amd),
        has_c2c: topology.gpus.iter().any(|gpu| gpu.c2c_links.is_some()),
    };
    let mut table = Vec::new();
    for class in path_classes(topology, &rows).into_iter().filter(|class| *class != Path::Same) {
        let text = |pair| {
            if occurs(class, pair) {
                class.transport_of_nccl(pair, platform).to_owned()
            } else {
                "-".to_owned()
            }
        };
        let row = [text(PairKind::GpuGpu), text(PairKind::GpuNic)];
        if row.iter().any(|text| text != "-") {
            let [gpu, nic] = row;
            table.push(vec![class.class_letters(), gpu, nic]);
        }
    }
    let columns = ["path", "between GPUs", "between GPU and NIC"].map(str::to_owned).to_vec();
    Section {
        title: "NCCL's choice (2.23 and later, no variables set)".to_owned(),
        body: Body::Table { columns, rows: table },
    }
}

/// Returns the classes of the legend: all letters of `nvidia-smi`, and others if they occur.
fn path_classes(topology: &Topology, rows: &[Vec<Path>]) -> Vec<Path> {
    let mut classes =
        vec![Path::Same, Path::NvLink(0), Path::Pix, Path::Pxb, Path::Phb, Path::Node, Path::Sys];
    if topology.is_dump {
        classes.retain(|class| *class != Path::Node);
    }
    let rare = [Path::Net, Path::Unknown];
    classes.extend(rare.into_iter().filter(|rare| rows.iter().flatten().any(|path| path == rare)));
    classes
}

/// Returns the devices with their properties.
pub fn device_table(topology: &Topology) -> Section {
    let columns = ["device", "name", "bus ID", "NUMA", "CPUs", "PCIe", "rate"].map(str::to_owned).to_vec();
    let dash = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
    let numa = |place: &Locality| place.numa.map_or("-1".to_owned(), |node| node.to_string());
    let gpus = topology.gpus.iter().map(|gpu| {
        vec![
            gpu.label.clone(),
            dash(gpu.product_name().map(str::to_owned)),
            dash(Some(gpu.bus_id.clone())),
            numa(&gpu.place),
            dash(gpu.place.cpus.clone()),
            dash(Some(gpu.pcie.short_text())),
            dash(gpu.nvlink_count().filter(|count| *count > 0).map(|count| format!("{count} NVLinks"))),
        ]
    });
    let nics = topology.nics.iter().map(|nic| {
        let name = match &nic.interface {
            Some(interface) => format!("{} ({interface})", nic.name),
            None => nic.name.clone(),
        };
        let rate = nic.gbps.map(|gbps| format!("{gbps} Gb/s"));
        let state = nic.state.clone().filter(|state| !["ACTIVE", "UP"].contains(&state.as_str()));
        let rate = [rate, nic.link_layer.clone(), state].into_iter().flatten().collect::<Vec<_>>().join(" ");
        vec![
            nic.label.clone(),
            name,
            dash(nic.bus_id.clone()),
            numa(&nic.place),
            dash(nic.place.cpus.clone()),
            dash(Some(nic.pcie.short_text())),
            dash(Some(rate)),
        ]
    });
    Section { title: "Devices".to_owned(), body: Body::Table { columns, rows: gpus.chain(nics).collect() } }
}
