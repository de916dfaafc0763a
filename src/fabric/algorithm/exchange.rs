//! Point-to-point messages.

use super::{Pipeline, Round, Schedule, scratch_at, source_at, target_at};

/// One message to a rank, one from a rank, or both at once.
#[derive(Clone, Copy)]
pub(crate) struct PairExchange {
    /// Peer and bytes.
    pub(crate) send: Option<(usize, usize)>,
    pub(crate) receive: Option<(usize, usize)>,
    /// True when both use the same memory: the arrival waits in scratch memory until all is sent.
    pub(crate) in_place: bool,
}

impl PairExchange {
    pub(crate) fn build_schedule(self) -> Schedule<Self> {
        let scratch_len = self.receive.filter(|_| self.in_place).map_or(0, |(_, len)| len);
        // SAFETY: sends the source and receives into the disjoint target, or into scratch memory.
        unsafe { Schedule::new(self, Pipeline::WHOLE, 1, scratch_len, Self::fill_round) }
    }

    fn fill_round(&self, _segment: usize, _number: usize, round: &mut Round) {
        if let Some((from, len)) = self.receive {
            if self.in_place {
                round.receive_message(from, scratch_at(0), len);
                round.copy_after(scratch_at(0), target_at(0), len);
            } else {
                round.receive_message(from, target_at(0), len);
            }
        }
        if let Some((to, len)) = self.send {
            round.send_message(to, source_at(0), len);
        }
    }
}
