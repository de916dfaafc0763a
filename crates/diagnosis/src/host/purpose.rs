//! The purpose of an examination of hosts.

/// Purpose of the hosts. It decides which facts must be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Jobs on GPUs and network devices.
    Devices,
    /// Jobs between buffers in host memory, with the devices of libfabric and without GPUs.
    HostMemory,
}
