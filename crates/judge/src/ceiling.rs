//! The highest bus bandwidth that the links of a machine permit.
//!
//! Each bound counts the bytes that must cross a link in one direction, whichever algorithm is used. For an
//! allreduce the lower bound is that of P. Patarasu, X. Yuan: Bandwidth optimal all-reduce algorithms for
//! clusters of workstations, J. Parallel Distrib. Comput. 69 (2009), 117-124. Networks and switches that
//! reduce (SHARP, NVLS) halve the data of an allreduce at most.

use record::collective::Collective;
use serde::Serialize;

use crate::machine::Machine;

/// A ceiling: the least of all bounds that are known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// Bus bandwidth in GB/s.
    pub busbw_gbps: f64,
    /// The bounds, the least one first.
    pub bounds: Vec<Bound>,
}

/// A bound of the bus bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Bus bandwidth in GB/s.
    pub busbw_gbps: f64,
    /// Rate of the link in GB/s in one direction.
    pub link_gbps: f64,
    /// Bus bandwidth per rate of the link.
    pub factor: f64,
    /// The link.
    pub link: Link,
    /// Switches (NVLS) or the network (SHARP) may reduce, so that less data crosses the link.
    pub may_reduce: bool,
}

/// A link that bounds the bus bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// NVLinks of a GPU.
    NvLink,
    /// NVLinks of a GPU, and its link to the host.
    NvLinkAndHost,
    /// The link of a GPU to its host, by PCIe or NVLink-C2C.
    HostLink,
    /// All NICs of a host.
    Network,
}

/// Returns the ceiling of a collective; `None` when no bound is known.
pub fn find_ceiling(machine: &Machine, collective: Collective) -> Option<Ceiling> {
    let ranks = machine.ranks.filter(|&ranks| ranks > 1)?;
    let mut bounds: Vec<Bound> =
        [bound_by_gpu(machine, collective, ranks), bound_by_network(machine, collective, ranks)]
            .into_iter()
            .flatten()
            .collect();
    bounds.sort_by(|one, other| one.busbw_gbps.total_cmp(&other.busbw_gbps));
    Some(Ceiling { busbw_gbps: bounds.first()?.busbw_gbps, bounds })
}

/// Finds the link over which a GPU reaches the other ones, with its rate in GB/s in one direction.
fn find_gpu_link(machine: &Machine) -> Option<(f64, Link)> {
    let kind = machine.gpu?;
    let host = machine.host_gbps?;
    let is_alone = machine.ranks_per_host == Some(1) && !machine.is_one_host() && !kind.multi_host;
    let is_one_host = machine.is_one_host();
    Some(match machine.nvlink_gbps {
        Some(nvlink) if !is_alone && is_one_host && nvlink > host => (nvlink, Link::NvLink),
        Some(nvlink) if !is_alone && !is_one_host => (nvlink + host, Link::NvLinkAndHost),
        _ => (host, Link::HostLink),
    })
}

fn bound_by_gpu(machine: &Machine, collective: Collective, ranks: usize) -> Option<Bound> {
    if machine.shares_gpus {
        return None;
    }
    let (link_gbps, link) = find_gpu_link(machine)?;
    let n = ranks as f64;
    let may_reduce =
        collective == Collective::AllReduce && machine.nvls != Some(false) && link != Link::HostLink;
    let factor = match collective {
        Collective::AllReduce if may_reduce => 2.0 * (n - 1.0) / n,
        // A rank receives all but its own part, and the bandwidth counts all of it.
        Collective::Hypercube => n / (n - 1.0),
        // The parts have different lengths.
        Collective::AllToAllV => return None,
        _ => 1.0,
    };
    Some(Bound { busbw_gbps: link_gbps * factor, link_gbps, factor, link, may_reduce })
}

fn bound_by_network(machine: &Machine, collective: Collective, ranks: usize) -> Option<Bound> {
    let hosts = machine.hosts.filter(|&hosts| hosts > 1)?;
    if machine.gpu.is_some_and(|kind| kind.multi_host) {
        return None;
    }
    let link_gbps = machine.nics?.total_gbps();
    let (n, hosts) = (ranks as f64, hosts as f64);
    let per_host = machine.ranks_per_host.map(|count| count as f64);
    let shared = (n - 1.0) / n * hosts / (hosts - 1.0);
    let may_reduce = collective == Collective::AllReduce && machine.collnet != Some(false);
    let factor = match collective {
        Collective::AllReduce if may_reduce => shared.max(2.0 * (n - 1.0) / n),
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => shared,
        Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
        Collective::AllToAll => (n - 1.0) / (n - per_host?) / per_host?,
        Collective::Gather | Collective::Scatter => (n - 1.0) / (n - per_host?),
        Collective::AllToAllV | Collective::Hypercube => return None,
    };
    Some(Bound { busbw_gbps: link_gbps * factor, link_gbps, factor, link: Link::Network, may_reduce })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::find_gpu_kind;
    use crate::machine::Nics;

    fn machine(gpu: &str, hosts: usize, per_host: usize) -> Machine {
        Machine {
            ranks: Some(hosts * per_host),
            hosts: Some(hosts),
            ranks_per_host: Some(per_host),
            gpu_name: Some(gpu.to_owned()),
            gpu: find_gpu_kind(gpu),
            shares_gpus: false,
            nvls: None,
            collnet: Some(false),
            nics: None,
            nvlink_gbps: find_gpu_kind(gpu).and_then(|kind| kind.nvlink_gbps),
            host_gbps: find_gpu_kind(gpu).map(|kind| kind.host_gbps),
            nccl: None,
        }
    }

    fn busbw(machine: &Machine, collective: Collective) -> Option<f64> {
        find_ceiling(machine, collective).map(|ceiling| ceiling.busbw_gbps)
    }

    #[test]
    fn one_host_is_bound_by_the_links_of_its_gpus() {
        let mut h200 = machine("NVIDIA H200", 1, 8);
        assert_eq!(busbw(&h200, Collective::AllGather), Some(450.0));
        // The switch may reduce: each GPU sends its buffer once instead of 1.75 times.
        assert_eq!(busbw(&h200, Collective::AllReduce), Some(787.5));
        h200.nvls = Some(false);
        assert_eq!(busbw(&h200, Collective::AllReduce), Some(450.0));
        assert_eq!(busbw(&h200, Collective::AllToAllV), None);
        h200.shares_gpus = true;
        assert_eq!(busbw(&h200, Collective::AllReduce), None);
        assert_eq!(busbw(&machine("NVIDIA L40S", 1, 4), Collective::AllReduce), Some(31.5));
        assert_eq!(busbw(&machine("NVIDIA H200", 1, 1), Collective::AllReduce), None);
        assert_eq!(busbw(&machine("Another GPU", 1, 8), Collective::AllReduce), None);
    }

    #[test]
    fn hosts_are_bound_by_their_nics() {
        // p5.48xlarge reaches 487 GB/s on two hosts: more than the 400 GB/s of a ring over its NICs.
        let mut p5 = machine("NVIDIA H100 80GB HBM3", 2, 8);
        assert_eq!(busbw(&p5, Collective::AllGather), Some(513.0));
        p5.nics = Some(Nics { count: 32, gbits: 100.0 });
        assert_eq!(busbw(&p5, Collective::AllReduce), Some(750.0));
        assert_eq!(busbw(&p5, Collective::Broadcast), Some(400.0));
        assert_eq!(busbw(&p5, Collective::AllToAll), Some(400.0 / 8.0 * 15.0 / 8.0));
        let four = Machine { hosts: Some(4), ranks: Some(32), ..p5.clone() };
        assert_eq!(busbw(&four, Collective::AllReduce).map(f64::round), Some(517.0));
        let reducing = Machine { collnet: None, ..four };
        assert_eq!(busbw(&reducing, Collective::AllReduce), Some(775.0));
        // A GPU per host sends through its PCIe link.
        let mut one_each = machine("NVIDIA A100-SXM4-80GB", 2, 1);
        assert_eq!(busbw(&one_each, Collective::SendRecv), Some(31.5));
        one_each.nics = Some(Nics { count: 1, gbits: 200.0 });
        assert_eq!(busbw(&one_each, Collective::SendRecv), Some(25.0));
    }
}
