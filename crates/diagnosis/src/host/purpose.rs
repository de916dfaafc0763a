//! The purpose for which hosts are examined.

/// Purpose of the hosts: it decides what has to be seen of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Jobs on GPUs and network devices.
    Devices,
    /// Jobs between buffers in host memory, with what libfabric finds; no GPU.
    HostMemory,
}
