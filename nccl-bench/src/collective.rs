//! What each collective moves, and the bandwidth that a time means.
//!
//! The definitions are those of nccl-tests (its `doc/PERFORMANCE.md`): `algbw` is the size divided by the time;
//! `busbw` multiplies it by the share of the data that each rank's link must carry at least, so that it can be
//! compared with the hardware's speed whatever the number of ranks.

use std::fmt;
use std::str::FromStr;

use collectives::{DataType, fabric};

use crate::data::Segment;
use crate::record::Placement;
use crate::traffic::Traffic;

/// A collective operation that can be measured.
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

/// The element counts of one operation on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Elements that a rank sends.
    pub send: usize,
    /// Elements that a rank receives.
    pub receive: usize,
    /// The count that the library's function takes, which the table prints.
    pub parameter: usize,
    /// The size that the table prints, in elements: the larger buffer of the rank that has most.
    pub largest: usize,
}

/// The element counts of an operation on one rank of its group, and its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The rank's number in the group.
    pub rank: usize,
    /// How many ranks the group has.
    pub ranks: usize,
    /// The root, where the collective has one.
    pub root: Option<usize>,
}

impl Member {
    /// Whether this rank is the root.
    fn is_root(&self) -> bool {
        self.root == Some(self.rank)
    }
}

impl Collective {
    /// All of them, in the order in which `nccl-bench all` measures them.
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

    /// The operation of the fabric backend that it is, where that has a choice of algorithms.
    #[must_use]
    pub const fn on_fabric(self) -> Option<fabric::Collective> {
        match self {
            Self::AllReduce => Some(fabric::Collective::AllReduce),
            Self::AllGather => Some(fabric::Collective::AllGather),
            Self::ReduceScatter => Some(fabric::Collective::ReduceScatter),
            Self::Broadcast => Some(fabric::Collective::Broadcast),
            Self::Reduce => Some(fabric::Collective::Reduce),
            Self::AllToAll => Some(fabric::Collective::AllToAll),
            Self::AllToAllV => Some(fabric::Collective::AllToAllV),
            Self::Gather => Some(fabric::Collective::Gather),
            Self::Scatter => Some(fabric::Collective::Scatter),
            Self::SendRecv | Self::Hypercube => None,
        }
    }

    /// Its name on the command line and in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
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

    /// The name of nccl-tests' program for it.
    #[must_use]
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

    /// Whether the operation combines values.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether it is measured once for each operator. So is sendrecv, as in nccl-tests, which makes no difference.
    #[must_use]
    pub const fn loops_over_ops(self) -> bool {
        self.reduces() || matches!(self, Self::SendRecv)
    }

    /// Whether one rank is the root.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether it can work in one buffer. The others are run so, too, as in nccl-tests, but what they leave there is not
    /// defined.
    #[must_use]
    pub const fn has_in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::AllToAllV | Self::SendRecv)
    }

    /// Whether it can run over so many ranks: a hypercube needs a power of two.
    #[must_use]
    pub const fn runs_over(self, ranks: usize) -> bool {
        !matches!(self, Self::Hypercube) || ranks.is_power_of_two()
    }

    /// Element counts of an operation for a requested size in bytes. A part per rank is rounded down to 16 bytes.
    /// `traffic` is that of [`Collective::AllToAllV`].
    #[must_use]
    pub fn counts(
        self,
        bytes: u64,
        data_type: DataType,
        member: Member,
        traffic: Option<&Traffic>,
    ) -> Counts {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX) / data_type.size();
        let part = (count / member.ranks) & !(16 / data_type.size() - 1);
        let whole = part * member.ranks;
        let counts = |send, receive, parameter| Counts { send, receive, parameter, largest: whole };
        match self {
            Self::AllReduce | Self::Reduce | Self::Broadcast | Self::SendRecv => {
                Counts { send: count, receive: count, parameter: count, largest: count }
            }
            Self::AllGather | Self::Hypercube | Self::Gather => counts(part, whole, part),
            Self::ReduceScatter | Self::Scatter => counts(whole, part, part),
            Self::AllToAll => counts(whole, whole, part),
            Self::AllToAllV => match traffic {
                Some(traffic) => Counts {
                    send: traffic.sent(member.rank),
                    receive: traffic.received(member.rank),
                    parameter: traffic.parameter(),
                    largest: traffic.busiest(),
                },
                None => counts(whole, whole, part),
            },
        }
    }

    /// Where in the receive buffer a rank's input lies when the operation runs in place, in elements.
    #[must_use]
    pub const fn in_place_input(self, counts: &Counts, rank: usize) -> usize {
        match self {
            Self::AllGather | Self::Hypercube | Self::Gather => rank * counts.send,
            _ => 0,
        }
    }

    /// Where in the receive buffer a rank's result lies, in elements.
    #[must_use]
    pub const fn result_start(self, counts: &Counts, rank: usize, placement: Placement) -> usize {
        match (self, placement) {
            (Self::ReduceScatter | Self::Scatter, Placement::InPlace) => rank * counts.receive,
            _ => 0,
        }
    }

    /// Whether the operation reads this rank's input.
    #[must_use]
    pub fn has_input(self, member: Member) -> bool {
        !matches!(self, Self::Broadcast | Self::Scatter) || member.is_root()
    }

    /// What a rank's result must hold afterwards; nothing where it has none. A rank that is not the root of a reduce must
    /// find its receive buffer as it was, which is filled with its input beforehand ([`Collective::keeps_receive`]).
    #[must_use]
    pub fn result(self, counts: &Counts, member: Member, traffic: Option<&Traffic>) -> Vec<Segment> {
        let Member { rank, ranks, root } = member;
        let copied = |from: usize, start: usize, count: usize| {
            Segment::copied(from as u32, start as u64, count as u64)
        };
        let reduced = |start: usize, count: usize| Segment::reduced(start as u64, count as u64);
        let root = root.unwrap_or(0);
        match self {
            Self::AllReduce => vec![reduced(0, counts.receive)],
            Self::Reduce if rank == root => vec![reduced(0, counts.receive)],
            Self::Reduce => vec![copied(rank, 0, counts.receive)],
            Self::ReduceScatter => vec![reduced(rank * counts.receive, counts.receive)],
            Self::AllGather | Self::Hypercube => {
                (0..ranks).map(|from| copied(from, 0, counts.send)).collect()
            }
            Self::Gather if rank == root => (0..ranks).map(|from| copied(from, 0, counts.send)).collect(),
            Self::Gather => Vec::new(),
            Self::Broadcast => vec![copied(root, 0, counts.receive)],
            Self::Scatter => vec![copied(root, rank * counts.receive, counts.receive)],
            Self::AllToAll => {
                (0..ranks).map(|from| copied(from, rank * counts.parameter, counts.parameter)).collect()
            }
            Self::AllToAllV => traffic.map_or_else(Vec::new, |traffic| {
                (0..ranks)
                    .map(|from| copied(from, traffic.send_start(from, rank), traffic.count(from, rank)))
                    .collect()
            }),
            Self::SendRecv => vec![copied((rank + ranks - 1) % ranks, 0, counts.receive)],
        }
    }

    /// Whether this rank's receive buffer must stay as it was.
    #[must_use]
    pub fn keeps_receive(self, member: Member) -> bool {
        self == Self::Reduce && !member.is_root()
    }

    /// Bytes that the algorithm bandwidth counts: the size, but in a hypercube what comes from other ranks.
    #[must_use]
    pub fn moved(self, counts: &Counts, data_type: DataType, ranks: usize) -> usize {
        let elements = match self {
            Self::Hypercube => counts.parameter * (ranks - 1),
            _ => counts.largest,
        };
        elements * data_type.size()
    }

    /// By how much `busbw` exceeds `algbw`, for n ranks.
    #[must_use]
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

impl Counts {
    /// The size that the table prints: bytes of the larger buffer.
    #[must_use]
    pub fn bytes(&self, data_type: DataType) -> usize {
        self.largest * data_type.size()
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A text that names no collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no collective; write one of {names}, several with commas, or all", names = names())]
pub struct UnknownCollective(String);

fn names() -> String {
    Collective::ALL.map(Collective::name).join(", ")
}

impl FromStr for Collective {
    type Err = UnknownCollective;

    /// By its name here or in nccl-tests: `allreduce`, `all_reduce`, `all_reduce_perf`.
    fn from_str(text: &str) -> Result<Self, UnknownCollective> {
        let lower = text.to_ascii_lowercase();
        let stem = lower.strip_suffix("_perf").unwrap_or(&lower).replace(['_', '-'], "");
        let found = Self::ALL.into_iter().find(|collective| collective.name() == stem);
        found.ok_or_else(|| UnknownCollective(text.to_owned()))
    }
}

/// The two bandwidths of a time, in GB/s (1e9 bytes per second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Size divided by time.
    pub algorithm: f64,
    /// `algorithm` times [`Collective::bus_factor`].
    pub bus: f64,
}

impl Bandwidth {
    /// The bandwidths of an operation over `bytes` bytes ([`Collective::moved`]) that took `seconds`.
    #[must_use]
    pub fn new(collective: Collective, bytes: usize, seconds: f64, ranks: usize) -> Self {
        let algorithm = bytes as f64 / 1e9 / seconds;
        Self { algorithm, bus: algorithm * collective.bus_factor(ranks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIGHT: Member = Member { rank: 3, ranks: 8, root: None };

    #[test]
    fn a_link_that_is_always_full_has_its_speed_as_bus_bandwidth() {
        // Bytes over the busiest link: a ring moves each rank's n-1 parts twice in allreduce, once in the others; a root's
        // link carries all parts but its own.
        let (ranks, bytes, link) = (8_usize, 8_000_000_usize, 100e9);
        let part = bytes as f64 / ranks as f64;
        for (collective, carried) in [
            (Collective::AllReduce, 14.0 * part),
            (Collective::AllGather, 7.0 * part),
            (Collective::ReduceScatter, 7.0 * part),
            (Collective::AllToAll, 7.0 * part),
            (Collective::AllToAllV, 7.0 * part),
            (Collective::Gather, 7.0 * part),
            (Collective::Scatter, 7.0 * part),
            (Collective::Broadcast, 8.0 * part),
            (Collective::Reduce, 8.0 * part),
            (Collective::SendRecv, 8.0 * part),
        ] {
            let bandwidth = Bandwidth::new(collective, bytes, carried / link, ranks);
            assert!((bandwidth.bus - 100.0).abs() < 1e-9, "{collective:?}: {bandwidth:?}");
        }
        let counts = Collective::Hypercube.counts(bytes as u64, DataType::Float32, EIGHT, None);
        let moved = Collective::Hypercube.moved(&counts, DataType::Float32, ranks);
        let bandwidth = Bandwidth::new(Collective::Hypercube, moved, 7.0 * part / link, ranks);
        assert!((bandwidth.bus - 100.0).abs() < 1e-9, "{bandwidth:?}");
    }

    #[test]
    fn bandwidths_match_a_row_that_nccl_tests_printed_on_eight_gpus() {
        // 1073741824 ... 5231.48 us, algbw 205.25, busbw 359.18
        let bandwidth = Bandwidth::new(Collective::AllReduce, 1 << 30, 5231.48e-6, 8);
        assert_eq!(format!("{:.2} {:.2}", bandwidth.algorithm, bandwidth.bus), "205.25 359.18");
        assert_eq!(Bandwidth::new(Collective::AllReduce, 1024, 1e-6, 1).bus, 0.0);
    }

    #[test]
    fn parts_per_rank_are_rounded_down_to_sixteen_bytes() {
        let counts = |collective: Collective, bytes, data_type, ranks| {
            let member = Member { rank: 0, ranks, root: None };
            let Counts { send, receive, parameter, largest } =
                collective.counts(bytes, data_type, member, None);
            (send, receive, parameter, largest)
        };
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        assert_eq!(counts(AllGather, 128, DataType::Float32, 8), (4, 32, 4, 32));
        assert_eq!(counts(AllGather, 64, DataType::Float32, 8), (0, 0, 0, 0));
        assert_eq!(counts(AllGather, 1000, DataType::Uint8, 3), (320, 960, 320, 960));
        assert_eq!(counts(AllGather, 1000, DataType::Float8E4M3, 3), (320, 960, 320, 960));
        assert_eq!(counts(ReduceScatter, 1000, DataType::Float64, 3), (120, 40, 40, 120));
        assert_eq!(counts(AllToAll, 128, DataType::Float16, 8), (64, 64, 8, 64));
        assert_eq!(counts(AllReduce, 1000, DataType::Float64, 3), (125, 125, 125, 125));
    }

    #[test]
    fn results_are_made_of_as_many_elements_as_are_received() {
        for collective in Collective::ALL {
            let root = collective.has_root().then_some(3);
            for rank in 0..8 {
                let member = Member { rank, ranks: 8, root };
                let traffic = Traffic::generated(1 << 20, DataType::Float32, 8, 1.0);
                let traffic = (collective == Collective::AllToAllV).then_some(&traffic);
                let counts = collective.counts(1 << 20, DataType::Float32, member, traffic);
                let result = collective.result(&counts, member, traffic);
                let elements: u64 = result.iter().map(|segment| segment.count).sum();
                let none = collective == Collective::Gather && rank != 3;
                assert_eq!(elements, if none { 0 } else { counts.receive as u64 }, "{collective} {rank}");
            }
        }
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
