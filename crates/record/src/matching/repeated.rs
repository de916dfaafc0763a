//! Several runs of one side, and the test of the difference between two such sides.

use std::path::PathBuf;

use serde::Serialize;

use super::MatchError;
use super::key::{Key, list_keys};
use super::measured::{Repeated, Rows, RunRows, describe_unfinished};
use crate::rank_test::{LEVEL, least_p, mann_whitney};
use crate::run::RunOutcome;

/// The test of a row's difference between the runs of two sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Test {
    /// Probability that runs without a difference differ at least as much (two-sided Mann-Whitney U test).
    pub p: f64,
    /// Number of runs that have the row, on each side.
    pub runs: [usize; 2],
    /// True with too few runs for any difference to be significant.
    pub has_too_few: bool,
}

impl Test {
    /// Tests a row; `None` unless both sides are several runs.
    pub(super) fn of_row(key: &Key, before: &RunRows, after: &RunRows) -> Option<Self> {
        before.repeated.as_ref().and(after.repeated.as_ref())?;
        let (before, after) = (before.rows.values(key), after.rows.values(key));
        Some(Self {
            p: mann_whitney(before, after)?,
            runs: [before.len(), after.len()],
            has_too_few: least_p(before.len(), after.len()) >= LEVEL,
        })
    }

    /// True when the difference is significant at [`LEVEL`].
    pub fn is_significant(&self) -> bool {
        self.p < LEVEL
    }
}

/// Largest number of runs on a side: the exact test takes long for more.
pub const MAX_RUNS: usize = 20;

/// Refuses runs that the test cannot take: too many on a side, or a run that is there twice, on one side or
/// on both.
///
/// # Errors
/// When a side has more than [`MAX_RUNS`] runs, or a run is there twice.
pub fn check_runs(before: &[RunRows], after: &[RunRows]) -> Result<(), MatchError> {
    if before.len().max(after.len()) > MAX_RUNS {
        return Err(MatchError::TooManyRuns);
    }
    refuse_repeated(&before.iter().chain(after).collect::<Vec<_>>())
}

/// Refuses a run that is there twice, in one file or in two: `a.json` and `a.jsonl` of one run began at the
/// same time on the same hosts.
///
/// # Errors
/// When a run is there twice.
pub fn refuse_repeated(runs: &[&RunRows]) -> Result<(), MatchError> {
    for (index, one) in runs.iter().enumerate() {
        let path = resolve_path(one);
        if let Some(earlier) = runs[..index].iter().find(|earlier| resolve_path(earlier) == path) {
            return Err(MatchError::NamedTwice(earlier.path.clone()));
        }
        if let Some(earlier) = runs[..index].iter().find(|earlier| is_same_run(earlier, one)) {
            return Err(MatchError::SameRun { first: earlier.path.clone(), other: one.path.clone() });
        }
    }
    Ok(())
}

/// Tells from the start and the processes, which two runs do not share. Text does not have the start; its
/// values tell instead.
fn is_same_run(one: &RunRows, other: &RunRows) -> bool {
    let (run, other_run) = (&one.run, &other.run);
    let is_alike = run.started_at == other_run.started_at && run.ranks == other_run.ranks;
    is_alike && (!run.started_at.is_empty() || one.rows.has_equal_values(&other.rows))
}

/// The file without links and relative parts.
fn resolve_path(rows: &RunRows) -> PathBuf {
    rows.path.canonicalize().unwrap_or_else(|_| rows.path.clone())
}

/// Merges the runs of one side: their medians are its values.
///
/// # Errors
/// When there is none.
pub fn merge_runs(runs: Vec<RunRows>) -> Result<RunRows, MatchError> {
    let mut rows = Rows::default();
    for one in &runs {
        rows.merge_run(&one.rows);
    }
    let lacks = |one: &RunRows| {
        // A row without a value above 0 in any run is no gap of this one.
        let is_gap = |key: &&Key| {
            !one.rows.has_row(key) || one.rows.median(key).is_none() && rows.median(key).is_some()
        };
        let missing = list_keys(rows.keys().filter(is_gap));
        (!missing.is_empty()).then(|| format!("{} lacks {}", one.path.display(), missing.join(", ")))
    };
    let unfinished = |one: &RunRows| describe_unfinished(&one.path.display().to_string(), &one.run.outcome);
    let incomplete = runs.iter().flat_map(|one| [unfinished(one), lacks(one)]).flatten().collect();
    let names: Vec<String> = runs.iter().map(|one| one.path.display().to_string()).collect();
    let runs: Vec<_> = runs.into_iter().map(|one| one.run).collect();
    let worst = runs.iter().find(|run| run.outcome != RunOutcome::Complete).or(runs.first());
    let run = worst.cloned().ok_or(MatchError::TooFew)?;
    let path = PathBuf::from(names.join(", "));
    Ok(RunRows { path, run, rows, repeated: Some(Repeated { runs, incomplete }) })
}
