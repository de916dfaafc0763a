//! Which algorithm carries out an operation.

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
    /// As [`AllToAll`](Self::AllToAll), with parts of any lengths.
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

/// An algorithm of the host backend. `p` is the number of ranks, `n` the bytes of a vector or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank writes what it has to shared memory, where those who need it read it, inside a host: 32 KiB at a time, or
    /// segments of less. Of each segment of an all_reduce every rank reduces a part; what is not cut is reduced by all.
    Board,
    /// Every rank sends each other at once what that one is to get: one message each. For short messages, and where
    /// nothing is reduced.
    Direct,
    /// Partners at doubling distance exchange all they have: lg p messages. For short messages.
    RecursiveDoubling,
    /// Partners at halving distance give each other the half of what they have that the other is to keep: lg p
    /// messages.
    RecursiveHalving,
    /// Blocks travel in steps of powers of two, several in one message: lg p messages for any number of ranks (Bruck
    /// and others 1997). For short messages.
    Bruck,
    /// Up or down a tree whose ranks have up to lg p children: lg p messages. For short messages with a root.
    Binomial,
    /// Every rank reduces one part of the vector, got from all others, and sends it to those who are to have it; where
    /// nothing is reduced, every rank exchanges with one other after the other.
    Pairwise,
    /// all_reduce: reduce-scatter by recursive halving, all-gather by recursive doubling (Thakur, Rabenseifner and
    /// Gropp 2005). For long messages.
    Rabenseifner,
    /// Every rank talks to its two neighbours only; a broadcast is scattered first (van de Geijn's). For long messages
    /// and many ranks.
    Ring,
    /// For hosts with several ranks each: first inside a host, then between hosts, where each of a host's ranks does its
    /// share of the work (multi-lane; Träff and Hunold 2020), then inside a host again. [`Plan::between`] says what is
    /// done between hosts.
    Hierarchical,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 10] = [
        Self::Board,
        Self::Direct,
        Self::RecursiveDoubling,
        Self::RecursiveHalving,
        Self::Bruck,
        Self::Binomial,
        Self::Pairwise,
        Self::Rabenseifner,
        Self::Ring,
        Self::Hierarchical,
    ];

    /// The name, as [`FromStr`] reads it: `recursive-doubling`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Board => "board",
            Self::Direct => "direct",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::RecursiveHalving => "recursive-halving",
            Self::Bruck => "bruck",
            Self::Binomial => "binomial",
            Self::Pairwise => "pairwise",
            Self::Rabenseifner => "rabenseifner",
            Self::Ring => "ring",
            Self::Hierarchical => "hierarchical",
        }
    }

    /// Whether the algorithm can carry out `collective` on `ranks` ranks, which for `board` must share memory, and for
    /// `hierarchical` be on several hosts, several of them on one at least.
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

    /// Whether the algorithm can be what is done between hosts, however many they are.
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

    /// Whether the algorithm cuts long messages of `collective` into segments.
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

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A text that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is none of {}", names(Algorithm::ALL))]
pub struct UnknownAlgorithm {
    text: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == text)
            .ok_or_else(|| UnknownAlgorithm { text: text.to_owned() })
    }
}

/// The names of algorithms, separated by commas.
pub(crate) fn names(algorithms: impl IntoIterator<Item = Algorithm>) -> String {
    algorithms.into_iter().map(Algorithm::name).collect::<Vec<_>>().join(", ")
}

/// What carries the messages, as far as the choice of an algorithm goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// All ranks share memory: messages are cheap, and copied by the processors.
    SharedMemory,
    /// Some ranks are reached through a network, or its loopback.
    Network,
    /// As [`Network`](Self::Network), and several ranks share a host. What the table has for this comes first, then what
    /// it has for a network.
    Hosts,
}

impl Medium {
    /// Every medium.
    pub const ALL: [Self; 3] = [Self::SharedMemory, Self::Network, Self::Hosts];

    /// The name: `shared-memory`, `network`, `hosts`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared-memory",
            Self::Network => "network",
            Self::Hosts => "hosts",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Medium {
    type Err = UnknownMedium;

    fn from_str(text: &str) -> Result<Self, UnknownMedium> {
        Self::ALL
            .into_iter()
            .find(|medium| medium.name() == text)
            .ok_or_else(|| UnknownMedium { text: text.to_owned() })
    }
}

/// A text that names no medium.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is none of {}", Medium::ALL.map(Medium::name).join(", "))]
pub struct UnknownMedium {
    text: String,
}

/// How an operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// For [`Algorithm::Hierarchical`], what is done between hosts.
    pub between: Option<Algorithm>,
    /// Bytes that go through the algorithm at a time, for algorithms that cut long messages into segments: of the vector
    /// (all_reduce, reduce, broadcast), or of a rank's block or part (all others).
    pub segment: usize,
    /// Segments in flight at a time.
    pub in_flight: usize,
}

impl Plan {
    /// The plan with another algorithm between hosts and other segments, where these are asked for and the algorithm has
    /// any.
    pub(crate) fn with(
        self,
        collective: Collective,
        between: Option<Algorithm>,
        segment: Option<usize>,
        in_flight: Option<usize>,
    ) -> Self {
        if !self.algorithm.is_segmented(collective) {
            return Self { segment: ANY, in_flight: 1, ..self };
        }
        Self {
            algorithm: self.algorithm,
            between: self
                .between
                .map(|table| between.filter(|wanted| wanted.serves_between(collective)).unwrap_or(table)),
            segment: segment.unwrap_or(self.segment),
            in_flight: in_flight.unwrap_or(self.in_flight),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.algorithm)?;
        if let Some(between) = self.between {
            write!(formatter, ", {between} between hosts")?;
        }
        if self.segment < ANY {
            write!(formatter, ", {} x {} bytes in flight", self.in_flight, self.segment)?;
        }
        Ok(())
    }
}

/// A line of the table: the plan for operations up to a size, on up to a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The collective.
    pub collective: Collective,
    /// What carries the messages.
    pub medium: Medium,
    /// The rule holds for this many ranks and fewer; for [`Medium::Hosts`], hosts.
    pub ranks: usize,
    /// The rule holds for this many bytes and fewer: of a rank's block (all_gather, gather), or of the vector or of all
    /// blocks together (all others). For all_to_all_v it is always 0: no rank knows how long the others' parts are.
    pub bytes: usize,
    /// What to do then.
    pub plan: Plan,
}

const fn rule(
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
const fn hosts(
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

const K: usize = 1 << 10;
const ANY: usize = usize::MAX;

/// The table. The first line that fits an operation, and whose algorithm serves it, decides, and one does for every
/// operation.
///
/// The sizes at which it changes from one algorithm to the next were measured on one host, with 2, 4 and 8 ranks: over TCP with
/// `benches/host_collectives.rs --tune`, for all_reduce, all_gather, reduce_scatter, broadcast and all_to_all; in shared memory
/// with `nccl-bench --algo`, of what is between the board and messages, for these and for reduce, gather and scatter, up to 16
/// ranks for the first. Lines for other numbers of ranks follow these; those of the other collectives follow the sources that
/// the documentation of [`Algorithm`] names, and have not been measured. Those for several hosts were measured with
/// `benches/shaped_collectives.py`, with 4 hosts of 2 ranks.
pub const RULES: &[Rule] = {
    use Algorithm::{
        Binomial, Board, Bruck, Direct, Pairwise, Rabenseifner, RecursiveDoubling, RecursiveHalving, Ring,
    };
    use Collective::{
        AllGather, AllReduce, AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    use Medium::{Network, SharedMemory};
    &[
        rule(AllReduce, SharedMemory, 2, 32 * K, Board, ANY, 1),
        rule(AllReduce, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        rule(AllReduce, SharedMemory, 2, 16384 * K, Pairwise, ANY, 1),
        rule(AllReduce, SharedMemory, 4, 4 * K, Board, ANY, 1),
        rule(AllReduce, SharedMemory, 4, 128 * K, Board, 32 * K, 1),
        rule(AllReduce, SharedMemory, 3, 16384 * K, Pairwise, ANY, 1),
        rule(AllReduce, SharedMemory, 3, ANY, Pairwise, 8192 * K, 1),
        rule(AllReduce, SharedMemory, 4, 1024 * K, Rabenseifner, ANY, 1),
        rule(AllReduce, SharedMemory, ANY, K, Board, ANY, 1),
        rule(AllReduce, SharedMemory, 8, 1024 * K, Board, 32 * K, 1),
        rule(AllReduce, SharedMemory, ANY, 256 * K, Board, 32 * K, 1),
        rule(AllReduce, SharedMemory, ANY, 1024 * K, Rabenseifner, ANY, 1),
        rule(AllReduce, SharedMemory, ANY, ANY, Ring, 1024 * K, 2),
        rule(AllReduce, Network, 8, 64 * K, RecursiveDoubling, ANY, 1),
        rule(AllReduce, Network, ANY, 16 * K, RecursiveDoubling, ANY, 1),
        rule(AllReduce, Network, 2, ANY, Ring, 1024 * K, 2),
        rule(AllReduce, Network, 3, ANY, Pairwise, 1024 * K, 3),
        rule(AllReduce, Network, ANY, 1024 * K, Rabenseifner, 1024 * K, 2),
        rule(AllReduce, Network, ANY, ANY, Ring, 1024 * K, 2),
        rule(AllGather, SharedMemory, 2, 32 * K, Board, 32 * K, 1),
        rule(AllGather, SharedMemory, 2, ANY, Direct, ANY, 1),
        rule(AllGather, SharedMemory, ANY, ANY, Board, 32 * K, 1),
        rule(AllGather, SharedMemory, 16, 4096 * K, Direct, ANY, 1),
        rule(AllGather, SharedMemory, ANY, 8 * K, Bruck, ANY, 1),
        rule(AllGather, SharedMemory, ANY, ANY, Ring, 256 * K, 3),
        rule(AllGather, Network, 8, 128 * K, RecursiveDoubling, ANY, 1),
        rule(AllGather, Network, ANY, 16 * K, Bruck, ANY, 1),
        rule(AllGather, Network, 4, ANY, Direct, 256 * K, 3),
        rule(AllGather, Network, 8, 1024 * K, Direct, 256 * K, 3),
        rule(AllGather, Network, ANY, ANY, Ring, 256 * K, 3),
        rule(ReduceScatter, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        rule(ReduceScatter, SharedMemory, 2, ANY, Pairwise, 256 * K, 3),
        rule(ReduceScatter, SharedMemory, 4, 128 * K, Board, 32 * K, 1),
        rule(ReduceScatter, SharedMemory, 4, ANY, Pairwise, 256 * K, 3),
        rule(ReduceScatter, SharedMemory, 8, 256 * K, Board, 32 * K, 1),
        rule(ReduceScatter, SharedMemory, ANY, 64 * K, Board, 32 * K, 1),
        rule(ReduceScatter, SharedMemory, ANY, 1024 * K, RecursiveHalving, ANY, 1),
        rule(ReduceScatter, SharedMemory, ANY, 64 * K, Pairwise, ANY, 1),
        rule(ReduceScatter, SharedMemory, ANY, ANY, Ring, 256 * K, 3),
        rule(ReduceScatter, Network, ANY, 256 * K, RecursiveHalving, ANY, 1),
        rule(ReduceScatter, Network, ANY, 64 * K, Pairwise, ANY, 1),
        rule(ReduceScatter, Network, ANY, ANY, Ring, 256 * K, 3),
        rule(Broadcast, SharedMemory, 2, 16 * K, Board, 32 * K, 1),
        rule(Broadcast, SharedMemory, 2, 1024 * K, Binomial, ANY, 1),
        rule(Broadcast, SharedMemory, 16, ANY, Board, 32 * K, 1),
        rule(Broadcast, SharedMemory, ANY, 4 * K, Board, 32 * K, 1),
        rule(Broadcast, SharedMemory, 2, ANY, Binomial, ANY, 1),
        rule(Broadcast, SharedMemory, 8, ANY, Direct, ANY, 1),
        rule(Broadcast, SharedMemory, ANY, 64 * K, Binomial, ANY, 1),
        rule(Broadcast, SharedMemory, ANY, ANY, Ring, 1024 * K, 2),
        rule(Broadcast, Network, 2, ANY, Binomial, 1024 * K, 2),
        rule(Broadcast, Network, 4, 1024 * K, Binomial, 1024 * K, 2),
        rule(Broadcast, Network, ANY, 256 * K, Binomial, ANY, 1),
        rule(Broadcast, Network, ANY, ANY, Ring, 1024 * K, 2),
        rule(Reduce, SharedMemory, 2, ANY, Board, 32 * K, 1),
        rule(Reduce, SharedMemory, 4, 256 * K, Board, 32 * K, 1),
        rule(Reduce, SharedMemory, 8, 64 * K, Board, 32 * K, 1),
        rule(Reduce, SharedMemory, ANY, 4 * K, Board, 32 * K, 1),
        rule(Reduce, SharedMemory, ANY, 64 * K, Binomial, ANY, 1),
        rule(Reduce, SharedMemory, ANY, ANY, Pairwise, 1024 * K, 2),
        rule(Reduce, Network, ANY, 64 * K, Binomial, ANY, 1),
        rule(Reduce, Network, ANY, ANY, Pairwise, 1024 * K, 2),
        rule(AllToAll, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        rule(AllToAll, SharedMemory, 2, ANY, Direct, ANY, 1),
        rule(AllToAll, SharedMemory, 4, 256 * K, Board, 32 * K, 1),
        rule(AllToAll, SharedMemory, 4, 8192 * K, Direct, 1024 * K, 2),
        rule(AllToAll, SharedMemory, 4, ANY, Direct, ANY, 1),
        rule(AllToAll, SharedMemory, 8, 128 * K, Board, 32 * K, 1),
        rule(AllToAll, SharedMemory, ANY, 64 * K, Board, 32 * K, 1),
        rule(AllToAll, SharedMemory, 16, ANY, Direct, 1024 * K, 2),
        rule(AllToAll, SharedMemory, ANY, 16 * K, Bruck, ANY, 1),
        rule(AllToAll, SharedMemory, ANY, ANY, Pairwise, 256 * K, 4),
        rule(AllToAll, Network, 2, ANY, Direct, 1024 * K, 2),
        rule(AllToAll, Network, ANY, 16 * K, Bruck, ANY, 1),
        rule(AllToAll, Network, 4, ANY, Direct, 1024 * K, 2),
        rule(AllToAll, Network, 8, ANY, Direct, 256 * K, 3),
        rule(AllToAll, Network, ANY, ANY, Pairwise, 256 * K, 4),
        rule(AllToAllV, SharedMemory, 16, ANY, Direct, 1024 * K, 2),
        rule(AllToAllV, SharedMemory, ANY, ANY, Pairwise, 256 * K, 4),
        rule(AllToAllV, Network, 8, ANY, Direct, 1024 * K, 2),
        rule(AllToAllV, Network, ANY, ANY, Pairwise, 256 * K, 4),
        rule(Gather, SharedMemory, 2, 64 * K, Board, 32 * K, 1),
        rule(Gather, SharedMemory, 2, ANY, Direct, 1024 * K, 2),
        rule(Gather, SharedMemory, ANY, ANY, Board, 32 * K, 1),
        rule(Gather, SharedMemory, 8, ANY, Direct, 1024 * K, 2),
        rule(Gather, SharedMemory, ANY, 4 * K, Binomial, ANY, 1),
        rule(Gather, SharedMemory, ANY, ANY, Direct, 256 * K, 2),
        rule(Gather, Network, 8, ANY, Direct, 1024 * K, 2),
        rule(Gather, Network, ANY, 4 * K, Binomial, ANY, 1),
        rule(Gather, Network, ANY, ANY, Direct, 256 * K, 2),
        rule(Scatter, SharedMemory, 2, 32 * K, Board, 32 * K, 1),
        rule(Scatter, SharedMemory, 2, ANY, Direct, 1024 * K, 2),
        rule(Scatter, SharedMemory, 8, 64 * K, Board, 32 * K, 1),
        rule(Scatter, SharedMemory, ANY, 16 * K, Board, 32 * K, 1),
        rule(Scatter, SharedMemory, 8, ANY, Direct, 1024 * K, 2),
        rule(Scatter, SharedMemory, ANY, 64 * K, Binomial, ANY, 1),
        rule(Scatter, SharedMemory, ANY, ANY, Direct, 256 * K, 2),
        rule(Scatter, Network, 8, ANY, Direct, 1024 * K, 2),
        rule(Scatter, Network, ANY, 64 * K, Binomial, ANY, 1),
        rule(Scatter, Network, ANY, ANY, Direct, 256 * K, 2),
        hosts(AllReduce, 8, 64 * K, Direct, ANY, 1),
        hosts(AllReduce, ANY, 64 * K, RecursiveDoubling, ANY, 1),
        hosts(AllReduce, 8, 2048 * K, Pairwise, 1024 * K, 3),
        hosts(AllReduce, ANY, 1024 * K, Rabenseifner, ANY, 1),
        hosts(AllReduce, ANY, ANY, Ring, 1024 * K, 3),
        hosts(AllGather, 8, ANY, Direct, 256 * K, 3),
        hosts(AllGather, ANY, 16 * K, Bruck, ANY, 1),
        hosts(AllGather, ANY, ANY, Ring, 256 * K, 3),
        hosts(ReduceScatter, 8, ANY, Pairwise, 256 * K, 3),
        hosts(ReduceScatter, ANY, 256 * K, RecursiveHalving, ANY, 1),
        hosts(ReduceScatter, ANY, ANY, Ring, 256 * K, 3),
        hosts(Broadcast, 2, ANY, Binomial, 1024 * K, 3),
        hosts(Broadcast, ANY, 256 * K, Binomial, ANY, 1),
        hosts(Broadcast, ANY, ANY, Ring, 1024 * K, 3),
        hosts(Reduce, 4, 8192 * K, Binomial, 1024 * K, 3),
        hosts(Reduce, ANY, 64 * K, Binomial, ANY, 1),
        hosts(Reduce, ANY, ANY, Pairwise, 1024 * K, 3),
    ]
};

/// The segments of an algorithm that was asked for where the table has another one.
const DEFAULT_PLAN: Plan = Plan { algorithm: Algorithm::Ring, between: None, segment: 256 * K, in_flight: 2 };

/// Who takes part in operations: the same on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology {
    pub(crate) medium: Medium,
    pub(crate) ranks: usize,
    pub(crate) hosts: usize,
    /// Whether the ranks have a board.
    pub(crate) shared: bool,
}

impl Topology {
    /// Whether there is all that an algorithm needs.
    fn allows(&self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Board => self.shared,
            Algorithm::Hierarchical => self.medium == Medium::Hosts,
            _ => true,
        }
    }
}

/// What the table says for a job, looked up once: a few sizes for each collective.
#[derive(Clone, Debug)]
pub(crate) struct PlanTable {
    /// By collective, the plans for operations of up to so many bytes, in the order of the sizes.
    lines: [Vec<(usize, Plan)>; Collective::ALL.len()],
}

impl PlanTable {
    /// `plan` says the plan for an operation of so many bytes. It may change only after a size of the table's.
    pub(crate) fn new(plan: impl Fn(Collective, usize) -> Plan) -> Self {
        let lines = Collective::ALL.map(|collective| {
            let of_table = RULES.iter().filter(|rule| rule.collective == collective).map(|rule| rule.bytes);
            let mut sizes: Vec<usize> = of_table.chain([ANY]).collect();
            sizes.sort_unstable();
            let mut lines: Vec<(usize, Plan)> = Vec::new();
            for size in sizes {
                let plan = plan(collective, size);
                match lines.last_mut() {
                    Some((last, same)) if *same == plan => *last = size,
                    _ => lines.push((size, plan)),
                }
            }
            lines
        });
        Self { lines }
    }

    /// The plan for an operation.
    pub(crate) fn of(&self, collective: Collective, bytes: usize) -> Plan {
        let line = self.lines[collective as usize].iter().find(|(most, _)| bytes <= *most);
        line.map_or(DEFAULT_PLAN, |(_, plan)| *plan)
    }
}

/// The plan for an operation; with the algorithm `wanted`, if any, which must serve the collective.
pub(crate) fn plan(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    wanted: Option<Algorithm>,
) -> Plan {
    let fits = |rule: &Rule, medium: Medium| {
        let count = if medium == Medium::Hosts { topology.hosts } else { topology.ranks };
        rule.collective == collective
            && rule.medium == medium
            && count <= rule.ranks
            && bytes <= rule.bytes
            && rule.plan.algorithm.serves(collective, topology.ranks)
            && topology.allows(rule.plan.algorithm)
    };
    let next = if topology.medium == Medium::Hosts { Medium::Network } else { topology.medium };
    let lines = || {
        let of = |medium| RULES.iter().filter(move |rule| fits(rule, medium)).map(|rule| rule.plan);
        of(topology.medium).chain(of(next))
    };
    match wanted.filter(|&algorithm| topology.allows(algorithm)) {
        Some(algorithm) => {
            let line = lines().find(|plan| plan.algorithm == algorithm);
            line.unwrap_or(Plan { algorithm, ..DEFAULT_PLAN })
        }
        None => lines().next().unwrap_or(DEFAULT_PLAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_unknown_ones_list_the_known() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
        let error = "rign".parse::<Algorithm>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "'rign' is none of board, direct, recursive-doubling, recursive-halving, bruck, binomial, pairwise, \
             rabenseifner, ring, hierarchical"
        );
        for collective in Collective::ALL {
            assert_eq!(collective.name().parse(), Ok(collective));
        }
        for medium in Medium::ALL {
            assert_eq!(medium.name().parse(), Ok(medium));
        }
        let error = "hosst".parse::<Medium>().unwrap_err().to_string();
        assert_eq!(error, "'hosst' is none of shared-memory, network, hosts");
        let error = "all_reduse".parse::<Collective>().unwrap_err().to_string();
        assert!(error.ends_with("all_to_all, all_to_all_v, gather, scatter"), "{error}");
    }

    fn topology(medium: Medium, ranks: usize, shared: bool) -> Topology {
        Topology { medium, ranks, hosts: ranks.div_ceil(2), shared }
    }

    #[test]
    fn the_table_has_a_plan_for_every_operation_and_never_one_that_cannot_serve() {
        for collective in Collective::ALL {
            for medium in Medium::ALL {
                let last = |rule: &&Rule| {
                    (rule.collective, rule.medium, rule.ranks, rule.bytes) == (collective, medium, ANY, ANY)
                };
                // For several hosts it goes on with the lines of a network.
                if medium != Medium::Hosts {
                    let rule = RULES.iter().find(last).unwrap();
                    assert!(rule.plan.algorithm.serves(collective, 7), "{rule:?}");
                }
                for ranks in 2..300 {
                    for bytes in (0..40).map(|power| 1_usize << power) {
                        for shared in [false, true] {
                            let plan = plan(collective, &topology(medium, ranks, shared), bytes, None);
                            assert!(plan.algorithm.serves(collective, ranks), "{collective} {ranks} {bytes}");
                            assert!(
                                shared || plan.algorithm != Algorithm::Board,
                                "{collective} {ranks} {bytes}"
                            );
                            assert!(
                                medium == Medium::Hosts || plan.algorithm != Algorithm::Hierarchical,
                                "{collective} {ranks} {bytes}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_looked_up_once_is_what_the_table_says() {
        for medium in Medium::ALL {
            for (ranks, shared) in
                [2, 3, 4, 5, 8, 16, 17, 64].into_iter().flat_map(|ranks| [(ranks, false), (ranks, true)])
            {
                for wanted in Algorithm::ALL.map(Some).into_iter().chain([None]) {
                    let topology = topology(medium, ranks, shared);
                    let wanted = |collective| wanted.filter(|algorithm| algorithm.serves(collective, ranks));
                    let table = |collective, bytes| plan(collective, &topology, bytes, wanted(collective));
                    let plans = PlanTable::new(table);
                    for collective in Collective::ALL {
                        let powers = (0..64).map(|power| 1_usize << power);
                        for bytes in powers
                            .chain([5000, 0, ANY - 1])
                            .flat_map(|size| [size.saturating_sub(1), size, size + 1])
                        {
                            let expected = table(collective, bytes);
                            assert_eq!(
                                plans.of(collective, bytes),
                                expected,
                                "{collective} {topology:?} {bytes}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn only_hierarchical_lines_have_an_algorithm_between_hosts_and_one_that_serves() {
        for Rule { collective, plan, medium, .. } in RULES {
            let hierarchical = plan.algorithm == Algorithm::Hierarchical;
            assert!(!hierarchical || *medium == Medium::Hosts, "{collective} {plan}");
            assert_eq!(plan.between.is_some(), hierarchical, "{collective} {plan}");
            assert!(
                plan.between.is_none_or(|between| between.serves_between(*collective)),
                "{collective} {plan}"
            );
        }
    }

    #[test]
    fn an_algorithm_that_is_asked_for_is_taken_at_every_size() {
        for bytes in [8, 1 << 20, 1 << 30] {
            for (medium, wanted) in [
                (Medium::Network, Algorithm::Ring),
                (Medium::Hosts, Algorithm::Ring),
                (Medium::Hosts, Algorithm::Hierarchical),
            ] {
                for collective in Collective::ALL.into_iter().filter(|&of| wanted.serves(of, 4)) {
                    let plan = plan(collective, &topology(medium, 4, false), bytes, Some(wanted));
                    assert_eq!(plan.algorithm, wanted, "{collective}");
                    assert_eq!(plan.between.is_some(), wanted == Algorithm::Hierarchical, "{collective}");
                }
            }
        }
    }

    #[test]
    fn a_plan_says_what_is_done_between_hosts() {
        let topology = Topology { medium: Medium::Hosts, ranks: 8, hosts: 4, shared: false };
        let text = |bytes| plan(Collective::AllReduce, &topology, bytes, None).to_string();
        assert_eq!(text(8), "hierarchical, direct between hosts");
        assert_eq!(text(1 << 30), "hierarchical, ring between hosts, 3 x 1048576 bytes in flight");
        // The rules for a network, where those for hosts have nothing.
        let text = plan(Collective::Gather, &topology, 4096, None).to_string();
        assert_eq!(text, "direct, 2 x 1048576 bytes in flight");
    }
}
