//! The text and the JSON against nccl-tests 2.19.6: the same numbers in, the same bytes out.
//!
//! Most files in `data/` were printed on 8 H200. For options that were not used there, those named `made_up_...` were
//! printed by nccl-tests' output code alone, from made-up numbers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use jiff::tz::TimeZone;
use nccl_bench::report::table::{self, Foot, MemoryUsage};
use nccl_bench::report::text::{Extras, TextReport};
use record::files::nccl_tests as nccl_tests_json;
use record::statistics::Statistics;
use record::{
    Average, Blocking, Measurement, Outcome, PerIteration, Placement, Provenance, Rank, Registration, Run,
    SCHEMA_VERSION, Settings,
};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("data/", $name)))),*] };
}

const TEXTS: [(&str, &str); 21] = files!(
    "all_gather_mpi.txt" "all_reduce_g8.txt" "all_reduce_mpi.txt" "all_reduce_mpi_cudagraph.txt"
    "all_reduce_mpi_register_local.txt" "all_reduce_mpi_register_symmetric.txt" "all_reduce_t8.txt"
    "alltoall_mpi.txt" "broadcast_mpi.txt" "reduce_scatter_mpi.txt" "sendrecv_64K-256M.txt"
    "sendrecv_64K-256M_p2pchannels64_chunk64K.txt" "sendrecv_mpi.txt"
    "made_up_cputime.txt" "made_up_cputime_time_stamps.txt" "made_up_gather_roots.txt" "made_up_hypercube.txt"
    "made_up_memory_wrong_data.txt" "made_up_per_iteration.txt" "made_up_per_iteration_time_stamps.txt"
    "made_up_sample.txt"
);
const JSON: &str = include_str!("../../crates/record/tests/data/all_reduce.json");
const JSON_TEXT: &str = include_str!("data/all_reduce_mpi.txt");
const JSON_PER_ITERATION: &str = include_str!("data/made_up_per_iteration_time_stamps.json");
const JSON_PER_ITERATION_TEXT: &str = include_str!("data/made_up_per_iteration_time_stamps.txt");

/// What nccl-tests calls its programs, in our words.
const PROGRAMS: [(&str, &str); 11] = [
    ("all_reduce_perf", "allreduce"),
    ("all_gather_perf", "allgather"),
    ("reduce_scatter_perf", "reducescatter"),
    ("broadcast_perf", "broadcast"),
    ("reduce_perf", "reduce"),
    ("alltoall_perf", "alltoall"),
    ("alltoallv_perf", "alltoallv"),
    ("gather_perf", "gather"),
    ("scatter_perf", "scatter"),
    ("sendrecv_perf", "sendrecv"),
    ("hypercube_perf", "hypercube"),
];

#[test]
fn every_collective_has_nccl_tests_name() {
    for (program, collective) in PROGRAMS {
        assert_eq!(record::nccl_tests::program(collective), program);
    }
}

#[test]
fn every_text_comes_out_byte_for_byte_below_the_version() {
    for (name, text) in TEXTS {
        let found = Found::parse(text);
        assert!(found.run.measurements.len() >= 4, "{name}");
        let (_, expected) = text.split_once("# Collective test starting").unwrap();
        // What the foot says was not made from rounded numbers, and the rows do not show where wrong data was.
        let foot = Foot {
            collective: &found.run.measurements[0].collective,
            failed_checks: Some(found.failed_checks),
            mean_busbw_gbps: found.mean,
            minimum_busbw_gbps: record::nccl_tests::minimum_busbw(&found.run.provenance),
            ratios: None,
            memory: found.memory,
            error: found.error.as_deref(),
        };
        let written = written(&found.run, None) + &foot.render();
        let (version, written) = written.split_once("# Collective test starting").unwrap();
        assert_same_text(name, written, expected);
        assert_eq!(version, "# nccl-bench version 1.2.3 nccl-library=22809\n", "{name}");
    }
}

#[test]
fn a_text_without_wrong_data_comes_out_whole_from_its_measurements() {
    let mut compared = 0;
    for (name, text) in TEXTS {
        let found = Found::parse(text);
        // The sample's foot was not made from its rows.
        if found.failed_checks > 0 || name == "made_up_sample.txt" {
            continue;
        }
        compared += 1;
        let written = written(&found.run, Some((found.memory, found.error.as_deref())));
        let mean: f64 = between(&written, "Avg bus bandwidth    : ", " ").parse().unwrap();
        // Each of the numbers behind it is rounded to at most a hundredth, or to a tenth from 1000 GB/s on.
        assert!((mean - found.mean).abs() < 0.005, "{name}: {mean} {}", found.mean);
        let without_mean = |text: &str| {
            let (_, text) = text.split_once("# Collective test starting").unwrap();
            let lines = text.lines().map(|line| match line.strip_prefix("# Avg bus bandwidth    : ") {
                Some(rest) => rest.split_once(' ').unwrap().1,
                // What nccl-tests calls OK without having verified it.
                None if line.starts_with("# Out of bounds") && found.run.settings.checks == 0 => "",
                None => line,
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_same_text(name, &without_mean(&written), &without_mean(text));
    }
    assert_eq!(compared, 19);
}

#[test]
fn the_numbers_of_the_json_give_the_text_of_the_same_run() {
    for (json, text, library) in [
        (JSON, JSON_TEXT, "nccl-library=22809"),
        (JSON_PER_ITERATION, JSON_PER_ITERATION_TEXT, "nccl-library=23007"),
    ] {
        let found = Found::parse(text);
        let mut run = run_of(json);
        run.settings.time_stamps = found.run.settings.time_stamps;
        run.ranks = found.run.ranks;
        for (measurement, found) in run.measurements.iter_mut().zip(&found.run.measurements) {
            measurement.measured_at.clone_from(&found.measured_at);
        }
        let (notice, rest) = text.split_once('\n').unwrap();
        let (_, rest) = rest.split_once('\n').unwrap();
        let name = notice.strip_prefix("# Writing JSON output to ").unwrap();
        let written = table::json_notice(Path::new(name)) + &written(&run, Some((None, None)));
        assert_same_text(name, &written, &format!("{notice}\n# nccl-bench version 1.2.3 {library}\n{rest}"));
    }
}

#[test]
fn the_json_has_the_same_keys_in_the_same_order_and_the_same_values() {
    for text in [JSON, JSON_PER_ITERATION] {
        let expected: Ordered = serde_json::from_str(text).unwrap();
        let rendered = nccl_tests_json::render_in_zone(&run_of(text), &TimeZone::UTC);
        let found: Ordered = serde_json::from_str(&rendered).unwrap();
        assert_same("", &found, &expected);
    }
}

fn assert_same_text(name: &str, found: &str, expected: &str) {
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{name}: line {line} behind the version");
    }
    assert_eq!(found, expected, "{name}");
}

/// What the report prints of a run; with its foot for memory and error.
fn written(run: &Run, foot: Option<(Option<MemoryUsage>, Option<&str>)>) -> String {
    let mut out = Vec::new();
    let collective = &run.measurements[0].collective;
    let mut report =
        TextReport::start_in_zone(&mut out, run, collective, Extras::default(), TimeZone::UTC).unwrap();
    report.section(collective, None).unwrap();
    for measurement in &run.measurements {
        report.measurement(measurement).unwrap();
    }
    if let Some((memory, error)) = foot {
        report.foot(memory, error).unwrap();
    }
    let text = String::from_utf8(out).unwrap();
    // A line of our own.
    text.lines()
        .filter(|line| !line.starts_with("# Test failure: FAILED: "))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// A text of nccl-tests, read.
struct Found {
    run: Run,
    failed_checks: u64,
    mean: f64,
    memory: Option<MemoryUsage>,
    error: Option<String>,
}

impl Found {
    fn parse(text: &str) -> Self {
        let settings = settings(text);
        let collective = collective(between(text, "# Collective test starting: ", "\n"));
        let mut run = run(settings);
        run.ranks = text.lines().filter(|line| line.starts_with("#  Rank")).map(rank).collect();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            run.measurements.extend(row(line, collective, &run.settings));
        }
        let (mean, verdict) = between(text, "# Avg bus bandwidth    : ", "\n").split_once(' ').unwrap();
        let minimum = match verdict {
            "" => None,
            "OK" => Some("0"),
            "FAILED" => Some("1e9"),
            other => panic!("{other}"),
        };
        let minimum = minimum.map(|minimum| ("NCCL_TESTS_MIN_BW".to_owned(), minimum.to_owned()));
        run.provenance.environment.extend(minimum);
        let count = between(text, "# Out of bounds values : ", " ");
        Self {
            run,
            failed_checks: count.parse().unwrap(),
            mean: mean.parse().unwrap(),
            // Only in the made-up texts.
            memory: text.contains("GPU memory usage").then_some(MemoryUsage {
                initialization: 1_288_490_189,
                buffers: 403_701_760,
                collective: 0,
            }),
            error: text.lines().find_map(|line| line.strip_prefix("# error: ")).map(str::to_owned),
        }
    }
}

fn settings(text: &str) -> Settings {
    let (step, unit) = between(text, "step: ", ")").split_once('(').unwrap();
    let step: u64 = step.parse().unwrap();
    let (_, below_warm_up) = text.split_once("warmup ").unwrap();
    let (_, behind_warm_up) = below_warm_up.split_once(": ").unwrap();
    let blocking = match between(text, "graph: ", "# Using devices") {
        lines if lines.contains("wait and barrier after each inner") => Blocking::WaitAndBarrier,
        lines if lines.contains("wait after each inner") => Blocking::Wait,
        lines if lines.contains("wait and barrier after each outer") => Blocking::Outer,
        lines => {
            assert!(!lines.contains("Blocking"), "{lines}");
            Blocking::No
        }
    };
    Settings {
        threads: after(text, "nThread"),
        gpus: after(text, "nGpus"),
        min_bytes: after(text, "minBytes"),
        max_bytes: after(text, "maxBytes"),
        step_factor: (unit == "factor").then_some(step),
        step_bytes: (unit == "bytes").then_some(step),
        iterations: after(behind_warm_up, " iters:"),
        aggregated: after(text, "agg iters:"),
        warm_up: after(text, "warmup iters:"),
        cycles: 1,
        checks: after(text, "validation:"),
        stream_checks: None,
        average: Average::Mean,
        blocking,
        graph_launches: after(text, "graph:"),
        registration: Registration::None,
        unaligned: after(text, "unalign:"),
        per_iteration: text.contains("# Per-Iteration Report"),
        per_iteration_skip: match text.contains("summary skips first") {
            true => after(text, "summary skips first"),
            false => 0,
        },
        parallel_init: text.contains("# Parallel Init Enabled"),
        cpu_time: text.contains(" cputime "),
        time_stamps: text.contains(" timestamp\n"),
        cta_policy: None,
        default_stream: false,
        until_stable: None,
        budget_seconds: None,
        rounds: None,
    }
}

fn run(settings: Settings) -> Run {
    Run {
        schema_version: SCHEMA_VERSION,
        program: "nccl-bench 1.2.3".to_owned(),
        command: Vec::new(),
        started_at: "2026-11-20T14:57:55Z".to_owned(),
        ended_at: None,
        outcome: Outcome::Running,
        provenance: Provenance {
            backend: "nccl".to_owned(),
            library_version: "2.28.9".to_owned(),
            ..Provenance::default()
        },
        settings,
        ranks: Vec::new(),
        measurements: Vec::new(),
        notes: Vec::new(),
    }
}

fn rank(line: &str) -> Rank {
    Rank {
        rank: after(line, "Rank"),
        group: after(line, "Group"),
        pid: after(line, "Pid"),
        host: after(line, " on "),
        device: Some(after(line, "device")),
        pci: Some(between(line, "[", "]").to_owned()),
        device_name: line.split_once("] ").unwrap().1.to_owned(),
    }
}

/// Both placements of a row. The first columns are cut by their place: one of them can be blank.
fn row(line: &str, collective: &str, settings: &Settings) -> [Measurement; 2] {
    let column = |from: usize, to: usize| line[from..to].trim();
    let op = column(38, 44);
    let mut measurement = Measurement {
        collective: collective.to_owned(),
        bytes: column(0, 12).parse().unwrap(),
        count: column(14, 26).parse().unwrap(),
        data_type: column(28, 36).to_owned(),
        // sendrecv's operator is not one of what was measured.
        op: (!["none", ""].contains(&op) && collective != "sendrecv").then(|| op.to_owned()),
        root: column(46, 52).parse().ok(),
        operations: settings.iterations,
        ..measurement()
    };
    let fields: Vec<&str> = line[52..].split_whitespace().collect();
    let (halves, stamp) = fields.split_at(if settings.per_iteration { 16 } else { 8 });
    if let [date, time] = stamp {
        measurement.measured_at = format!("{date}T{time}Z");
    }
    let halves: Vec<&[&str]> = halves.chunks(halves.len() / 2).collect();
    [(Placement::OutOfPlace, halves[0]), (Placement::InPlace, halves[1])].map(|(placement, cells)| {
        let number = |index: usize| cells[index].parse::<f64>().unwrap();
        Measurement {
            placement,
            // The cell has one of the two; the other must not be shown.
            time_us: if settings.cpu_time { -1.0 } else { number(0) },
            cpu_time_us: Some(if settings.cpu_time { number(0) } else { -1.0 }),
            algbw_gbps: number(1),
            busbw_gbps: number(2),
            wrong: (cells[3] != "N/A").then(|| number(3) as u64),
            statistics: settings.per_iteration.then(|| Statistics {
                samples: settings.iterations,
                min_us: number(4),
                max_us: number(5),
                p99_us: number(6),
                mean_us: 100.0,
                deviation_us: number(7),
                median_us: -1.0,
                p95_us: -1.0,
            }),
            ..measurement.clone()
        }
    })
}

fn measurement() -> Measurement {
    Measurement {
        collective: String::new(),
        cycle: 0,
        data_type: String::new(),
        op: None,
        root: None,
        placement: Placement::OutOfPlace,
        bytes: 0,
        count: 0,
        time_us: 0.0,
        cpu_time_us: None,
        algbw_gbps: 0.0,
        busbw_gbps: 0.0,
        wrong: None,
        operations: 0,
        statistics: None,
        per_iteration: None,
        per_rank: Vec::new(),
        algorithm: None,
        mismatches: Vec::new(),
        rounds_us: Vec::new(),
        stable: None,
        versus: None,
        measured_at: String::new(),
    }
}

fn collective(program: &str) -> &'static str {
    PROGRAMS.iter().find(|(name, _)| *name == program).unwrap().1
}

/// What stands between the first `start` and the `end` after it.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no '{start}' in: {text}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no '{end}' behind '{start}' in: {text}")).0
}

/// The word behind `label`.
fn after<T: FromStr>(text: &str, label: &str) -> T
where
    T::Err: fmt::Debug,
{
    let (_, rest) = text.split_once(label).unwrap_or_else(|| panic!("no '{label}' in: {text}"));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// A run with what nccl-tests' JSON says of it.
fn run_of(json: &str) -> Run {
    let document: Value = serde_json::from_str(json).unwrap();
    let strings = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let utc = |time: &Value| time.as_str().unwrap().replace(' ', "T") + "Z";
    let config = &document["config"];
    let number = |name: &str| config[name].as_u64().unwrap();
    let flag = |name: &str| config[name].as_str().unwrap() == "true";
    let settings = Settings {
        threads: number("nthreads") as usize,
        gpus: number("ngpus") as usize,
        min_bytes: number("minimum_bytes"),
        max_bytes: number("maximum_bytes"),
        step_factor: config["step_factor"].as_u64(),
        step_bytes: config["step_bytes"].as_u64(),
        iterations: number("iterations") as usize,
        aggregated: number("aggregated_iterations") as usize,
        warm_up: number("warmup_iters") as usize,
        checks: number("validation") as usize,
        graph_launches: number("graph") as usize,
        blocking: if flag("blocking_collectives") { Blocking::Wait } else { Blocking::No },
        per_iteration: flag("per_iter_timing"),
        per_iteration_skip: number("per_iter_skip") as usize,
        parallel_init: flag("parallel_init"),
        ..settings(JSON_TEXT)
    };
    let mut run = run(settings);
    run.command = strings(&document["args"]);
    run.started_at = utc(&document["start_time"]);
    run.ended_at = Some(utc(&document["end_time"]));
    run.outcome = Outcome::Complete;
    let code = document["nccl_version"].as_u64().unwrap();
    run.provenance.library_version = format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100);
    let variables = strings(&document["env"]);
    let variables = variables.iter().filter_map(|variable| variable.split_once('='));
    run.provenance.environment.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    if document["average_bus_bandwidth"]["okay"] == "false" {
        run.provenance.environment.insert("NCCL_TESTS_MIN_BW".to_owned(), "100000".to_owned());
    }
    run.ranks = config["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| Rank {
            rank: device["rank"].as_u64().unwrap() as usize,
            group: device["group"].as_u64().unwrap() as usize,
            pid: device["pid"].as_u64().unwrap() as u32,
            host: device["hostname"].as_str().unwrap().to_owned(),
            device: Some(device["device"].as_u64().unwrap() as usize),
            pci: Some(device["device_hex"].as_str().unwrap().to_owned()),
            device_name: device["device_info"].as_str().unwrap().to_owned(),
        })
        .collect();
    for result in document["results"].as_array().unwrap() {
        for (placement, name) in [(Placement::OutOfPlace, "out_of_place"), (Placement::InPlace, "in_place")] {
            let half = &result[name];
            let mut measurement = Measurement {
                collective: "allreduce".to_owned(),
                bytes: result["size"].as_u64().unwrap(),
                count: result["count"].as_u64().unwrap(),
                data_type: result["type"].as_str().unwrap().to_owned(),
                op: Some(result["redop"].as_str().unwrap().to_owned()),
                root: result["root"].as_str().unwrap().trim().parse().ok(),
                placement,
                time_us: half["time"].as_f64().unwrap(),
                algbw_gbps: half["alg_bw"].as_f64().unwrap(),
                busbw_gbps: half["bus_bw"].as_f64().unwrap(),
                wrong: half["nwrong"].as_f64().map(|wrong| wrong as u64),
                operations: result["actual_iterations"].as_u64().unwrap() as usize,
                ..measurement()
            };
            let iterations = &result[format!("{name}_per_iter")];
            if !iterations.is_null() {
                let times = |list: &Value| -> Vec<f64> {
                    list.as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect()
                };
                let times_us = times(&iterations["times_us"]);
                let processes = iterations["per_process_max_times_us"].as_array().unwrap();
                measurement.statistics = Statistics::of(&times_us);
                measurement.per_iteration = Some(PerIteration {
                    skipped: 0,
                    times_us,
                    processes_us: processes.iter().map(times).collect(),
                });
            }
            run.measurements.push(measurement);
        }
    }
    run
}

/// JSON with the order of its keys.
#[derive(Debug, PartialEq)]
enum Ordered {
    Object(Vec<(String, Self)>),
    List(Vec<Self>),
    Number(f64),
    Text(String),
    Null,
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Ordered;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("what nccl-tests writes, which are no booleans")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Ordered::Object(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ordered, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Ordered::List(items))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ordered, E> {
        Ok(Ordered::Number(value as f64))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Ordered, E> {
        Ok(Ordered::Number(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Ordered, E> {
        Ok(Ordered::Text(value.to_owned()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Ordered, E> {
        Ok(Ordered::Null)
    }
}

fn assert_same(place: &str, found: &Ordered, expected: &Ordered) {
    match (found, expected) {
        // The environment of one file was left out, and the other's has what was asked for.
        (Ordered::List(_), Ordered::List(_)) if place == ".env" => {}
        (Ordered::Object(found), Ordered::Object(expected)) => {
            let keys = |entries: &[(String, Ordered)]| {
                entries.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
            };
            assert_eq!(keys(found), keys(expected), "{place}");
            for ((key, found), (_, expected)) in found.iter().zip(expected) {
                assert_same(&format!("{place}.{key}"), found, expected);
            }
        }
        (Ordered::List(found), Ordered::List(expected)) => {
            assert_eq!(found.len(), expected.len(), "{place}");
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert_same(&format!("{place}[{index}]"), found, expected);
            }
        }
        // Made from times and bandwidths, of which the file has six decimals.
        (Ordered::Number(found), Ordered::Number(expected))
            if ["bandwidth", "avg_us", "stdev_us", "cv_pct"].iter().any(|name| place.ends_with(name)) =>
        {
            assert!((found - expected).abs() <= 2e-6, "{place}: {found} {expected}");
        }
        _ => assert_eq!(found, expected, "{place}"),
    }
}
