//! Algorithms of the host backend.

use super::Collective;
use crate::name::named;

/// An algorithm of the host backend. `p` is the number of ranks, `n` the bytes of a vector or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank writes its data to shared memory, and the others read it there, inside a host: 32 KiB at a
    /// time, or smaller segments. Of each segment of an all_reduce every rank reduces a part; an uncut vector
    /// is reduced by all.
    Board,
    /// Every rank sends every other its data directly: one message each. For short messages, and where
    /// nothing is reduced.
    Direct,
    /// Partners at doubling distance exchange all their data: lg p messages. For short messages.
    RecursiveDoubling,
    /// Partners at halving distance exchange halves of their data, each keeping one: lg p messages.
    RecursiveHalving,
    /// Blocks travel in steps of powers of two, several in one message: lg p messages for any number of ranks
    /// (Bruck et al. 1997). For short messages.
    Bruck,
    /// Up or down a tree with up to lg p children for each rank: lg p messages. For short messages with a
    /// root.
    Binomial,
    /// Every rank reduces one part of the vector, received from all others, and sends it to the ranks that
    /// need it; without a reduction, every rank exchanges with one peer after the other.
    Pairwise,
    /// all_reduce: reduce-scatter by recursive halving, all-gather by recursive doubling (Thakur,
    /// Rabenseifner and Gropp 2005). For long messages.
    Rabenseifner,
    /// Every rank communicates with its two neighbours only; a broadcast is scattered first (van de Geijn).
    /// For long messages and many ranks.
    Ring,
    /// For hosts with several ranks each: inside the hosts, then between hosts, shared by the ranks of each
    /// host (multi-lane; Träff and Hunold 2020), then inside the hosts again.
    /// [`Plan::between`](super::Plan::between) is the algorithm between hosts. Reductions, all_gather and
    /// broadcast only.
    Hierarchical,
}

named! {
    Algorithm:
    Board = "board",
    Direct = "direct",
    RecursiveDoubling = "recursive-doubling",
    RecursiveHalving = "recursive-halving",
    Bruck = "bruck",
    Binomial = "binomial",
    Pairwise = "pairwise",
    Rabenseifner = "rabenseifner",
    Ring = "ring",
    Hierarchical = "hierarchical",
}

impl Algorithm {
    /// True when the algorithm serves `collective` on `ranks` ranks. `board` also needs ranks that share
    /// memory, `hierarchical` several hosts, at least one with several ranks.
    #[must_use]
    pub const fn serves(self, collective: Collective, ranks: usize) -> bool {
        use Collective::{
            AllGather, AllReduce, AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
        };
        match self {
            Self::Board => !matches!(collective, AllToAllV),
            Self::Direct => {
                matches!(
                    collective,
                    AllReduce | AllGather | Broadcast | AllToAll | AllToAllV | Gather | Scatter
                )
            }
            Self::RecursiveDoubling => match collective {
                AllReduce => true,
                AllGather => ranks.is_power_of_two(),
                _ => false,
            },
            Self::RecursiveHalving => matches!(collective, ReduceScatter) && ranks.is_power_of_two(),
            Self::Bruck => matches!(collective, AllGather | AllToAll),
            Self::Binomial => matches!(collective, Broadcast | Reduce | Gather | Scatter),
            Self::Pairwise => matches!(collective, AllReduce | ReduceScatter | Reduce | AllToAll | AllToAllV),
            Self::Rabenseifner => matches!(collective, AllReduce),
            Self::Ring => matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast),
            Self::Hierarchical => {
                matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast | Reduce)
            }
        }
    }

    /// True when the algorithm serves `collective` between hosts, for any number of them.
    #[must_use]
    pub const fn serves_between(self, collective: Collective) -> bool {
        match collective {
            Collective::AllReduce => matches!(
                self,
                Self::Direct | Self::RecursiveDoubling | Self::Pairwise | Self::Rabenseifner | Self::Ring
            ),
            Collective::AllGather => matches!(self, Self::Direct | Self::Bruck | Self::Ring),
            Collective::ReduceScatter => {
                matches!(self, Self::Pairwise | Self::RecursiveHalving | Self::Ring)
            }
            Collective::Broadcast => matches!(self, Self::Binomial | Self::Ring),
            Collective::Reduce => matches!(self, Self::Binomial | Self::Pairwise),
            Collective::AllToAll | Collective::AllToAllV | Collective::Gather | Collective::Scatter => false,
        }
    }

    /// True when the algorithm cuts long messages of `collective` into segments.
    #[must_use]
    pub const fn is_segmented(self, collective: Collective) -> bool {
        match self {
            Self::RecursiveDoubling | Self::RecursiveHalving | Self::Bruck => false,
            Self::Direct => !matches!(collective, Collective::AllReduce),
            Self::Binomial => matches!(collective, Collective::Broadcast | Collective::Reduce),
            Self::Board | Self::Pairwise | Self::Rabenseifner | Self::Ring | Self::Hierarchical => true,
        }
    }
}

/// The names of algorithms, separated by commas.
pub(crate) fn join_names(algorithms: impl IntoIterator<Item = Algorithm>) -> String {
    algorithms.into_iter().map(Algorithm::name).collect::<Vec<_>>().join(", ")
}
