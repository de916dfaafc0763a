use serde_json::{Value, json};

use std::fs;

use super::*;
use crate::files::Files;
use crate::sample::row as sample;
use crate::statistics::Statistics;

fn document(run: &Run) -> Value {
    serde_json::from_str(&render_in_zone(run, &TimeZone::UTC)).unwrap()
}

fn run(collectives: &[&str]) -> Run {
    let mut run = sample::bare_run();
    for collective in collectives {
        for placement in [Placement::OutOfPlace, Placement::InPlace] {
            run.measurements.push(sample::bare_measurement(collective, placement));
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
        (RunOutcome::Running, "the run has not ended"),
        (RunOutcome::Interrupted { signal: "SIGINT".to_owned() }, "interrupted by SIGINT"),
        (
            RunOutcome::Failed { message: "rank 3 on node02 \"died\"\n".to_owned() },
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
    assert_eq!((&document["errors"], &document["end_time"]), (&json!([""]), &json!("2026-11-20 14:58:11")));
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
    run.measurements[0].statistics = Statistics::from_times(&[4.0, 1.0]);
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
        let error = create_target(Path::new(name)).unwrap_err();
        assert!(matches!(error, TargetError::Suffix { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_file_that_is_there_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.JSON");
    fs::write(&path, "precious").unwrap();
    let names: Vec<PathBuf> = (0..2).map(|_| create_target(&path).unwrap()).collect();
    assert_eq!(names, ["results.JSON.0", "results.JSON.1"].map(|name| folder.path().join(name)));
    let mut files = Files::default();
    files.add_nccl_tests(names[0].clone());
    let run = crate::sample::full_run();
    files.finish_run(&run).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(fs::read_to_string(&names[0]).unwrap(), render_json(&run));
    // And nothing else is left.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_file_that_cannot_be_written_is_said_and_what_it_held_stays() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("missing").join("results.json");
    let error = create_target(&nowhere).unwrap_err();
    assert!(matches!(error, TargetError::Create { .. }), "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    // A folder of that name: the new text cannot take its place.
    let taken = folder.path().join("folder.json");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("inside"), "precious").unwrap();
    let mut files = Files::default();
    files.add_nccl_tests(taken.clone());
    assert!(files.finish_run(&crate::sample::full_run()).is_err());
    assert_eq!(fs::read_to_string(taken.join("inside")).unwrap(), "precious");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
