//! Holm's correction for several tests, and the number of starts that it requires.
//!
//! S. Holm: A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6
//! (1979), 65-70.

use record::rank_test::least_p;

use super::{MAX_STARTS, MIN_STARTS};

/// Probability that equal sides have a difference anywhere in the table is at most this.
pub const LEVEL: f64 = 0.01;

/// Returns the corrected probabilities, in the order of `probabilities`: those up to a level are significant
/// at this level for the whole family.
pub(super) fn correct_probabilities(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&one, &other| probabilities[one].total_cmp(&probabilities[other]));
    let mut corrected = vec![1.0; probabilities.len()];
    let mut largest = 0.0_f64;
    for (place, &index) in order.iter().enumerate() {
        let factor = (probabilities.len() - place) as f64;
        largest = largest.max((factor * probabilities[index]).min(1.0));
        corrected[index] = largest;
    }
    corrected
}

/// Number of tests of a table: its rows and the overall mean, which for one row is the row.
const fn family_size(rows: usize) -> usize {
    if rows > 1 { rows + 1 } else { 1 }
}

/// Returns true when a difference of a single row can be significant, with these numbers of starts and rows.
/// Otherwise only the overall mean is tested.
pub fn are_rows_testable(starts: [usize; 2], rows: usize) -> bool {
    least_p(starts[0], starts[1]) * family_size(rows) as f64 <= LEVEL
}

/// Returns the least number of starts of each side with which a single row can have a significant difference;
/// `None` if it is above [`MAX_STARTS`].
pub fn needed_starts(rows: usize) -> Option<usize> {
    (MIN_STARTS..=MAX_STARTS).find(|&starts| are_rows_testable([starts, starts], rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrected_probabilities_follow_holm() {
        let corrected = correct_probabilities(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in corrected.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-12, "{corrected:?}");
        }
        assert_eq!(correct_probabilities(&[0.9, 0.8]), [1.0, 1.0]);
        assert_eq!(correct_probabilities(&[]), [0.0; 0]);
    }

    #[test]
    fn more_rows_need_more_starts() {
        let needed = [1, 2, 20, 36, 63, 64, 1000].map(|rows| needed_starts(rows).unwrap());
        assert_eq!(needed, [5, 6, 8, 8, 8, 9, 11]);
        assert!(!are_rows_testable([4, 4], 1));
        assert!(are_rows_testable([5, 5], 1) && !are_rows_testable([5, 5], 2));
        assert_eq!(needed_starts(usize::MAX - 1), None);
    }
}
