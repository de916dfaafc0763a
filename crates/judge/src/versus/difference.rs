//! The difference between two sides in one value, such as the time of a row.

use record::rank_test::mann_whitney;
use record::statistics::find_median;
use serde::Serialize;

use super::correction::LEVEL;
use super::estimate::{Estimator, RatioEstimate};
use super::speeds::{SharedSpeeds, TwoSpeeds, find_shared_speeds, find_two_speeds};

/// Relative uncertainty up to which sides can be called equal, unless the threshold is larger.
const MAX_RESOLUTION: f64 = 0.1;

/// Conditions of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct Criteria {
    /// Relative difference that counts: 0.02 for 2 %.
    pub threshold: f64,
    /// False if starts are missing, because one failed or a signal ended the comparison.
    pub is_complete: bool,
}

/// The starts of one side, in one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideTimes {
    /// Median of the starts, in microseconds.
    pub median_us: f64,
    /// Shortest time.
    pub min_us: f64,
    /// Longest time.
    pub max_us: f64,
    /// Range of the starts, relative to the median.
    pub spread: f64,
    /// Two speeds, if the starts have two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub two_speeds: Option<TwoSpeeds>,
    /// One time per start, in order.
    pub times_us: Vec<f64>,
}

impl SideTimes {
    /// Summarizes times above 0; `None` without times.
    pub(super) fn from_times(times_us: Vec<f64>) -> Option<Self> {
        let median_us = find_median(&times_us)?;
        let min_us = times_us.iter().copied().fold(f64::INFINITY, f64::min);
        let max_us = times_us.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread = (max_us - min_us) / median_us;
        Some(Self { median_us, min_us, max_us, spread, two_speeds: find_two_speeds(&times_us), times_us })
    }
}

/// Result of the comparison of one value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Outcome {
    /// B takes longer, significantly and by more than the threshold.
    Slower {
        /// Share of A's time by which B takes longer.
        by: f64,
    },
    /// B takes less time, significantly and by more than the threshold.
    Faster {
        /// Share of A's time that B saves.
        by: f64,
    },
    /// There is no difference that counts.
    NoDifference {
        /// Largest relative difference that is compatible with the starts: the farther end of the interval.
        resolution: f64,
    },
    /// The starts do not answer the question.
    CannotTell {
        /// Reason.
        doubt: Doubt,
    },
}

/// Reason why a comparison cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// No difference is seen, but the starts of a side differ so much that a large one could be hidden.
    StartsDiffer,
    /// The interval is beyond the threshold, but the difference is not significant among so many rows.
    NotSignificant,
    /// There are too few starts for a test or an interval.
    TooFewStarts,
    /// No difference is seen, and starts are missing.
    Incomplete,
}

/// Two sides in one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The starts of A.
    pub a: SideTimes,
    /// The starts of B.
    pub b: SideTimes,
    /// Ratio of the medians, B to A.
    pub ratio_of_medians: f64,
    /// Estimate of the ratio, B to A.
    #[serde(flatten)]
    pub estimate: RatioEstimate,
    /// Probability that starts of equal sides differ at least as much (two-sided Mann-Whitney U test).
    pub p: f64,
    /// Probability after the correction for all tests of the table; absent if this value is not tested,
    /// because it has too few starts.
    pub corrected_p: Option<f64>,
    /// Result.
    pub outcome: Outcome,
    /// Two speeds that the sides have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_speeds: Option<SharedSpeeds>,
}

impl Difference {
    /// Compares times above 0; `None` without times on a side. [`Self::judge`] completes it.
    pub(super) fn from_times(a: Vec<f64>, b: Vec<f64>, estimator: Estimator) -> Option<Self> {
        let estimate = estimator.estimate_ratio(&a, &b)?;
        let p = mann_whitney(&a, &b)?;
        let shared_speeds = find_shared_speeds(&a, &b);
        let (a, b) = (SideTimes::from_times(a)?, SideTimes::from_times(b)?);
        Some(Self {
            ratio_of_medians: b.median_us / a.median_us,
            a,
            b,
            estimate,
            p,
            corrected_p: None,
            outcome: Outcome::CannotTell { doubt: Doubt::TooFewStarts },
            shared_speeds,
        })
    }

    /// Sets the result, from the probability after correction.
    pub(super) fn judge(&mut self, corrected_p: Option<f64>, criteria: &Criteria) {
        self.corrected_p = corrected_p;
        self.outcome = self.find_outcome(criteria);
    }

    fn find_outcome(&self, criteria: &Criteria) -> Outcome {
        let limit = 1.0 + criteria.threshold;
        let ratio = self.estimate.ratio;
        let is_significant = self.corrected_p.is_some_and(|p| p <= LEVEL);
        if is_significant && ratio > limit {
            return Outcome::Slower { by: ratio - 1.0 };
        }
        if is_significant && ratio < limit.recip() {
            return Outcome::Faster { by: 1.0 - ratio };
        }
        let doubt = |doubt| Outcome::CannotTell { doubt };
        let Some([lower, upper]) = self.estimate.interval else { return doubt(Doubt::TooFewStarts) };
        if lower > limit || upper < limit.recip() {
            let is_tested = self.corrected_p.is_some();
            return doubt(if is_tested { Doubt::NotSignificant } else { Doubt::TooFewStarts });
        }
        let resolution = upper.max(lower.recip()) - 1.0;
        // Also for a resolution that is not a number.
        let is_narrow = resolution <= MAX_RESOLUTION.max(criteria.threshold);
        match (is_narrow, criteria.is_complete) {
            (false, _) => doubt(Doubt::StartsDiffer),
            (true, false) => doubt(Doubt::Incomplete),
            (true, true) => Outcome::NoDifference { resolution },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRITERIA: Criteria = Criteria { threshold: 0.02, is_complete: true };

    /// Returns eight times around a mean, the farthest of them off by `width` of it.
    fn times(mean: f64, width: f64) -> Vec<f64> {
        [-1.0, -0.6, -0.35, -0.1, 0.15, 0.4, 0.65, 0.95].map(|place| mean * (1.0 + width * place)).to_vec()
    }

    fn compare(a: Vec<f64>, b: Vec<f64>) -> Difference {
        let estimator = Estimator::new([a.len(), b.len()]);
        Difference::from_times(a, b, estimator).unwrap()
    }

    fn outcome(a: &[f64], b: &[f64], criteria: &Criteria) -> Outcome {
        let mut difference = compare(a.to_vec(), b.to_vec());
        difference.judge(Some(difference.p), criteria);
        difference.outcome
    }

    #[test]
    fn a_difference_counts_if_it_is_significant_and_beyond_the_threshold() {
        let a = times(100.0, 0.004);
        let Outcome::Slower { by } = outcome(&a, &times(105.0, 0.004), &CRITERIA) else {
            panic!("not slower")
        };
        assert!((by - 0.05).abs() < 0.005, "{by}");
        let Outcome::Faster { by } = outcome(&a, &times(90.0, 0.004), &CRITERIA) else {
            panic!("not faster")
        };
        assert!((by - 0.1).abs() < 0.005, "{by}");
        // 1 % is significant, and below the threshold.
        let within = outcome(&a, &times(101.0, 0.004), &CRITERIA);
        assert!(matches!(within, Outcome::NoDifference { resolution } if (0.01..0.02).contains(&resolution)));
        let finer = Criteria { threshold: 0.005, ..CRITERIA };
        assert!(matches!(outcome(&a, &times(101.0, 0.004), &finer), Outcome::Slower { .. }));
    }

    #[test]
    fn what_the_starts_do_not_answer_is_no_equality() {
        let told = |a: &[f64], b: &[f64], criteria| match outcome(a, b, criteria) {
            Outcome::CannotTell { doubt } => Some(doubt),
            _ => None,
        };
        let (steady, unsteady) = (times(100.0, 0.004), times(100.0, 0.4));
        assert_eq!(told(&steady, &unsteady, &CRITERIA), Some(Doubt::StartsDiffer));
        let coarse = Criteria { threshold: 0.5, ..CRITERIA };
        assert_eq!(told(&steady, &unsteady, &coarse), None, "the threshold is wider than the interval");
        let incomplete = Criteria { is_complete: false, ..CRITERIA };
        assert_eq!(told(&steady, &steady, &incomplete), Some(Doubt::Incomplete));
        assert_eq!(told(&steady, &times(105.0, 0.004), &incomplete), None, "it is slower all the same");
        assert_eq!(told(&steady[..3], &steady[..3], &CRITERIA), Some(Doubt::TooFewStarts));
    }

    #[test]
    fn an_interval_beyond_the_threshold_is_no_equality() {
        let slower = times(105.0, 0.004);
        let mut difference = compare(times(100.0, 0.004), slower);
        difference.judge(Some(0.02), &CRITERIA);
        assert_eq!(difference.outcome, Outcome::CannotTell { doubt: Doubt::NotSignificant });
        difference.judge(None, &CRITERIA);
        assert_eq!(difference.outcome, Outcome::CannotTell { doubt: Doubt::TooFewStarts });
    }
}
