//! The text report: the lines and columns of nccl-tests, so that what reads its output reads ours.

use std::fmt::Write as _;

use collectives::{DataType, ReduceOp};

use crate::collective::{Bandwidth, Collective, Counts};
use crate::size::Step;

/// The settings line of the head.
#[derive(Clone, Debug)]
pub struct Head {
    /// Lines that only this program has: versions, backend, world. Printed first, each behind `# `.
    pub provenance: Vec<String>,
    /// What is measured.
    pub collective: Collective,
    /// Threads per process.
    pub threads: usize,
    /// GPUs per thread.
    pub gpus: usize,
    /// Smallest size in bytes.
    pub min_bytes: u64,
    /// Largest size in bytes.
    pub max_bytes: u64,
    /// From one size to the next.
    pub step: Step,
    /// Warm-up operations per size.
    pub warm_up: usize,
    /// Timed operations per size.
    pub iterations: usize,
    /// Verifications per size and placement.
    pub checks: usize,
    /// One line per rank: see [`rank_line`].
    pub ranks: Vec<String>,
}

impl Head {
    /// All lines before [`COLUMNS`], each ended.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        for line in &self.provenance {
            let _ = writeln!(text, "# {line}");
        }
        let (step, unit) = match self.step {
            Step::Factor(factor) => (factor, "factor"),
            Step::Bytes(bytes) => (bytes, "bytes"),
        };
        let _ = writeln!(text, "# Collective test starting: {}", self.collective.nccl_tests_name());
        let _ = writeln!(
            text,
            "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} iters: {} \
             agg iters: 1 validation: {} graph: 0 unalign: 0",
            self.threads,
            self.gpus,
            self.min_bytes,
            self.max_bytes,
            self.warm_up,
            self.iterations,
            self.checks
        );
        text.push_str("#\n# Using devices\n");
        for line in &self.ranks {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// The columns' names and units.
pub const COLUMNS: &str = concat!(
    "#\n",
    "#                                                              ",
    "out-of-place                       in-place          \n",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     ",
    "time   algbw   busbw  #wrong \n",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             ",
    "(us)  (GB/s)  (GB/s)         \n",
);

/// The line that names a rank: its process, host and device.
#[must_use]
pub fn rank_line(rank: usize, group: usize, pid: u32, host: &str, device: &str) -> String {
    format!("#  Rank {rank:>2} Group {group:>2} Pid {pid:>6} on {host:>10} {device}")
}

/// A GPU in a rank's line.
#[must_use]
pub fn gpu(ordinal: usize, pci: (u32, u32, u32), name: &str) -> String {
    let (domain, bus, device) = pci;
    format!("device {ordinal:>2} [{domain:04x}:{bus:02x}:{device:02x}] {name}")
}

/// The row's first columns: what was measured.
#[must_use]
pub fn row_start(counts: &Counts, data_type: DataType, op: Option<ReduceOp>) -> String {
    let op = op.map_or("none", ReduceOp::name);
    let root = -1;
    let (bytes, count) = (counts.bytes(data_type), counts.parameter);
    format!("{bytes:>12}  {count:>12}  {:>8}  {op:>6}  {root:>6}", data_type.name())
}

/// One placement's columns: time in seconds, bandwidths, and wrong elements where they were counted.
#[must_use]
pub fn row_half(seconds: f64, bandwidth: Bandwidth, wrong: Option<u64>) -> String {
    format!(
        "  {}  {}  {}  {}",
        float(seconds * 1e6, 7),
        float(bandwidth.algorithm, 6),
        float(bandwidth.bus, 6),
        wrong.map_or_else(|| "  N/A".to_owned(), |wrong| format!("{:>6}", significant(wrong as f64)))
    )
}

/// The lines below the rows. `failed_checks` counts pairs of rank and verification; `None` when nothing was verified.
#[must_use]
pub fn foot(collective: Collective, failed_checks: Option<u64>, mean_bus_bandwidth: f64) -> String {
    let verdict = match failed_checks {
        None => "N/A",
        Some(0) => "OK",
        Some(_) => "FAILED",
    };
    let failed_checks = failed_checks.unwrap_or(0);
    format!(
        "# {:<20} : {failed_checks} {verdict}\n# {:<20} : {} \n#\n# Collective test concluded: {}\n#\n\n",
        "Out of bounds values",
        "Avg bus bandwidth",
        significant(mean_bus_bandwidth),
        collective.nccl_tests_name()
    )
}

/// A number in `width` columns with as many of two decimals as fit, else in scientific notation.
fn float(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:>width$.decimals$}").to_lowercase();
        if text.len() <= width {
            return text;
        }
    }
    format!("{:>width$}", scientific(value, usize::from(width >= 7)))
}

/// C's `%.{decimals}e`: an exponent of at least two digits, with its sign.
fn scientific(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text.to_lowercase(),
    }
}

/// C's `%g`: six significant digits without trailing zeros.
#[must_use]
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let rounded = format!("{value:.5e}");
    let exponent: i32 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{value:.*}", usize::try_from(5 - exponent).unwrap_or(0)));
    }
    let text = scientific(value, 5);
    text.split_once('e').map_or(text.clone(), |(mantissa, exponent)| format!("{}e{exponent}", trim(mantissa)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_c_prints_them() {
        for (value, expected) in [
            (9.87, "   9.87"),
            (99999.96, " 100000"),
            (10357.4, "10357.4"),
            (9_999_999.6, "1.0e+07"),
            (f64::NAN, "    nan"),
            (f64::INFINITY, "    inf"),
        ] {
            assert_eq!(float(value, 7), expected);
        }
        assert_eq!(float(1e7, 6), " 1e+07");
        for (value, expected) in [
            (0.0, "0"),
            (118.406_4, "118.406"),
            (999_999.0, "999999"),
            (12_345_678.0, "1.23457e+07"),
            (1_000_000.0, "1e+06"),
            (0.000_012_5, "1.25e-05"),
            (123.5, "123.5"),
        ] {
            assert_eq!(significant(value), expected);
        }
    }
}
