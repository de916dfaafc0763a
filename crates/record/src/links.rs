//! The links of a host's devices, as its system reports them.

use serde::{Deserialize, Serialize};

/// The links of the devices of rank 0's host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostLinks {
    /// The GPUs, in the order of the driver.
    pub gpus: Vec<GpuLinks>,
    /// The NICs: RDMA devices, or network interfaces where there are none.
    pub nics: Vec<NicLink>,
}

/// The links of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuLinks {
    /// PCI bus ID: `0000:18:00.0`.
    pub pci: String,
    /// Number of active NVLinks; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlinks: Option<u32>,
    /// Bandwidth of the PCIe link in one direction, in GB/s; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_gbps: Option<f64>,
}

/// The link of a NIC to its network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NicLink {
    /// Name: `mlx5_0`, `eth0`.
    pub name: String,
    /// Rate in Gbit/s; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gbits: Option<f64>,
    /// True for an RDMA device.
    pub rdma: bool,
    /// True when the link is up; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
}
