//! The part of a result file that a comparison keeps: for each row, its values and its count of wrong
//! elements.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Metric;
use crate::collective::Collective;
use crate::files::{NCCL_TESTS, ReadError, read_each};
use crate::run::{Measurement, Placement, Provenance, Run, RunOutcome};
use crate::sides::{self, SelectedSide};
use crate::statistics::find_median;

/// The identity of a row: measurements with equal keys are compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Key {
    /// The table that the row belongs to.
    #[serde(flatten)]
    pub table: TableKey,
    /// Placement of the input.
    pub placement: Placement,
    /// Size in bytes.
    pub bytes: u64,
}

/// The identity of a table: rows that differ in placement and size only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TableKey {
    /// Name of the collective.
    pub collective: String,
    /// Name of the element type.
    pub data_type: String,
    /// Operator, where the collective reduces.
    pub op: Option<String>,
    /// Root rank, where the collective has one.
    pub root: Option<usize>,
    /// The group, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// The ranks of a pair, where pairs were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<[usize; 2]>,
}

impl TableKey {
    /// The key of a measurement.
    pub fn from_measurement(measurement: &Measurement) -> Self {
        Self {
            collective: measurement.collective.clone(),
            data_type: measurement.data_type.clone(),
            // nccl-tests names an operator of sendrecv, too.
            op: measurement
                .op
                .clone()
                .filter(|_| measurement.collective.parse().map_or(true, Collective::is_reduction)),
            root: measurement.root,
            group: measurement.group,
            pair: measurement.pair,
        }
    }

    /// The key in words: `broadcast float root 1`.
    pub fn table_name(&self) -> String {
        let op = self.op.as_ref().map(|op| format!(" {op}")).unwrap_or_default();
        let root = self.root.map(|root| format!(" root {root}")).unwrap_or_default();
        let group = self.group.map(|group| format!(" group {group}")).unwrap_or_default();
        let pair = self.pair.map(|[one, other]| format!(" ranks {one} and {other}")).unwrap_or_default();
        format!("{} {}{op}{root}{group}{pair}", self.collective, self.data_type)
    }
}

impl Key {
    fn from_row(measurement: &Measurement) -> Self {
        Self {
            table: TableKey::from_measurement(measurement),
            placement: measurement.placement,
            bytes: measurement.bytes,
        }
    }

    /// False for rows that no run verifies: without an element, and in place where the collective has no such
    /// form.
    fn is_verifiable(&self) -> bool {
        let has_in_place = || self.table.collective.parse().map_or(true, Collective::has_in_place);
        self.bytes > 0 && (self.placement == Placement::OutOfPlace || has_in_place())
    }

    /// The key in words: `allreduce float sum, 8 bytes in-place`.
    pub fn row_name(&self) -> String {
        format!("{}, {} bytes {}", self.table.table_name(), self.bytes, self.placement.placement_name())
    }
}

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
    pub(super) fn count_ranks(&self) -> BTreeSet<Vec<usize>> {
        let runs = self.repeated.as_ref().map_or(std::slice::from_ref(&self.run), |repeated| &repeated.runs);
        runs.iter().map(count_ranks).filter(|counts| !counts.is_empty()).collect()
    }
}

/// Number of ranks of each group of a run, in the order of their numbers. Files of nccl-tests name one device
/// of each process, and files of this program in its format all.
fn count_ranks(run: &Run) -> Vec<usize> {
    let processes: BTreeSet<_> = run.ranks.iter().map(|rank| (&rank.host, rank.pid)).collect();
    let names_one = run.program == NCCL_TESTS && processes.len() == run.ranks.len();
    let of_device = if names_one { run.settings.threads * run.settings.gpus } else { 1 };
    let mut groups = BTreeMap::new();
    for rank in &run.ranks {
        *groups.entry(rank.group).or_insert(0) += of_device;
    }
    groups.into_values().filter(|&count| count > 0).collect()
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
    let run = read_each(path, partial, &mut |each| {
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

/// Keys by their table: `allreduce float sum (62 rows)`.
pub(super) fn list_keys<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<String> {
    let mut tables: Vec<(&TableKey, usize)> = Vec::new();
    for key in keys {
        match tables.iter_mut().find(|(table, _)| **table == key.table) {
            Some((_, count)) => *count += 1,
            None => tables.push((&key.table, 1)),
        }
    }
    let rows = |count| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
    tables.iter().map(|&(table, count)| format!("{} ({})", table.table_name(), rows(count))).collect()
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
