//! Which measurements belong together, their ratios, and what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::{Error, Metric, Threshold};
use crate::record::{Measurement, Outcome, Placement, Run};
use crate::statistics::Statistics;

/// Rounding must not make a difference of exactly the threshold one beyond it.
const ROUNDING: f64 = 1e-9;

/// Settings that change which rows there are, or what is reported beside them, and not what a row's value means.
const HARMLESS: [&str; 8] = [
    "min_bytes",
    "step_factor",
    "step_bytes",
    "cycles",
    "checks",
    "cpu_time",
    "time_stamps",
    "per_iteration_skip",
];

/// Several runs, each against the first.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) metric: Metric,
    /// The share by which a row may be slower.
    pub(super) threshold: f64,
    pub(super) files: Vec<File>,
    /// What is not the same in all files, and may be why their values differ.
    pub(super) differences: Vec<Difference>,
    /// What the first file and at least one other have.
    pub(super) rows: Vec<Row>,
    pub(super) means: Vec<Mean>,
    /// One for each file but the first.
    pub(super) verdicts: Vec<FileVerdict>,
}

#[derive(Debug, Serialize)]
pub(super) struct File {
    /// `A`, `B`, ...
    pub(super) letter: String,
    pub(super) path: PathBuf,
    pub(super) program: String,
    pub(super) started_at: String,
    pub(super) library: String,
    pub(super) devices: String,
    pub(super) outcome: Outcome,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Difference {
    pub(super) what: String,
    /// One for each file; absent where it is not set or not known.
    pub(super) values: Vec<Option<String>>,
}

/// What makes two measurements the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Key {
    #[serde(flatten)]
    pub(super) table: TableKey,
    pub(super) placement: Placement,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct TableKey {
    pub(super) collective: String,
    pub(super) data_type: String,
    pub(super) op: Option<String>,
    pub(super) root: Option<usize>,
}

impl TableKey {
    fn of(measurement: &Measurement) -> Self {
        Self {
            collective: measurement.collective.clone(),
            data_type: measurement.data_type.clone(),
            op: measurement.op.clone(),
            root: measurement.root,
        }
    }

    /// `broadcast float root 1`
    pub(super) fn name(&self) -> String {
        let op = self.op.as_ref().map(|op| format!(" {op}")).unwrap_or_default();
        let root = self.root.map(|root| format!(" root {root}")).unwrap_or_default();
        format!("{} {}{op}{root}", self.collective, self.data_type)
    }
}

impl Key {
    fn of(measurement: &Measurement) -> Self {
        Self { table: TableKey::of(measurement), placement: measurement.placement, bytes: measurement.bytes }
    }

    /// `allreduce float sum, 8 bytes in-place`
    pub(super) fn name(&self) -> String {
        format!("{}, {} bytes {}", self.table.name(), self.bytes, placement(self.placement))
    }
}

/// As people write it.
pub(super) const fn placement(placement: Placement) -> &'static str {
    match placement {
        Placement::OutOfPlace => "out-of-place",
        Placement::InPlace => "in-place",
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) key: Key,
    /// Of each file the median over the cycles; absent where it was not measured, or is no number above 0.
    pub(super) values: Vec<Option<f64>>,
    /// Of each file but the first: its value over that of the first.
    pub(super) ratios: Vec<Option<f64>>,
}

/// Of each file but the first the geometric mean of its ratios.
#[derive(Debug, Serialize)]
pub(super) struct Mean {
    /// Over which rows; absent: over all.
    pub(super) collective: Option<String>,
    pub(super) ratios: Vec<Option<f64>>,
    /// How many rows have a ratio.
    pub(super) rows: Vec<usize>,
}

/// Whether a file stands up to the first.
#[derive(Debug, Serialize)]
pub(super) struct FileVerdict {
    pub(super) file: usize,
    pub(super) pass: bool,
    /// Rows with a ratio.
    pub(super) compared: usize,
    /// Rows beyond the threshold, by their place in `rows`; the worst first.
    pub(super) slower: Vec<usize>,
    /// Rows that are faster by more than the threshold.
    pub(super) faster: usize,
    /// Measurements with wrong data.
    pub(super) wrong: Vec<String>,
    /// Why the run failed, if it did.
    pub(super) failed: Option<String>,
    /// What is in the first file only.
    pub(super) missing: Vec<String>,
    /// What is in this file only.
    pub(super) extra: Vec<String>,
    /// What else a reader must know.
    pub(super) notes: Vec<String>,
}

impl Comparison {
    /// Each run against the first.
    pub(super) fn of(runs: &[(PathBuf, Run)], metric: Metric, threshold: Threshold) -> Result<Self, Error> {
        let [(first, first_run), others @ ..] = runs else { return Err(Error::TooFew) };
        if others.is_empty() {
            return Err(Error::TooFew);
        }
        let values: Vec<Values> = runs.iter().map(|(_, run)| Values::of(run, metric)).collect();
        for ((other, other_run), found) in others.iter().zip(&values[1..]) {
            let common: Vec<&Key> = values[0].order.iter().filter(|key| found.has(key)).collect();
            if common.is_empty() {
                return Err(Error::NothingInCommon {
                    first: first.clone(),
                    other: other.clone(),
                    in_first: contents(first_run),
                    in_other: contents(other_run),
                });
            }
            if !common.iter().any(|key| values[0].get(key).and(found.get(key)).is_some()) {
                return Err(Error::NoValues { first: first.clone(), other: other.clone(), metric });
            }
        }
        let rows: Vec<Row> = values[0]
            .order
            .iter()
            .filter(|key| values[1..].iter().any(|values| values.has(key)))
            .map(|key| Row::of(key, &values))
            .collect();
        let verdicts = (1..runs.len())
            .map(|file| FileVerdict::of(file, runs, &values, &rows, metric, threshold))
            .collect();
        Ok(Self {
            metric,
            threshold: threshold.0,
            files: runs.iter().enumerate().map(|(index, (path, run))| File::of(index, path, run)).collect(),
            differences: differences(runs.iter().map(|(_, run)| run)),
            means: means(&rows, others.len()),
            rows,
            verdicts,
        })
    }
}

/// A run's values by what was measured.
struct Values {
    /// The keys in the order in which they were measured first.
    order: Vec<Key>,
    /// The median over cycles; absent where no value is a number above 0.
    medians: BTreeMap<Key, Option<f64>>,
}

impl Values {
    fn of(run: &Run, metric: Metric) -> Self {
        let mut order = Vec::new();
        let mut all: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
        for measurement in &run.measurements {
            let key = Key::of(measurement);
            let value = match metric {
                Metric::Time => measurement.time_us,
                Metric::Busbw => measurement.busbw_gbps,
            };
            let values = all.entry(key.clone()).or_insert_with(|| {
                order.push(key);
                Vec::new()
            });
            values.extend((value.is_finite() && value > 0.0).then_some(value));
        }
        let median = |values: Vec<f64>| Statistics::of(&values).map(|statistics| statistics.median_us);
        Self { order, medians: all.into_iter().map(|(key, values)| (key, median(values))).collect() }
    }

    fn has(&self, key: &Key) -> bool {
        self.medians.contains_key(key)
    }

    fn get(&self, key: &Key) -> Option<f64> {
        self.medians.get(key).copied().flatten()
    }
}

impl Row {
    fn of(key: &Key, values: &[Values]) -> Self {
        let values: Vec<Option<f64>> = values.iter().map(|values| values.get(key)).collect();
        let ratios = values[1..].iter().map(|value| Some((*value)? / values[0]?)).collect();
        Self { key: key.clone(), values, ratios }
    }
}

impl File {
    fn of(index: usize, path: &std::path::Path, run: &Run) -> Self {
        Self {
            letter: letter(index),
            path: path.to_owned(),
            program: run.program.clone(),
            started_at: run.started_at.clone(),
            library: format!("{} {}", run.provenance.backend, run.provenance.library_version),
            devices: devices(run),
            outcome: run.outcome.clone(),
        }
    }
}

/// `A` to `Z`, then `A1` and so on.
pub(super) fn letter(index: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(index % 26).unwrap_or_default());
    if index < 26 { letter.to_string() } else { format!("{letter}{}", index / 26) }
}

/// `8 x NVIDIA H200`
fn devices(run: &Run) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for rank in &run.ranks {
        *counts.entry(&rank.device_name).or_default() += 1;
    }
    counts.iter().map(|(name, count)| format!("{count} x {name}")).collect::<Vec<_>>().join(", ")
}

/// Which tables a run has: `allreduce float sum (62 rows)`.
fn contents(run: &Run) -> String {
    listed(run.measurements.iter().map(Key::of).collect::<BTreeSet<_>>().iter()).join(", ")
}

/// Keys by their table: `allreduce float sum (62 rows)`.
fn listed<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<String> {
    let mut tables: Vec<(&TableKey, usize)> = Vec::new();
    for key in keys {
        match tables.iter_mut().find(|(table, _)| **table == key.table) {
            Some((_, count)) => *count += 1,
            None => tables.push((&key.table, 1)),
        }
    }
    let rows = |count| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
    tables.iter().map(|&(table, count)| format!("{} ({})", table.name(), rows(count))).collect()
}

impl FileVerdict {
    fn of(
        file: usize,
        runs: &[(PathBuf, Run)],
        values: &[Values],
        rows: &[Row],
        metric: Metric,
        threshold: Threshold,
    ) -> Self {
        let (first, run) = (&runs[0].1, &runs[file].1);
        let slowdown = |row: &Row| row.ratios[file - 1].map(|ratio| metric.slowdown(ratio));
        let slowdowns: Vec<(usize, f64)> =
            rows.iter().enumerate().filter_map(|(index, row)| Some((index, slowdown(row)?))).collect();
        let limit = 1.0 + threshold.0 + ROUNDING;
        let mut slower: Vec<(usize, f64)> =
            slowdowns.iter().copied().filter(|&(_, slowdown)| slowdown > limit).collect();
        slower.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let wrong = wrong(run);
        let failed = match &run.outcome {
            Outcome::Failed { message } => Some(message.clone()),
            _ => None,
        };
        let only = |one: &Values, other: &Values| listed(one.order.iter().filter(|key| !other.has(key)));
        Self {
            file,
            pass: slower.is_empty() && wrong.is_empty() && failed.is_none(),
            compared: slowdowns.len(),
            slower: slower.into_iter().map(|(index, _)| index).collect(),
            faster: slowdowns.iter().filter(|&&(_, slowdown)| slowdown.recip() > limit).count(),
            wrong,
            failed,
            missing: only(&values[0], &values[file]),
            extra: only(&values[file], &values[0]),
            notes: notes(first, run, &values[file], rows, file),
        }
    }
}

/// Measurements with wrong data: `allreduce float sum, 8 bytes in-place: 3 wrong elements`.
fn wrong(run: &Run) -> Vec<String> {
    let wrong =
        run.measurements.iter().filter_map(|each| Some((each, each.wrong.filter(|&wrong| wrong > 0)?)));
    wrong.map(|(each, wrong)| format!("{}: {wrong} wrong elements", Key::of(each).name())).collect()
}

fn notes(first: &Run, run: &Run, values: &Values, rows: &[Row], file: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let (a, letter) = (letter(0), letter(file));
    for (run, letter) in [(first, &a), (run, &letter)] {
        notes.extend(match &run.outcome {
            Outcome::Complete => None,
            Outcome::Running => Some(format!("{letter} has not ended, or was killed")),
            Outcome::Interrupted { signal } => Some(format!("{letter} was interrupted by {signal}")),
            Outcome::Failed { message } => Some(format!("{letter} failed: {message}")),
        });
    }
    let in_first = wrong(first).len();
    if in_first > 0 {
        notes.push(format!("{a} has wrong data, too, in {in_first} measurements"));
    }
    let unverified = |run: &Run| run.measurements.iter().filter(|each| each.wrong.is_none()).count();
    if unverified(run) > 0 && unverified(first) == 0 {
        notes.push(format!("{letter} did not verify the data of {} measurements; {a} did", unverified(run)));
    }
    let measured = |row: &&Row| values.has(&row.key);
    let without = rows.iter().filter(measured).filter(|row| row.ratios[file - 1].is_none()).count();
    if without > 0 {
        notes.push(format!("of rows that both have, {without} are left out: a value is no number above 0"));
    }
    notes
}

fn means(rows: &[Row], others: usize) -> Vec<Mean> {
    let mut collectives: Vec<&str> = Vec::new();
    for row in rows {
        if !collectives.contains(&row.key.table.collective.as_str()) {
            collectives.push(&row.key.table.collective);
        }
    }
    let mean = |collective: Option<&str>| {
        let chosen = |row: &&Row| collective.is_none_or(|name| row.key.table.collective == name);
        let logarithms = |file: usize| -> Vec<f64> {
            rows.iter().filter(chosen).filter_map(|row| row.ratios[file].map(f64::ln)).collect()
        };
        let all: Vec<Vec<f64>> = (0..others).map(logarithms).collect();
        let geometric =
            |logarithms: &Vec<f64>| (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
        Mean {
            collective: collective.map(str::to_owned),
            ratios: all.iter().map(|found| (!found.is_empty()).then(|| geometric(found))).collect(),
            rows: all.iter().map(Vec::len).collect(),
        }
    };
    collectives.iter().map(|&name| Some(name)).chain([None]).map(mean).collect()
}

/// What is not the same in all runs.
fn differences<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<Difference> {
    let all: Vec<BTreeMap<String, String>> = runs.map(circumstances).collect();
    let names: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    names
        .into_iter()
        .map(|name| Difference {
            what: name.clone(),
            values: all.iter().map(|each| each.get(name).cloned()).collect(),
        })
        .filter(|difference| difference.values.iter().any(|value| *value != difference.values[0]))
        .collect()
}

/// What may be why a run's values are what they are, by the names of the native format and of the variables.
fn circumstances(run: &Run) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for (part, left_out) in [
        (serde_json::to_value(&run.settings), &HARMLESS[..]),
        (serde_json::to_value(&run.provenance), &["environment", "library_path"]),
    ] {
        if let Ok(Value::Object(fields)) = part {
            let fields = fields.iter().filter(|(name, _)| !left_out.contains(&name.as_str()));
            found.extend(fields.map(|(name, value)| (name.clone(), text(value))));
        }
    }
    found.extend(run.provenance.environment.clone());
    let hosts: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.host.as_str()).collect();
    found.insert("hosts".to_owned(), hosts.len().to_string());
    found.insert("ranks".to_owned(), devices(run));
    found.insert("program".to_owned(), run.program.clone());
    // What another program did not say is no difference.
    found.retain(|_, value| !value.is_empty());
    found
}
