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
}

impl Collective {
    /// The name: `all_reduce`, `all_gather`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
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
        [Self::AllReduce, Self::AllGather]
            .into_iter()
            .find(|collective| collective.name() == text)
            .ok_or_else(|| UnknownCollective { text: text.to_owned() })
    }
}

/// A text that names no collective with a choice of algorithms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is none of all_reduce, all_gather")]
pub struct UnknownCollective {
    text: String,
}

/// An algorithm of the host backend. `p` is the number of ranks, `n` the bytes of a vector or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank writes all it has to shared memory, where every other reads it: for short messages inside a host.
    /// Longer ones, up to no more than 32 KiB, are carried out as if no algorithm had been asked for.
    Board,
    /// Every rank sends all it has to every other: one message each. For short messages, and for gathering.
    Direct,
    /// Partners at doubling distance exchange all they have: lg p messages. For short messages.
    RecursiveDoubling,
    /// all_gather's recursive doubling for any number of ranks. For short messages.
    Bruck,
    /// all_reduce: every rank reduces one part of the vector, got from all others and sent to all others.
    Pairwise,
    /// all_reduce: reduce-scatter by recursive halving, all-gather by recursive doubling. For long messages.
    Rabenseifner,
    /// Every rank talks to its two neighbours only. For long messages and many ranks.
    Ring,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 7] = [
        Self::Board,
        Self::Direct,
        Self::RecursiveDoubling,
        Self::Bruck,
        Self::Pairwise,
        Self::Rabenseifner,
        Self::Ring,
    ];

    /// The name, as [`FromStr`] reads it: `recursive-doubling`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Board => "board",
            Self::Direct => "direct",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::Bruck => "bruck",
            Self::Pairwise => "pairwise",
            Self::Rabenseifner => "rabenseifner",
            Self::Ring => "ring",
        }
    }

    /// Whether the algorithm can carry out `collective` on `ranks` ranks.
    #[must_use]
    pub const fn serves(self, collective: Collective, ranks: usize) -> bool {
        match (collective, self) {
            (_, Self::Board | Self::Direct | Self::Ring)
            | (Collective::AllReduce, Self::RecursiveDoubling | Self::Pairwise | Self::Rabenseifner)
            | (Collective::AllGather, Self::Bruck) => true,
            (Collective::AllGather, Self::RecursiveDoubling) => ranks.is_power_of_two(),
            (Collective::AllReduce, Self::Bruck)
            | (Collective::AllGather, Self::Pairwise | Self::Rabenseifner) => false,
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
}

/// How an operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes that go through the algorithm at a time (all_reduce: of the vector; all_gather: of a rank's block),
    /// for algorithms that cut long messages into segments.
    pub segment: usize,
    /// Segments in flight at a time.
    pub in_flight: usize,
}

impl Plan {
    /// Whether the algorithm goes through long messages in segments.
    const fn is_segmented(&self) -> bool {
        self.segment < usize::MAX
            && matches!(self.algorithm, Algorithm::Pairwise | Algorithm::Rabenseifner | Algorithm::Ring)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.algorithm)?;
        if self.is_segmented() {
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
    /// The rule holds for this many ranks and fewer.
    pub ranks: usize,
    /// The rule holds for this many bytes (all_reduce: of the vector; all_gather: of a rank's block) and fewer.
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
    Rule { collective, medium, ranks, bytes, plan: Plan { algorithm, segment, in_flight } }
}

const K: usize = 1 << 10;
const ANY: usize = usize::MAX;

/// The table. The first line that fits an operation decides, and one fits every operation.
///
/// The sizes at which it changes from one algorithm to the next were measured with `benches/host_collectives.rs`,
/// on one host, with up to 4 ranks (for all_reduce in shared memory, 8); lines for more are extrapolated.
pub const RULES: &[Rule] = {
    use Algorithm::{Board, Bruck, Direct, Pairwise, Rabenseifner, RecursiveDoubling, Ring};
    use Collective::{AllGather, AllReduce};
    use Medium::{Network, SharedMemory};
    &[
        rule(AllReduce, SharedMemory, 4, 16 * K, Board, ANY, 1),
        rule(AllReduce, SharedMemory, 8, 4 * K, Board, ANY, 1),
        rule(AllReduce, SharedMemory, ANY, K, Board, ANY, 1),
        rule(AllReduce, SharedMemory, 3, 8192 * K, Pairwise, ANY, 1),
        rule(AllReduce, SharedMemory, 3, ANY, Pairwise, 1024 * K, 2),
        rule(AllReduce, SharedMemory, 4, 64 * K, RecursiveDoubling, ANY, 1),
        rule(AllReduce, SharedMemory, 4, 4096 * K, Rabenseifner, ANY, 1),
        rule(AllReduce, SharedMemory, 8, 32 * K, Pairwise, ANY, 1),
        rule(AllReduce, SharedMemory, ANY, 4096 * K, Rabenseifner, ANY, 1),
        rule(AllReduce, SharedMemory, ANY, ANY, Ring, 1024 * K, 2),
        rule(AllReduce, Network, 4, 64 * K, RecursiveDoubling, ANY, 1),
        rule(AllReduce, Network, ANY, 16 * K, RecursiveDoubling, ANY, 1),
        rule(AllReduce, Network, 8, ANY, Pairwise, 1024 * K, 3),
        rule(AllReduce, Network, ANY, 1024 * K, Rabenseifner, 1024 * K, 2),
        rule(AllReduce, Network, ANY, ANY, Ring, 1024 * K, 2),
        rule(AllGather, SharedMemory, 4, 16 * K, Board, ANY, 1),
        rule(AllGather, SharedMemory, 8, 4 * K, Board, ANY, 1),
        rule(AllGather, SharedMemory, ANY, K, Board, ANY, 1),
        rule(AllGather, SharedMemory, 2, ANY, Direct, ANY, 1),
        rule(AllGather, SharedMemory, 16, 4096 * K, Direct, ANY, 1),
        rule(AllGather, SharedMemory, 16, ANY, Ring, 256 * K, 4),
        rule(AllGather, SharedMemory, ANY, 8 * K, Bruck, ANY, 1),
        rule(AllGather, SharedMemory, ANY, ANY, Ring, 256 * K, 2),
        rule(AllGather, Network, ANY, 16 * K, Bruck, ANY, 1),
        rule(AllGather, Network, 8, ANY, Direct, ANY, 1),
        rule(AllGather, Network, ANY, ANY, Ring, 256 * K, 2),
    ]
};

/// The segments of an algorithm that was asked for where the table has another one.
const OTHERWISE: Plan = Plan { algorithm: Algorithm::Ring, segment: 256 * K, in_flight: 2 };

/// The plan for an operation; with the algorithm `wanted`, if any, which must serve the collective. `board` is the
/// longest message that fits on the ranks' board, if they have one.
pub(crate) fn plan(
    collective: Collective,
    medium: Medium,
    ranks: usize,
    bytes: usize,
    wanted: Option<Algorithm>,
    board: Option<usize>,
) -> Plan {
    let can = |algorithm| algorithm != Algorithm::Board || board.is_some_and(|longest| bytes <= longest);
    let fits = |rule: &&Rule| {
        rule.collective == collective
            && rule.medium == medium
            && ranks <= rule.ranks
            && bytes <= rule.bytes
            && can(rule.plan.algorithm)
    };
    let table = RULES.iter().find(fits).map_or(OTHERWISE, |rule| rule.plan);
    match wanted.filter(|&algorithm| can(algorithm)) {
        Some(algorithm) if algorithm != table.algorithm => Plan { algorithm, ..OTHERWISE },
        _ => table,
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
            "'rign' is none of board, direct, recursive-doubling, bruck, pairwise, rabenseifner, ring"
        );
    }

    #[test]
    fn the_table_has_a_plan_for_every_operation_and_never_one_that_cannot_serve() {
        for collective in [Collective::AllReduce, Collective::AllGather] {
            for medium in [Medium::SharedMemory, Medium::Network] {
                assert!(RULES.iter().any(|rule| {
                    (rule.collective, rule.medium, rule.ranks, rule.bytes) == (collective, medium, ANY, ANY)
                }));
                for ranks in 2..300 {
                    for bytes in (0..40).map(|power| 1_usize << power) {
                        for board in [None, Some(1 << 10)] {
                            let plan = plan(collective, medium, ranks, bytes, None, board);
                            assert!(plan.algorithm.serves(collective, ranks), "{collective} {ranks} {bytes}");
                            let fits = board.is_some_and(|longest| bytes <= longest);
                            assert!(
                                fits || plan.algorithm != Algorithm::Board,
                                "{collective} {ranks} {bytes}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_algorithm_that_is_asked_for_is_taken_at_every_size() {
        for bytes in [8, 1 << 20, 1 << 30] {
            let plan = plan(Collective::AllReduce, Medium::Network, 4, bytes, Some(Algorithm::Ring), None);
            assert_eq!(plan.algorithm, Algorithm::Ring);
        }
    }
}
