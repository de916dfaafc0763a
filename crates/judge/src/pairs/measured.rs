//! Measured pairs, and their values relative to other pairs of the round.

use std::collections::BTreeMap;

use record::statistics::find_median;
use serde::{Deserialize, Serialize};

use super::{Pair, PairResult, Purpose};

/// Ratio of the standard deviation of a normal distribution to its median absolute deviation.
pub(super) const DEVIATION_OF_MAD: f64 = 1.4826;
/// Ratio of the standard error of the median of a normal sample to the standard error of its mean.
pub(super) const ERROR_OF_MEDIAN: f64 = 1.2533;
/// Ratio of the standard error of a quartile of a normal sample to the standard error of its mean.
const ERROR_OF_QUARTILE: f64 = 1.3626;
/// Minimum number of pairs for the reference of a round of the survey: one slow node must not be the median.
const SURVEY_REFERENCE: usize = 4;
/// Minimum number of good pairs for the reference of a round of confirmation.
const CONFIRMATION_REFERENCE: usize = 2;

/// A pair of a round with its bandwidth.
#[derive(Clone, Debug)]
pub(super) struct MeasuredPair {
    pub(super) pair: Pair,
    pub(super) round: usize,
    pub(super) purpose: Purpose,
    /// True for a pair of two good nodes in a round of confirmation, and for every pair of the survey.
    pub(super) is_reference: bool,
    bandwidth: f64,
    /// Repeats relative to their median.
    repeats: Vec<f64>,
}

impl MeasuredPair {
    /// Returns `None` when no repeat is usable.
    pub(super) fn new(
        result: &PairResult,
        statistic: Statistic,
        round: usize,
        purpose: Purpose,
        is_reference: bool,
    ) -> Option<Self> {
        let bandwidth = statistic.find_bandwidth(&result.bandwidths)?;
        let usable = list_usable(&result.bandwidths);
        let median = find_median(&usable)?;
        let repeats = usable.iter().map(|repeat| repeat / median).collect();
        Some(Self { pair: result.pair, round, purpose, is_reference, bandwidth, repeats })
    }
}

/// The bandwidth of a pair from its repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// The upper quartile: other work of a host or network can only slow a repeat, and a slow part slows all.
    #[default]
    UpperQuartile,
    /// The median, for nodes that share a link: a repeat is faster when the other node is idle.
    Median,
}

impl Statistic {
    /// Returns the bandwidth; `None` without a repeat that is finite and above 0.
    pub fn find_bandwidth(self, repeats: &[f64]) -> Option<f64> {
        let mut usable = list_usable(repeats);
        usable.sort_unstable_by(f64::total_cmp);
        match self {
            Self::UpperQuartile => usable.get(usable.len() * 3 / 4).copied(),
            Self::Median => find_median(&usable),
        }
    }
}

fn list_usable(repeats: &[f64]) -> Vec<f64> {
    let is_usable = |bandwidth: &f64| bandwidth.is_finite() && *bandwidth > 0.0;
    repeats.iter().copied().filter(is_usable).collect()
}

/// A pair with its bandwidth relative to other pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelativePair {
    pub(super) pair: Pair,
    pub(super) purpose: Purpose,
    pub(super) value: f64,
}

/// Divides each bandwidth by a reference: the upper median of the round's reference pairs, which removes what
/// slows a whole round; in rounds with few pairs, the upper median of the survey.
pub(super) fn find_relative_values(measured: &[MeasuredPair]) -> Vec<RelativePair> {
    let mut of_round: BTreeMap<usize, (Purpose, Vec<f64>)> = BTreeMap::new();
    let mut of_survey = Vec::new();
    for each in measured.iter().filter(|each| each.is_reference) {
        of_round.entry(each.round).or_insert_with(|| (each.purpose, Vec::new())).1.push(each.bandwidth);
        if each.purpose == Purpose::Survey {
            of_survey.push(each.bandwidth);
        }
    }
    let find_reference = |(purpose, bandwidths): &(Purpose, Vec<f64>)| match purpose {
        Purpose::Survey if bandwidths.len() >= SURVEY_REFERENCE => find_upper_median(bandwidths),
        Purpose::Confirmation if bandwidths.len() >= CONFIRMATION_REFERENCE => find_upper_median(bandwidths),
        _ => None,
    };
    let of_round: BTreeMap<usize, f64> =
        of_round.iter().filter_map(|(&round, pairs)| Some((round, find_reference(pairs)?))).collect();
    let of_survey = find_upper_median(&of_survey);
    let relative = |each: &MeasuredPair| {
        let reference = of_round.get(&each.round).copied().or(of_survey)?;
        Some(RelativePair { pair: each.pair, purpose: each.purpose, value: each.bandwidth / reference })
    };
    measured.iter().filter_map(relative).collect()
}

/// Standard error of a pair's bandwidth that the scatter of the repeats explains; 0 without repeats.
pub(super) fn find_repeat_error(measured: &[MeasuredPair]) -> f64 {
    let several = || measured.iter().filter(|each| each.repeats.len() > 1);
    let distances: Vec<f64> =
        several().flat_map(|each| each.repeats.iter().map(|repeat| (repeat - 1.0).abs())).collect();
    let counts: Vec<f64> = several().map(|each| each.repeats.len() as f64).collect();
    let (Some(distance), Some(count)) = (find_median(&distances), find_median(&counts)) else { return 0.0 };
    // The median of few repeats is nearer to them than the true value is.
    let deviation = DEVIATION_OF_MAD * distance * (count / (count - 1.0)).sqrt();
    ERROR_OF_QUARTILE * deviation / count.sqrt()
}

/// Median; of an even number of values, the larger one in the middle.
pub(super) fn find_upper_median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Standard deviation from the median absolute deviation from `center`, for a normal distribution.
pub(super) fn find_robust_deviation(values: &[f64], center: f64) -> f64 {
    let distances: Vec<f64> = values.iter().map(|value| (value - center).abs()).collect();
    DEVIATION_OF_MAD * find_median(&distances).unwrap_or(0.0)
}
