//! The buffers of each collective: element counts, offsets, and the expected result.

use std::ops::Range;
use std::sync::Arc;

use collectives::{DataType, fabric};

use crate::data::traffic::Traffic;
use crate::data::{DataSpec, ExpectedSegment, Op, expected_bits};
use record::Placement;

pub use record::collective::{Bandwidth, Collective, UnknownCollective};

/// The element counts of one operation on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of elements sent by the rank.
    pub send: usize,
    /// Number of elements received by the rank.
    pub receive: usize,
    /// The reported count parameter of the library's function.
    pub parameter: usize,
    /// The reported size in elements: the larger buffer of the rank with the largest one.
    pub largest: usize,
}

/// The position of a rank in its group, and the root of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant {
    /// The rank's number in the group.
    pub rank: usize,
    /// Number of ranks in the group.
    pub ranks: usize,
    /// The root, for collectives with a root.
    pub root: Option<usize>,
}

impl Participant {
    pub(crate) fn is_root(&self) -> bool {
        self.root == Some(self.rank)
    }

    /// Returns the next rank, the receiver in a sendrecv.
    pub(crate) fn next_rank(&self) -> usize {
        (self.rank + 1) % self.ranks
    }

    /// Returns the previous rank, the sender in a sendrecv.
    pub(crate) fn previous_rank(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }

    /// Returns the exchanges of a hypercube, in order: all parts known so far, with partners at doubling
    /// distance.
    pub(crate) fn hypercube_steps(&self) -> impl Iterator<Item = HypercubeStep> {
        let rank = self.rank;
        (0..self.ranks.ilog2()).map(move |step| {
            let block = 1_usize << step;
            let parts_of = |rank: usize| (rank & !(block - 1))..(rank & !(block - 1)) + block;
            let peer = rank ^ block;
            HypercubeStep { peer, own: parts_of(rank), theirs: parts_of(peer) }
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HypercubeStep {
    pub(crate) peer: usize,
    /// Ranks of the sent parts.
    pub(crate) own: Range<usize>,
    /// Ranks of the received parts, adjacent to `own`.
    pub(crate) theirs: Range<usize>,
}

impl HypercubeStep {
    /// Returns the sent and the received elements of a buffer with `part` elements for each rank.
    pub(crate) fn split_parts<'a, T>(&self, data: &'a mut [T], part: usize) -> (&'a [T], &'a mut [T]) {
        let (first, second) = data.split_at_mut(self.own.start.max(self.theirs.start) * part);
        let length = self.own.len() * part;
        if self.own.start < self.theirs.start {
            (&first[self.own.start * part..][..length], &mut second[..length])
        } else {
            (&second[..length], &mut first[self.theirs.start * part..][..length])
        }
    }
}

impl Counts {
    /// Returns the element counts of an operation for a requested size in bytes, as in nccl-tests. A part per
    /// rank is rounded down to 16 bytes. `traffic` is for [`Collective::AllToAllV`].
    pub fn new(
        collective: Collective,
        bytes: u64,
        data_type: DataType,
        participant: Participant,
        traffic: Option<&Traffic>,
    ) -> Self {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX) / data_type.size();
        let part = (count / participant.ranks) & !(16 / data_type.size() - 1);
        let whole = part * participant.ranks;
        let counts = |send, receive, parameter| Self { send, receive, parameter, largest: whole };
        match collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast | Collective::SendRecv => {
                Self { send: count, receive: count, parameter: count, largest: count }
            }
            Collective::AllGather | Collective::Hypercube | Collective::Gather => counts(part, whole, part),
            Collective::ReduceScatter | Collective::Scatter => counts(whole, part, part),
            Collective::AllToAll => counts(whole, whole, part),
            Collective::AllToAllV => match traffic {
                Some(traffic) => Self {
                    send: traffic.sent_elements(participant.rank),
                    receive: traffic.received_elements(participant.rank),
                    parameter: traffic.parameter,
                    largest: traffic.busiest_elements(),
                },
                None => counts(whole, whole, part),
            },
        }
    }

    /// Returns the reported size: bytes of the larger buffer.
    pub fn largest_bytes(&self, data_type: DataType) -> usize {
        self.largest * data_type.size()
    }
}

/// One operation of one rank, as defined by nccl-tests.
#[derive(Clone, Debug)]
pub struct RankWork {
    /// The collective.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// The operator of a reducing collective.
    pub op: Option<Op>,
    /// The rank, its group and the root.
    pub participant: Participant,
    /// Placement of input and result.
    pub placement: Placement,
    /// Numbers of elements.
    pub counts: Counts,
    /// The traffic of an alltoallv.
    pub traffic: Option<Arc<Traffic>>,
}

impl RankWork {
    /// Returns the size printed in the table: bytes of the larger buffer.
    pub fn reported_bytes(&self) -> usize {
        self.counts.largest_bytes(self.data_type)
    }

    /// Returns false when no rank has an element. There is then nothing to verify.
    pub fn has_elements(&self) -> bool {
        self.traffic.as_ref().map_or(self.reported_bytes(), |traffic| traffic.busiest_elements()) > 0
    }

    /// Returns the parts of an alltoallv, by rank, in this rank's send and receive buffer; nothing for other
    /// collectives.
    pub(crate) fn traffic_parts(&self) -> (&[Range<usize>], &[Range<usize>]) {
        let rank = self.participant.rank;
        self.traffic
            .as_ref()
            .map_or((&[], &[]), |traffic| (&traffic.send_parts[rank], &traffic.receive_parts[rank]))
    }

    /// Returns the start of this rank's input in the receive buffer for an operation in place, in elements.
    pub(crate) fn in_place_input(&self) -> usize {
        match self.collective {
            Collective::AllGather | Collective::Hypercube | Collective::Gather => {
                self.participant.rank * self.counts.send
            }
            _ => 0,
        }
    }

    /// Returns the start of this rank's result in the receive buffer, in elements.
    pub(crate) fn result_start(&self) -> usize {
        match (self.collective, self.placement) {
            (Collective::ReduceScatter | Collective::Scatter, Placement::InPlace) => {
                self.participant.rank * self.counts.receive
            }
            _ => 0,
        }
    }

    /// Returns true when the operation reads this rank's input.
    pub(crate) fn has_input(&self) -> bool {
        !matches!(self.collective, Collective::Broadcast | Collective::Scatter) || self.participant.is_root()
    }

    /// Returns true when this rank's receive buffer must stay unchanged, and is not its input. It is filled
    /// with the input beforehand.
    pub(crate) fn keeps_receive(&self) -> bool {
        self.collective == Collective::Reduce
            && !self.participant.is_root()
            && self.placement == Placement::OutOfPlace
    }

    /// Returns the expected result of this rank; empty for a rank without a result. Except for the root, a
    /// rank of a reduce must find its receive buffer unchanged ([`RankWork::keeps_receive`]).
    pub(crate) fn expected_result(&self) -> Vec<ExpectedSegment> {
        let Participant { rank, ranks, root } = self.participant;
        let Counts { send, receive, parameter, .. } = self.counts;
        let copied = |from: usize, start: usize, count: usize| {
            ExpectedSegment::copied(from as u32, start as u64, count as u64)
        };
        let reduced = |start: usize| ExpectedSegment::reduced(start as u64, receive as u64);
        let root = root.unwrap_or(0);
        match self.collective {
            Collective::AllReduce => vec![reduced(0)],
            Collective::Reduce if rank == root => vec![reduced(0)],
            Collective::Reduce => vec![copied(rank, 0, receive)],
            Collective::ReduceScatter => vec![reduced(rank * receive)],
            Collective::Gather if rank != root => Vec::new(),
            Collective::AllGather | Collective::Hypercube | Collective::Gather => {
                (0..ranks).map(|from| copied(from, 0, send)).collect()
            }
            Collective::Broadcast => vec![copied(root, 0, receive)],
            Collective::Scatter => vec![copied(root, rank * receive, receive)],
            Collective::AllToAll => {
                (0..ranks).map(|from| copied(from, rank * parameter, parameter)).collect()
            }
            Collective::AllToAllV => self.traffic.as_ref().map_or_else(Vec::new, |traffic| {
                let part = |from: usize| &traffic.send_parts[from][rank];
                (0..ranks).map(|from| copied(from, part(from).start, part(from).len())).collect()
            }),
            Collective::SendRecv => vec![copied(self.participant.previous_rank(), 0, receive)],
        }
    }

    /// Returns the bytes counted by the algorithm bandwidth: the size, except in a hypercube, where only
    /// bytes from other ranks count.
    pub(crate) fn moved_bytes(&self) -> usize {
        let elements = match self.collective {
            Collective::Hypercube => self.counts.parameter * (self.participant.ranks - 1),
            _ => self.counts.largest,
        };
        elements * self.data_type.size()
    }

    pub(crate) fn data_spec(&self, seed: u64) -> DataSpec {
        let op = self.op.filter(|_| self.collective.is_reduction());
        DataSpec { seed, ranks: self.participant.ranks as u32, op, data_type: self.data_type }
    }

    /// Returns the expected bits of element `index` of the result with one bit flipped. The change exceeds
    /// the tolerance, so a check must find it. `None` when no such element exists.
    pub(crate) fn wrong_bits(&self, seed: u64, index: usize) -> anyhow::Result<Option<u64>> {
        let spec = self.data_spec(seed);
        // Exceeds the tolerance even for an element at its edge.
        let significant_bit = (2 * spec.bit_tolerance()? + 1).next_power_of_two();
        Ok(expected_bits(&spec, &self.expected_result(), index as u64)?.map(|bits| bits ^ significant_bit))
    }
}

/// Returns the fabric backend's collective, if it has a choice of algorithms.
pub fn on_fabric(collective: Collective) -> Option<fabric::Collective> {
    match collective {
        Collective::AllReduce => Some(fabric::Collective::AllReduce),
        Collective::AllGather => Some(fabric::Collective::AllGather),
        Collective::ReduceScatter => Some(fabric::Collective::ReduceScatter),
        Collective::Broadcast => Some(fabric::Collective::Broadcast),
        Collective::Reduce => Some(fabric::Collective::Reduce),
        Collective::AllToAll => Some(fabric::Collective::AllToAll),
        Collective::AllToAllV => Some(fabric::Collective::AllToAllV),
        Collective::Gather => Some(fabric::Collective::Gather),
        Collective::Scatter => Some(fabric::Collective::Scatter),
        Collective::SendRecv | Collective::Hypercube => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIGHT: Participant = Participant { rank: 3, ranks: 8, root: None };

    fn work(
        collective: Collective,
        bytes: u64,
        participant: Participant,
        traffic: Option<Arc<Traffic>>,
    ) -> RankWork {
        let (data_type, placement) = (DataType::Float32, Placement::OutOfPlace);
        let counts = Counts::new(collective, bytes, data_type, participant, traffic.as_deref());
        RankWork { collective, data_type, op: None, participant, placement, counts, traffic }
    }

    #[test]
    fn a_link_that_is_always_full_has_its_speed_as_bus_bandwidth() {
        // Bytes over the busiest link: a ring moves each rank's n-1 parts twice in allreduce, once in the
        // others; a root's link carries all parts but its own.
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
        let work = work(Collective::Hypercube, bytes as u64, EIGHT, None);
        let bandwidth = Bandwidth::new(Collective::Hypercube, work.moved_bytes(), 7.0 * part / link, ranks);
        assert!((bandwidth.bus - 100.0).abs() < 1e-9, "{bandwidth:?}");
    }

    #[test]
    fn parts_per_rank_are_rounded_down_to_sixteen_bytes() {
        let counts = |collective: Collective, bytes, data_type, ranks| {
            let participant = Participant { rank: 0, ranks, root: None };
            let Counts { send, receive, parameter, largest } =
                Counts::new(collective, bytes, data_type, participant, None);
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
                let traffic = Traffic::generate_spread(1 << 20, DataType::Float32, 8, 1.0);
                let traffic = (collective == Collective::AllToAllV).then(|| Arc::new(traffic));
                let work = work(collective, 1 << 20, participant, traffic);
                let elements: u64 = work.expected_result().iter().map(|segment| segment.count).sum();
                let none = collective == Collective::Gather && rank != 3;
                let received = if none { 0 } else { work.counts.receive as u64 };
                assert_eq!(elements, received, "{collective} {rank}");
            }
        }
    }
}
