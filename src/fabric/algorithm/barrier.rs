//! The barrier, by dissemination: in each step every rank signals the rank at doubling distance.

use super::{Pipeline, Position, Round, Schedule, scratch};

/// lg p messages of one byte, rounded up.
pub(crate) fn schedule(at: Position) -> Schedule<Position> {
    // SAFETY: receives and sends different bytes of scratch memory.
    unsafe { Schedule::new(at, Pipeline::WHOLE, at.steps(), 2, dissemination) }
}

fn dissemination(at: &Position, _segment: usize, number: usize, round: &mut Round) {
    round.receive(at.below(1 << number), scratch(0), 1);
    round.send(at.above(1 << number), scratch(1), 1);
}
