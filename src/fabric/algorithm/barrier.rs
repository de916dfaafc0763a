//! The barrier, by dissemination: in each step every rank signals the rank at doubling distance.

use super::{Pipeline, RankPosition, Round, Schedule, scratch_at};

/// lg p messages of one byte, rounded up.
pub(crate) fn build_schedule(at: RankPosition) -> Schedule<RankPosition> {
    // SAFETY: receives and sends different bytes of scratch memory.
    unsafe { Schedule::new(at, Pipeline::WHOLE, at.tree_steps(), 2, fill_dissemination_round) }
}

fn fill_dissemination_round(at: &RankPosition, _segment: usize, number: usize, round: &mut Round) {
    round.receive_message(at.rank_below(1 << number), scratch_at(0), 1);
    round.send_message(at.rank_above(1 << number), scratch_at(1), 1);
}
