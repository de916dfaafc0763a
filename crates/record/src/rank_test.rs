//! The two-sided Mann-Whitney U test (Wilcoxon's rank-sum test), exact also with ties.
//!
//! H. B. Mann, D. R. Whitney: On a test of whether one of two random variables is stochastically larger than
//! the other. Annals of Mathematical Statistics 18 (1947), 50-60.

/// Level of significance: differences with a smaller p are significant.
pub const LEVEL: f64 = 0.05;

/// Returns the probability that samples of one distribution differ in their ranks at least as much as these;
/// `None` without values on a side.
///
/// It counts the sums of ranks of all choices of `before.len()` values out of all; the number of steps grows
/// with the fourth power of the number of values.
pub fn mann_whitney(before: &[f64], after: &[f64]) -> Option<f64> {
    if before.is_empty() || after.is_empty() {
        return None;
    }
    let all: Vec<f64> = before.iter().chain(after).copied().collect();
    let mut ranks: Vec<usize> = all.iter().map(|&value| doubled_rank(value, &all)).collect();
    // Without ties, ranks are integers. Smaller sums need fewer steps.
    if ranks.iter().all(|rank| rank.is_multiple_of(2)) {
        ranks.iter_mut().for_each(|rank| *rank /= 2);
    }
    let observed: usize = ranks[..before.len()].iter().sum();
    let counts = sums_of_choices(&ranks, before.len());
    let total: f64 = counts.iter().sum();
    let below: f64 = counts[..=observed].iter().sum();
    let above: f64 = counts[observed..].iter().sum();
    Some((2.0 * below.min(above) / total).min(1.0))
}

/// Returns the smallest possible p of so many values without ties.
pub fn least_p(before: usize, after: usize) -> f64 {
    let choices: f64 = (1..=before).map(|index| (after + index) as f64 / index as f64).product();
    (2.0 / choices).min(1.0)
}

/// Returns the largest U of which the two-sided p is at most `level`, for samples without ties; `None` when
/// there is none.
pub fn critical_u(before: usize, after: usize, level: f64) -> Option<usize> {
    let ranks: Vec<usize> = (1..=before + after).collect();
    let counts = sums_of_choices(&ranks, before);
    let total: f64 = counts.iter().sum();
    let smallest_sum = before * (before + 1) / 2;
    let below = counts[smallest_sum..].iter().scan(0.0, |below, count| {
        *below += count;
        Some(*below)
    });
    below.take_while(|below| 2.0 * below / total <= level).count().checked_sub(1)
}

/// Returns twice the rank of a value, an integer also for the mean rank of equal values.
fn doubled_rank(value: f64, all: &[f64]) -> usize {
    let below = all.iter().filter(|&&other| other < value).count();
    let equal = all.iter().filter(|&&other| other == value).count();
    2 * below + equal + 1
}

/// Returns, for each sum, the number of ways to choose `size` ranks with that sum.
fn sums_of_choices(ranks: &[usize], size: usize) -> Vec<f64> {
    let largest: usize = ranks.iter().sum();
    let mut counts = vec![vec![0.0; largest + 1]; size + 1];
    counts[0][0] = 1.0;
    let mut reached = 0;
    for &rank in ranks {
        reached += rank;
        for chosen in (1..=size).rev() {
            for sum in rank..=reached {
                let ways = counts[chosen - 1][sum - rank];
                counts[chosen][sum] += ways;
            }
        }
    }
    counts.swap_remove(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns samples without ties. The first has this U.
    fn with_u(before: usize, after: usize, u: usize) -> (Vec<f64>, Vec<f64>) {
        let mut left = u;
        let mut places: Vec<usize> = (0..before).collect();
        for place in places.iter_mut().rev() {
            let shift = left.min(after);
            *place += shift;
            left -= shift;
        }
        let others = (0..before + after).filter(|place| !places.contains(place));
        (places.iter().map(|&place| place as f64).collect(), others.map(|place| place as f64).collect())
    }

    /// Calculates p by the definition: all choices, one by one.
    fn enumerated(before: &[f64], after: &[f64]) -> f64 {
        let all: Vec<f64> = before.iter().chain(after).copied().collect();
        let sum_of = |choice: u32| -> usize {
            let chosen = (0..all.len()).filter(|index| choice & 1 << index != 0);
            chosen.map(|index| doubled_rank(all[index], &all)).sum()
        };
        let observed = sum_of((1 << before.len()) - 1);
        let sums: Vec<usize> = (0..1_u32 << all.len())
            .filter(|choice| choice.count_ones() as usize == before.len())
            .map(sum_of)
            .collect();
        let share = |is: &dyn Fn(usize) -> bool| {
            sums.iter().filter(|&&sum| is(sum)).count() as f64 / sums.len() as f64
        };
        (2.0 * share(&|sum| sum <= observed).min(share(&|sum| sum >= observed))).min(1.0)
    }

    #[test]
    fn critical_values_are_those_of_published_tables() {
        // Two-sided, 0.05: the largest significant U.
        for (before, after, critical) in [
            (4, 4, 0),
            (3, 5, 0),
            (5, 5, 2),
            (5, 8, 6),
            (6, 6, 5),
            (7, 7, 8),
            (8, 8, 13),
            (10, 10, 23),
            (20, 20, 127),
        ] {
            let p = |u| {
                let (one, other) = with_u(before, after, u);
                assert_eq!(mann_whitney(&one, &other), mann_whitney(&other, &one));
                mann_whitney(&one, &other).unwrap()
            };
            assert_eq!(critical_u(before, after, LEVEL), Some(critical));
            assert!(p(critical) <= LEVEL, "{before}, {after}: {}", p(critical));
            assert!(p(critical + 1) > LEVEL, "{before}, {after}: {}", p(critical + 1));
        }
    }

    #[test]
    fn probabilities_are_exact_with_and_without_ties() {
        let (one, other) = with_u(5, 5, 2);
        assert!((mann_whitney(&one, &other).unwrap() - 8.0 / 252.0).abs() < 1e-12);
        for (before, after) in [
            (&[1.0, 2.0, 2.0, 3.0][..], &[2.0, 3.0, 3.0, 4.0][..]),
            (&[1.0, 1.0, 1.0, 2.0], &[2.0, 2.0, 2.0, 2.0, 2.0]),
            (&[5.0, 1.0, 4.0], &[2.0, 6.0, 3.0, 7.0, 8.0, 9.0]),
            (&[1.0; 4], &[1.0; 4]),
        ] {
            let p = mann_whitney(before, after).unwrap();
            assert!((p - enumerated(before, after)).abs() < 1e-12, "{before:?} {after:?}: {p}");
        }
        assert_eq!(mann_whitney(&[1.0; 4], &[1.0; 4]), Some(1.0));
        assert_eq!(mann_whitney(&[], &[1.0]), None);
    }

    #[test]
    fn the_least_p_is_that_of_samples_that_do_not_overlap() {
        for (before, after, least) in [(1, 1, 1.0), (3, 3, 0.1), (4, 4, 2.0 / 70.0), (2, 8, 2.0 / 45.0)] {
            let (one, other) = with_u(before, after, 0);
            assert!((least_p(before, after) - least).abs() < 1e-12);
            assert_eq!(critical_u(before, after, least * 0.99), None);
            assert_eq!(critical_u(before, after, least * 1.01), Some(0));
            assert!((mann_whitney(&one, &other).unwrap() - least).abs() < 1e-12);
        }
    }
}
