//! The report on standard output: the matrix of bandwidths, and the conclusion.

use std::collections::BTreeMap;

use diagnosis::examination::{Cell, Grade, Matrix};
use judge::pairs::{Conclusion, Pair, Part};
use record::RunOutcome;
use record::statistics::find_median;

use super::Unit;
use super::results::{MeasuredPair, State};
use super::sentences::list_sentences;
use super::units::Units;
use crate::command::doctor::output::layout::align_columns;
use crate::command::doctor::output::matrix::matrix_lines;
use engine::request::Size;

/// Number of units up to which the matrix is printed.
const LARGEST_MATRIX: usize = 16;
/// Number of units that are listed instead of a larger matrix.
const LISTED: usize = 10;
/// Mark of a slow part.
const SLOW_MARK: &str = "*";
/// Mark of a part that was slow once.
const ONCE_MARK: &str = "?";

/// Returns the report.
pub(super) fn render_report(
    state: &State,
    units: &Units,
    conclusion: &Conclusion,
    outcome: &RunOutcome,
) -> String {
    let mut lines = vec![describe_measurements(state, units), String::new()];
    if units.units.len() <= LARGEST_MATRIX {
        lines.extend(matrix_lines(&make_matrix(state, units, conclusion)));
    } else {
        lines.extend(list_slowest(state, units, conclusion));
    }
    lines.push(String::new());
    lines.extend(list_sentences(state, units, conclusion, outcome));
    lines.join("\n") + "\n"
}

/// The matrix of all pairs, each with the median bandwidth of its rounds.
pub(super) fn make_matrix(state: &State, units: &Units, conclusion: &Conclusion) -> Matrix {
    let mut bandwidths: BTreeMap<Pair, Vec<f64>> = BTreeMap::new();
    for measured in state.rounds.iter().flat_map(|round| &round.pairs) {
        bandwidths.entry(measured.pair).or_default().extend(measured.bandwidth(units.choose_statistic()));
    }
    let cell = |one: usize, other: usize| {
        let pair = [one.min(other), one.max(other)];
        let Some(median) = bandwidths.get(&pair).and_then(|all| find_median(all)) else {
            return Cell::default();
        };
        let (mark, grade) = mark_pair(conclusion, pair);
        Cell { text: format_bandwidth(median) + mark, grade }
    };
    let count = units.units.len();
    Matrix {
        labels: units.units.iter().map(|unit| unit.label.clone()).collect(),
        cells: (0..count).map(|one| (0..count).map(|other| cell(one, other)).collect()).collect(),
        legend: Vec::new(),
    }
}

fn mark_pair(conclusion: &Conclusion, pair: Pair) -> (&'static str, Grade) {
    let has = |part: Part| match part {
        Part::Node(node) => pair.contains(&node),
        Part::Edge(edge) => edge == pair,
    };
    if conclusion.slow.iter().any(|suspect| has(suspect.part)) {
        (SLOW_MARK, Grade::Slow)
    } else if conclusion.seen_once.iter().any(|suspect| has(suspect.part)) {
        (ONCE_MARK, Grade::Staged)
    } else {
        ("", Grade::Fastest)
    }
}

/// Describes the measurements in a line.
pub(super) fn describe_measurements(state: &State, units: &Units) -> String {
    let count = units.units.len();
    let what = match units.unit {
        Unit::Host => format!("{count} hosts with {} ranks each", units.groups_per_pair()),
        Unit::Rank => format!("{count} ranks"),
    };
    let provenance = &state.facts.provenance;
    let library = format!("{} {}", provenance.backend, provenance.library_version);
    format!(
        "{what}, {library}, sendrecv of {} in both directions, {} rounds; GB/s in each direction ({SLOW_MARK} slow, \
         {ONCE_MARK} slow once):",
        Size(state.facts.bytes),
        state.rounds.len()
    )
}

/// Lists the units with the lowest bandwidths.
fn list_slowest(state: &State, units: &Units, conclusion: &Conclusion) -> Vec<String> {
    let bandwidth = |node: usize| {
        let own = |measured: &&MeasuredPair| measured.pair.contains(&node);
        let medians: Vec<f64> = state
            .rounds
            .iter()
            .flat_map(|round| &round.pairs)
            .filter(own)
            .filter_map(|measured| measured.bandwidth(units.choose_statistic()))
            .collect();
        find_median(&medians).map_or_else(|| "N/A".to_owned(), format_bandwidth)
    };
    let mut nodes: Vec<_> = conclusion.nodes.iter().collect();
    nodes.sort_by(|one, other| {
        let value = |value: Option<f64>| value.unwrap_or(f64::NEG_INFINITY);
        value(one.value).total_cmp(&value(other.value))
    });
    let mut rows = vec![["slowest", "GB/s", "of the median"].map(str::to_owned).to_vec()];
    rows.extend(nodes.iter().take(LISTED).map(|score| {
        let label = units.units.get(score.node).map_or_else(String::new, |unit| unit.label.clone());
        let share = score.value.map_or_else(|| "N/A".to_owned(), |value| format!("{:.1} %", value * 100.0));
        vec![label, bandwidth(score.node), share]
    }));
    align_columns(&rows)
}

/// A bandwidth with three or four digits.
pub(super) fn format_bandwidth(gbps: f64) -> String {
    match gbps {
        _ if gbps >= 100.0 => format!("{gbps:.1}"),
        _ if gbps >= 1.0 => format!("{gbps:.2}"),
        _ if gbps >= 0.1 => format!("{gbps:.4}"),
        _ => format!("{gbps:.5}"),
    }
}
