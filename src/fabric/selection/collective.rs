//! Collectives of the host backend.

use std::fmt;
use std::str::FromStr;

/// A collective operation of the host backend that has a choice of algorithms.
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

impl Collective {
    /// Every collective.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Gather,
        Self::Scatter,
    ];

    /// The name: `all_reduce`, `all_to_all_v`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = UnknownCollective;

    fn from_str(text: &str) -> Result<Self, UnknownCollective> {
        Self::ALL
            .into_iter()
            .find(|collective| collective.name() == text)
            .ok_or_else(|| UnknownCollective { text: text.to_owned() })
    }
}

/// A text that names no collective with a choice of algorithms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is none of {}", Collective::ALL.map(Collective::name).join(", "))]
pub struct UnknownCollective {
    text: String,
}
