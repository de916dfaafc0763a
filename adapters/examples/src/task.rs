//! A model and its data.

use anyhow::Result;
use candle_core::Tensor;
use candle_nn::VarMap;

/// Correct answers among all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Number of correct answers.
    pub correct: f64,
    /// Number of questions.
    pub of: f64,
}

/// A model and its data.
pub trait Task {
    /// The model's parameters.
    fn variables(&self) -> &VarMap;

    /// Number of steps.
    fn steps(&self) -> u64;

    /// Steps between two lines of output.
    fn report_every(&self) -> u64;

    /// The samples of a step, equal on all ranks, and the same whenever it is called.
    fn batch(&self, step: u64) -> Vec<usize>;

    /// The mean loss of some samples.
    ///
    /// # Errors
    /// Errors of candle.
    fn loss(&self, samples: &[usize]) -> Result<Tensor>;

    /// Returns the score on this rank's part of the questions for tests.
    ///
    /// # Errors
    /// Errors of candle.
    fn evaluate(&self, rank: usize, size: usize) -> Result<Score>;
}

/// Returns a rank's part of `len` elements.
pub(crate) fn part(len: usize, rank: usize, size: usize) -> std::ops::Range<usize> {
    len * rank / size..len * (rank + 1) / size
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_cover_everything_once() {
        for (len, size) in [(64, 1), (64, 3), (5, 4), (3, 5)] {
            let parts: Vec<usize> = (0..size).flat_map(|rank| part(len, rank, size)).collect();
            assert_eq!(parts, (0..len).collect::<Vec<_>>(), "{len} in {size}");
            assert!((0..size).all(|rank| part(len, rank, size).len().abs_diff(len / size) <= 1));
        }
    }
}
