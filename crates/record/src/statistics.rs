//! Statistics of times.

use serde::{Deserialize, Serialize};

use crate::number;

/// Statistics of a sample of times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Number of times, at least 1.
    pub samples: usize,
    /// Smallest time.
    #[serde(deserialize_with = "number::or_nan")]
    pub min_us: f64,
    /// Median.
    #[serde(deserialize_with = "number::or_nan")]
    pub median_us: f64,
    /// Mean.
    #[serde(deserialize_with = "number::or_nan")]
    pub mean_us: f64,
    /// 95th percentile: the smallest time not exceeded by at least 95 % of the times (nearest rank).
    #[serde(deserialize_with = "number::or_nan")]
    pub p95_us: f64,
    /// 99th percentile: the smallest time not exceeded by at least 99 % of the times (nearest rank).
    #[serde(deserialize_with = "number::or_nan")]
    pub p99_us: f64,
    /// Largest time.
    #[serde(deserialize_with = "number::or_nan")]
    pub max_us: f64,
    /// Standard deviation of the population: divided by the number of times.
    #[serde(deserialize_with = "number::or_nan")]
    pub deviation_us: f64,
}

impl Statistics {
    /// Calculates the statistics of times in microseconds; `None` without times.
    pub fn from_times(times_us: &[f64]) -> Option<Self> {
        let mut sorted = times_us.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min_us, &max_us) = (sorted.first()?, sorted.last()?);
        let samples = sorted.len();
        let mean_us = sorted.iter().sum::<f64>() / samples as f64;
        let variance = sorted.iter().map(|time| (time - mean_us).powi(2)).sum::<f64>() / samples as f64;
        let nearest_rank = |percent: usize| sorted[(samples * percent).div_ceil(100) - 1];
        Some(Self {
            samples,
            min_us,
            median_us: median_of_sorted(&sorted),
            mean_us,
            p95_us: nearest_rank(95),
            p99_us: nearest_rank(99),
            max_us,
            deviation_us: variance.sqrt(),
        })
    }

    /// Returns the coefficient of variation: deviation over mean, in percent.
    pub fn variation_percent(&self) -> f64 {
        if self.mean_us > 0.0 { self.deviation_us / self.mean_us * 100.0 } else { 0.0 }
    }
}

/// Returns the median: the middle value, or the mean of the two middle ones; `None` without values.
pub fn find_median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| median_of_sorted(&sorted))
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

/// Returns the geometric mean of values above 0; `None` without values.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum_of_logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (sum_of_logarithms / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let found = Statistics::from_times(&times).unwrap();
        assert_eq!((found.samples, found.min_us, found.max_us), (200, 1.0, 200.0));
        assert_eq!((found.median_us, found.mean_us), (100.5, 100.5));
        assert_eq!((found.p95_us, found.p99_us), (190.0, 198.0));
        assert!((found.deviation_us - 57.734_305_22).abs() < 1e-6);
        assert!((found.variation_percent() - 57.447_069_9).abs() < 1e-6);
    }

    #[test]
    fn few_times_are_enough_and_none_are_not() {
        assert_eq!(Statistics::from_times(&[]), None);
        let one = Statistics::from_times(&[7.0]).unwrap();
        assert_eq!((one.min_us, one.median_us, one.p99_us, one.deviation_us), (7.0, 7.0, 7.0, 0.0));
        assert_eq!(Statistics::from_times(&[3.0, 1.0, 2.0]).unwrap().median_us, 2.0);
        assert_eq!(
            (find_median(&[]), find_median(&[3.0, 1.0]), find_median(&[3.0, 1.0, 2.5])),
            (None, Some(2.0), Some(2.5))
        );
    }

    #[test]
    fn a_geometric_mean_is_the_root_of_the_product() {
        assert_eq!(geometric_mean(&[]), None);
        assert!((geometric_mean(&[1.0, 2.0, 32.0]).unwrap() - 4.0).abs() < 1e-12);
    }
}
