//! The comparison of runs: matching rows, their ratios, and verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;

use super::circumstances::{devices_text, host_names, run_circumstances};
use super::key::{Key, list_keys};
use super::measured::{Rows, RunRows, describe_unfinished};
use super::repeated::Test;
use super::{MatchError, Metric, Threshold};
use crate::run::{Run, RunOutcome};
use crate::statistics::geometric_mean;

/// Tolerance that keeps rounding from making a difference of exactly the threshold exceed it.
const ROUNDING: f64 = 1e-9;

/// The values that are compared, and the conditions that a file must meet.
#[derive(Clone, Copy, Debug)]
pub struct Criteria {
    /// The value that is compared.
    pub metric: Metric,
    /// Relative difference by which a row may be slower.
    pub threshold: Threshold,
    /// An incomplete file is judged by the rows that it has (`--partial`).
    pub partial: bool,
    /// All rows of both files must have been verified (`--require-verified`).
    pub require_verified: bool,
}

/// Several runs, each compared with the first.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The value that is compared.
    pub metric: Metric,
    /// Relative difference by which a row may be slower.
    pub threshold: f64,
    /// True with `--partial`: a file may be incomplete, and the rows that both files have decide.
    pub partial: bool,
    /// True with `--require-verified`: rows that were not verified fail the comparison.
    pub require_verified: bool,
    /// The runs, in the order given; the first is the reference.
    pub files: Vec<ComparedFile>,
    /// Settings and circumstances that differ between files, and may explain different values.
    pub differences: Vec<Difference>,
    /// Rows of the first file that at least one other has.
    pub rows: Vec<ComparedRow>,
    /// Geometric means of the ratios, for each collective and for all rows.
    pub means: Vec<MeanRatio>,
    /// One for each file but the first.
    pub verdicts: Vec<FileVerdict>,
}

/// One run of a comparison: a file, or one side of it.
#[derive(Debug, Serialize)]
pub struct ComparedFile {
    /// `A`, `B`, ...
    pub letter: String,
    /// The file.
    pub path: PathBuf,
    /// Program and version that wrote it.
    pub program: String,
    /// Start of the run, in UTC.
    pub started_at: String,
    /// Backend and version of its library: `nccl 2.28.9`.
    pub library: String,
    /// Devices of the ranks: `8 x NVIDIA H200`.
    pub devices: String,
    /// Names of the machines.
    pub hosts: Vec<String>,
    /// Outcome of the run.
    pub outcome: RunOutcome,
    /// Number of runs, of which the medians are compared; 1 except with several runs on each side.
    pub runs: usize,
    /// Reasons why runs of several on this side are incomplete; absent for a single run.
    #[serde(skip)]
    incomplete_runs: Option<Vec<String>>,
    /// Measurements of all cycles.
    pub measurements: usize,
    /// Number of measurements whose data was not verified.
    pub unverified: usize,
    /// Rows with wrong data.
    pub wrong: Vec<String>,
}

/// A setting or circumstance in which runs differ.
#[derive(Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Name in the native format, or of the variable.
    pub what: String,
    /// The value for each file; absent when it is not set or not known.
    pub values: Vec<Option<String>>,
}

/// A row that the first file and at least one other have.
#[derive(Debug, Serialize)]
pub struct ComparedRow {
    /// The identity of the row.
    #[serde(flatten)]
    pub key: Key,
    /// The median over the cycles of each file; absent when it was not measured, or is not above 0.
    pub values: Vec<Option<f64>>,
    /// The ratio of each file's value to that of the first file, without the first.
    pub ratios: Vec<Option<f64>>,
    /// For two sides of several runs each, the test of the difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Test>,
    /// Indexes of the files of which the value is less precise than `--until-stable` asked (NOT STABLE).
    pub unstable: Vec<usize>,
}

/// Geometric means of the ratios of each file but the first.
#[derive(Debug, Serialize)]
pub struct MeanRatio {
    /// The collective of the rows; absent for all rows.
    pub collective: Option<String>,
    /// One geometric mean for each file but the first; absent without rows.
    pub ratios: Vec<Option<f64>>,
    /// Number of rows with a ratio.
    pub rows: Vec<usize>,
}

/// The verdict on a file, compared with the first.
#[derive(Debug, Serialize)]
pub struct FileVerdict {
    /// Index of the file.
    pub file: usize,
    /// True when the file passes.
    pub pass: bool,
    /// Rows with a ratio.
    pub compared: usize,
    /// Indexes in `rows` of rows beyond the threshold; the slowest first.
    pub slower: Vec<usize>,
    /// Rows that are faster by more than the threshold, and significantly where that was tested.
    pub faster: usize,
    /// Rows beyond the threshold, slower or faster, of which the runs do not differ significantly.
    pub insignificant: usize,
    /// Rows with too few runs for a significant difference. Any of them fails the comparison.
    pub untestable: usize,
    /// Tables and rows of the first file only.
    pub missing: Vec<String>,
    /// Tables and rows of this file only.
    pub extra: Vec<String>,
    /// Reasons why this file or the first is incomplete. Any of them fails the comparison, except with
    /// `--partial`.
    pub incomplete: Vec<String>,
    /// With `--require-verified`, the numbers of measurements of this file and the first that were not
    /// verified. Any of them fails the comparison.
    pub unverified: Vec<String>,
    /// Numbers of ranks of the first file's runs and of this one's; absent if all are equal. A difference
    /// fails the comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_counts: Option<[Vec<usize>; 2]>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Compares each file with the first.
    ///
    /// # Errors
    /// When there is one file only, or a file has nothing in common with the first.
    pub fn from_runs(sources: &[RunRows], criteria: Criteria) -> Result<Self, MatchError> {
        let Criteria { metric, threshold, partial, require_verified } = criteria;
        let [first, others @ ..] = sources else { return Err(MatchError::TooFew) };
        if others.is_empty() {
            return Err(MatchError::TooFew);
        }
        for other in others {
            in_common(first, other, metric)?;
        }
        let rows: Vec<ComparedRow> = first
            .rows
            .keys()
            .filter(|key| others.iter().any(|other| other.rows.has_row(key)))
            .map(|key| ComparedRow::from_key(key, sources))
            .collect();
        let files: Vec<ComparedFile> = sources
            .iter()
            .enumerate()
            .map(|(index, source)| ComparedFile::from_source(index, source))
            .collect();
        let mut comparison = Self {
            metric,
            threshold: threshold.0,
            partial,
            require_verified,
            files,
            differences: find_differences(sources),
            means: mean_ratios(&rows, others.len()),
            rows,
            verdicts: Vec::new(),
        };
        comparison.verdicts =
            (1..sources.len()).map(|file| FileVerdict::judge_file(file, sources, &comparison)).collect();
        Ok(comparison)
    }

    /// True when every file passes: none is slower than the first by more than the threshold, none has wrong
    /// data or another number of ranks, all are complete (except with `partial`), and verified (with
    /// `require_verified`).
    pub fn has_passed(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.pass)
    }
}

/// Fails when two files have no row in common, or none with a value in both.
fn in_common(first: &RunRows, other: &RunRows, metric: Metric) -> Result<(), MatchError> {
    let mut common = first.rows.keys().filter(|key| other.rows.has_row(key)).peekable();
    if common.peek().is_none() {
        return Err(MatchError::NothingInCommon {
            first: first.path.clone(),
            other: other.path.clone(),
            in_first: list_keys(first.rows.keys()).join(", "),
            in_other: list_keys(other.rows.keys()).join(", "),
        });
    }
    if !common.any(|key| first.rows.median(key).and(other.rows.median(key)).is_some()) {
        let (first, other) = (first.path.clone(), other.path.clone());
        return Err(MatchError::NoValues { first, other, metric });
    }
    Ok(())
}

impl ComparedRow {
    fn from_key(key: &Key, sources: &[RunRows]) -> Self {
        let values: Vec<Option<f64>> = sources.iter().map(|source| source.rows.median(key)).collect();
        let ratios = values[1..].iter().map(|value| Some((*value)? / values[0]?)).collect();
        let test = match sources {
            [before, after] => Test::of_row(key, before, after),
            _ => None,
        };
        let unstable = (0..sources.len()).filter(|&file| sources[file].rows.is_unstable(key)).collect();
        Self { key: key.clone(), values, ratios, test, unstable }
    }

    /// True unless the difference was tested, and is not significant.
    fn may_count(&self) -> bool {
        self.test.as_ref().is_none_or(Test::is_significant)
    }
}

impl ComparedFile {
    fn from_source(index: usize, RunRows { path, run, rows, repeated }: &RunRows) -> Self {
        Self {
            letter: file_letter(index),
            path: path.clone(),
            program: run.program.clone(),
            started_at: run.started_at.clone(),
            library: format!("{} {}", run.provenance.backend, run.provenance.library_version),
            devices: devices_text(run),
            hosts: host_names(run),
            outcome: run.outcome.clone(),
            runs: repeated.as_ref().map_or(1, |repeated| repeated.runs.len()),
            incomplete_runs: repeated.as_ref().map(|repeated| repeated.incomplete.clone()),
            measurements: rows.measurements,
            unverified: rows.unverified,
            wrong: rows.describe_wrong(),
        }
    }

    /// The number of measurements that were not verified, in words; `None` when all were.
    fn describe_unverified(&self) -> Option<String> {
        let Self { letter, unverified, measurements, .. } = self;
        (*unverified > 0).then(|| {
            format!("{letter} did not verify the data of {unverified} of its {measurements} measurements")
        })
    }

    /// The reasons why the run, or one of several, is incomplete.
    fn list_incomplete(&self) -> Vec<String> {
        match &self.incomplete_runs {
            None => describe_unfinished(&self.letter, &self.outcome).into_iter().collect(),
            Some(of_runs) => of_runs.clone(),
        }
    }
}

/// `A` to `Z`, then `A1` and so on.
pub fn file_letter(index: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(index % 26).unwrap_or_default());
    if index < 26 { letter.to_string() } else { format!("{letter}{}", index / 26) }
}

impl FileVerdict {
    fn judge_file(file: usize, sources: &[RunRows], comparison: &Comparison) -> Self {
        let Comparison { metric, threshold, partial, require_verified, files, rows, .. } = comparison;
        let slowdown = |row: &ComparedRow| row.ratios[file - 1].map(|ratio| metric.slowdown_factor(ratio));
        let slowdowns: Vec<(usize, f64)> =
            rows.iter().enumerate().filter_map(|(index, row)| Some((index, slowdown(row)?))).collect();
        let limit = 1.0 + threshold + ROUNDING;
        let (counting, others): (Vec<(usize, f64)>, Vec<_>) =
            slowdowns.iter().copied().partition(|&(index, _)| rows[index].may_count());
        let is_beyond = |&&(_, slowdown): &&(usize, f64)| slowdown.max(slowdown.recip()) > limit;
        let mut slower: Vec<(usize, f64)> =
            counting.iter().copied().filter(|&(_, slowdown)| slowdown > limit).collect();
        slower.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let only = |one: &Rows, other: &Rows| list_keys(one.keys().filter(|key| !other.has_row(key)));
        let (first, own) = (&sources[0].rows, &sources[file].rows);
        let (missing, extra) = (only(first, own), only(own, first));
        let (incomplete, mut notes) = find_doubts(file, files, rows, own);
        let mut unverified: Vec<String> =
            [0, file].iter().filter_map(|&file| files[file].describe_unverified()).collect();
        if !require_verified {
            notes.splice(0..0, std::mem::take(&mut unverified));
        }
        let is_untestable = |row: &&ComparedRow| row.test.as_ref().is_some_and(|test| test.has_too_few);
        let untestable = rows.iter().filter(is_untestable).count();
        let whole = missing.is_empty() && extra.is_empty() && incomplete.is_empty();
        let right = [0, file].iter().all(|&file| files[file].wrong.is_empty());
        let counts = [0, file].map(|file| sources[file].count_ranks());
        let unknown = [0, file].into_iter().zip(&counts).filter(|(_, counts)| counts.is_empty());
        notes.extend(
            unknown.map(|(file, _)| format!("the number of ranks of {} is not known", files[file].letter)),
        );
        let differ = counts.iter().flatten().collect::<BTreeSet<_>>().len() > 1;
        let rank_counts = differ.then(|| counts.map(|counts| counts.into_iter().flatten().collect()));
        Self {
            file,
            pass: slower.is_empty()
                && untestable == 0
                && right
                && rank_counts.is_none()
                && unverified.is_empty()
                && (whole || *partial),
            compared: slowdowns.len(),
            slower: slower.into_iter().map(|(index, _)| index).collect(),
            faster: counting.iter().filter(|&&(_, slowdown)| slowdown.recip() > limit).count(),
            insignificant: others.iter().filter(is_beyond).count(),
            untestable,
            missing,
            extra,
            incomplete,
            unverified,
            rank_counts,
            notes,
        }
    }
}

/// Returns reasons for which the file or the first one is incomplete, and notes on both.
fn find_doubts(
    file: usize,
    files: &[ComparedFile],
    rows: &[ComparedRow],
    own: &Rows,
) -> (Vec<String>, Vec<String>) {
    let both = || [&files[0], &files[file]].into_iter();
    let mut incomplete: Vec<String> = both().flat_map(ComparedFile::list_incomplete).collect();
    let mut notes = Vec::new();
    let without = rows.iter().filter(|row| own.has_row(&row.key) && row.ratios[file - 1].is_none());
    let (one_sided, neither): (Vec<&ComparedRow>, Vec<&ComparedRow>) =
        without.partition(|row| row.values[0].is_some() || row.values[file].is_some());
    if !one_sided.is_empty() {
        incomplete
            .push(format!("of the common rows, {} have a number above 0 on one side only", one_sided.len()));
    }
    if !neither.is_empty() {
        notes.push(format!("of the common rows, {} are skipped: no number above 0", neither.len()));
    }
    for index in [0, file] {
        let unstable =
            rows.iter().filter(|row| own.has_row(&row.key) && row.unstable.contains(&index)).count();
        if unstable > 0 {
            notes.push(format!(
                "{unstable} of the rows of {} are NOT STABLE: they are less precise than --until-stable \
                 asked, and their differences may be noise",
                files[index].letter
            ));
        }
    }
    (incomplete, notes)
}

fn mean_ratios(rows: &[ComparedRow], others: usize) -> Vec<MeanRatio> {
    let mut collectives: Vec<&str> = Vec::new();
    for row in rows {
        if !collectives.contains(&row.key.table.collective.as_str()) {
            collectives.push(&row.key.table.collective);
        }
    }
    let mean = |collective: Option<&str>| {
        let chosen = |row: &&ComparedRow| collective.is_none_or(|name| row.key.table.collective == name);
        let of_file = |file: usize| rows.iter().filter(chosen).filter_map(|row| row.ratios[file]).collect();
        let all: Vec<Vec<f64>> = (0..others).map(of_file).collect();
        MeanRatio {
            collective: collective.map(str::to_owned),
            ratios: all.iter().map(|ratios| geometric_mean(ratios)).collect(),
            rows: all.iter().map(Vec::len).collect(),
        }
    };
    collectives.iter().map(|&name| Some(name)).chain([None]).map(mean).collect()
}

/// Settings and circumstances that differ between the runs. Several runs of one side have all of their
/// values.
fn find_differences(sources: &[RunRows]) -> Vec<Difference> {
    let all: Vec<BTreeMap<String, String>> = sources
        .iter()
        .map(|source| match &source.repeated {
            None => run_circumstances(&source.run),
            Some(repeated) => circumstances_of_all(&repeated.runs),
        })
        .collect();
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

/// The circumstances of several runs; where they differ, all values in order.
fn circumstances_of_all(runs: &[Run]) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, value) in runs.iter().flat_map(run_circumstances) {
        all.entry(name).or_default().insert(value);
    }
    let joined = |values: BTreeSet<String>| values.into_iter().collect::<Vec<_>>().join("; ");
    all.into_iter().map(|(name, values)| (name, joined(values))).collect()
}
