//! The barrier.

use crate::fabric::algorithm::{Pipeline, RankPosition, Round, Schedule, barrier, scratch_at};
use crate::fabric::hosts::HostPosition;

/// The ranks of a host signal its first rank, the first ranks run a dissemination, and signal the others: lg
/// h messages between hosts, rounded up, from the first rank of each.
pub(crate) fn build_schedule(here: HostPosition<'_>) -> Schedule<HostPosition<'_>> {
    let between = barrier_between_hosts(&here);
    let scratch_len = between.scratch_len.max(here.neighbour_ranks().len());
    // SAFETY: receives unsent bytes of scratch memory, a byte of its own from each rank.
    unsafe { Schedule::new(here, Pipeline::WHOLE, between.rounds + 2, scratch_len, fill_round) }
}

fn barrier_between_hosts(here: &HostPosition<'_>) -> Schedule<RankPosition> {
    barrier::build_schedule(RankPosition { rank: here.host, ranks: here.hosts.host_count(), root: 0 })
}

fn fill_round(here: &HostPosition<'_>, _segment: usize, number: usize, round: &mut Round) {
    let (ranks, between) = (here.neighbour_ranks(), barrier_between_hosts(here));
    let begins = number == 0;
    if !begins && number <= between.rounds {
        if here.index == 0 {
            between.fill_round(0, number - 1, round);
            round.translate_all(|host| here.hosts.ranks_of(host)[0], |location| location);
        }
    } else if here.index == 0 {
        for other in here.other_indices() {
            if begins {
                round.receive_message(ranks[other], scratch_at(other), 1);
            } else {
                round.send_message(ranks[other], scratch_at(0), 1);
            }
        }
    } else if begins {
        round.send_message(ranks[0], scratch_at(0), 1);
    } else {
        round.receive_message(ranks[0], scratch_at(0), 1);
    }
}
