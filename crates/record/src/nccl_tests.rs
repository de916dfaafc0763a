//! Names, numbers and times in the form of nccl-tests.

use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::collective::Collective;
use crate::run::{Measurement, Provenance, Run, RunOutcome};

/// Sufficient share of the requested bandwidth (`NCCL_TESTS_MIN_BW`).
const ENOUGH: f64 = 0.9;
/// Format of a time in nccl-tests; with -S also the unit of that column.
pub const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";

/// Returns the name of nccl-tests' program for a collective on this program's command line. Other names are
/// returned unchanged.
pub fn program_name(collective: &str) -> &str {
    collective.parse::<Collective>().map_or(collective, |known| known.nccl_tests_name())
}

/// Returns the operator's cell. nccl-tests prints an operator for sendrecv, although it reduces nothing, and
/// a blank one for hypercube.
pub fn operator_cell(measurement: &Measurement) -> &str {
    match (measurement.op.as_deref(), measurement.collective.as_str()) {
        (Some(op), _) => op,
        (None, "sendrecv") => "sum",
        (None, "hypercube") => "",
        (None, _) => "none",
    }
}

/// Returns the root's cell: -1 without a root. It is a string in nccl-tests' JSON as well.
pub fn root_cell(measurement: &Measurement) -> String {
    format!("{:>6}", measurement.root.map_or_else(|| "-1".to_owned(), |root| root.to_string()))
}

/// Returns NCCL's number for a version: 22809 for `2.28.9`. `None` for any other text than a version of three
/// numbers.
pub fn nccl_code(version: &str) -> Option<u32> {
    let mut numbers = version.split('.').map(|part| {
        part.split(|letter: char| !letter.is_ascii_digit())
            .next()
            .and_then(|digits| digits.parse::<u32>().ok())
    });
    let [major, minor, patch] = [numbers.next()??, numbers.next()??, numbers.next()??];
    major.checked_mul(10_000)?.checked_add(minor.checked_mul(100)?)?.checked_add(patch)
}

/// Returns the requested bus bandwidth in GB/s (`NCCL_TESTS_MIN_BW`).
pub fn minimum_busbw(provenance: &Provenance) -> Option<f64> {
    provenance.environment.get("NCCL_TESTS_MIN_BW")?.trim().parse().ok()
}

/// Returns true when a mean bus bandwidth is at least 90 % of the requested one; `None` without a request.
/// NaN, the mean of no measurement, is not enough.
pub fn is_enough(mean_busbw: f64, minimum: Option<f64>) -> Option<bool> {
    minimum.map(|minimum| mean_busbw >= minimum * ENOUGH)
}

/// Returns the note on a complete run with a mean bus bandwidth below the requirement of `NCCL_TESTS_MIN_BW`.
pub fn too_slow(run: &Run) -> Option<String> {
    // Pairs of ranks have no bus bandwidth of collectives to compare.
    let applies = run.outcome == RunOutcome::Complete && run.settings.pairs.is_none();
    let minimum = minimum_busbw(&run.provenance).filter(|_| applies)?;
    let mean = run.mean_busbw_gbps().unwrap_or(f64::NAN);
    (is_enough(mean, Some(minimum)) == Some(false)).then(|| {
        format!(
            "NCCL_TESTS_MIN_BW is not reached: the mean busbw is {mean:.2} GB/s, but {minimum} GB/s less 10 \
             % are required"
        )
    })
}

/// Converts a time in UTC to nccl-tests' format in `zone`. Other text is returned unchanged.
pub fn local_time(utc: &str, zone: &TimeZone) -> String {
    match utc.parse::<Timestamp>() {
        Ok(time) => time.to_zoned(zone.clone()).strftime(TIME_FORMAT).to_string(),
        Err(_) => utc.to_owned(),
    }
}

/// Returns the collective of a command line: `allreduce` for `./build/all_reduce_perf` and
/// `all_reduce_perf_mpi`. In this program's files the first argument names it.
pub(crate) fn command_collective(args: &[String]) -> String {
    let of_command = args.get(1).and_then(|command| command.parse::<Collective>().ok());
    if let Some(collective) = of_command {
        return collective.collective_name().to_owned();
    }
    let program = args.first().map_or("", String::as_str);
    let name = Path::new(program).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.split("_perf").next().unwrap_or_default().replace('_', "")
}
