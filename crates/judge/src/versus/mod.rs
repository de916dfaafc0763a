//! Comparison of two sides, A and B, by starts of fresh processes.
//!
//! A process can be fast or slow for as long as it lives, so a start is one sample, and iterations within it
//! are none. For each row the starts of both sides are compared by the exact Mann-Whitney U test. Holm's
//! correction covers all rows of a table and the overall geometric mean: equal sides have no difference in
//! the whole table with a probability of at least 1 - [`LEVEL`].

mod correction;
mod difference;
mod estimate;
mod speeds;
mod table;

use serde::Serialize;

pub use correction::{LEVEL, are_rows_testable, needed_starts};
pub use difference::{Criteria, Difference, Doubt, Outcome, SideTimes};
pub use estimate::{INTERVAL_PERCENT, RatioEstimate};
pub use speeds::{SharedSpeeds, Speed, TwoSpeeds};
pub use table::{
    ComparedRow, LeftOut, LeftOutRow, SideComparison, Start, StartsRow, compare_sides, summarize_starts,
};

/// Least number of starts of each side: with fewer, no difference can be significant at [`LEVEL`].
pub const MIN_STARTS: usize = 5;

/// Largest number of starts of each side: the exact test takes long for more.
pub const MAX_STARTS: usize = 32;

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The reference.
    A,
    /// The side that is faster or slower than A.
    B,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Letter of the side.
    pub const fn letter(self) -> char {
        match self {
            Self::A => 'A',
            Self::B => 'B',
        }
    }

    /// Returns the sides of `count` starts of each, in the order A B B A A B B A. A steady change of the
    /// machine then affects both sides alike.
    pub fn order_starts(count: usize) -> Vec<Self> {
        (0..count)
            .flat_map(|pair| if pair % 2 == 0 { [Self::A, Self::B] } else { [Self::B, Self::A] })
            .collect()
    }
}

#[cfg(test)]
mod tests;
