//! Programs with two speeds: a start chooses one of them, for as long as the process lives.

use record::statistics::find_median;
use serde::Serialize;

/// Least number of starts with each speed.
const LEAST_STARTS: usize = 2;
/// Least number of all starts: fewer often are two narrow clusters by chance.
const LEAST_TOTAL: usize = 6;
/// Least ratio of the two speeds.
const LEAST_RATIO: f64 = 1.15;
/// Least gap between the two speeds, in widths of the wider one. Gap and widths are ratios, as logarithms.
const LEAST_GAP: f64 = 3.0;

/// One of two speeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Median of its starts, in microseconds.
    pub time_us: f64,
    /// Number of starts with this speed.
    pub starts: usize,
}

/// Two speeds of the starts of one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TwoSpeeds {
    /// The shorter time.
    pub fast: Speed,
    /// The longer time.
    pub slow: Speed,
}

/// Two speeds that the starts of both sides have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SharedSpeeds {
    /// The shorter time, and the starts of both sides that have it.
    pub fast: Speed,
    /// The longer time, and the starts of both sides that have it.
    pub slow: Speed,
    /// Number of slow starts of A and of B.
    pub slow_starts: [usize; 2],
    /// Probability that equal sides share the slow starts at least as unevenly (Fisher's exact test).
    pub p: f64,
}

/// Recognises two speeds in times above 0.
pub(super) fn find_two_speeds(times_us: &[f64]) -> Option<TwoSpeeds> {
    let mut sorted = times_us.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    if sorted.len() < LEAST_TOTAL {
        return None;
    }
    let last = sorted.len() - LEAST_STARTS;
    let (_, split) = (LEAST_STARTS..=last)
        .map(|split| (sorted[split] / sorted[split - 1], split))
        .max_by(|one, other| one.0.total_cmp(&other.0))?;
    let (fast, slow) = sorted.split_at(split);
    let width = |part: &[f64]| part.last().zip(part.first()).map_or(0.0, |(last, first)| (last / first).ln());
    let gap = (slow.first()? / fast.last()?).ln();
    let speed = |part: &[f64]| Some(Speed { time_us: find_median(part)?, starts: part.len() });
    let found = TwoSpeeds { fast: speed(fast)?, slow: speed(slow)? };
    let is_apart = found.slow.time_us / found.fast.time_us >= LEAST_RATIO;
    (is_apart && gap >= LEAST_GAP * width(fast).max(width(slow))).then_some(found)
}

/// Recognises two speeds that both sides have in common; `None` unless a side has both of them.
pub(super) fn find_shared_speeds(a: &[f64], b: &[f64]) -> Option<SharedSpeeds> {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let TwoSpeeds { fast, slow } = find_two_speeds(&all)?;
    // The centres are on both sides of the gap.
    let middle = (fast.time_us * slow.time_us).sqrt();
    let slow_starts = [a, b].map(|times| times.iter().filter(|&&time| time > middle).count());
    let is_mixed = [a, b].iter().zip(slow_starts).any(|(times, slow)| (1..times.len()).contains(&slow));
    let p = test_shares(slow_starts, [a.len(), b.len()]);
    is_mixed.then_some(SharedSpeeds { fast, slow, slow_starts, p })
}

/// Returns the two-sided p of Fisher's exact test, for `counts` out of `totals`.
fn test_shares(counts: [usize; 2], totals: [usize; 2]) -> f64 {
    let drawn = counts[0] + counts[1];
    let ways = |first: usize| choose(totals[0], first) * choose(totals[1], drawn - first);
    let possible = drawn.saturating_sub(totals[1])..=drawn.min(totals[0]);
    let observed = ways(counts[0]);
    let all: f64 = possible.clone().map(ways).sum();
    // Of equal probabilities, rounding must lose none.
    let as_uneven: f64 = possible.map(ways).filter(|&ways| ways <= observed * (1.0 + 1e-9)).sum();
    (as_uneven / all).min(1.0)
}

fn choose(total: usize, chosen: usize) -> f64 {
    (1..=chosen).map(|index| (total - chosen + index) as f64 / index as f64).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_speeds_are_two_narrow_clusters() {
        let times = [6.0, 9.1, 6.1, 9.0, 6.05, 9.2, 6.1, 6.0];
        let found = find_two_speeds(&times).unwrap();
        assert_eq!((found.fast.starts, found.slow.starts), (5, 3));
        assert_eq!((found.fast.time_us, found.slow.time_us), (6.05, 9.1));
        for (times, why) in [
            (&[6.0, 6.0, 6.0, 6.0, 6.0, 9.0][..], "a single slow start is an outlier"),
            (&[6.0, 6.0, 6.0, 6.6, 6.6, 6.6], "they are close"),
            (&[6.0, 6.5, 7.0, 7.5, 8.0, 9.0], "they have no gap"),
            (&[6.0, 6.5, 7.0, 9.0, 9.1, 9.2], "the gap is not much wider than a cluster"),
            (&[6.0, 6.0, 6.0, 9.0, 9.0], "they are few"),
            (&[6.0; 8], "they are equal"),
            (&[], "there are none"),
        ] {
            assert_eq!(find_two_speeds(times), None, "{why}");
        }
    }

    #[test]
    fn shares_of_common_speeds_are_tested() {
        let (fast, slow) = ([6.0, 6.02, 6.1], [9.0, 9.05, 9.1]);
        let a: Vec<f64> = fast.into_iter().chain([9.0]).collect();
        let b: Vec<f64> = slow.into_iter().chain([6.0]).collect();
        let found = find_shared_speeds(&a, &b).unwrap();
        assert_eq!(found.slow_starts, [1, 3]);
        // 1 + 16 of the 70 choices of four starts, on each side.
        assert!((found.p - 34.0 / 70.0).abs() < 1e-12, "{found:?}");
        assert_eq!(find_shared_speeds(&fast, &slow), None, "each side has one speed");
        assert_eq!(find_shared_speeds(&fast, &fast), None);
    }

    #[test]
    fn probabilities_are_those_of_published_examples() {
        // Fisher's lady tasting tea: 3 of 4 and 1 of 4; and a table with unequal rows.
        assert!((test_shares([3, 1], [4, 4]) - 0.485_714_285_7).abs() < 1e-9);
        assert!((test_shares([1, 11], [10, 14]) - 0.002_759_456_2).abs() < 1e-9);
        assert_eq!(test_shares([0, 0], [8, 8]), 1.0);
    }
}
