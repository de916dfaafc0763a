//! The table of a ladder.

use super::model::{Facts, Rung};
use crate::command::doctor::output::layout::plain_line;
use crate::report::table::binary_size;

/// A cell without a value.
const ABSENT: &str = "-";
/// Width of the column of the slowest rank.
const SLOWEST: usize = 20;

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
    let unit = facts.unit.unit_name();
    let noun = if facts.units.len() == 1 { "" } else { "s" };
    format!(
        "# {}\n# {} over {}: {} and {}; the job has {} {}{noun}\n#\n\
         #{:>6} {:>6} {:>8}  {:<SLOWEST$} {:>9} {:>8} {:>6} {:>8}  verdict\n\
         #{:>6} {:>6} {:>8}  {:<SLOWEST$} {:>9} {:>8} {:>6} {:>8}\n",
        facts.program,
        facts.collective,
        facts.backend,
        small,
        binary_size(facts.bytes),
        facts.units.len(),
        unit,
        format!("{unit}s"),
        "ranks",
        "start",
        "slowest",
        small,
        binary_size(facts.bytes),
        "of 1st",
        "typical",
        "",
        "",
        "(s)",
        "",
        "(us)",
        "(GB/s)",
        "",
        "(GB/s)",
    )
}

/// Returns the line of a rung. The first of `rungs` with a bandwidth is 100 %.
pub(super) fn render_rung(rung: &Rung, rungs: &[Rung]) -> String {
    if let Some(failure) = &rung.failure {
        return format!("{:>7} failed: {}\n", rung.units, plain_line(failure));
    }
    let number = |value: Option<f64>, digits: usize| {
        let value = value.filter(|value| value.is_finite());
        value.map_or(ABSENT.to_owned(), |value| format!("{value:.digits$}"))
    };
    let seconds: f64 = rung.start_phases.iter().map(|phase| phase.longest_s).sum();
    let slowest = rung.late_rank.as_ref().map_or(ABSENT.to_owned(), |late| {
        let name = plain_line(&format!("rank {} on {}", late.rank, late.host));
        name.chars().take(SLOWEST).collect()
    });
    let first = rungs.iter().find_map(|rung| rung.busbw_gbps).filter(|first| *first > 0.0);
    let share = rung.busbw_gbps.zip(first).map(|(own, first)| own / first * 100.0);
    let verdict = if rung.is_wrong() { "WRONG DATA" } else { rung.grade.grade_word() };
    format!(
        "{:>7} {:>6} {:>8}  {slowest:<SLOWEST$} {:>9} {:>8} {:>6} {:>8}  {verdict}\n",
        rung.units,
        rung.ranks,
        number((!rung.start_phases.is_empty()).then_some(seconds), 2),
        number(rung.latency_us, 1),
        number(rung.busbw_gbps, 2),
        share.map_or(ABSENT.to_owned(), |share| format!("{share:.0} %")),
        number(rung.typical_gbps, 1),
    )
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
            late_rank: Some(LateRank { rank: 9, host: "a-very-long-name-of-a-host".to_owned() }),
            latency_us: Some(25.125),
            busbw_gbps: Some(busbw),
            grade: Grade::Pass,
            typical_gbps: Some(440.0),
            ..Rung::default()
        };
        let rungs = [rung(2, 440.0), rung(4, 330.0)];
        let lines = render_head(&facts) + &render_rung(&rungs[1], &rungs);
        assert!(lines.lines().all(|line| line.chars().count() <= 90), "{lines}");
        let cells: Vec<&str> = lines.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(cells[..4], ["4", "32", "1.75", "rank"]);
        assert_eq!(cells[4..7], ["9", "on", "a-very-long"]);
        assert_eq!(cells[7..], ["25.1", "330.00", "75", "%", "440.0", "PASS"]);
        let wrong = Rung { wrong: Some(3), ..rung(8, 1.0) };
        assert!(render_rung(&wrong, &rungs).ends_with("WRONG DATA\n"));
        let failed = Rung { failure: Some("no\nGPU".to_owned()), ..rung(8, 1.0) };
        assert_eq!(render_rung(&failed, &rungs), "      8 failed: no GPU\n");
        let odd = Rung { busbw_gbps: Some(f64::NAN), start_phases: Vec::new(), ..rung(8, 1.0) };
        assert!(render_rung(&odd, &[]).contains(" - "));
    }
}
