//! Number of repetitions of a measurement: limited by time, or by the precision of the median.

use record::statistics::find_median;

/// Minimum number of rounds of a batch for a statement on the precision of its median.
pub(super) const LEAST_ROUNDS: usize = 6;

/// Returns the number of iterations, from 1 to `most`, that take at most `seconds`. `trial` returns the time
/// of a number of iterations. The last trial has at least a twentieth of the result: in fewer iterations, the
/// wait for other ranks to begin would dominate.
pub(super) fn fitting_iterations(
    seconds: f64,
    most: usize,
    mut trial: impl FnMut(usize) -> anyhow::Result<f64>,
) -> anyhow::Result<usize> {
    let mut tried = 1;
    loop {
        let each = trial(tried)? / tried as f64;
        let fitting = ((seconds / each) as usize).clamp(1, most);
        if fitting / 20 <= tried {
            return Ok(fitting);
        }
        tried = fitting / 10;
    }
}

/// Returns true when the medians of the first and the second half of the rounds are both precise to `share`,
/// and differ by at most `share`. One half alone can be precise in a temporary state.
pub(super) fn is_stable(rounds: &[f64], share: f64) -> bool {
    let (first, second) = rounds.split_at(rounds.len() / 2);
    let agree = |one: f64, other: f64| (one - other).abs() <= share * one.min(other);
    is_precise(first, share)
        && is_precise(second, share)
        && find_median(first).zip(find_median(second)).is_some_and(|(one, other)| agree(one, other))
}

/// Returns true when the 95 % confidence interval of the median, from order statistics (the binomial
/// distribution, approximated by the normal one), lies within `share` of the median on both sides.
fn is_precise(rounds: &[f64], share: f64) -> bool {
    let count = rounds.len();
    if count < LEAST_ROUNDS {
        return false;
    }
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let reach = 1.96 * (count as f64).sqrt() / 2.0;
    let middle = count as f64 / 2.0;
    let lower = sorted[(middle - reach).floor().max(0.0) as usize];
    let upper = sorted[((middle + reach).ceil() as usize).min(count - 1)];
    find_median(rounds)
        .is_some_and(|median| upper - median <= share * median && median - lower <= share * median)
}
