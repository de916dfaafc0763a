//! The results of a search: rounds, pairs, and the facts about them.

use judge::pairs::{Purpose, Round, Search, Statistic};
use record::{Measurement, Provenance};
use serde::Serialize;

use super::units::{ProcessHost, Units};

/// The results so far.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) processes: Vec<ProcessHost>,
    /// Absent before all ranks are known.
    pub(super) search: Option<(Units, Search)>,
    /// The round that is measured.
    pub(super) round: Option<Round>,
    /// Results of the run that goes on.
    pub(super) measurements: Vec<Measurement>,
    pub(super) ranks: usize,
    pub(super) facts: Facts,
    pub(super) rounds: Vec<MeasuredRound>,
    /// Data was wrong in the exchange among all ranks before the first round.
    pub(super) has_wrong_start: bool,
    /// True once the report was printed.
    pub(super) is_reported: bool,
}

/// Facts about the measurements.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Facts {
    pub(super) program: String,
    pub(super) command: Vec<String>,
    pub(super) started_at: String,
    pub(super) provenance: Provenance,
    /// Bytes that a rank sends and receives at a time.
    pub(super) bytes: u64,
}

/// A round with its results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasuredRound {
    pub(super) purpose: Purpose,
    pub(super) pairs: Vec<MeasuredPair>,
}

/// A pair with its results in a round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasuredPair {
    /// Numbers of the units.
    pub(super) pair: [usize; 2],
    /// Bandwidth of each repeat in GB/s in each direction, of all ranks of the pair together.
    pub(super) gbps: Vec<f64>,
    /// Wrong elements.
    pub(super) wrong: u64,
}

impl MeasuredPair {
    /// The bandwidth that counts.
    pub(super) fn bandwidth(&self, statistic: Statistic) -> Option<f64> {
        statistic.find_bandwidth(&self.gbps)
    }
}

/// Combines the groups of each pair of a round: their data in the time of the slowest.
pub(super) fn combine_groups(
    round: &Round,
    groups: usize,
    measurements: &[Measurement],
) -> Vec<MeasuredPair> {
    let of_group = |number: usize| {
        // A single group has no number.
        measurements.iter().find(|measured| measured.group.unwrap_or(0) == number)
    };
    let combine = |(number, &pair): (usize, &[usize; 2])| {
        let own: Option<Vec<&Measurement>> = (number * groups..(number + 1) * groups).map(of_group).collect();
        let own = own.unwrap_or_default();
        let bytes: u64 = own.iter().map(|measured| measured.bytes).sum();
        let repeats = own.iter().map(|measured| repeats_us(measured).len()).min().unwrap_or(0);
        let slowest = |repeat: usize| own.iter().map(|each| repeats_us(each)[repeat]).fold(0.0, f64::max);
        MeasuredPair {
            pair,
            gbps: (0..repeats).map(|repeat| bytes as f64 / slowest(repeat) / 1e3).collect(),
            wrong: own.iter().filter_map(|measured| measured.wrong).sum(),
        }
    };
    round.pairs.iter().enumerate().map(combine).collect()
}

/// Microseconds of each repeat. The record has only the median of a single one.
fn repeats_us(measurement: &Measurement) -> &[f64] {
    match &measurement.rounds_us[..] {
        [] => std::slice::from_ref(&measurement.time_us),
        rounds => rounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(group: Option<usize>, rounds_us: &[f64]) -> Measurement {
        let rounds_us = rounds_us.to_vec();
        Measurement { group, bytes: 1000, time_us: 2.0, rounds_us, wrong: Some(1), ..Measurement::default() }
    }

    #[test]
    fn the_slowest_group_of_a_pair_ends_each_repeat() {
        let round = Round { purpose: Purpose::Survey, pairs: vec![[0, 3], [1, 2]] };
        // Groups come in the order of their first ranks, with their numbers.
        let groups = [(2, [1.0, 2.0]), (0, [1.0, 4.0]), (3, [2.0, 1.0]), (1, [2.0, 1.0])];
        let measurements: Vec<Measurement> =
            groups.iter().map(|(group, rounds_us)| measured(Some(*group), rounds_us)).collect();
        let pairs = combine_groups(&round, 2, &measurements);
        assert_eq!((pairs[0].pair, &pairs[0].gbps[..], pairs[0].wrong), ([0, 3], &[1.0, 0.5][..], 2));
        assert_eq!((pairs[1].pair, &pairs[1].gbps[..]), ([1, 2], &[1.0, 1.0][..]));
    }

    #[test]
    fn a_pair_without_all_of_its_groups_has_no_result() {
        let round = Round { purpose: Purpose::Survey, pairs: vec![[0, 1]] };
        assert_eq!(combine_groups(&round, 1, &[measured(None, &[])])[0].gbps, [0.5]);
        assert!(combine_groups(&round, 2, &[measured(Some(0), &[1.0])])[0].gbps.is_empty());
        assert!(combine_groups(&round, 1, &[])[0].gbps.is_empty());
    }
}
