//! Parser of nccl-tests' JSON.

use record::statistics::Statistics;
use record::{Blocking, Measurement, PerIteration, Placement, Rank, Run, RunOutcome, Settings};
use serde_json::Value;

use crate::JSON_TEXT;
use crate::text::*;

/// The run that a JSON document of nccl-tests describes.
pub(crate) fn run_of(json: &str) -> Run {
    let document: Value = serde_json::from_str(json).unwrap();
    let utc = |time: &Value| time.as_str().unwrap().replace(' ', "T") + "Z";
    let mut run = run(settings_of(&document["config"]));
    run.command = strings(&document["args"]);
    run.started_at = utc(&document["start_time"]);
    run.ended_at = Some(utc(&document["end_time"]));
    run.outcome = RunOutcome::Complete;
    let code = document["nccl_version"].as_u64().unwrap();
    run.provenance.library_version = format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100);
    let variables = strings(&document["env"]);
    let variables = variables.iter().filter_map(|variable| variable.split_once('='));
    run.provenance.environment.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    if document["average_bus_bandwidth"]["okay"] == "false" {
        run.provenance.environment.insert("NCCL_TESTS_MIN_BW".to_owned(), "100000".to_owned());
    }
    run.ranks = ranks_of(&document["config"]);
    for result in document["results"].as_array().unwrap() {
        for (placement, name) in [(Placement::OutOfPlace, "out_of_place"), (Placement::InPlace, "in_place")] {
            run.measurements.push(measurement_of(result, placement, name));
        }
    }
    run
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn settings_of(config: &Value) -> Settings {
    let number = |name: &str| config[name].as_u64().unwrap();
    let flag = |name: &str| config[name].as_str().unwrap() == "true";
    Settings {
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
    }
}

fn ranks_of(config: &Value) -> Vec<Rank> {
    config["devices"]
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
            ..Rank::default()
        })
        .collect()
}

fn measurement_of(result: &Value, placement: Placement, name: &str) -> Measurement {
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
        ..Measurement::default()
    };
    let iterations = &result[format!("{name}_per_iter")];
    if !iterations.is_null() {
        let times = |list: &Value| -> Vec<f64> {
            list.as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect()
        };
        let times_us = times(&iterations["times_us"]);
        let processes = iterations["per_process_max_times_us"].as_array().unwrap();
        measurement.statistics = Statistics::from_times(&times_us);
        measurement.per_iteration =
            Some(PerIteration { skipped: 0, times_us, processes_us: processes.iter().map(times).collect() });
    }
    measurement
}
