//! The barrier.

use crate::fabric::algorithm::{Pipeline, Position, Round, Schedule, barrier, scratch};
use crate::fabric::hosts::HostPosition;

/// The ranks of a host signal its first rank, the first ranks run a dissemination, and signal the others: lg
/// h messages between hosts, rounded up, from the first rank of each.
pub(crate) fn schedule(here: HostPosition<'_>) -> Schedule<HostPosition<'_>> {
    let between = between(&here);
    let scratch_len = between.scratch_len.max(here.neighbours().len());
    // SAFETY: receives unsent bytes of scratch memory, a byte of its own from each rank.
    unsafe { Schedule::new(here, Pipeline::WHOLE, between.rounds + 2, scratch_len, round) }
}

fn between(here: &HostPosition<'_>) -> Schedule<Position> {
    barrier::schedule(Position { rank: here.host, ranks: here.hosts.count(), root: 0 })
}

fn round(here: &HostPosition<'_>, _segment: usize, number: usize, round: &mut Round) {
    let (ranks, between) = (here.neighbours(), between(here));
    let begins = number == 0;
    if !begins && number <= between.rounds {
        if here.index == 0 {
            between.fill(0, number - 1, round);
            round.translate(|host| here.hosts.ranks_of(host)[0], |location| location);
        }
    } else if here.index == 0 {
        for other in here.others() {
            if begins {
                round.receive(ranks[other], scratch(other), 1);
            } else {
                round.send(ranks[other], scratch(0), 1);
            }
        }
    } else if begins {
        round.send(ranks[0], scratch(0), 1);
    } else {
        round.receive(ranks[0], scratch(0), 1);
    }
}
