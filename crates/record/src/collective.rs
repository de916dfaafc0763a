//! Collectives by name, and their bandwidths.
//!
//! The definitions are taken from nccl-tests (`doc/PERFORMANCE.md`): `algbw` is the size divided by the time;
//! `busbw` multiplies it by the least share of the data carried by each rank's link. So it is comparable with
//! the hardware's speed for any number of ranks.

use std::fmt;
use std::str::FromStr;

/// Name in a record of a collective that its text does not tell.
pub const UNKNOWN_COLLECTIVE: &str = "unknown";

/// A measurable collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce,
    /// Every rank gets the concatenation of all ranks' buffers.
    AllGather,
    /// Every rank gets its part of the reduction of all ranks' buffers.
    ReduceScatter,
    /// Every rank gets the root's buffer.
    Broadcast,
    /// The root gets the reduction of all ranks' buffers.
    Reduce,
    /// Every rank sends each rank a part of its buffer.
    AllToAll,
    /// Every rank sends each rank a part of its buffer, of another length for each pair.
    AllToAllV,
    /// The root gets the concatenation of all ranks' buffers.
    Gather,
    /// Every rank gets its part of the root's buffer.
    Scatter,
    /// Every rank sends its buffer to the next rank and receives the previous one's.
    SendRecv,
    /// Every rank gets the concatenation of all ranks' buffers, by exchanges between pairs.
    Hypercube,
}

impl Collective {
    /// All collectives, in the order of measurement by `nccl-bench all`.
    pub const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Gather,
        Self::Scatter,
        Self::SendRecv,
        Self::Hypercube,
    ];

    /// Returns the name on the command line and in files.
    pub const fn collective_name(self) -> &'static str {
        match self {
            Self::AllReduce => "allreduce",
            Self::AllGather => "allgather",
            Self::ReduceScatter => "reducescatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "alltoall",
            Self::AllToAllV => "alltoallv",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendRecv => "sendrecv",
            Self::Hypercube => "hypercube",
        }
    }

    /// Returns the name of nccl-tests' program for it.
    pub const fn nccl_tests_name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce_perf",
            Self::AllGather => "all_gather_perf",
            Self::ReduceScatter => "reduce_scatter_perf",
            Self::Broadcast => "broadcast_perf",
            Self::Reduce => "reduce_perf",
            Self::AllToAll => "alltoall_perf",
            Self::AllToAllV => "alltoallv_perf",
            Self::Gather => "gather_perf",
            Self::Scatter => "scatter_perf",
            Self::SendRecv => "sendrecv_perf",
            Self::Hypercube => "hypercube_perf",
        }
    }

    /// Returns true for a reduction.
    pub const fn is_reduction(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Returns true when one rank is the root.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Returns true when it can run in place. Other collectives are run in one buffer as well, as in
    /// nccl-tests, but their result is undefined.
    pub const fn has_in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::AllToAllV | Self::SendRecv)
    }

    /// Returns true when it can run over `ranks` ranks: a hypercube needs a power of two.
    pub const fn runs_over(self, ranks: usize) -> bool {
        !matches!(self, Self::Hypercube) || ranks.is_power_of_two()
    }

    /// Returns the factor from `algbw` to `busbw`, for n ranks.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::AllToAllV
            | Self::Gather
            | Self::Scatter => (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Hypercube => 1.0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.collective_name())
    }
}

/// A text that is not the name of a collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a collective; write one of {names}, several with commas, or `all` by \
         itself", names = names())]
pub struct UnknownCollective(String);

fn names() -> String {
    Collective::ALL.map(Collective::collective_name).join(", ")
}

impl FromStr for Collective {
    type Err = UnknownCollective;

    /// Parses a name of this program or of nccl-tests: `allreduce`, `all_reduce`, `all_reduce_perf`.
    fn from_str(text: &str) -> Result<Self, UnknownCollective> {
        let lower = text.to_ascii_lowercase();
        let stem = lower.strip_suffix("_perf").unwrap_or(&lower).replace(['_', '-'], "");
        let found = Self::ALL.into_iter().find(|collective| collective.collective_name() == stem);
        found.ok_or_else(|| UnknownCollective(text.to_owned()))
    }
}

/// The bandwidths of an operation, in GB/s (1e9 bytes per second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Size divided by time.
    pub algorithm: f64,
    /// `algorithm` times [`Collective::bus_factor`].
    pub bus: f64,
}

impl Bandwidth {
    /// Calculates the bandwidths of an operation over `bytes` bytes in `seconds`.
    pub fn new(collective: Collective, bytes: usize, seconds: f64, ranks: usize) -> Self {
        let algorithm = bytes as f64 / 1e9 / seconds;
        Self { algorithm, bus: algorithm * collective.bus_factor(ranks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_match_a_row_that_nccl_tests_printed_on_eight_gpus() {
        // 1073741824 ... 5231.48 us, algbw 205.25, busbw 359.18
        let bandwidth = Bandwidth::new(Collective::AllReduce, 1 << 30, 5231.48e-6, 8);
        assert_eq!(format!("{:.2} {:.2}", bandwidth.algorithm, bandwidth.bus), "205.25 359.18");
        assert_eq!(Bandwidth::new(Collective::AllReduce, 1024, 1e-6, 1).bus, 0.0);
    }

    #[test]
    fn both_projects_names_are_understood() {
        for (text, collective) in [
            ("all_reduce_perf", Collective::AllReduce),
            ("allgather", Collective::AllGather),
            ("reduce_scatter", Collective::ReduceScatter),
            ("reduce-scatter", Collective::ReduceScatter),
            ("alltoallv_perf", Collective::AllToAllV),
            ("SendRecv", Collective::SendRecv),
        ] {
            assert_eq!(text.parse(), Ok(collective));
        }
        let error = "allreduse".parse::<Collective>().unwrap_err().to_string();
        assert!(error.contains("one of allreduce, allgather"), "{error}");
    }
}
