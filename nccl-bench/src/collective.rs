//! What each collective moves, and the bandwidth that a time means.
//!
//! The definitions are those of nccl-tests (its `doc/PERFORMANCE.md`): `algbw` is the size divided by the time;
//! `busbw` multiplies it by the share of the data that each rank's link must carry at least, so that it can be
//! compared with the hardware's speed whatever the number of ranks.

use collectives::{DataType, ReduceOp};

use crate::data::Segment;

/// A collective operation that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce,
    /// Every rank gets the concatenation of all ranks' buffers.
    AllGather,
}

/// Where the input of a rank lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the send buffer.
    OutOfPlace,
    /// In the receive buffer, where the result goes.
    InPlace,
}

impl Placement {
    /// Both, in the order in which they are measured.
    pub const BOTH: [Self; 2] = [Self::OutOfPlace, Self::InPlace];

    /// As the table's head names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out-of-place",
            Self::InPlace => "in-place",
        }
    }
}

/// The element counts of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Elements that a rank sends.
    pub send: usize,
    /// Elements that a rank receives.
    pub receive: usize,
    /// The count that the library's function takes, which the table prints.
    pub parameter: usize,
}

impl Collective {
    /// The name that the table's head shows, and under which nccl-tests knows it.
    #[must_use]
    pub const fn nccl_tests_name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce_perf",
            Self::AllGather => "all_gather_perf",
        }
    }

    /// Whether the operation combines values, so that a reduction operator matters.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce)
    }

    /// The operators to loop over: those asked for where the operation reduces, else none.
    #[must_use]
    pub fn ops(self, asked: &[ReduceOp]) -> Vec<Option<ReduceOp>> {
        if self.reduces() { asked.iter().copied().map(Some).collect() } else { vec![None] }
    }

    /// Element counts for a requested size in bytes. A part per rank is rounded down to 16 bytes.
    #[must_use]
    pub fn counts(self, bytes: u64, data_type: DataType, ranks: usize) -> Counts {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX) / data_type.size();
        match self {
            Self::AllReduce => Counts { send: count, receive: count, parameter: count },
            Self::AllGather => {
                let part = (count / ranks) & !(16 / data_type.size() - 1);
                Counts { send: part, receive: part * ranks, parameter: part }
            }
        }
    }

    /// Where in the receive buffer a rank's input lies when the operation runs in place, in elements.
    #[must_use]
    pub const fn in_place_start(self, counts: &Counts, rank: usize) -> usize {
        match self {
            Self::AllReduce => 0,
            Self::AllGather => rank * counts.send,
        }
    }

    /// What a rank's receive buffer must hold afterwards.
    #[must_use]
    pub fn result(self, counts: &Counts, ranks: usize) -> Vec<Segment> {
        match self {
            Self::AllReduce => vec![Segment::reduced(0, counts.receive as u64)],
            Self::AllGather => {
                (0..ranks).map(|rank| Segment::copied(rank as u32, 0, counts.send as u64)).collect()
            }
        }
    }

    /// By how much `busbw` exceeds `algbw`: for n ranks 2(n-1)/n in allreduce, (n-1)/n in allgather.
    #[must_use]
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather => (n - 1.0) / n,
        }
    }
}

impl Counts {
    /// The size that the table prints: bytes of the larger buffer.
    #[must_use]
    pub fn bytes(&self, data_type: DataType) -> usize {
        self.send.max(self.receive) * data_type.size()
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
    /// The bandwidths of an operation over `bytes` bytes that took `seconds`.
    #[must_use]
    pub fn new(collective: Collective, bytes: usize, seconds: f64, ranks: usize) -> Self {
        let algorithm = bytes as f64 / 1e9 / seconds;
        Self { algorithm, bus: algorithm * collective.bus_factor(ranks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_fills_every_link_has_the_links_speed_as_bus_bandwidth() {
        // A ring allreduce moves each rank's n-1 parts twice over its outgoing link, an allgather once.
        let (ranks, bytes, link) = (8_usize, 8_000_000_usize, 100e9);
        let part = bytes as f64 / ranks as f64;
        for (collective, rounds) in [(Collective::AllReduce, 2.0), (Collective::AllGather, 1.0)] {
            let seconds = rounds * 7.0 * part / link;
            let bandwidth = Bandwidth::new(collective, bytes, seconds, ranks);
            assert!((bandwidth.bus - 100.0).abs() < 1e-9, "{collective:?}: {bandwidth:?}");
        }
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
        let counts = |bytes, data_type, ranks| Collective::AllGather.counts(bytes, data_type, ranks);
        assert_eq!(counts(128, DataType::Float32, 8), Counts { send: 4, receive: 32, parameter: 4 });
        assert_eq!(counts(64, DataType::Float32, 8).receive, 0);
        assert_eq!(counts(1000, DataType::Uint8, 3), Counts { send: 320, receive: 960, parameter: 320 });
        assert_eq!(counts(1000, DataType::Float64, 3).send, 40);
        assert_eq!(Collective::AllReduce.counts(1000, DataType::Float64, 3).send, 125);
    }
}
