//! Times of the phases of a start.

use std::time::Instant;

use record::statistics::find_median;
use record::{Phase, StartPhase};

/// The phases, in order.
const PHASES: [Phase; 2] = [Phase::Device, Phase::Connection];

/// Measures the phases of one rank's start.
pub(super) struct StartClock {
    begun: Instant,
    seconds: Vec<f64>,
}

impl StartClock {
    /// Begins the first phase.
    pub(super) fn start() -> Self {
        Self { begun: Instant::now(), seconds: Vec::new() }
    }

    /// Begins a phase.
    pub(super) fn begin_phase(&mut self) {
        self.begun = Instant::now();
    }

    /// Ends a phase.
    pub(super) fn end_phase(&mut self) {
        self.seconds.push(self.begun.elapsed().as_secs_f64());
        self.begin_phase();
    }

    /// Returns the seconds of the phases so far.
    pub(super) fn phase_seconds(&self) -> Vec<f64> {
        self.seconds.clone()
    }
}

/// Returns the times of all phases. `ranks` are the seconds of the phases of each rank that measures.
pub(super) fn summarize_start(ranks: &[Vec<f64>]) -> Vec<StartPhase> {
    let summarize = |(index, phase): (usize, &Phase)| {
        let seconds: Vec<f64> = ranks.iter().filter_map(|phases| phases.get(index).copied()).collect();
        let slowest = seconds.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1))?;
        Some(StartPhase {
            phase: *phase,
            median_s: find_median(&seconds)?,
            longest_s: *slowest.1,
            slowest_rank: slowest.0,
        })
    };
    PHASES.iter().enumerate().filter_map(summarize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_of_each_phase_is_named() {
        let phases = summarize_start(&[vec![1.0, 5.0], vec![2.0, 3.0], vec![9.0, 4.0]]);
        let found: Vec<_> =
            phases.iter().map(|one| (one.phase, one.median_s, one.longest_s, one.slowest_rank)).collect();
        assert_eq!(found, [(Phase::Device, 2.0, 9.0, 2), (Phase::Connection, 4.0, 5.0, 0)]);
        assert_eq!(summarize_start(&[]), []);
    }
}
