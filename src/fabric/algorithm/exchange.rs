//! Point-to-point messages.

use super::{Pipeline, Round, Schedule, scratch, source, target};

/// One message to a rank, one from a rank, or both at once.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    /// Peer and bytes.
    pub(crate) send: Option<(usize, usize)>,
    pub(crate) receive: Option<(usize, usize)>,
    /// True when both use the same memory: the arrival waits in scratch memory until all is sent.
    pub(crate) in_place: bool,
}

impl Exchange {
    pub(crate) fn schedule(self) -> Schedule<Self> {
        let scratch_len = self.receive.filter(|_| self.in_place).map_or(0, |(_, len)| len);
        // SAFETY: sends the source and receives into the disjoint target, or into scratch memory.
        unsafe { Schedule::new(self, Pipeline::WHOLE, 1, scratch_len, Self::round) }
    }

    fn round(&self, _segment: usize, _number: usize, round: &mut Round) {
        if let Some((from, len)) = self.receive {
            if self.in_place {
                round.receive(from, scratch(0), len);
                round.copy(scratch(0), target(0), len);
            } else {
                round.receive(from, target(0), len);
            }
        }
        if let Some((to, len)) = self.send {
            round.send(to, source(0), len);
        }
    }
}
