//! The PCIe tree of a host as branches with columns of devices.

use crate::topology::model::{Locality, Topology};

/// Number of NICs above each other in a column without a GPU.
const STACK: usize = 4;

/// A NUMA node, host bridge or switch, with the devices directly below it and its own branches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Branch {
    /// The kind.
    pub(super) kind: Kind,
    /// Bus ID, host bridge, or number of the NUMA node.
    pub(super) key: String,
    /// Columns of devices directly below.
    pub(super) columns: Vec<Column>,
    /// Branches below.
    pub(super) branches: Vec<Self>,
    gpus: Vec<usize>,
    nics: Vec<usize>,
}

/// The kind of a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Numa,
    HostBridge,
    Switch,
}

/// A GPU with the NICs above it, or NICs only, by their index in the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) nics: Vec<usize>,
    pub(super) gpu: Option<usize>,
}

/// Returns the NUMA nodes of a host with their branches.
pub(super) fn grow(topology: &Topology, host: u32) -> Vec<Branch> {
    let mut nodes: Vec<Branch> = Vec::new();
    for node in topology.numa_nodes.iter().filter(|node| node.host == host) {
        find(&mut nodes, Kind::Numa, &numa_key(node.id));
    }
    for (index, gpu) in topology.gpus.iter().enumerate().filter(|(_, gpu)| gpu.place.host == host) {
        branch(&mut nodes, topology, &gpu.place).gpus.push(index);
    }
    for (index, nic) in topology.nics.iter().enumerate().filter(|(_, nic)| nic.place.host == host) {
        branch(&mut nodes, topology, &nic.place).nics.push(index);
    }
    for node in &mut nodes {
        node.sort_into_columns();
    }
    // Nodes without devices say nothing, unless there is nothing else.
    if nodes.iter().any(|node| !node.is_empty()) {
        nodes.retain(|node| !node.is_empty());
    }
    nodes
}

/// Returns the branch of a place.
fn branch<'a>(nodes: &'a mut Vec<Branch>, topology: &Topology, place: &Locality) -> &'a mut Branch {
    // A single NUMA node is also the node of devices with an unknown node.
    let only = match topology.numa_nodes.as_slice() {
        [only] if place.numa.is_none() => only.id,
        _ => place.numa,
    };
    let mut branch = find(nodes, Kind::Numa, &numa_key(only));
    if let Some(bridge) = &place.host_bridge {
        branch = find(&mut branch.branches, Kind::HostBridge, bridge);
    }
    for switch in place.switches() {
        branch = find(&mut branch.branches, Kind::Switch, switch);
    }
    branch
}

fn numa_key(id: Option<u32>) -> String {
    id.map_or(String::new(), |id| id.to_string())
}

/// Returns the branch with a key, added if missing.
fn find<'a>(branches: &'a mut Vec<Branch>, kind: Kind, key: &str) -> &'a mut Branch {
    let at =
        branches.iter().position(|branch| branch.kind == kind && branch.key == key).unwrap_or_else(|| {
            branches.push(Branch { kind, key: key.to_owned(), ..Branch::default() });
            branches.len() - 1
        });
    &mut branches[at]
}

impl Branch {
    fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.branches.iter().all(Self::is_empty)
    }

    /// Gives each GPU a column, and spreads the NICs over the columns.
    fn sort_into_columns(&mut self) {
        let (gpus, nics) = (self.gpus.len(), self.nics.len());
        let columns = if gpus > 0 { gpus } else { nics.div_ceil(STACK) };
        // The first columns get one more if the numbers are uneven.
        let first = |column: usize| (column * nics).div_ceil(columns.max(1));
        self.columns = (0..columns)
            .map(|column| Column {
                gpu: self.gpus.get(column).copied(),
                nics: self.nics[first(column)..first(column + 1)].to_vec(),
            })
            .collect();
        for branch in &mut self.branches {
            branch.sort_into_columns();
        }
    }

    /// Returns the number of branches above each other, including this one.
    pub(super) fn depth(&self) -> usize {
        1 + self.branches.iter().map(Self::depth).max().unwrap_or(0)
    }

    /// Returns the largest number of NICs above each other.
    pub(super) fn stack(&self) -> usize {
        let own = self.columns.iter().map(|column| column.nics.len()).max().unwrap_or(0);
        own.max(self.branches.iter().map(Self::stack).max().unwrap_or(0))
    }

    /// Returns true if there is a GPU.
    pub(super) fn has_gpu(&self) -> bool {
        self.columns.iter().any(|column| column.gpu.is_some()) || self.branches.iter().any(Self::has_gpu)
    }
}
