//! The foot of a table.

use std::fmt::Write as _;

use engine::backend::MemoryUse;
use engine::data::traffic::Pattern;

use super::number::format_significant;
use super::{is_enough, program_name};

/// The foot of a table.
#[derive(Clone, Copy, Debug)]
pub struct Foot<'a> {
    /// The collective's name on the command line.
    pub collective: &'a str,
    /// Pairs of rank and measurement with wrong data; `None` when nothing was verified.
    pub failed_checks: Option<u64>,
    /// The mean of all bus bandwidths, in GB/s; no number when nothing was measured.
    pub mean_busbw_gbps: f64,
    /// The required mean: see [`minimum_busbw`](record::nccl_tests::minimum_busbw).
    pub minimum_busbw_gbps: Option<f64>,
    /// With `--vs`, the baseline's backend and a summary of the ratios to it.
    pub ratios: Option<(&'a str, &'a str)>,
    /// Only the lines with results (`--brief`).
    pub brief: bool,
    /// With `-M`, the GPU memory, the maximum of all ranks.
    pub memory: Option<MemoryUse>,
}

impl Foot<'_> {
    /// Lines above the foot with the reasons for a failure, which nccl-tests does not have.
    pub fn failure_lines(&self) -> String {
        let wrong = self.failed_checks.filter(|&failed| failed > 0);
        let slow = is_enough(self.mean_busbw_gbps, self.minimum_busbw_gbps) == Some(false);
        let wrong = wrong.map(|failed| failure_line(&format!("{failed} checks found wrong data")));
        let slow = slow.then(|| failure_line("NCCL_TESTS_MIN_BW is not reached"));
        wrong.into_iter().chain(slow).collect()
    }

    /// The lines.
    pub fn render_foot(&self) -> String {
        let line = |name: &str, value: String| format!("# {name:<20} : {value}\n");
        let wrong = match self.failed_checks {
            None => "N/A".to_owned(),
            Some(0) => "0 OK".to_owned(),
            Some(failed) => format!("{failed} FAILED"),
        };
        let verdict = match is_enough(self.mean_busbw_gbps, self.minimum_busbw_gbps) {
            None => "",
            Some(true) => "OK",
            Some(false) => "FAILED",
        };
        let mut text = line("Out of bounds values", wrong)
            + &line("Avg bus bandwidth", format!("{} {verdict}", format_significant(self.mean_busbw_gbps)));
        if let Some((versus, ratios)) = self.ratios {
            text.push_str(&line(&format!("Time over {versus}"), ratios.to_owned()));
        }
        if !self.brief {
            let _ = write!(text, "#\n# Collective test concluded: {}\n", program_name(self.collective));
        }
        if let Some(MemoryUse { initialization, buffers, operations }) = self.memory {
            let total = initialization.saturating_add(buffers).saturating_add(operations);
            let [initialization, buffers, operations, total] =
                [initialization, buffers, operations, total].map(memory_text);
            text.push_str(&line(
                "GPU memory usage",
                format!(
                    "Initialization {initialization} | User-Allocated {buffers} | Collective {operations} \
                     | Total  {total}"
                ),
            ));
        }
        text.push_str(if self.brief { "\n" } else { "#\n\n" });
        text
    }
}

/// A line that health checks recognise as a failure, by `Test failure` (CloudAI) or `FAILED` (Azure). It
/// contains none of the words with which nccl-tests introduces a result.
pub fn failure_line(why: &str) -> String {
    format!("# Test failure: FAILED: {why}\n")
}

/// Bytes in binary units, with about three digits.
pub(super) fn memory_text(bytes: u64) -> String {
    let (mut amount, mut units) = (bytes as f64, ["B", "KB", "MB", "GB"].iter());
    let mut unit = units.next();
    while amount >= 1024.0 && units.len() > 0 {
        amount /= 1024.0;
        unit = units.next();
    }
    let decimals = match amount {
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{amount:.decimals$} {}", unit.copied().unwrap_or_default())
}

/// The traffic of each rank in an alltoallv (`NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY`): `total_bytes` over all
/// peers before rounding, and the bytes that each rank sends and receives. The lines lack the `# ` of a
/// comment.
pub fn alltoallv_summary(pattern: &Pattern, total_bytes: u64, time_us: f64, bytes: &[(u64, u64)]) -> String {
    let ranks = bytes.len();
    let mode = match pattern {
        Pattern::Spread(spread) => {
            format!("mode=generated nranks={ranks} total_bytes={total_bytes} spread={spread:.3}")
        }
        Pattern::Matrix(matrix) => {
            let (dimension, scale) = (matrix.rank_count(), matrix.scale);
            format!("mode=matrix nranks={ranks} matrix_dim={dimension} scale={scale:.3}")
        }
    };
    let mut text = format!("NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: {mode} time_usec={time_us:.2}\n");
    for (rank, &(sent, received)) in bytes.iter().enumerate() {
        let algbw = sent.max(received) as f64 / 1e3 / time_us;
        let busbw = algbw * (ranks as f64 - 1.0) / ranks as f64;
        let _ = writeln!(
            text,
            "  rank={rank} send_bytes={sent} recv_bytes={received} alg_bw={algbw:.2} bus_bw={busbw:.2}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnosis::knowledge::rules::{Origin, Rules};

    #[test]
    fn the_doctor_knows_a_bandwidth_below_the_demanded_one() {
        let foot = |minimum_busbw_gbps| Foot {
            collective: "allreduce",
            failed_checks: Some(0),
            mean_busbw_gbps: 1.0034,
            minimum_busbw_gbps,
            ratios: None,
            brief: true,
            memory: None,
        };
        let rules = Rules::built_in();
        let slow = |foot: &Foot<'_>| -> Vec<String> {
            let text = foot.failure_lines() + &foot.render_foot();
            let is_slow = |line: &&str| {
                rules.find_rule(line.as_bytes(), Origin::Any).is_some_and(|rule| rule.id == "nccl-tests-slow")
            };
            text.lines().filter(is_slow).map(str::to_owned).collect()
        };
        assert_eq!(
            slow(&foot(Some(50.0))),
            [
                "# Test failure: FAILED: NCCL_TESTS_MIN_BW is not reached",
                "# Avg bus bandwidth    : 1.0034 FAILED"
            ]
        );
        assert_eq!(slow(&foot(Some(0.5))), [""; 0]);
        assert_eq!(slow(&foot(None)), [""; 0]);
    }
}
