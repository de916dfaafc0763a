//! The part of a result file that a comparison keeps: for each row, its values and its count of wrong
//! elements.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::Metric;
use super::circumstances::count_ranks;
use super::joined::join_runs;
use super::key::Key;
use crate::collective::UNKNOWN_COLLECTIVE;
use crate::files::{ReadError, ReadProblem, read_each};
use crate::run::{Provenance, Run, RunOutcome};
use crate::sides::{self, SelectedSide};
use crate::statistics::find_median;

/// A result file, or one side of a file that was measured with `--vs`.
#[derive(Debug)]
pub struct RunRows {
    /// The file.
    pub path: PathBuf,
    /// The run without its measurements, which are in `rows`.
    pub run: Run,
    /// The rows of the file.
    pub rows: Rows,
    /// For several runs of one side, the files and what is incomplete in them; otherwise absent.
    pub repeated: Option<Repeated>,
}

impl RunRows {
    /// Numbers of ranks of the groups of each run, where they are known; usually all ranks are one group.
    pub fn count_ranks(&self) -> BTreeSet<Vec<usize>> {
        let runs = self.repeated.as_ref().map_or(std::slice::from_ref(&self.run), |repeated| &repeated.runs);
        runs.iter().map(count_ranks).filter(|counts| !counts.is_empty()).collect()
    }
}

/// Runs that were merged into the rows of one side.
#[derive(Debug)]
pub struct Repeated {
    /// The runs without their measurements.
    pub runs: Vec<Run>,
    /// Reasons why runs are incomplete.
    pub incomplete: Vec<String>,
}

/// The rows of a file, in the order in which they were first measured.
#[derive(Debug, Default)]
pub struct Rows {
    /// Number of measurements, over all cycles.
    pub measurements: usize,
    /// Number of measurements whose data could be verified, and was not.
    pub unverified: usize,
    /// Number of measurements with wrong data that the file has left out.
    wrong_left_out: usize,
    rows: Vec<Values>,
    places: HashMap<Key, usize>,
}

#[derive(Debug)]
struct Values {
    key: Key,
    /// One value per cycle; those that are not finite and above 0 are left out.
    values: Vec<f64>,
    wrong: u64,
    is_unstable: bool,
}

impl Rows {
    /// Adds a measurement. `value` is compared; `wrong` is the number of wrong elements, `None` when not
    /// verified; `is_unstable` if it was marked NOT STABLE.
    fn add_measurement(&mut self, key: Key, value: f64, wrong: Option<u64>, is_unstable: bool) {
        self.measurements += 1;
        self.unverified += usize::from(wrong.is_none() && key.is_verifiable());
        let place = *self.places.entry(key).or_insert_with_key(|key| {
            self.rows.push(Values { key: key.clone(), values: Vec::new(), wrong: 0, is_unstable: false });
            self.rows.len() - 1
        });
        let row = &mut self.rows[place];
        row.values.extend((value.is_finite() && value > 0.0).then_some(value));
        row.wrong = row.wrong.saturating_add(wrong.unwrap_or(0));
        row.is_unstable |= is_unstable;
    }

    /// Keys of all rows, in the order in which they were first measured.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.rows.iter().map(|row| &row.key)
    }

    /// True when the file has this row.
    pub fn has_row(&self, key: &Key) -> bool {
        self.places.contains_key(key)
    }

    /// True when a measurement of this row was marked NOT STABLE (`--until-stable`).
    pub fn is_unstable(&self, key: &Key) -> bool {
        self.places.get(key).is_some_and(|&place| self.rows[place].is_unstable)
    }

    /// The median over the cycles; `None` when no cycle has a value above 0.
    pub fn median(&self, key: &Key) -> Option<f64> {
        let row = &self.rows[*self.places.get(key)?];
        find_median(&row.values)
    }

    /// The values of a row: one per cycle, or one per run of a side.
    pub fn values(&self, key: &Key) -> &[f64] {
        self.places.get(key).map_or(&[], |&place| &self.rows[place].values)
    }

    /// True when both have the same rows with the same values.
    pub(super) fn has_equal_values(&self, other: &Self) -> bool {
        let is_equal = |(one, other): (&Values, &Values)| one.key == other.key && one.values == other.values;
        self.rows.len() == other.rows.len() && self.rows.iter().zip(&other.rows).all(is_equal)
    }

    /// Adds the rows of a further run, of which the medians become one value each.
    pub(super) fn merge_run(&mut self, other: &Self) {
        for row in &other.rows {
            let value = find_median(&row.values).unwrap_or(f64::NAN);
            self.add_measurement(row.key.clone(), value, Some(row.wrong), row.is_unstable);
        }
        self.wrong_left_out += other.wrong_left_out;
        // Measurements, not rows, are counted.
        self.measurements += other.measurements - other.rows.len();
        self.unverified += other.unverified;
    }

    /// Describes the rows with wrong data: `allreduce float sum, 8 bytes in-place: 3 wrong elements`.
    pub fn describe_wrong(&self) -> Vec<String> {
        let wrong = self.rows.iter().filter(|row| row.wrong > 0);
        let left_out = (self.wrong_left_out > 0)
            .then(|| format!("{} measurement(s) missing in the file: wrong elements", self.wrong_left_out));
        wrong
            .map(|row| format!("{}: {} wrong elements", row.key.row_name(), row.wrong))
            .chain(left_out)
            .collect()
    }
}

/// Reads the values of `metric` from a file. Returns a source for each side that `side` selects; none when
/// the file has no such side.
pub fn read_rows(
    path: &Path,
    side: SelectedSide,
    metric: Metric,
    partial: bool,
) -> Result<Vec<RunRows>, ReadError> {
    let value = |time_us, busbw_gbps| match metric {
        Metric::Time => time_us,
        Metric::Busbw => busbw_gbps,
    };
    let (mut own, mut other) = (Rows::default(), Rows::default());
    let run = read_each(path, partial, &join_runs, &mut |each| {
        let key = Key::from_row(&each);
        let mut wrong = each.wrong;
        let is_unstable = each.stable == Some(false);
        if let Some(versus) = &each.versus {
            other.add_measurement(
                key.clone(),
                value(versus.time_us, versus.busbw_gbps),
                versus.wrong,
                is_unstable,
            );
            if side == SelectedSide::Own {
                // Wrong data of the baseline counts as well.
                wrong = wrong
                    .map(|wrong| wrong.saturating_add(versus.wrong.unwrap_or(0)))
                    .or(versus.wrong.filter(|&wrong| wrong > 0));
            }
        }
        own.add_measurement(key, value(each.time_us, each.busbw_gbps), wrong, is_unstable);
    })?;
    if own.keys().any(|key| key.table.collective == UNKNOWN_COLLECTIVE) {
        return Err(ReadError { path: path.to_owned(), problem: ReadProblem::UnknownCollective });
    }
    // On whichever side.
    let wrong_left_out = run.left_out.map_or(0, |left_out| left_out.wrong_measurements);
    (own.wrong_left_out, other.wrong_left_out) = (wrong_left_out, wrong_left_out);
    Ok(side_sources(path, run, side, own, other))
}

fn side_sources(path: &Path, run: Run, wanted: SelectedSide, own: Rows, other: Rows) -> Vec<RunRows> {
    let whole = |path: PathBuf, run: Run, rows: Rows| RunRows { path, run, rows, repeated: None };
    let theirs = sides::other_provenance(&run.provenance).filter(|_| other.measurements > 0);
    match (wanted, theirs) {
        (SelectedSide::Own, _) | (SelectedSide::Both, None) => vec![whole(path.to_owned(), run, own)],
        (SelectedSide::Other, None) => Vec::new(),
        (_, Some(theirs)) => {
            let side = |provenance: Provenance, rows| {
                let path = PathBuf::from(format!("{} ({})", path.display(), provenance.backend));
                whole(path, Run { provenance, ..run.clone() }, rows)
            };
            let ours = Provenance { versus: None, ..run.provenance.clone() };
            let sides = [(ours, own, SelectedSide::Both), (theirs, other, wanted)];
            let meant = sides.into_iter().filter(|(.., meant)| *meant == wanted);
            meant.map(|(provenance, rows, _)| side(provenance, rows)).collect()
        }
    }
}

/// The reason why the run of this name is incomplete; `None` when it is complete.
pub(super) fn describe_unfinished(name: &str, outcome: &RunOutcome) -> Option<String> {
    match outcome {
        RunOutcome::Complete => None,
        RunOutcome::Running => Some(format!("{name} has not ended, or was killed")),
        RunOutcome::Interrupted { signal } => Some(format!("{name} was interrupted by {signal}")),
        RunOutcome::Failed { message } => Some(format!("the run of {name} failed: {message}")),
    }
}
