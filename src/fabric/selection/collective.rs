//! Collectives of the host backend.

use crate::name::named;

/// A collective operation of the host backend with a choice of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' vectors.
    AllReduce,
    /// Every rank gets all ranks' blocks, in rank order.
    AllGather,
    /// Every rank gets its block of the reduction of all ranks' vectors.
    ReduceScatter,
    /// Every rank gets the root's vector.
    Broadcast,
    /// The root gets the reduction of all ranks' vectors.
    Reduce,
    /// Every rank gets its part of all ranks' buffers.
    AllToAll,
    /// [`AllToAll`](Self::AllToAll) with parts of any lengths.
    AllToAllV,
    /// The root gets all ranks' blocks, in rank order.
    Gather,
    /// Every rank gets its block of the root's buffer.
    Scatter,
}

named! {
    Collective:
    AllReduce = "all_reduce",
    AllGather = "all_gather",
    ReduceScatter = "reduce_scatter",
    Broadcast = "broadcast",
    Reduce = "reduce",
    AllToAll = "all_to_all",
    AllToAllV = "all_to_all_v",
    Gather = "gather",
    Scatter = "scatter",
}
