//! The table of a ladder.

use super::model::{Facts, Rung};
use crate::command::doctor::output::layout::plain_line;
use crate::command::pairs::Unit;
use crate::report::table::binary_size;

/// A cell without a value.
const ABSENT: &str = "-";

/// Returns the numbers of units of all rungs, in ascending order.
///
/// # Errors
/// A message for numbers that the job does not have.
pub(super) fn list_rungs(asked: &[u32], units: usize) -> Result<Vec<usize>, String> {
    let mut rungs: Vec<usize> = asked.iter().map(|&count| count as usize).collect();
    if let Some(count) = rungs.iter().find(|&&count| count > units) {
        return Err(format!("--steps has {count}, and the job has {units}"));
    }
    if rungs.is_empty() {
        let doubled = std::iter::successors(Some(2_usize), |count| count.checked_mul(2));
        rungs = doubled.take_while(|&count| count < units).collect();
        rungs.push(units);
    }
    rungs.sort_unstable();
    rungs.dedup();
    Ok(rungs)
}

/// Returns the lines above the rungs.
pub(super) fn render_head(facts: &Facts) -> String {
    let small = match facts.small_bytes {
        8 => "8 bytes".to_owned(),
        bytes => binary_size(bytes),
    };
    let (large, unit, count) = (binary_size(facts.bytes), facts.unit.unit_name(), facts.units.len());
    let plural = if count == 1 { "" } else { "s" };
    let first = if facts.unit == Unit::Host { "hosts" } else { "rung" };
    let columns = [first, "ranks", "start", &small, &large, "of 1st", "typical", "verdict", "late rank"];
    let units = ["", "", "(s)", "(us)", "(GB/s)", "", "(GB/s)", "", ""];
    format!(
        "# {}\n# {} over {}: {small} and {large}; the job has {count} {unit}{plural}\n#\n#{}\n#{}\n",
        facts.program,
        facts.collective,
        facts.backend,
        &align_cells(columns)[1..],
        &align_cells(units)[1..]
    )
}

/// Returns the cells of a line in columns.
fn align_cells(cells: [&str; 9]) -> String {
    let [units, ranks, start, small, large, share, typical, verdict, late] = cells;
    let line = format!(
        "{units:>6} {ranks:>6} {start:>6} {small:>8} {large:>8} {share:>6} {typical:>8} {verdict:<10} {late}"
    );
    line.trim_end().to_owned()
}

/// Returns the line of a rung. The first of `rungs` with a bandwidth is 100 %.
pub(super) fn render_rung(rung: &Rung, rungs: &[Rung]) -> String {
    if let Some(failure) = &rung.failure {
        return format!("{:>6} failed: {}\n", rung.units, plain_line(failure));
    }
    let number = |value: Option<f64>, digits: usize| {
        let value = value.filter(|value| value.is_finite());
        value.map_or(ABSENT.to_owned(), |value| format!("{value:.digits$}"))
    };
    let seconds: f64 = rung.start_phases.iter().map(|phase| phase.longest_s).sum();
    let late = rung.late_rank.as_ref().map(|late| plain_line(&format!("{} on {}", late.rank, late.host)));
    let first = rungs.iter().find_map(|rung| rung.busbw_gbps).filter(|first| *first > 0.0);
    let share = rung.busbw_gbps.zip(first).map(|(own, first)| own / first * 100.0);
    let line = align_cells([
        &rung.units.to_string(),
        &rung.ranks.to_string(),
        &number((!rung.start_phases.is_empty()).then_some(seconds), 2),
        &number(rung.latency_us, 1),
        &number(rung.busbw_gbps, 2),
        &share.map_or(ABSENT.to_owned(), |share| format!("{share:.0} %")),
        &number(rung.typical_gbps, 1),
        if rung.is_wrong() { "WRONG DATA" } else { rung.grade.grade_word() },
        late.as_deref().unwrap_or(ABSENT),
    ]);
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use judge::Grade;
    use record::{Phase, StartPhase};

    use super::*;
    use crate::command::ladder::model::LateRank;

    #[test]
    fn rungs_double_up_to_all() {
        assert_eq!(list_rungs(&[], 2), Ok(vec![2]));
        assert_eq!(list_rungs(&[], 8), Ok(vec![2, 4, 8]));
        assert_eq!(list_rungs(&[], 80), Ok(vec![2, 4, 8, 16, 32, 64, 80]));
        assert_eq!(list_rungs(&[8, 2, 8], 8), Ok(vec![2, 8]));
        assert!(list_rungs(&[9], 8).unwrap_err().contains("--steps has 9, and the job has 8"));
    }

    #[test]
    fn a_rung_fits_a_terminal_and_names_its_slowest_rank() {
        let facts = Facts { small_bytes: 8, bytes: 1 << 30, ..Facts::default() };
        let phase =
            |phase, longest_s, slowest_rank| StartPhase { phase, median_s: 0.1, longest_s, slowest_rank };
        let rung = |units, busbw| Rung {
            units,
            ranks: 8 * units,
            start_phases: vec![phase(Phase::Device, 0.5, 3), phase(Phase::Connection, 1.25, 9)],
            late_rank: Some(LateRank { rank: 9, host: "node-12".to_owned() }),
            latency_us: Some(25.125),
            busbw_gbps: Some(busbw),
            grade: Grade::Pass,
            typical_gbps: Some(440.0),
            ..Rung::default()
        };
        let rungs = [rung(2, 440.0), rung(4, 330.0)];
        let lines = render_head(&facts) + &render_rung(&rungs[1], &rungs);
        let cells: Vec<&str> = lines.lines().last().unwrap().split_whitespace().collect();
        let expected =
            ["4", "32", "1.75", "25.1", "330.00", "75", "%", "440.0", "PASS", "9", "on", "node-12"];
        assert_eq!(cells, expected);
        assert!(lines.lines().all(|line| line.chars().count() <= 80), "{lines}");
        let wrong = Rung { wrong: Some(3), ..rung(8, 1.0) };
        assert!(render_rung(&wrong, &rungs).contains("WRONG DATA"));
        let failed = Rung { failure: Some("no\nGPU".to_owned()), ..rung(8, 1.0) };
        assert_eq!(render_rung(&failed, &rungs), "     8 failed: no GPU\n");
        let odd = Rung { busbw_gbps: Some(f64::NAN), start_phases: Vec::new(), ..rung(8, 1.0) };
        assert!(render_rung(&odd, &[]).contains(" - "));
    }
}
