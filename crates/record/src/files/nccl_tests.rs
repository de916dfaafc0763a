//! The JSON of nccl-tests' `-J`, for what reads that: the same keys in the same order, and the same encoding of values.
//!
//! It differs where nccl-tests' own is faulty. A number that is none is null. All GPUs are listed. Of the
//! environment there are only the variables that matter to what was measured. The file is always valid: when
//! the run failed it has no `end_time`, the reason in `errors`, and nothing in it is `okay`. When no data was
//! verified, the `count` of wrong values is null, and `okay` is `unchecked`.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use serde::Serialize;

use super::nccl_tests_read::collective;
use super::replacement;
use crate::nccl_tests as names;
use crate::run::{Blocking, Measurement, Outcome, Placement, Rank, Run, Settings};

/// The version of nccl-tests' format.
const VERSION: u32 = 3;

/// Why there can be no file.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// nccl-tests would write nothing, and say nothing.
    #[error("-J {}: the name must end in .json, as in results.json", path.display())]
    Suffix {
        /// What was asked for.
        path: PathBuf,
    },
    /// The file cannot be created.
    #[error("-J {}: cannot be created: {source}", path.display())]
    Create {
        /// The name that was tried.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Finds the file for `path` and creates it: the file of that name, or `path.0`, `path.1`, ... where it is there
/// already. It is empty: [`write()`] the unfinished run at once, so that it is valid whatever happens.
///
/// # Errors
/// When the name does not end in `.json`, in any case, or the file cannot be created or there is no room to fill it:
/// then it is not there.
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

/// Makes `text` the whole content of the file, or leaves the file as it is.
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

/// The text for a run, also for one that has not ended. Times are in this machine's zone, as nccl-tests has them.
#[must_use]
pub fn render(run: &Run) -> String {
    render_in_zone(run, &TimeZone::system())
}

/// The same with times of another zone.
#[must_use]
pub fn render_in_zone(run: &Run, zone: &TimeZone) -> String {
    let complete = run.outcome == Outcome::Complete;
    let failed_checks = run.failed_checks();
    let mean = run.mean_busbw_gbps();
    let enough = names::enough(mean.unwrap_or(f64::NAN), names::minimum_busbw(&run.provenance));
    let document = Document {
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

/// nccl-tests has booleans as strings.
const fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    start_time: String,
    args: &'a [String],
    env: Vec<String>,
    nccl_version: Option<u32>,
    config: Config<'a>,
    results: Vec<Row<'a>>,
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

/// All ranks' devices. The first of each process come before the others: nccl-tests has only those, and its script
/// takes the n-th device for that of the n-th process.
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
struct Row<'a> {
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

/// Two measurements are one row when the second is the other's in-place.
fn results(run: &Run) -> Vec<Row<'_>> {
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
        rows.push(Row {
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

/// Of an iteration's operations, those in a group and those of all launches count as one.
fn iterations(measurement: &Measurement, settings: &Settings) -> usize {
    measurement.operations / (settings.aggregated.max(1) * settings.graph_launches.max(1))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use std::fs;

    use super::*;
    use crate::sample::row as sample;
    use crate::statistics::Statistics;

    fn document(run: &Run) -> Value {
        serde_json::from_str(&render_in_zone(run, &TimeZone::UTC)).unwrap()
    }

    fn run(collectives: &[&str]) -> Run {
        let mut run = sample::run();
        for collective in collectives {
            for placement in [Placement::OutOfPlace, Placement::InPlace] {
                run.measurements.push(sample::measurement(collective, placement));
            }
        }
        run
    }

    #[test]
    fn the_first_devices_are_those_of_the_processes_and_all_are_there() {
        let document = document(&run(&["allreduce"]));
        let devices = document["config"]["devices"].as_array().unwrap();
        let places: Vec<(u64, &str)> = devices
            .iter()
            .map(|device| (device["rank"].as_u64().unwrap(), device["hostname"].as_str().unwrap()))
            .collect();
        assert_eq!(places, [(0, "node01"), (2, "node02"), (1, "node01"), (3, "node02")]);
        assert_eq!(devices[1]["device_hex"], "0000:18:00");
    }

    #[test]
    fn a_number_that_is_none_is_null() {
        let mut run = run(&["allreduce"]);
        run.measurements[0].time_us = 0.0;
        run.measurements[0].algbw_gbps = f64::INFINITY;
        run.measurements[0].busbw_gbps = f64::NAN;
        let document = document(&run);
        let expected = json!({"time": 0.0, "alg_bw": null, "bus_bw": null, "nwrong": 0.0});
        assert_eq!(document["results"][0]["out_of_place"], expected);
        assert_eq!(document["average_bus_bandwidth"], json!({"bandwidth": null, "okay": "unchecked"}));
    }

    #[test]
    fn a_run_that_did_not_end_well_says_so_and_is_not_okay() {
        for (outcome, error) in [
            (Outcome::Running, "the run has not ended"),
            (Outcome::Interrupted { signal: "SIGINT".to_owned() }, "interrupted by SIGINT"),
            (
                Outcome::Failed { message: "rank 3 on node02 \"died\"\n".to_owned() },
                "rank 3 on node02 \"died\"\n",
            ),
        ] {
            let mut run = run(&["allreduce"]);
            run.measurements.pop();
            run.outcome = outcome;
            let document = document(&run);
            assert_eq!(document["errors"], json!([error]));
            assert_eq!(document.get("end_time"), None);
            assert_eq!(document["out_of_bounds"], json!({"count": 0, "okay": "false"}));
            assert_eq!(document["average_bus_bandwidth"]["okay"], "false");
            assert_eq!(document["results"][0]["out_of_place"]["time"], 10.0);
            assert_eq!(document["results"][0]["in_place"], Value::Null);
        }
        let document = document(&run(&["allreduce"]));
        assert_eq!(
            (&document["errors"], &document["end_time"]),
            (&json!([""]), &json!("2026-11-20 14:58:11"))
        );
        assert_eq!(document["out_of_bounds"], json!({"count": 0, "okay": "true"}));
    }

    #[test]
    fn a_run_without_measurements_is_whole() {
        let document = document(&run(&[]));
        assert_eq!(document["results"], json!([]));
        assert_eq!(document["average_bus_bandwidth"]["bandwidth"], Value::Null);
    }

    #[test]
    fn several_collectives_are_told_apart() {
        let named = |asked: &str, measured: &[&str]| -> Vec<String> {
            let mut run = run(measured);
            run.command = vec!["nccl-bench".to_owned(), asked.to_owned()];
            let document = document(&run);
            let results = document["results"].as_array().unwrap();
            results.iter().map(|result| result["experiment_name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(named("allreduce", &["allreduce", "allreduce"]), ["", ""]);
        let both = "allreduce,allgather";
        assert_eq!(named(both, &["allreduce", "allgather"]), ["all_reduce_perf", "all_gather_perf"]);
        // Of a run that ended before the second.
        assert_eq!(named(both, &["allreduce"]), ["all_reduce_perf"]);
    }

    #[test]
    fn skipped_iterations_are_in_the_times_and_not_in_the_summary() {
        let mut run = run(&["allreduce"]);
        run.settings.per_iteration = true;
        run.settings.cpu_time = true;
        run.measurements[0].cpu_time_us = Some(2.5);
        run.measurements[0].statistics = Statistics::of(&[4.0, 1.0]);
        run.measurements[0].per_iteration = Some(crate::run::PerIteration {
            skipped: 1,
            times_us: vec![9.0, 4.0, 1.0],
            processes_us: Vec::new(),
        });
        let document = document(&run);
        let result = &document["results"][0];
        assert_eq!(result["out_of_place"]["cpu_time"], 2.5);
        assert_eq!(result["out_of_place"].get("time"), None);
        let expected = json!({
            "skipped_iterations": 1, "min_us": 1.0, "max_us": 4.0, "avg_us": 2.5, "p50_us": 4.0, "p95_us": 4.0,
            "p99_us": 4.0, "stdev_us": 1.5, "cv_pct": 60.0, "times_us": [9.0, 4.0, 1.0],
        });
        assert_eq!(result["out_of_place_per_iter"], expected);
        assert_eq!(result.get("in_place_per_iter"), None);
    }

    #[test]
    fn only_json_can_be_asked_for() {
        for name in ["results.csv", "results", "json"] {
            let error = target(Path::new(name)).unwrap_err();
            assert!(matches!(error, TargetError::Suffix { .. }), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_there_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.JSON");
        fs::write(&path, "precious").unwrap();
        let names: Vec<PathBuf> = (0..2).map(|_| target(&path).unwrap()).collect();
        assert_eq!(names, ["results.JSON.0", "results.JSON.1"].map(|name| folder.path().join(name)));
        write(&names[0], "{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&names[0]).unwrap(), "{}");
        // And nothing else is left.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_and_what_it_held_stays() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("missing").join("results.json");
        let error = target(&nowhere).unwrap_err();
        assert!(matches!(error, TargetError::Create { .. }), "{error}");
        assert!(error.to_string().contains("missing"), "{error}");
        // A folder of that name: the new text cannot take its place.
        let taken = folder.path().join("folder.json");
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("inside"), "precious").unwrap();
        assert!(write(&taken, "{}").is_err());
        assert_eq!(fs::read_to_string(taken.join("inside")).unwrap(), "precious");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
