//! The JSON of nccl-tests' `-J`, for its readers: the same keys in the same order, and the same encoding of
//! values.
//!
//! It differs where nccl-tests' own is faulty. A number that is not finite is null. All GPUs are listed. Of
//! the environment, only variables that affect the measurement are included. The file is always valid: when
//! the run failed it has no `end_time`, the reason in `errors`, and no `okay` is true. When no data was
//! verified, the `count` of wrong values is null, and `okay` is `unchecked`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::replacement;
use crate::nccl_tests as names;
use crate::number;
use crate::run::{Measurement, Placement, Rank, Run, RunOutcome};
use crate::settings::{Blocking, Settings};

/// The version of nccl-tests' format.
pub(super) const VERSION: u64 = 3;

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

/// Creates the file for `path`: with that name, or `path.0`, `path.1`, ... if it exists. It is empty, for
/// [`Files::add_nccl_tests`](super::Files::add_nccl_tests).
///
/// # Errors
/// When the name does not end in `.json` (ignoring case), the file cannot be created, or there is no room to
/// fill it. The file then does not exist.
pub fn create_target(path: &Path) -> Result<PathBuf, TargetError> {
    if !path.to_string_lossy().to_ascii_lowercase().ends_with(".json") {
        return Err(TargetError::Suffix { path: path.to_owned() });
    }
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let source = io::Error::other("it is not a regular file");
        return Err(TargetError::Create { path: path.to_owned(), source });
    }
    let mut names = (0_u64..).map(|number| with_suffix(path, &format!(".{number}")));
    let mut name = path.to_owned();
    loop {
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(_) => {
                return match replacement::check_target(&name) {
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

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The JSON of a run, finished or not. Times are in this machine's zone, as in nccl-tests.
pub fn render_json(run: &Run) -> String {
    render_in_zone(run, &TimeZone::system())
}

/// The JSON of a run with times in `zone`.
pub fn render_in_zone(run: &Run, zone: &TimeZone) -> String {
    let complete = run.outcome == RunOutcome::Complete;
    let failed_checks = run.failed_checks();
    let mean = run.mean_busbw_gbps();
    let enough = names::is_enough(mean.unwrap_or(f64::NAN), names::minimum_busbw(&run.provenance));
    let document = Document {
        version: VERSION,
        start_time: names::local_time(&run.started_at, zone),
        args: run.command.clone(),
        env: run.provenance.environment.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        nccl_version: (run.provenance.backend == "nccl")
            .then(|| names::nccl_code(&run.provenance.library_version).map(u64::from))
            .flatten(),
        config: Config::new(&run.settings, &run.ranks),
        results: list_results(run),
        out_of_bounds: OutOfBounds {
            count: failed_checks.map(|count| count.try_into().unwrap_or(i64::MAX)),
            okay: Cow::Borrowed(match (complete, failed_checks) {
                (true, None) => "unchecked",
                (complete, failed_checks) => truth_text(complete && failed_checks == Some(0)),
            }),
        },
        average_bus_bandwidth: AverageBusBandwidth {
            bandwidth: mean,
            okay: match (complete, enough) {
                (true, None) => "unchecked",
                (complete, enough) => truth_text(complete && enough == Some(true)),
            },
        },
        errors: vec![match &run.outcome {
            RunOutcome::Complete => String::new(),
            RunOutcome::Running => "the run has not ended".to_owned(),
            RunOutcome::Interrupted { signal } => format!("interrupted by {signal}"),
            RunOutcome::Failed { message } => message.clone(),
        }],
        end_time: run.ended_at.as_ref().filter(|_| complete).map(|time| names::local_time(time, zone)),
    };
    // Strings, numbers and lists: there is nothing that JSON does not have.
    serde_json::to_string(&document).unwrap_or_default()
}

/// A boolean as a string, as in nccl-tests.
const fn truth_text(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// The whole file. Those of nccl-tests are read in two parts: `results`, and all other fields.
#[derive(Serialize, Deserialize)]
pub(super) struct Document {
    version: u64,
    pub(super) start_time: String,
    pub(super) args: Vec<String>,
    /// The environment, as `NAME=value`.
    #[serde(default)]
    pub(super) env: Vec<String>,
    /// Absent in this program's files of host memory.
    pub(super) nccl_version: Option<u64>,
    pub(super) config: Config,
    #[serde(skip_deserializing)]
    results: Vec<Row>,
    #[serde(default)]
    pub(super) out_of_bounds: OutOfBounds,
    #[serde(skip_deserializing)]
    average_bus_bandwidth: AverageBusBandwidth,
    #[serde(default)]
    pub(super) errors: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) end_time: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) nthreads: usize,
    pub(super) ngpus: usize,
    pub(super) minimum_bytes: u64,
    pub(super) maximum_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step_factor: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step_bytes: Option<u64>,
    pub(super) warmup_iters: usize,
    pub(super) iterations: usize,
    pub(super) aggregated_iterations: usize,
    pub(super) validation: usize,
    pub(super) graph: usize,
    #[serde(skip_deserializing)]
    blocking_collectives: String,
    pub(super) per_iter_timing: String,
    pub(super) per_iter_skip: usize,
    pub(super) parallel_init: String,
    pub(super) devices: Vec<DeviceEntry>,
}

impl Config {
    fn new(settings: &Settings, ranks: &[Rank]) -> Self {
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
            blocking_collectives: truth_text(settings.blocking != Blocking::No).to_owned(),
            per_iter_timing: truth_text(settings.per_iteration).to_owned(),
            per_iter_skip: settings.per_iteration_skip,
            parallel_init: truth_text(settings.parallel_init).to_owned(),
            devices: list_devices(ranks),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct DeviceEntry {
    pub(super) rank: usize,
    pub(super) group: usize,
    pub(super) pid: u32,
    pub(super) hostname: String,
    /// Absent in this program's files of host memory.
    pub(super) device: Option<usize>,
    pub(super) device_hex: Option<String>,
    pub(super) device_info: String,
}

/// The devices of all ranks. The first of each process come first: nccl-tests has only those, and its script
/// takes the n-th device for that of the n-th process.
fn list_devices(ranks: &[Rank]) -> Vec<DeviceEntry> {
    let begins_process = |index: usize| {
        let before = index.checked_sub(1).and_then(|before| ranks.get(before));
        before.is_none_or(|before| (before.pid, &before.host) != (ranks[index].pid, &ranks[index].host))
    };
    let (mut order, others): (Vec<_>, Vec<_>) = (0..ranks.len()).partition(|&index| begins_process(index));
    order.extend(others);
    order
        .into_iter()
        .map(|index| &ranks[index])
        .map(|rank| DeviceEntry {
            rank: rank.rank,
            group: rank.group,
            pid: rank.pid,
            hostname: rank.host.clone(),
            device: rank.device,
            device_hex: rank.pci.clone(),
            device_info: rank.device_name.clone(),
        })
        .collect()
}

/// The measurements of one size.
#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    /// Only in this program's files of several groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<usize>,
    pub(super) size: u64,
    pub(super) count: u64,
    #[serde(rename = "type")]
    pub(super) data_type: String,
    pub(super) redop: String,
    pub(super) root: String,
    /// Absent in this program's files of a run that ended before it; so is `in_place`.
    pub(super) out_of_place: Option<Half>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) out_of_place_per_iter: Option<Times>,
    pub(super) in_place: Option<Half>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_place_per_iter: Option<Times>,
    pub(super) actual_iterations: usize,
    /// Program name of the row's collective; empty when it is that of the command.
    #[serde(default)]
    pub(super) experiment_name: String,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Half {
    /// Absent with `-C`, which reports the host's time instead.
    #[serde(default, deserialize_with = "number::if_any", skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<f64>,
    #[serde(default, deserialize_with = "number::if_any", skip_serializing_if = "Option::is_none")]
    pub(super) cpu_time: Option<f64>,
    #[serde(deserialize_with = "number::or_nan")]
    pub(super) alg_bw: f64,
    #[serde(deserialize_with = "number::or_nan")]
    pub(super) bus_bw: f64,
    #[serde(default, deserialize_with = "number::if_any")]
    pub(super) nwrong: Option<f64>,
}

/// The times of single iterations, and their summary, which is not read.
#[derive(Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) skipped_iterations: usize,
    #[serde(flatten, skip_deserializing)]
    summary: TimesSummary,
    #[serde(deserialize_with = "number::each_or_nan")]
    pub(super) times_us: Vec<f64>,
    #[serde(default, deserialize_with = "number::lists_or_nan", skip_serializing_if = "Vec::is_empty")]
    pub(super) per_process_max_times_us: Vec<Vec<f64>>,
}

#[derive(Default, Serialize)]
struct TimesSummary {
    min_us: f64,
    max_us: f64,
    avg_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    stdev_us: f64,
    cv_pct: f64,
}

#[derive(Default, Serialize, Deserialize)]
pub(super) struct OutOfBounds {
    /// Null when nothing was verified.
    pub(super) count: Option<i64>,
    pub(super) okay: Cow<'static, str>,
}

#[derive(Default, Serialize)]
struct AverageBusBandwidth {
    bandwidth: Option<f64>,
    okay: &'static str,
}

/// Rows of the results. An in-place measurement shares the row of the out-of-place one of the same group
/// before it.
fn list_results(run: &Run) -> Vec<Row> {
    let of_command = names::command_collective(&run.command);
    let mut halves: Vec<[Option<&Measurement>; 2]> = Vec::new();
    for measurement in &run.measurements {
        let is_before = |row: &&mut [Option<&Measurement>; 2]| {
            row[0].or(row[1]).is_some_and(|first| first.group == measurement.group)
        };
        // The rows of all groups of a size follow each other.
        let row = halves.iter_mut().rev().find(is_before);
        match (measurement.placement, row) {
            (Placement::InPlace, Some([Some(_), inner @ None])) => *inner = Some(measurement),
            (Placement::InPlace, _) => halves.push([None, Some(measurement)]),
            (Placement::OutOfPlace, _) => halves.push([Some(measurement), None]),
        }
    }
    let mut rows = Vec::new();
    for [outer, inner] in halves {
        let Some(first) = outer.or(inner) else { continue };
        rows.push(Row {
            group: first.group,
            size: first.bytes,
            count: first.count,
            data_type: first.data_type.clone(),
            redop: names::operator_cell(first).to_owned(),
            root: names::root_cell(first),
            out_of_place: outer.map(|found| make_half(found, &run.settings)),
            out_of_place_per_iter: outer.and_then(|found| per_iteration(found, &run.settings)),
            in_place: inner.map(|found| make_half(found, &run.settings)),
            in_place_per_iter: inner.and_then(|found| per_iteration(found, &run.settings)),
            actual_iterations: count_iterations(first, &run.settings),
            experiment_name: match first.collective.as_str() {
                collective if collective == of_command => String::new(),
                collective => names::program_name(collective).to_owned(),
            },
        });
    }
    rows
}

fn make_half(measurement: &Measurement, settings: &Settings) -> Half {
    Half {
        time: (!settings.cpu_time).then_some(measurement.time_us),
        cpu_time: settings.cpu_time.then(|| measurement.cpu_time_us.unwrap_or(f64::NAN)),
        alg_bw: measurement.algbw_gbps,
        bus_bw: measurement.busbw_gbps,
        nwrong: measurement.wrong.map(|wrong| wrong as f64),
    }
}

fn per_iteration(measurement: &Measurement, settings: &Settings) -> Option<Times> {
    let statistics = measurement.statistics.as_ref().filter(|_| settings.per_iteration)?;
    let times = measurement.per_iteration.as_ref()?;
    let mut counted = times.times_us.get(times.skipped..)?.to_vec();
    counted.sort_unstable_by(f64::total_cmp);
    let summary = TimesSummary {
        min_us: statistics.min_us,
        max_us: statistics.max_us,
        avg_us: statistics.mean_us,
        // Of two middle ones nccl-tests takes the longer.
        p50_us: *counted.get(counted.len() / 2)?,
        p95_us: statistics.p95_us,
        p99_us: statistics.p99_us,
        stdev_us: statistics.deviation_us,
        cv_pct: statistics.variation_percent(),
    };
    Some(Times {
        skipped_iterations: times.skipped,
        summary,
        times_us: times.times_us.clone(),
        per_process_max_times_us: times.processes_us.clone(),
    })
}

/// Number of iterations: operations of a group and of all graph launches count as one.
fn count_iterations(measurement: &Measurement, settings: &Settings) -> usize {
    measurement.operations / (settings.aggregated.max(1) * settings.graph_launches.max(1))
}

#[cfg(test)]
mod tests;
