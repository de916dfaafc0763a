//! Files of NCCL for tests. Files of one GPU are real. Other files describe known machines.

/// One rank on one GPU of a virtual machine, by NCCL 2.28.9.
pub(super) const ONE_GPU: &str = include_str!("one-gpu-2.28.xml");
pub(super) const ONE_GPU_GRAPH: &str = include_str!("one-gpu-2.28-graph.xml");
/// Two ranks on the same GPU, by NCCL 2.30.7.
pub(super) const TWO_RANKS: &str = include_str!("two-ranks-2.30.xml");
pub(super) const TWO_RANKS_GRAPH: &str = include_str!("two-ranks-2.30-graph.xml");
/// Eight H100 with NVSwitch, eight NICs at their switches and one for storage.
pub(super) const HGX: &str = include_str!("hgx.xml");
pub(super) const HGX_GRAPH: &str = include_str!("hgx-graph.xml");
/// Eight A100 with four NICs, in the format of NCCL 2.18. Its graph omits a NIC.
pub(super) const P4D: &str = include_str!("p4d.xml");
pub(super) const P4D_GRAPH: &str = include_str!("p4d-graph.xml");
/// Eight H100 with 32 NICs.
pub(super) const P5: &str = include_str!("p5.xml");
/// One GPU, and two halves of each of two ports.
pub(super) const SPARK: &str = include_str!("spark.xml");
/// Two hosts of a rack, connected by NVLink.
pub(super) const GB200: &str = include_str!("gb200.xml");
