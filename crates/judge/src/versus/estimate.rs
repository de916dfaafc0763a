//! Estimate of the ratio of two sides' times, with a confidence interval from the inversion of the
//! Mann-Whitney U test.
//!
//! J. L. Hodges, E. L. Lehmann: Estimates of location based on rank tests. Annals of Mathematical Statistics
//! 34 (1963), 598-611. The interval is that of L. E. Moses.

use record::rank_test::critical_u;
use record::statistics::find_median;
use serde::Serialize;

/// Confidence of the interval of each ratio, in percent.
pub const INTERVAL_PERCENT: u32 = 95;

/// The ratio of two sides' times, B to A.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RatioEstimate {
    /// Median of the ratios of all pairs of starts (Hodges-Lehmann); above 1, B is slower.
    pub ratio: f64,
    /// Confidence interval of the ratio ([`INTERVAL_PERCENT`]); absent with too few starts for one.
    pub interval: Option<[f64; 2]>,
}

/// The estimator for these numbers of starts. It has what is the same for all rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimator {
    /// Largest U that rejects a shift; `None` with too few starts for an interval.
    critical_u: Option<usize>,
}

impl Estimator {
    pub(super) fn new(starts: [usize; 2]) -> Self {
        let level = 1.0 - f64::from(INTERVAL_PERCENT) / 100.0;
        Self { critical_u: critical_u(starts[0], starts[1], level) }
    }

    /// Estimates the ratio of times above 0; `None` without times on a side.
    pub(super) fn estimate_ratio(self, a: &[f64], b: &[f64]) -> Option<RatioEstimate> {
        let logarithms = |times: &[f64]| -> Vec<f64> { times.iter().map(|time| time.ln()).collect() };
        let (a, b) = (logarithms(a), logarithms(b));
        let mut differences: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b - a)).collect();
        differences.sort_unstable_by(f64::total_cmp);
        let ratio = find_median(&differences)?.exp();
        // The test rejects all shifts below the lower bound and above the upper one.
        let interval = self.critical_u.map(|critical| {
            let lower = critical.min((differences.len() - 1) / 2);
            [differences[lower].exp(), differences[differences.len() - 1 - lower].exp()]
        });
        Some(RatioEstimate { ratio, interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(a: &[f64], b: &[f64]) -> Option<RatioEstimate> {
        Estimator::new([a.len(), b.len()]).estimate_ratio(a, b)
    }

    #[test]
    fn the_estimate_is_the_median_of_all_ratios_and_the_interval_is_moses() {
        let a: Vec<f64> = (1..=5).map(|power| 2.0_f64.powi(power)).collect();
        let b: Vec<f64> = (1..=5).map(|power| 2.0_f64.powi(2 * power)).collect();
        let found = estimate(&a, &b).unwrap();
        // The 25 differences 2 j - i have the median 3. U <= 2 is significant: the third on each side.
        assert!((found.ratio - 8.0).abs() < 1e-9, "{found:?}");
        let [lower, upper] = found.interval.unwrap();
        assert!((lower - 0.5).abs() < 1e-9 && (upper - 128.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn few_starts_have_no_interval_and_none_no_ratio() {
        assert_eq!(estimate(&[1.0; 3], &[2.0; 3]).unwrap().interval, None);
        assert!(estimate(&[1.0; 4], &[2.0; 4]).unwrap().interval.is_some());
        assert_eq!(estimate(&[], &[1.0]), None);
    }
}
