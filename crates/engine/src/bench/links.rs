//! The links of this host's devices, for the record.

use diagnosis::topology::model::{PcieLink, TopologyGpu, TopologyNic};
use diagnosis::topology::of_this_machine;
use record::{GpuLinks, HostLinks, NicLink};

/// Reads the links of this host's devices.
pub(super) fn read_links() -> HostLinks {
    let topology = of_this_machine();
    HostLinks {
        gpus: topology.gpus.into_iter().map(describe_gpu).collect(),
        nics: topology.nics.into_iter().map(describe_nic).collect(),
    }
}

fn describe_gpu(gpu: TopologyGpu) -> GpuLinks {
    // An idle GPU lowers the rate of its link, and raises it for transfers.
    let link = PcieLink { gts: gpu.pcie.max_gts.or(gpu.pcie.gts), ..gpu.pcie };
    GpuLinks { nvlinks: gpu.nvlink_count(), pcie_gbps: link.gbytes_per_s(), pci: gpu.bus_id }
}

fn describe_nic(nic: TopologyNic) -> NicLink {
    NicLink {
        up: nic.state.map(|state| ["ACTIVE", "UP"].contains(&state.as_str())),
        name: nic.name,
        gbits: nic.gbps,
        rdma: nic.rdma,
    }
}
