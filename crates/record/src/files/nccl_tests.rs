//! The JSON of nccl-tests' `-J`, for its readers: the same keys in the same order, and the same encoding of values.
//!
//! It differs where nccl-tests' own is faulty. A number that is not finite is null. All GPUs are listed. Of the
//! environment, only variables that affect the measurement are included. The file is always valid: when the run failed
//! it has no `end_time`, the reason in `errors`, and no `okay` is true. When no data was verified, the `count` of
//! wrong values is null, and `okay` is `unchecked`.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use serde::Serialize;

use super::read::collective;
use super::replacement;
use crate::nccl_tests as names;
use crate::run::{Blocking, Measurement, Outcome, Placement, Rank, Run, Settings};

/// The version of nccl-tests' format.
const VERSION: u32 = 3;

/// Reason for which the file cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The suffix is not `.json`; nccl-tests would silently write nothing.
    #[error("-J {}: the name must end in .json, as in results.json", path.display())]
    Suffix {
        /// The requested path.
        path: PathBuf,
    },
    /// The file cannot be created.
    #[error("-J {}: cannot be created: {source}", path.display())]
    Create {
        /// The name that was tried.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Creates the file for `path`: with that name, or `path.0`, `path.1`, ... if it exists. It is empty; [`write()`] the
/// unfinished run at once, so that it is always valid.
///
/// # Errors
/// When the name does not end in `.json` (ignoring case), the file cannot be created, or there is no room to fill it.
/// The file then does not exist.
pub fn target(path: &Path) -> Result<PathBuf, TargetError> {
    if !path.to_string_lossy().to_ascii_lowercase().ends_with(".json") {
        return Err(TargetError::Suffix { path: path.to_owned() });
    }
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let source = io::Error::other("it is no regular file");
        return Err(TargetError::Create { path: path.to_owned(), source });
    }
    let mut names = (0_u64..).map(|number| with_suffix(path, &format!(".{number}")));
    let mut name = path.to_owned();
    loop {
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(_) => {
                return match replacement::check(&name) {
                    Ok(_) => Ok(name),
                    Err(source) => {
                        let _gone = fs::remove_file(&name);
                        Err(TargetError::Create { path: name, source })
                    }
                };
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                name = names.next().unwrap_or_else(|| path.to_owned());
            }
            Err(source) => return Err(TargetError::Create { path: name, source }),
        }
    }
}

/// Replaces the content of the file by `text`, or leaves the file unchanged.
///
/// # Errors
/// When the folder cannot be written or the disk is full.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    replacement::write(path, |out| out.write_all(text.as_bytes()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The JSON of a run, finished or not. Times are in this machine's zone, as in nccl-tests.
#[must_use]
pub fn render(run: &Run) -> String {
    render_in_zone(run, &TimeZone::system())
}

/// The JSON of a run with times in `zone`.
#[must_use]
pub fn render_in_zone(run: &Run, zone: &TimeZone) -> String {
    let complete = run.outcome == Outcome::Complete;
    let failed_checks = run.failed_checks();
    let mean = run.mean_busbw_gbps();
    let enough = names::enough(mean.unwrap_or(f64::NAN), names::minimum_busbw(&run.provenance));
    let document = OutputDocument {
        version: VERSION,
        start_time: names::local_time(&run.started_at, zone),
        args: &run.command,
        env: run.provenance.environment.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        nccl_version: (run.provenance.backend == "nccl")
            .then(|| names::nccl_code(&run.provenance.library_version))
            .flatten(),
        config: Config::new(&run.settings, &run.ranks),
        results: results(run),
        out_of_bounds: OutOfBounds {
            count: failed_checks,
            okay: match (complete, failed_checks) {
                (true, None) => "unchecked",
                (complete, failed_checks) => truth(complete && failed_checks == Some(0)),
            },
        },
        average_bus_bandwidth: AverageBusBandwidth {
            bandwidth: mean,
            okay: match (complete, enough) {
                (true, None) => "unchecked",
                (complete, enough) => truth(complete && enough == Some(true)),
            },
        },
        errors: [match &run.outcome {
            Outcome::Complete => String::new(),
            Outcome::Running => "the run has not ended".to_owned(),
            Outcome::Interrupted { signal } => format!("interrupted by {signal}"),
            Outcome::Failed { message } => message.clone(),
        }],
        end_time: run.ended_at.as_ref().filter(|_| complete).map(|time| names::local_time(time, zone)),
    };
    // Strings, numbers and lists: there is nothing that JSON does not have.
    serde_json::to_string(&document).unwrap_or_default()
}

/// A boolean as a string, as in nccl-tests.
const fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[derive(Serialize)]
struct OutputDocument<'a> {
    version: u32,
    start_time: String,
    args: &'a [String],
    env: Vec<String>,
    nccl_version: Option<u32>,
    config: Config<'a>,
    results: Vec<OutputRow<'a>>,
    out_of_bounds: OutOfBounds,
    average_bus_bandwidth: AverageBusBandwidth,
    errors: [String; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<String>,
}

#[derive(Serialize)]
struct Config<'a> {
    nthreads: usize,
    ngpus: usize,
    minimum_bytes: u64,
    maximum_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_factor: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_bytes: Option<u64>,
    warmup_iters: usize,
    iterations: usize,
    aggregated_iterations: usize,
    validation: usize,
    graph: usize,
    blocking_collectives: &'static str,
    per_iter_timing: &'static str,
    per_iter_skip: usize,
    parallel_init: &'static str,
    devices: Vec<Device<'a>>,
}

impl<'a> Config<'a> {
    fn new(settings: &Settings, ranks: &'a [Rank]) -> Self {
        Self {
            nthreads: settings.threads,
            ngpus: settings.gpus,
            minimum_bytes: settings.min_bytes,
            maximum_bytes: settings.max_bytes,
            step_factor: settings.step_factor,
            step_bytes: settings.step_bytes,
            warmup_iters: settings.warm_up,
            iterations: settings.iterations,
            aggregated_iterations: settings.aggregated,
            validation: settings.checks,
            graph: settings.graph_launches,
            blocking_collectives: truth(settings.blocking != Blocking::No),
            per_iter_timing: truth(settings.per_iteration),
            per_iter_skip: settings.per_iteration_skip,
            parallel_init: truth(settings.parallel_init),
            devices: devices(ranks),
        }
    }
}

#[derive(Serialize)]
struct Device<'a> {
    rank: usize,
    group: usize,
    pid: u32,
    hostname: &'a str,
    device: Option<usize>,
    device_hex: Option<&'a str>,
    device_info: &'a str,
}

/// The devices of all ranks. The first of each process come first: nccl-tests has only those, and its script takes the
/// n-th device for that of the n-th process.
fn devices(ranks: &[Rank]) -> Vec<Device<'_>> {
    let begins_process = |index: usize| {
        let before = index.checked_sub(1).and_then(|before| ranks.get(before));
        before.is_none_or(|before| (before.pid, &before.host) != (ranks[index].pid, &ranks[index].host))
    };
    let (mut order, others): (Vec<_>, Vec<_>) = (0..ranks.len()).partition(|&index| begins_process(index));
    order.extend(others);
    order
        .into_iter()
        .map(|index| &ranks[index])
        .map(|rank| Device {
            rank: rank.rank,
            group: rank.group,
            pid: rank.pid,
            hostname: &rank.host,
            device: rank.device,
            device_hex: rank.pci.as_deref(),
            device_info: &rank.device_name,
        })
        .collect()
}

#[derive(Serialize)]
struct OutputRow<'a> {
    size: u64,
    count: u64,
    #[serde(rename = "type")]
    data_type: &'a str,
    redop: &'a str,
    root: String,
    out_of_place: Option<Half>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_place_per_iter: Option<PerIteration<'a>>,
    in_place: Option<Half>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_per_iter: Option<PerIteration<'a>>,
    actual_iterations: usize,
    experiment_name: &'a str,
}

#[derive(Serialize)]
struct Half {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_time: Option<f64>,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<f64>,
}

#[derive(Serialize)]
struct PerIteration<'a> {
    skipped_iterations: usize,
    min_us: f64,
    max_us: f64,
    avg_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    stdev_us: f64,
    cv_pct: f64,
    times_us: &'a [f64],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    per_process_max_times_us: &'a [Vec<f64>],
}

#[derive(Serialize)]
struct OutOfBounds {
    /// Null when nothing was verified.
    count: Option<u64>,
    okay: &'static str,
}

#[derive(Serialize)]
struct AverageBusBandwidth {
    bandwidth: Option<f64>,
    okay: &'static str,
}

/// Rows of the results. An in-place measurement shares the row of the out-of-place one before it.
fn results(run: &Run) -> Vec<OutputRow<'_>> {
    let of_command = collective(&run.command);
    let mut rows = Vec::new();
    let mut measurements = run.measurements.iter().peekable();
    while let Some(first) = measurements.next() {
        let (outer, inner) = match first.placement {
            Placement::OutOfPlace => {
                (Some(first), measurements.next_if(|second| second.placement == Placement::InPlace))
            }
            Placement::InPlace => (None, Some(first)),
        };
        rows.push(OutputRow {
            size: first.bytes,
            count: first.count,
            data_type: &first.data_type,
            redop: names::operator(first),
            root: names::root(first),
            out_of_place: outer.map(|found| half(found, &run.settings)),
            out_of_place_per_iter: outer.and_then(|found| per_iteration(found, &run.settings)),
            in_place: inner.map(|found| half(found, &run.settings)),
            in_place_per_iter: inner.and_then(|found| per_iteration(found, &run.settings)),
            actual_iterations: iterations(first, &run.settings),
            experiment_name: if of_command == first.collective {
                ""
            } else {
                names::program(&first.collective)
            },
        });
    }
    rows
}

fn half(measurement: &Measurement, settings: &Settings) -> Half {
    Half {
        time: (!settings.cpu_time).then_some(measurement.time_us),
        cpu_time: settings.cpu_time.then(|| measurement.cpu_time_us.unwrap_or(f64::NAN)),
        alg_bw: measurement.algbw_gbps,
        bus_bw: measurement.busbw_gbps,
        nwrong: measurement.wrong.map(|wrong| wrong as f64),
    }
}

fn per_iteration<'a>(measurement: &'a Measurement, settings: &Settings) -> Option<PerIteration<'a>> {
    let statistics = measurement.statistics.as_ref().filter(|_| settings.per_iteration)?;
    let times = measurement.per_iteration.as_ref()?;
    let mut counted = times.times_us.get(times.skipped..)?.to_vec();
    counted.sort_unstable_by(f64::total_cmp);
    Some(PerIteration {
        skipped_iterations: times.skipped,
        min_us: statistics.min_us,
        max_us: statistics.max_us,
        avg_us: statistics.mean_us,
        // Of two middle ones nccl-tests takes the longer.
        p50_us: *counted.get(counted.len() / 2)?,
        p95_us: statistics.p95_us,
        p99_us: statistics.p99_us,
        stdev_us: statistics.deviation_us,
        cv_pct: statistics.variation_percent(),
        times_us: &times.times_us,
        per_process_max_times_us: &times.processes_us,
    })
}

/// Number of iterations: operations of a group and of all graph launches count as one.
fn iterations(measurement: &Measurement, settings: &Settings) -> usize {
    measurement.operations / (settings.aggregated.max(1) * settings.graph_launches.max(1))
}

#[cfg(test)]
mod tests;
