//! GPUs, NVLink, PCIe, NUMA nodes and NICs of a host, and the paths between them.
