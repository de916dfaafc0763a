//! Names, numbers and times as nccl-tests writes them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::collective::Collective;
use crate::run::{Measurement, Outcome, Provenance, Run};

/// The share of the asked bandwidth (`NCCL_TESTS_MIN_BW`) that is enough.
const ENOUGH: f64 = 0.9;
/// How nccl-tests writes a time; with -S also the unit of that column.
pub const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";

/// The name of nccl-tests' program for a collective, by the collective's name on our command line. A name that is
/// none is returned as it is.
#[must_use]
pub fn program(collective: &str) -> &str {
    collective.parse::<Collective>().map_or(collective, |known| known.nccl_tests_name())
}

/// The operator's cell. nccl-tests prints one for sendrecv, which reduces nothing, and a blank one for hypercube.
#[must_use]
pub fn operator(measurement: &Measurement) -> &str {
    match (measurement.op.as_deref(), measurement.collective.as_str()) {
        (Some(op), _) => op,
        (None, "sendrecv") => "sum",
        (None, "hypercube") => "",
        (None, _) => "none",
    }
}

/// The root's cell, which is also a string in nccl-tests' JSON: -1 where there is none.
#[must_use]
pub fn root(measurement: &Measurement) -> String {
    format!("{:>6}", measurement.root.map_or_else(|| "-1".to_owned(), |root| root.to_string()))
}

/// NCCL's number for a version: 22809 for `2.28.9`. `None` for what is no version of three numbers.
#[must_use]
pub fn nccl_code(version: &str) -> Option<u32> {
    let mut numbers = version.split('.').map(|part| {
        part.split(|letter: char| !letter.is_ascii_digit())
            .next()
            .and_then(|digits| digits.parse::<u32>().ok())
    });
    let [major, minor, patch] = [numbers.next()??, numbers.next()??, numbers.next()??];
    major.checked_mul(10_000)?.checked_add(minor.checked_mul(100)?)?.checked_add(patch)
}

/// The bus bandwidth in GB/s that the environment asks for (`NCCL_TESTS_MIN_BW`).
#[must_use]
pub fn minimum_busbw(provenance: &Provenance) -> Option<f64> {
    provenance.environment.get("NCCL_TESTS_MIN_BW")?.trim().parse().ok()
}

/// Whether a mean bus bandwidth is at least 90 % of what was asked for; `None` when nothing was. The mean of no
/// measurement, which is no number, is not enough.
#[must_use]
pub fn enough(mean_busbw: f64, minimum: Option<f64>) -> Option<bool> {
    minimum.map(|minimum| mean_busbw >= minimum * ENOUGH)
}

/// The note that a whole run's mean bus bandwidth is lower than `NCCL_TESTS_MIN_BW` asks for.
#[must_use]
pub fn too_slow(run: &Run) -> Option<String> {
    let minimum = minimum_busbw(&run.provenance).filter(|_| run.outcome == Outcome::Complete)?;
    let mean = run.mean_busbw_gbps().unwrap_or(f64::NAN);
    (enough(mean, Some(minimum)) == Some(false)).then(|| {
        format!("NCCL_TESTS_MIN_BW is not reached: the mean busbw is {mean:.2} GB/s, and {minimum} GB/s less 10 % are asked for")
    })
}

/// A time in UTC as nccl-tests writes it, in `zone`; what is no time is returned as it is.
#[must_use]
pub fn local_time(utc: &str, zone: &TimeZone) -> String {
    match utc.parse::<Timestamp>() {
        Ok(time) => time.to_zoned(zone.clone()).strftime(TIME_FORMAT).to_string(),
        Err(_) => utc.to_owned(),
    }
}
