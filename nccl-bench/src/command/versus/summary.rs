//! Results of a comparison in words.

use judge::versus::{
    ComparedRow, Difference, Doubt, LeftOut, LeftOutRow, Outcome, SharedSpeeds, Side, SideTimes,
};

use super::outcome::{VersusEnd, VersusReport};
use crate::command::starts::{describe_two_speeds, format_share};
use crate::command::table::{format_number, format_probability};

/// Maximum number of rows that a line names.
const NAMED_ROWS: usize = 5;

/// Variables that select libraries.
const LIBRARY_VARIABLES: [&str; 4] = ["NCCL_LIBRARY", "FABRIC_LIBRARY", "LD_LIBRARY_PATH", "LD_PRELOAD"];

/// Writes a share in percent, rounded up, because it is a limit.
fn format_limit(share: f64) -> String {
    // Without the tolerance, a rounding error would make 3.1 % of 3 %.
    let tenths = (share * 1000.0 - 1e-6).ceil().max(1.0);
    if tenths < 100.0 {
        format!("{:.1} %", tenths / 10.0)
    } else {
        format!("{:.0} %", (tenths / 10.0).ceil())
    }
}

/// Describes a result: `slower by 5.0 %`.
pub(super) fn describe_outcome(difference: &Difference) -> String {
    let doubt = match difference.outcome {
        Outcome::Slower { by } => return format!("slower by {}", format_share(by)),
        Outcome::Faster { by } => return format!("faster by {}", format_share(by)),
        Outcome::NoDifference { resolution } => {
            return format!("no difference (within {})", format_limit(resolution));
        }
        Outcome::CannotTell { doubt } => doubt,
    };
    let spread = difference.a.spread.max(difference.b.spread);
    match doubt {
        Doubt::StartsDiffer => {
            format!("cannot tell: no significant difference, but starts differ by {}", format_share(spread))
        }
        Doubt::NotSignificant => "cannot tell: the difference is not significant".to_owned(),
        Doubt::TooFewStarts => "cannot tell: too few starts".to_owned(),
        Doubt::Incomplete => "cannot tell: no significant difference, but starts are missing".to_owned(),
    }
}

/// Writes the interval of a ratio: `1.041 to 1.062`.
pub(super) fn format_interval(difference: &Difference) -> String {
    let interval = difference.estimate.interval;
    interval.map_or_else(|| "-".to_owned(), |[lower, upper]| format!("{lower:.3} to {upper:.3}"))
}

/// Returns the lines below the table.
pub(super) fn describe_report(report: &VersusReport) -> Vec<String> {
    let mut lines = describe_problems(report);
    lines.extend(describe_overall(report));
    lines.extend(describe_rows(report));
    lines.extend(describe_speeds(report));
    lines.extend(describe_notes(report));
    lines
}

/// Describes why a comparison is not whole.
fn describe_problems(report: &VersusReport) -> Vec<String> {
    let mut lines = Vec::new();
    match &report.outcome {
        VersusEnd::Complete => {}
        end @ VersusEnd::Interrupted { .. } => lines.push(format!(
            "INCOMPLETE: {end} after {} of {} starts",
            report.a.starts + report.b.starts,
            2 * report.planned_starts
        )),
        end @ VersusEnd::Failed { .. } => lines.push(format!("FAIL: {end}")),
    }
    if report.ranks_differ {
        lines.push("FAIL: not all starts had the same number of ranks".to_owned());
    }
    let reasons = [LeftOut::OnlyIn(Side::A), LeftOut::OnlyIn(Side::B), LeftOut::MissingInStarts];
    for reason in reasons {
        let rows: Vec<&LeftOutRow> =
            report.comparison.left_out.iter().filter(|row| row.reason == reason).collect();
        if !rows.is_empty() {
            lines.push(format!("FAIL: {}", describe_left_out(reason, &rows)));
        }
    }
    if report.comparison.overall.is_none() && matches!(report.outcome, VersusEnd::Complete) {
        lines.push("FAIL: the sides have no row in common".to_owned());
    }
    lines
}

fn describe_left_out(reason: LeftOut, rows: &[&LeftOutRow]) -> String {
    let names: Vec<String> = rows.iter().take(NAMED_ROWS).map(|row| row.key.row_name()).collect();
    let more = rows.len().saturating_sub(NAMED_ROWS);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let what = match reason {
        LeftOut::OnlyIn(Side::A) => "only in A, not in B",
        LeftOut::OnlyIn(Side::B) => "only in B, not in A",
        LeftOut::MissingInStarts => "some starts have no time",
        LeftOut::NeverTimed => "no start has a time",
    };
    format!("{what}: {}{more}", names.join("; "))
}

fn describe_overall(report: &VersusReport) -> Option<String> {
    let overall = report.comparison.overall.as_ref()?;
    let is_told = matches!(overall.outcome, Outcome::Slower { .. } | Outcome::Faster { .. });
    Some(format!(
        "Overall: {}{}; geometric mean of {}: B/A {:.3}, {} % interval {}, p {}",
        if is_told { "B is " } else { "" },
        describe_outcome(overall),
        count_rows(report.comparison.rows.len()),
        overall.estimate.ratio,
        report.comparison.interval_percent,
        format_interval(overall),
        format_probability(overall.corrected_p.unwrap_or(overall.p)),
    ))
}

fn count_rows(rows: usize) -> String {
    if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") }
}

fn describe_rows(report: &VersusReport) -> Option<String> {
    let rows = &report.comparison.rows;
    let count = |is: fn(&Outcome) -> bool| rows.iter().filter(|row| is(&row.difference.outcome)).count();
    let counts = [
        ("slower", count(|outcome| matches!(outcome, Outcome::Slower { .. }))),
        ("faster", count(|outcome| matches!(outcome, Outcome::Faster { .. }))),
        ("no difference", count(|outcome| matches!(outcome, Outcome::NoDifference { .. }))),
        ("cannot tell", count(|outcome| matches!(outcome, Outcome::CannotTell { .. }))),
    ];
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name}: {count}")).collect();
    (rows.len() > 1).then(|| format!("Of {}: {}", count_rows(rows.len()), counts.join(", ")))
}

/// Describes the two speeds of the first row that has them.
fn describe_speeds(report: &VersusReport) -> Vec<String> {
    let rows: Vec<&ComparedRow> =
        report.comparison.rows.iter().filter(|row| has_two_speeds(&row.difference)).collect();
    let Some(first) = rows.first() else { return Vec::new() };
    let mut lines = vec![format!(
        "Two speeds among the starts, in {}; {}:",
        count_rows(rows.len()),
        first.key.row_name()
    )];
    match &first.difference.shared_speeds {
        Some(shared) => lines.extend(describe_shared_speeds(&first.difference, shared)),
        None => {
            let sides = [(Side::A, &first.difference.a), (Side::B, &first.difference.b)];
            lines.extend(
                sides.map(|(side, times)| format!("  {}: {}", side.letter(), describe_side_speeds(times))),
            );
        }
    }
    lines
}

/// True if a side has two speeds, or both sides together have.
pub(super) fn has_two_speeds(difference: &Difference) -> bool {
    let own = [&difference.a, &difference.b].iter().any(|side| side.two_speeds.is_some());
    own || difference.shared_speeds.is_some()
}

fn describe_shared_speeds(difference: &Difference, shared: &SharedSpeeds) -> Vec<String> {
    let totals = [difference.a.times_us.len(), difference.b.times_us.len()];
    let [a, b] = shared.slow_starts;
    let tells = if shared.p <= 0.05 {
        "the shares differ"
    } else {
        "the shares do not differ significantly; more starts would tell more"
    };
    vec![
        format!(
            "  {} us or {} us: A was slow in {a} of {} starts, B in {b} of {}",
            format_number(Some(shared.fast.time_us)),
            format_number(Some(shared.slow.time_us)),
            totals[0],
            totals[1]
        ),
        format!("  {tells} (Fisher's exact test, p {})", format_probability(shared.p)),
    ]
}

fn describe_side_speeds(times: &SideTimes) -> String {
    match &times.two_speeds {
        Some(speeds) => describe_two_speeds(speeds),
        None => format!("{} us in {} starts", format_number(Some(times.median_us)), times.times_us.len()),
    }
}

fn describe_notes(report: &VersusReport) -> Vec<String> {
    let comparison = &report.comparison;
    let mut lines = Vec::new();
    if !comparison.rows_are_tested && comparison.rows.len() > 1 {
        let needed = comparison.needed_starts;
        let needed = needed.map_or_else(String::new, |needed| format!(" (--starts {needed} allows it)"));
        lines.push(format!(
            "Note: with so few starts, no difference of one of {} can be significant; only the overall result is \
             tested{needed}",
            count_rows(comparison.rows.len())
        ));
    }
    let never: Vec<&LeftOutRow> =
        comparison.left_out.iter().filter(|row| row.reason == LeftOut::NeverTimed).collect();
    if !never.is_empty() {
        lines.push(format!("Note: {}", describe_left_out(LeftOut::NeverTimed, &never)));
    }
    for (side, reported) in report.both_sides() {
        if reported.unverified > 0 {
            lines.push(format!(
                "Note: {} measurements of {} were not verified",
                reported.unverified,
                side.letter()
            ));
        }
        if reported.libraries.len() > 1 {
            let libraries: Vec<&str> = reported.libraries.iter().map(String::as_str).collect();
            lines.push(format!(
                "Note: not all starts of {} used the same library: {}",
                side.letter(),
                libraries.join("; ")
            ));
        }
    }
    if selects_libraries(report) && report.a.libraries == report.b.libraries {
        let libraries: Vec<&str> = report.a.libraries.iter().map(String::as_str).collect();
        lines.push(format!(
            "Note: the variables select libraries, but both sides used the same: {}",
            libraries.join("; ")
        ));
    }
    if report.a.command_line == report.b.command_line {
        lines.push("Note: both sides have the same command line, so this shows the noise".to_owned());
    }
    lines
}

/// True if a side has a variable that selects libraries.
fn selects_libraries(report: &VersusReport) -> bool {
    let mut variables = report.both_sides().into_iter().flat_map(|(_, side)| &side.variables);
    variables.any(|variable| {
        let name = variable.split('=').next().unwrap_or_default();
        LIBRARY_VARIABLES.contains(&name)
    })
}
