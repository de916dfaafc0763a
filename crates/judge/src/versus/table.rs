//! The comparison of all rows of two sides, and the summary of the starts of one.

use std::collections::{HashMap, HashSet};

use record::matching::Key;
use record::statistics::geometric_mean;
use serde::Serialize;

use super::Side;
use super::correction::{LEVEL, are_rows_testable, correct_probabilities, needed_starts};
use super::difference::{Criteria, Difference, SideTimes};
use super::estimate::{Estimator, INTERVAL_PERCENT};

/// The rows of one start.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Each row with its time in microseconds, `None` without a time above 0.
    pub times_us: Vec<(Key, Option<f64>)>,
}

/// The comparison of two sides.
#[derive(Clone, Debug, Serialize)]
pub struct SideComparison {
    /// Relative difference that counts.
    pub threshold: f64,
    /// Probability of a difference anywhere in the table of equal sides is at most this.
    pub level: f64,
    /// Confidence of each interval, in percent.
    pub interval_percent: u32,
    /// Number of starts of A and of B.
    pub starts: [usize; 2],
    /// True if a difference of a single row can be significant; otherwise only the overall mean is tested.
    pub rows_are_tested: bool,
    /// Number of starts of each side needed to test single rows; absent if the exact test allows fewer.
    pub needed_starts: Option<usize>,
    /// Geometric means over all rows of each start; absent without a common row.
    pub overall: Option<Difference>,
    /// Rows that all starts of both sides have.
    pub rows: Vec<ComparedRow>,
    /// Rows that are not compared.
    pub left_out: Vec<LeftOutRow>,
}

/// A row of both sides.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedRow {
    /// Identity of the row.
    #[serde(flatten)]
    pub key: Key,
    /// Its difference.
    #[serde(flatten)]
    pub difference: Difference,
}

/// A row that is not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOutRow {
    /// Identity of the row.
    #[serde(flatten)]
    pub key: Key,
    /// Reason.
    pub reason: LeftOut,
}

/// Reason why a row is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "side")]
pub enum LeftOut {
    /// No start of the other side has the row.
    OnlyIn(Side),
    /// Some starts have no time of the row.
    MissingInStarts,
    /// No start has a time above 0.
    NeverTimed,
}

/// The starts of one side in one row.
#[derive(Clone, Debug, Serialize)]
pub struct StartsRow {
    /// Identity of the row.
    #[serde(flatten)]
    pub key: Key,
    /// Number of starts without a time of this row.
    pub missing: usize,
    /// Times of the starts; absent if no start has a time above 0.
    pub times: Option<SideTimes>,
}

/// Compares the starts of A and B. Rows are in the order in which they were first measured.
pub fn compare_sides(a: &[Start], b: &[Start], criteria: &Criteria) -> SideComparison {
    let sides = [index_starts(a), index_starts(b)];
    let estimator = Estimator::new([a.len(), b.len()]);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    // A side without starts lacks no rows in particular.
    let has_both = !a.is_empty() && !b.is_empty();
    for key in list_keys(a.iter().chain(b).filter(|_| has_both)) {
        match compare_row(&key, &sides, estimator) {
            Ok(difference) => rows.push(ComparedRow { key, difference }),
            Err(reason) => left_out.push(LeftOutRow { key, reason }),
        }
    }
    let mut overall = compare_means(&rows, estimator);
    let starts = [a.len(), b.len()];
    let rows_are_tested = !rows.is_empty() && are_rows_testable(starts, rows.len());
    judge_rows(&mut rows, overall.as_mut(), rows_are_tested, criteria);
    SideComparison {
        threshold: criteria.threshold,
        level: LEVEL,
        interval_percent: INTERVAL_PERCENT,
        starts,
        rows_are_tested,
        needed_starts: needed_starts(rows.len()),
        overall,
        rows,
        left_out,
    }
}

/// Summarizes the starts of one side. Rows are in the order in which they were first measured.
pub fn summarize_starts(starts: &[Start]) -> Vec<StartsRow> {
    let indexed = index_starts(starts);
    let summarize = |key: Key| {
        let times: Vec<f64> = indexed.iter().filter_map(|start| start.get(&key).copied().flatten()).collect();
        StartsRow { missing: starts.len() - times.len(), times: SideTimes::from_times(times), key }
    };
    list_keys(starts.iter()).into_iter().map(summarize).collect()
}

type IndexedStart<'a> = HashMap<&'a Key, Option<f64>>;

fn index_starts(starts: &[Start]) -> Vec<IndexedStart<'_>> {
    let usable = |time: &Option<f64>| time.filter(|time| time.is_finite() && *time > 0.0);
    let times = starts.iter().map(|start| start.times_us.iter());
    times.map(|times| times.map(|(key, time)| (key, usable(time))).collect()).collect()
}

fn list_keys<'a>(starts: impl Iterator<Item = &'a Start>) -> Vec<Key> {
    let mut known = HashSet::new();
    let keys = starts.flat_map(|start| start.times_us.iter().map(|(key, _)| key));
    keys.filter(|&key| known.insert(key)).cloned().collect()
}

fn compare_row(
    key: &Key,
    sides: &[Vec<IndexedStart<'_>>; 2],
    estimator: Estimator,
) -> Result<Difference, LeftOut> {
    let holders = sides.each_ref().map(|side| side.iter().filter(|start| start.contains_key(key)).count());
    match holders {
        [_, 0] => return Err(LeftOut::OnlyIn(Side::A)),
        [0, _] => return Err(LeftOut::OnlyIn(Side::B)),
        _ => {}
    }
    let times = sides.each_ref().map(|side| -> Vec<f64> {
        side.iter().filter_map(|start| start.get(key).copied().flatten()).collect()
    });
    if times.iter().all(Vec::is_empty) {
        return Err(LeftOut::NeverTimed);
    }
    let is_whole = times.iter().zip(sides).all(|(times, side)| times.len() == side.len());
    let [a, b] = times;
    is_whole.then(|| Difference::from_times(a, b, estimator)).flatten().ok_or(LeftOut::MissingInStarts)
}

/// Compares the geometric means over the rows of each start.
fn compare_means(rows: &[ComparedRow], estimator: Estimator) -> Option<Difference> {
    let means = |side: fn(&Difference) -> &SideTimes| -> Option<Vec<f64>> {
        let starts = side(&rows.first()?.difference).times_us.len();
        let mean = |start: usize| {
            let times: Vec<f64> = rows.iter().map(|row| side(&row.difference).times_us[start]).collect();
            geometric_mean(&times)
        };
        (0..starts).map(mean).collect()
    };
    let (a, b) = (means(|difference| &difference.a)?, means(|difference| &difference.b)?);
    Difference::from_times(a, b, estimator)
}

/// Sets the results of all rows and of the overall mean, with one correction for all of them.
fn judge_rows(
    rows: &mut [ComparedRow],
    overall: Option<&mut Difference>,
    rows_are_tested: bool,
    criteria: &Criteria,
) {
    let Some(overall) = overall else { return };
    let mut probabilities = vec![overall.p];
    // The mean of a single row is this row.
    if rows_are_tested && rows.len() > 1 {
        probabilities.extend(rows.iter().map(|row| row.difference.p));
    }
    let corrected = correct_probabilities(&probabilities);
    overall.judge(corrected.first().copied(), criteria);
    let of_row = |index: usize| if rows.len() > 1 { corrected.get(index + 1) } else { corrected.first() };
    let of_rows: Vec<Option<f64>> =
        (0..rows.len()).map(|index| of_row(index).filter(|_| rows_are_tested).copied()).collect();
    for (row, corrected) in rows.iter_mut().zip(of_rows) {
        row.difference.judge(corrected, criteria);
    }
}
