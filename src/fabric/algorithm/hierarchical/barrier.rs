//! The barrier.

use crate::fabric::algorithm::barrier::Dissemination;
use crate::fabric::algorithm::{Round, Schedule, scratch};
use crate::fabric::hosts::HostPosition;

/// The ranks of a host signal its first rank, the first ranks run a dissemination, and signal the others: lg h messages
/// between hosts, rounded up, from the first rank of each.
pub(crate) struct Hierarchical<'a>(pub(crate) HostPosition<'a>);

impl Hierarchical<'_> {
    fn between(&self) -> Dissemination {
        Dissemination { rank: self.0.host, ranks: self.0.hosts.count() }
    }
}

// SAFETY: receives bytes of scratch memory that are not sent, a byte of its own from each rank.
unsafe impl Schedule for Hierarchical<'_> {
    fn rounds(&self) -> usize {
        self.between().rounds() + 2
    }

    fn scratch_len(&self) -> usize {
        self.between().scratch_len().max(self.0.neighbours().len())
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let (ranks, first) = (self.0.neighbours(), self.0.index == 0);
        let (begins, ends) = (number == 0, number + 1 == self.rounds());
        if begins || ends {
            if !first {
                return if begins {
                    round.send(ranks[0], scratch(0), 1);
                } else {
                    round.receive(ranks[0], scratch(0), 1);
                };
            }
            for other in self.0.others() {
                if begins {
                    round.receive(ranks[other], scratch(other), 1);
                } else {
                    round.send(ranks[other], scratch(0), 1);
                }
            }
        } else if first {
            self.between().round(0, number - 1, round);
            round.translate(|host| self.0.hosts.ranks_of(host)[0], |location| location);
        }
    }
}
