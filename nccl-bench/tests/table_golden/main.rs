//! The text and the JSON against nccl-tests 2.19.6: the same numbers in, the same bytes out.
//!
//! Most files in `data/` were printed on 8 H200. For options that were not used there, those named
//! `made_up_...` were printed by nccl-tests' output code alone, from made-up numbers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod json;
mod ordered;
mod text;

use std::path::Path;

use engine::backend::MemoryUse;
use jiff::tz::TimeZone;
use nccl_bench::report::Report as _;
use nccl_bench::report::table::{self, Columns, Foot};
use nccl_bench::report::text::TextReport;
use record::Run;
use record::files::nccl_tests as nccl_tests_json;

use json::run_of;
use ordered::{Ordered, assert_same};
use text::*;

macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../data/", $name)))),*] };
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
const JSON: &str = include_str!("../../../crates/record/tests/data/all_reduce.json");
const JSON_TEXT: &str = include_str!("../data/all_reduce_mpi.txt");
const JSON_PER_ITERATION: &str = include_str!("../data/made_up_per_iteration_time_stamps.json");
const JSON_PER_ITERATION_TEXT: &str = include_str!("../data/made_up_per_iteration_time_stamps.txt");

#[test]
fn every_collective_has_nccl_tests_name() {
    for (program, collective) in PROGRAMS {
        assert_eq!(record::nccl_tests::program_name(collective), program);
    }
}

#[test]
fn every_text_comes_out_byte_for_byte_below_the_version() {
    for (name, text) in TEXTS {
        let found = Found::parse(text);
        assert!(found.run.measurements.len() >= 4, "{name}");
        let (_, expected) = text.split_once("# Collective test starting").unwrap();
        // NCCL's last error is not printed here.
        let expected = expected.lines().map(|line| if line.starts_with("# error: ") { "" } else { line });
        let expected: String = expected.map(|line| format!("{line}\n")).collect();
        // What the foot says was not made from rounded numbers, and the rows do not show where wrong data
        // was.
        let foot = Foot {
            brief: false,
            collective: &found.run.measurements[0].collective,
            failed_checks: Some(found.failed_checks),
            mean_busbw_gbps: found.mean,
            minimum_busbw_gbps: record::nccl_tests::minimum_busbw(&found.run.provenance),
            ratios: None,
            memory: found.memory,
        };
        let written = written(&found.run, None) + &foot.render_foot();
        let (version, written) = written.split_once("# Collective test starting").unwrap();
        assert_same_text(name, written, &expected);
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
        let written = written(&found.run, Some(found.memory));
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
        let written = table::json_notice(Path::new(name)) + &written(&run, Some(None));
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

/// The report of a run, with a foot if its content is given.
fn written(run: &Run, foot: Option<Option<MemoryUse>>) -> String {
    let mut out = Vec::new();
    let collective = &run.measurements[0].collective;
    let columns = Columns::of_run(run);
    let mut report = TextReport::start_report(&mut out, run, collective, columns, TimeZone::UTC).unwrap();
    report.begin_section(collective, None).unwrap();
    for measurement in &run.measurements {
        report.write_measurement(measurement).unwrap();
    }
    if let Some(memory) = foot {
        report.end_section(memory).unwrap();
    }
    let text = String::from_utf8(out).unwrap();
    // nccl-tests does not have these lines.
    let own = ["# Test failure: FAILED: ", "# Backend: ", "# World: ", "# System: "];
    text.lines()
        .filter(|line| !own.iter().any(|start| line.starts_with(start)))
        .map(|line| format!("{line}\n"))
        .collect()
}
