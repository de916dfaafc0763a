//! Rules for the selection of algorithms.

use super::{ANY, Algorithm, Collective, K, Medium, Plan, Rule};

const fn new_rule(
    collective: Collective,
    medium: Medium,
    ranks: usize,
    bytes: usize,
    algorithm: Algorithm,
    segment: usize,
    in_flight: usize,
) -> Rule {
    let plan = Plan { algorithm, between: None, segment, in_flight };
    Rule { collective, medium, ranks, bytes, plan }
}

/// A rule for several hosts with several ranks each.
const fn new_hosts_rule(
    collective: Collective,
    hosts: usize,
    bytes: usize,
    between: Algorithm,
    segment: usize,
    in_flight: usize,
) -> Rule {
    let plan = Plan { algorithm: Algorithm::Hierarchical, between: Some(between), segment, in_flight };
    Rule { collective, medium: Medium::Hosts, ranks: hosts, bytes, plan }
}

/// The rules for the selection of an algorithm. Each operation uses the first suitable rule with an algorithm
/// for its collective; every operation has one.
///
/// Sizes were measured on one host, with 2, 4 and 8 ranks: over TCP with
/// `measurements/tools/host_collectives.rs --tune`, for all_reduce, all_gather, reduce_scatter, broadcast and
/// all_to_all; in shared memory also for reduce, gather and scatter; where the segment and messages cross
/// over, with `nccl-bench --algo`, up to 16 ranks. Rules for other numbers of ranks are extrapolated; rules
/// for other collectives follow the sources named in the documentation of [`Algorithm`], and were not
/// measured. Rules for several hosts were measured with `measurements/tools/shaped_collectives.py`, with 4
/// hosts of 2 ranks.
pub const RULES: &[Rule] = {
    use Algorithm::{
        Binomial, Board, Bruck, Direct, Pairwise, Rabenseifner, RecursiveDoubling, RecursiveHalving, Ring,
    };
    use Collective::{
        AllGather, AllReduce, AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    use Medium::{Network, SharedMemory};
    &[
        new_rule(AllReduce, SharedMemory, 2, 32 * K, Board, ANY, 1),
        new_rule(AllReduce, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        new_rule(AllReduce, SharedMemory, 2, 16384 * K, Pairwise, ANY, 1),
        new_rule(AllReduce, SharedMemory, 4, 4 * K, Board, ANY, 1),
        new_rule(AllReduce, SharedMemory, 4, 128 * K, Board, 32 * K, 1),
        new_rule(AllReduce, SharedMemory, 3, 16384 * K, Pairwise, ANY, 1),
        new_rule(AllReduce, SharedMemory, 3, ANY, Pairwise, 8192 * K, 1),
        new_rule(AllReduce, SharedMemory, 4, 1024 * K, Rabenseifner, ANY, 1),
        new_rule(AllReduce, SharedMemory, ANY, K, Board, ANY, 1),
        new_rule(AllReduce, SharedMemory, 8, 1024 * K, Board, 32 * K, 1),
        new_rule(AllReduce, SharedMemory, ANY, 256 * K, Board, 32 * K, 1),
        new_rule(AllReduce, SharedMemory, ANY, 1024 * K, Rabenseifner, ANY, 1),
        new_rule(AllReduce, SharedMemory, ANY, ANY, Ring, 1024 * K, 2),
        new_rule(AllReduce, Network, 8, 64 * K, RecursiveDoubling, ANY, 1),
        new_rule(AllReduce, Network, ANY, 16 * K, RecursiveDoubling, ANY, 1),
        new_rule(AllReduce, Network, 2, ANY, Ring, 1024 * K, 2),
        new_rule(AllReduce, Network, 3, ANY, Pairwise, 1024 * K, 3),
        new_rule(AllReduce, Network, ANY, 1024 * K, Rabenseifner, 1024 * K, 2),
        new_rule(AllReduce, Network, ANY, ANY, Ring, 1024 * K, 2),
        new_rule(AllGather, SharedMemory, 2, 32 * K, Board, 32 * K, 1),
        new_rule(AllGather, SharedMemory, 2, ANY, Direct, ANY, 1),
        new_rule(AllGather, SharedMemory, ANY, ANY, Board, 32 * K, 1),
        new_rule(AllGather, SharedMemory, 16, 4096 * K, Direct, ANY, 1),
        new_rule(AllGather, SharedMemory, ANY, 8 * K, Bruck, ANY, 1),
        new_rule(AllGather, SharedMemory, ANY, ANY, Ring, 256 * K, 3),
        new_rule(AllGather, Network, 8, 128 * K, RecursiveDoubling, ANY, 1),
        new_rule(AllGather, Network, ANY, 16 * K, Bruck, ANY, 1),
        new_rule(AllGather, Network, 4, ANY, Direct, 256 * K, 3),
        new_rule(AllGather, Network, 8, 1024 * K, Direct, 256 * K, 3),
        new_rule(AllGather, Network, ANY, ANY, Ring, 256 * K, 3),
        new_rule(ReduceScatter, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        new_rule(ReduceScatter, SharedMemory, 2, ANY, Pairwise, 256 * K, 3),
        new_rule(ReduceScatter, SharedMemory, 4, 128 * K, Board, 32 * K, 1),
        new_rule(ReduceScatter, SharedMemory, 4, ANY, Pairwise, 256 * K, 3),
        new_rule(ReduceScatter, SharedMemory, 8, 256 * K, Board, 32 * K, 1),
        new_rule(ReduceScatter, SharedMemory, ANY, 64 * K, Board, 32 * K, 1),
        new_rule(ReduceScatter, SharedMemory, ANY, 1024 * K, RecursiveHalving, ANY, 1),
        new_rule(ReduceScatter, SharedMemory, ANY, 64 * K, Pairwise, ANY, 1),
        new_rule(ReduceScatter, SharedMemory, ANY, ANY, Ring, 256 * K, 3),
        new_rule(ReduceScatter, Network, ANY, 256 * K, RecursiveHalving, ANY, 1),
        new_rule(ReduceScatter, Network, ANY, 64 * K, Pairwise, ANY, 1),
        new_rule(ReduceScatter, Network, ANY, ANY, Ring, 256 * K, 3),
        new_rule(Broadcast, SharedMemory, 2, 16 * K, Board, 32 * K, 1),
        new_rule(Broadcast, SharedMemory, 2, 1024 * K, Binomial, ANY, 1),
        new_rule(Broadcast, SharedMemory, 16, ANY, Board, 32 * K, 1),
        new_rule(Broadcast, SharedMemory, ANY, 4 * K, Board, 32 * K, 1),
        new_rule(Broadcast, SharedMemory, 2, ANY, Binomial, ANY, 1),
        new_rule(Broadcast, SharedMemory, 8, ANY, Direct, ANY, 1),
        new_rule(Broadcast, SharedMemory, ANY, 64 * K, Binomial, ANY, 1),
        new_rule(Broadcast, SharedMemory, ANY, ANY, Ring, 1024 * K, 2),
        new_rule(Broadcast, Network, 2, ANY, Binomial, 1024 * K, 2),
        new_rule(Broadcast, Network, 4, 1024 * K, Binomial, 1024 * K, 2),
        new_rule(Broadcast, Network, ANY, 256 * K, Binomial, ANY, 1),
        new_rule(Broadcast, Network, ANY, ANY, Ring, 1024 * K, 2),
        new_rule(Reduce, SharedMemory, 2, ANY, Board, 32 * K, 1),
        new_rule(Reduce, SharedMemory, 4, 256 * K, Board, 32 * K, 1),
        new_rule(Reduce, SharedMemory, 8, 64 * K, Board, 32 * K, 1),
        new_rule(Reduce, SharedMemory, ANY, 4 * K, Board, 32 * K, 1),
        new_rule(Reduce, SharedMemory, ANY, 64 * K, Binomial, ANY, 1),
        new_rule(Reduce, SharedMemory, ANY, ANY, Pairwise, 1024 * K, 2),
        new_rule(Reduce, Network, ANY, 64 * K, Binomial, ANY, 1),
        new_rule(Reduce, Network, ANY, ANY, Pairwise, 1024 * K, 2),
        new_rule(AllToAll, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        new_rule(AllToAll, SharedMemory, 2, ANY, Direct, ANY, 1),
        new_rule(AllToAll, SharedMemory, 4, 256 * K, Board, 32 * K, 1),
        new_rule(AllToAll, SharedMemory, 4, 8192 * K, Direct, 1024 * K, 2),
        new_rule(AllToAll, SharedMemory, 4, ANY, Direct, ANY, 1),
        new_rule(AllToAll, SharedMemory, 8, 128 * K, Board, 32 * K, 1),
        new_rule(AllToAll, SharedMemory, ANY, 64 * K, Board, 32 * K, 1),
        new_rule(AllToAll, SharedMemory, 16, ANY, Direct, 1024 * K, 2),
        new_rule(AllToAll, SharedMemory, ANY, 16 * K, Bruck, ANY, 1),
        new_rule(AllToAll, SharedMemory, ANY, ANY, Pairwise, 256 * K, 4),
        new_rule(AllToAll, Network, 2, ANY, Direct, 1024 * K, 2),
        new_rule(AllToAll, Network, ANY, 16 * K, Bruck, ANY, 1),
        new_rule(AllToAll, Network, 4, ANY, Direct, 1024 * K, 2),
        new_rule(AllToAll, Network, 8, ANY, Direct, 256 * K, 3),
        new_rule(AllToAll, Network, ANY, ANY, Pairwise, 256 * K, 4),
        new_rule(AllToAllV, SharedMemory, 16, ANY, Direct, 1024 * K, 2),
        new_rule(AllToAllV, SharedMemory, ANY, ANY, Pairwise, 256 * K, 4),
        new_rule(AllToAllV, Network, 8, ANY, Direct, 1024 * K, 2),
        new_rule(AllToAllV, Network, ANY, ANY, Pairwise, 256 * K, 4),
        new_rule(Gather, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        new_rule(Gather, SharedMemory, 2, ANY, Direct, 1024 * K, 2),
        new_rule(Gather, SharedMemory, ANY, ANY, Board, 32 * K, 1),
        new_rule(Gather, SharedMemory, 8, ANY, Direct, 1024 * K, 2),
        new_rule(Gather, SharedMemory, ANY, 4 * K, Binomial, ANY, 1),
        new_rule(Gather, SharedMemory, ANY, ANY, Direct, 256 * K, 2),
        new_rule(Gather, Network, 8, ANY, Direct, 1024 * K, 2),
        new_rule(Gather, Network, ANY, 4 * K, Binomial, ANY, 1),
        new_rule(Gather, Network, ANY, ANY, Direct, 256 * K, 2),
        new_rule(Scatter, SharedMemory, 2, 32 * K, Board, 32 * K, 1),
        new_rule(Scatter, SharedMemory, 2, ANY, Direct, 1024 * K, 2),
        new_rule(Scatter, SharedMemory, 8, 64 * K, Board, 32 * K, 1),
        new_rule(Scatter, SharedMemory, ANY, 16 * K, Board, 32 * K, 1),
        new_rule(Scatter, SharedMemory, 8, ANY, Direct, 1024 * K, 2),
        new_rule(Scatter, SharedMemory, ANY, 64 * K, Binomial, ANY, 1),
        new_rule(Scatter, SharedMemory, ANY, ANY, Direct, 256 * K, 2),
        new_rule(Scatter, Network, 8, ANY, Direct, 1024 * K, 2),
        new_rule(Scatter, Network, ANY, 64 * K, Binomial, ANY, 1),
        new_rule(Scatter, Network, ANY, ANY, Direct, 256 * K, 2),
        new_hosts_rule(AllReduce, 8, 64 * K, Direct, ANY, 1),
        new_hosts_rule(AllReduce, ANY, 64 * K, RecursiveDoubling, ANY, 1),
        new_hosts_rule(AllReduce, 8, 2048 * K, Pairwise, 1024 * K, 3),
        new_hosts_rule(AllReduce, ANY, 1024 * K, Rabenseifner, ANY, 1),
        new_hosts_rule(AllReduce, ANY, ANY, Ring, 1024 * K, 3),
        new_hosts_rule(AllGather, 8, ANY, Direct, 256 * K, 3),
        new_hosts_rule(AllGather, ANY, 16 * K, Bruck, ANY, 1),
        new_hosts_rule(AllGather, ANY, ANY, Ring, 256 * K, 3),
        new_hosts_rule(ReduceScatter, 8, ANY, Pairwise, 256 * K, 3),
        new_hosts_rule(ReduceScatter, ANY, 256 * K, RecursiveHalving, ANY, 1),
        new_hosts_rule(ReduceScatter, ANY, ANY, Ring, 256 * K, 3),
        new_hosts_rule(Broadcast, 2, ANY, Binomial, 1024 * K, 3),
        new_hosts_rule(Broadcast, ANY, 256 * K, Binomial, ANY, 1),
        new_hosts_rule(Broadcast, ANY, ANY, Ring, 1024 * K, 3),
        new_hosts_rule(Reduce, 4, 8192 * K, Binomial, 1024 * K, 3),
        new_hosts_rule(Reduce, ANY, 64 * K, Binomial, ANY, 1),
        new_hosts_rule(Reduce, ANY, ANY, Pairwise, 1024 * K, 3),
    ]
};
