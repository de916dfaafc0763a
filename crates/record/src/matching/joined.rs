//! Several runs of one file as one source: a log of several collectives.

use std::collections::HashMap;
use std::path::Path;

use super::circumstances::{count_ranks, run_circumstances};
use super::key::Key;
use crate::files::{ReadError, ReadProblem, read_runs};
use crate::run::{Run, RunOutcome};

/// Circumstances in which the runs of a file may differ: the largest size can depend on the collective.
const MAY_DIFFER: [&str; 1] = ["max_bytes"];

/// Reads the runs of a file as one.
///
/// # Errors
/// When the file cannot be read, or its runs are not one source: a row is in two of them, or they were made
/// in different circumstances.
pub fn read_joined_run(path: &Path) -> Result<Run, ReadError> {
    let joined = read_runs(path).map(join_runs)?;
    joined.map_err(|problem| ReadError { path: path.to_owned(), problem })
}

/// Makes one run of the runs of a file. It is complete if all are.
///
/// # Errors
/// When a row is in two runs, or the runs were made in different circumstances.
pub(super) fn join_runs(runs: Vec<Run>) -> Result<Run, ReadProblem> {
    refuse_repeated_rows(&runs)?;
    let mut runs = runs.into_iter();
    let Some(mut joined) = runs.next() else { return Err(ReadProblem::SeveralRuns(0)) };
    for run in runs {
        refuse_difference(&joined, &run)?;
        if joined.outcome == RunOutcome::Complete {
            joined.outcome = run.outcome;
        }
        if joined.ranks.is_empty() {
            joined.ranks = run.ranks;
        }
        if joined.provenance.library_version.is_empty() {
            joined.provenance.library_version = run.provenance.library_version;
        }
        joined.settings.min_bytes = joined.settings.min_bytes.min(run.settings.min_bytes);
        joined.settings.max_bytes = joined.settings.max_bytes.max(run.settings.max_bytes);
        joined.settings.cycles = joined.settings.cycles.max(run.settings.cycles);
        joined.measurements.extend(run.measurements);
        for note in run.notes {
            if !joined.notes.contains(&note) {
                joined.notes.push(note);
            }
        }
    }
    Ok(joined)
}

/// Refuses a row of two runs: of cycles the median counts, but runs differ more than the cycles of one run.
fn refuse_repeated_rows(runs: &[Run]) -> Result<(), ReadProblem> {
    if runs.len() < 2 {
        return Ok(());
    }
    let mut found: HashMap<Key, usize> = HashMap::new();
    for (number, run) in (1..).zip(runs) {
        for key in run.measurements.iter().map(Key::from_row) {
            let row = key.row_name();
            let first = *found.entry(key).or_insert(number);
            if first != number {
                return Err(ReadProblem::RepeatedRow { row, runs: [first, number] });
            }
        }
    }
    Ok(())
}

fn refuse_difference(one: &Run, other: &Run) -> Result<(), ReadProblem> {
    let differ = |what: &str, values: [String; 2]| ReadProblem::RunsDiffer { what: what.to_owned(), values };
    let [ones, others] = [one, other].map(run_circumstances);
    let both = ones.into_iter().filter_map(|(name, value)| Some((others.get(&name)?.clone(), name, value)));
    for (theirs, name, value) in both.filter(|(_, name, _)| !MAY_DIFFER.contains(&name.as_str())) {
        if value != theirs {
            return Err(differ(&name, [value, theirs]));
        }
    }
    let [ranks, other_ranks] = [one, other].map(count_ranks);
    if ranks != other_ranks && !ranks.is_empty() && !other_ranks.is_empty() {
        return Err(differ("ranks of each group", [ranks, other_ranks].map(|counts| format!("{counts:?}"))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Measurement;
    use crate::sample;

    fn run_of(collective: &str, change: impl Fn(&mut Run)) -> Run {
        let mut run = sample::full_run();
        run.measurements.truncate(1);
        run.measurements[0].collective = collective.to_owned();
        run.outcome = RunOutcome::Complete;
        change(&mut run);
        run
    }

    #[test]
    fn a_joined_run_has_all_rows_and_the_worst_outcome() {
        let ended = |run: &mut Run| {
            run.outcome = RunOutcome::Running;
            run.settings.max_bytes = 1 << 40;
            run.notes = vec!["cut".to_owned()];
            run.measurements.push(Measurement { bytes: 1, ..run.measurements[0].clone() });
        };
        let joined = join_runs(vec![run_of("allreduce", |_| {}), run_of("broadcast", ended)]).unwrap();
        assert_eq!((joined.measurements.len(), joined.outcome), (3, RunOutcome::Running));
        assert_eq!(joined.settings.max_bytes, 1 << 40);
        assert_eq!(joined.notes.last().map(String::as_str), Some("cut"));
        let alone = run_of("allreduce", |_| {});
        assert_eq!(join_runs(vec![alone.clone()]).unwrap(), alone);
    }

    #[test]
    fn runs_of_one_row_or_of_other_circumstances_are_refused() {
        let said = |other: Run| join_runs(vec![run_of("allreduce", |_| {}), other]).unwrap_err().to_string();
        let message = said(run_of("allreduce", |_| {}));
        assert!(
            message.starts_with("allreduce float sum, ") && message.contains("runs 1 and 2"),
            "{message}"
        );
        for (change, expected) in [
            ((|run| run.settings.graph_launches = 9) as fn(&mut Run), "differ in graph_launches (0; 9)"),
            (|run| run.provenance.library_version = "1.0".to_owned(), "differ in library_version ("),
            (|run| run.ranks.truncate(1), "differ in ranks ("),
            (
                |run| run.ranks.iter_mut().for_each(|rank| rank.group = rank.rank),
                "differ in ranks of each group",
            ),
        ] {
            let message = said(run_of("broadcast", change));
            assert!(message.contains(expected), "{message}");
        }
        // A fact that one of them does not have is no difference.
        let unknown = run_of("broadcast", |run| {
            run.provenance.library_version.clear();
            run.ranks.clear();
        });
        let joined = join_runs(vec![unknown, run_of("allreduce", |_| {})]).unwrap();
        assert!(!joined.ranks.is_empty() && !joined.provenance.library_version.is_empty());
    }
}
