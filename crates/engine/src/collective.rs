//! The buffers of each collective: element counts, offsets, and the expected result.

use std::ops::Range;

use collectives::{DataType, fabric};

use crate::data::ExpectedSegment;
use crate::data::traffic::Traffic;
use record::Placement;

pub use record::collective::{Bandwidth, Collective, UnknownCollective};

/// The element counts of one operation on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Elements that a rank sends.
    pub send: usize,
    /// Elements that a rank receives.
    pub receive: usize,
    /// The count parameter of the library's function, which is reported.
    pub parameter: usize,
    /// The reported size in elements: the larger buffer of the rank that has most.
    pub largest: usize,
}

/// The position of a rank in its group, and the root of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant {
    /// The rank's number in the group.
    pub rank: usize,
    /// Number of ranks in the group.
    pub ranks: usize,
    /// The root, where the collective has one.
    pub root: Option<usize>,
}

impl Participant {
    pub(crate) fn is_root(&self) -> bool {
        self.root == Some(self.rank)
    }

    /// The next rank, to which a sendrecv sends.
    pub(crate) fn next(&self) -> usize {
        (self.rank + 1) % self.ranks
    }

    /// The previous rank, from which a sendrecv receives.
    pub(crate) fn previous(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }

    /// The exchanges of a hypercube, in order: of all parts that are known, with partners at doubling distance.
    pub(crate) fn hypercube(&self) -> impl Iterator<Item = HypercubeStep> {
        let rank = self.rank;
        (0..self.ranks.ilog2()).map(move |step| {
            let block = 1_usize << step;
            let parts_of = |rank: usize| (rank & !(block - 1))..(rank & !(block - 1)) + block;
            let peer = rank ^ block;
            HypercubeStep { peer, own: parts_of(rank), theirs: parts_of(peer) }
        })
    }
}

/// One exchange of a hypercube.
#[derive(Clone, Debug)]
pub(crate) struct HypercubeStep {
    pub(crate) peer: usize,
    /// The ranks whose parts are sent.
    pub(crate) own: Range<usize>,
    /// The ranks whose parts are received, which are adjacent to `own`.
    pub(crate) theirs: Range<usize>,
}

impl HypercubeStep {
    /// The sent and the received elements of a buffer with `part` elements for each rank.
    pub(crate) fn split<'a, T>(&self, data: &'a mut [T], part: usize) -> (&'a [T], &'a mut [T]) {
        let (first, second) = data.split_at_mut(self.own.start.max(self.theirs.start) * part);
        let length = self.own.len() * part;
        if self.own.start < self.theirs.start {
            (&first[self.own.start * part..][..length], &mut second[..length])
        } else {
            (&second[..length], &mut first[self.theirs.start * part..][..length])
        }
    }
}

/// Counts, offsets and results of a collective. The definitions are those of nccl-tests.
pub trait Layout {
    /// The fabric backend's collective, if that one has a choice of algorithms.
    #[must_use]
    fn on_fabric(self) -> Option<fabric::Collective>;

    /// Element counts of an operation for a requested size in bytes. A part per rank is rounded down to 16 bytes.
    /// `traffic` is that of [`Collective::AllToAllV`].
    #[must_use]
    fn counts(
        self,
        bytes: u64,
        data_type: DataType,
        participant: Participant,
        traffic: Option<&Traffic>,
    ) -> Counts;

    /// Start of a rank's input in the receive buffer when the operation runs in place, in elements.
    #[must_use]
    fn in_place_input(self, counts: &Counts, rank: usize) -> usize;

    /// Start of a rank's result in the receive buffer, in elements.
    #[must_use]
    fn result_start(self, counts: &Counts, rank: usize, placement: Placement) -> usize;

    /// Returns true when the operation reads this rank's input.
    #[must_use]
    fn has_input(self, participant: Participant) -> bool;

    /// The expected result of a rank; empty for a rank without a result. A rank that is not the root of a reduce must
    /// find its receive buffer unchanged, which is filled with its input beforehand ([`Collective::keeps_receive`]).
    #[must_use]
    fn result(
        self,
        counts: &Counts,
        participant: Participant,
        traffic: Option<&Traffic>,
    ) -> Vec<ExpectedSegment>;

    /// Returns true when this rank's receive buffer must stay unchanged.
    #[must_use]
    fn keeps_receive(self, participant: Participant) -> bool;

    /// Bytes that the algorithm bandwidth counts: the size, except in a hypercube, where the bytes from other ranks
    /// count.
    #[must_use]
    fn moved(self, counts: &Counts, data_type: DataType, ranks: usize) -> usize;
}

impl Layout for Collective {
    fn on_fabric(self) -> Option<fabric::Collective> {
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

    fn counts(
        self,
        bytes: u64,
        data_type: DataType,
        participant: Participant,
        traffic: Option<&Traffic>,
    ) -> Counts {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX) / data_type.size();
        let part = (count / participant.ranks) & !(16 / data_type.size() - 1);
        let whole = part * participant.ranks;
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
                    send: traffic.sent(participant.rank),
                    receive: traffic.received(participant.rank),
                    parameter: traffic.parameter(),
                    largest: traffic.busiest(),
                },
                None => counts(whole, whole, part),
            },
        }
    }

    fn in_place_input(self, counts: &Counts, rank: usize) -> usize {
        match self {
            Self::AllGather | Self::Hypercube | Self::Gather => rank * counts.send,
            _ => 0,
        }
    }

    fn result_start(self, counts: &Counts, rank: usize, placement: Placement) -> usize {
        match (self, placement) {
            (Self::ReduceScatter | Self::Scatter, Placement::InPlace) => rank * counts.receive,
            _ => 0,
        }
    }

    fn has_input(self, participant: Participant) -> bool {
        !matches!(self, Self::Broadcast | Self::Scatter) || participant.is_root()
    }

    fn result(
        self,
        counts: &Counts,
        participant: Participant,
        traffic: Option<&Traffic>,
    ) -> Vec<ExpectedSegment> {
        let Participant { rank, ranks, root } = participant;
        let copied = |from: usize, start: usize, count: usize| {
            ExpectedSegment::copied(from as u32, start as u64, count as u64)
        };
        let reduced = |start: usize, count: usize| ExpectedSegment::reduced(start as u64, count as u64);
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
            Self::SendRecv => vec![copied(participant.previous(), 0, counts.receive)],
        }
    }

    fn keeps_receive(self, participant: Participant) -> bool {
        self == Self::Reduce && !participant.is_root()
    }

    fn moved(self, counts: &Counts, data_type: DataType, ranks: usize) -> usize {
        let elements = match self {
            Self::Hypercube => counts.parameter * (ranks - 1),
            _ => counts.largest,
        };
        elements * data_type.size()
    }
}

impl Counts {
    /// The reported size: bytes of the larger buffer.
    #[must_use]
    pub fn bytes(&self, data_type: DataType) -> usize {
        self.largest * data_type.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIGHT: Participant = Participant { rank: 3, ranks: 8, root: None };

    #[test]
    fn a_link_that_is_always_full_has_its_speed_as_bus_bandwidth() {
        // Bytes over the busiest link: a ring moves each rank's n-1 parts twice in allreduce, once in the others; a
        // root's link carries all parts but its own.
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
    fn parts_per_rank_are_rounded_down_to_sixteen_bytes() {
        let counts = |collective: Collective, bytes, data_type, ranks| {
            let participant = Participant { rank: 0, ranks, root: None };
            let Counts { send, receive, parameter, largest } =
                collective.counts(bytes, data_type, participant, None);
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
                let participant = Participant { rank, ranks: 8, root };
                let traffic = Traffic::generated(1 << 20, DataType::Float32, 8, 1.0);
                let traffic = (collective == Collective::AllToAllV).then_some(&traffic);
                let counts = collective.counts(1 << 20, DataType::Float32, participant, traffic);
                let result = collective.result(&counts, participant, traffic);
                let elements: u64 = result.iter().map(|segment| segment.count).sum();
                let none = collective == Collective::Gather && rank != 3;
                assert_eq!(elements, if none { 0 } else { counts.receive as u64 }, "{collective} {rank}");
            }
        }
    }
}
