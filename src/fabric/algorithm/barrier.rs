//! The barrier, by dissemination: in each step every rank signals the one at doubling distance.

use super::{Round, Schedule, scratch};

/// lg p messages of one byte, rounded up.
pub(crate) struct Dissemination {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

// SAFETY: receives and sends different bytes of scratch memory.
unsafe impl Schedule for Dissemination {
    fn rounds(&self) -> usize {
        self.ranks.next_power_of_two().ilog2() as usize
    }

    fn scratch_len(&self) -> usize {
        2
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let distance = 1 << number;
        round.receive((self.rank + self.ranks - distance) % self.ranks, scratch(0), 1);
        round.send((self.rank + distance) % self.ranks, scratch(1), 1);
    }
}
