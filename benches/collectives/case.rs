//! The cases that are measured, and the data that verifies them.

use collectives::fabric::Collective;

pub(crate) const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
];

/// Bytes: short messages, whose time is latency, up to long ones, whose time is bandwidth.
pub(crate) const SIZES: [usize; 5] = [8 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20];

/// A collective of a size.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    /// Bytes of the vector, or of all ranks' blocks together.
    pub(crate) bytes: usize,
    pub(crate) ranks: usize,
}

impl Case {
    /// Elements that a rank sends and receives.
    pub(crate) fn counts(self) -> (usize, usize) {
        let block = self.bytes / size_of::<f32>() / self.ranks;
        let all = block * self.ranks;
        match self.collective {
            Collective::AllGather => (block, all),
            Collective::ReduceScatter => (all, block),
            _ => (all, all),
        }
    }

    /// The elements that a rank sends. Their sums over all ranks are exact.
    pub(crate) fn sent(self, rank: usize) -> Vec<f32> {
        (0..self.counts().0).map(|index| element(rank, index)).collect()
    }

    /// Fails unless a rank has received the right elements.
    pub(crate) fn verify(self, rank: usize, received: &[f32]) -> Result<(), String> {
        let wrong = received.iter().enumerate().find(|&(index, &found)| found != self.expected(rank, index));
        wrong.map_or(Ok(()), |(index, found)| {
            let expected = self.expected(rank, index);
            Err(format!("rank {rank}: element {index} is {found} instead of {expected}"))
        })
    }

    fn expected(self, rank: usize, index: usize) -> f32 {
        let (sent, received) = self.counts();
        let sum = |index| (0..self.ranks).map(|rank| element(rank, index)).sum();
        match self.collective {
            Collective::AllReduce => sum(index),
            Collective::ReduceScatter => sum(rank * received + index),
            Collective::AllGather => element(index / sent, index % sent),
            Collective::AllToAll => {
                let part = sent / self.ranks;
                element(index / part, rank * part + index % part)
            }
            _ => element(0, index),
        }
    }
}

fn element(rank: usize, index: usize) -> f32 {
    ((index * 7 + rank * 3) % 61) as f32 - 30.0
}
