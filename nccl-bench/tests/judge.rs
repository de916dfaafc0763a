//! `nccl-bench judge` and `--judge` on files and runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

mod program;
use program::{err, nccl_bench, out, run};

/// A file of nccl-tests: eight H200 with NVLS off.
const ALL_REDUCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/record/tests/data/all_reduce.json");

#[test]
fn a_real_run_passes_once_the_state_of_nvls_is_told() {
    let unsure = run(&format!("judge {ALL_REDUCE}"));
    assert_eq!(unsure.status.code(), Some(1), "{}", err(&unsure));
    let text = out(&unsure);
    assert!(text.starts_with(&format!("{ALL_REDUCE}: WARN\n8 ranks on NVIDIA H200, one host")), "{text}");
    assert!(text.contains("366.8 GB/s at 8G is typical without NVLS"), "{text}");
    assert!(text.contains("787.5 GB/s = 1.750 x 450.0 GB/s in one direction of the NVLinks"), "{text}");

    let told = run(&format!("judge {ALL_REDUCE} --nvls off"));
    assert_eq!(told.status.code(), Some(0), "{}", err(&told));
    let row = out(&told).lines().find(|line| line.starts_with("allreduce")).unwrap().to_owned();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["allreduce", "PASS", "8G", "366.8", "366.5", "337.2", "450.0", "82", "%"]);

    // A machine with NVLS in use is slow at this speed.
    assert_eq!(run(&format!("judge {ALL_REDUCE} --nvls on")).status.code(), Some(2));
}

#[test]
fn the_json_has_all_of_the_verdict() {
    let output = run(&format!("judge {ALL_REDUCE} --nvls off --format json"));
    let verdicts: Value = serde_json::from_str(&out(&output)).unwrap();
    let first = &verdicts[0];
    assert_eq!((&first["grade"], &first["file"]), (&Value::from("PASS"), &Value::from(ALL_REDUCE)));
    assert_eq!(first["collectives"][0]["ceiling"]["bounds"][0]["link"], "nv_link");
    assert_eq!(first["collectives"][0]["comparison"]["trust"], "high");
}

/// Writes the file with other text in a place.
fn changed_file(folder: &Path, from: &str, to: &str) -> PathBuf {
    let text = fs::read_to_string(ALL_REDUCE).unwrap();
    assert!(text.contains(from));
    let path = folder.join("changed.json");
    fs::write(&path, text.replace(from, to)).unwrap();
    path
}

#[test]
fn an_unknown_machine_is_unknown_until_the_site_has_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed_file(folder.path(), "NVIDIA H200", "Another GPU");
    let output = run(&format!("judge {}", path.display()));
    assert_eq!(output.status.code(), Some(3));
    assert!(out(&output).contains("not compared: the GPUs differ, or are of no known kind"));

    let site = folder.path().join("site.toml");
    let entry = "[[expectation]]\ngpu = \"H200\"\ngpus_per_host = 8\nhosts = 1\ncollective = \"allreduce\"\n\
                 points = [[\"1G\", 400, 390]]\nsource = \"acceptance\"\ndate = \"2026\"\ntrust = \"high\"\n";
    fs::write(&site, entry).unwrap();
    let output = run(&format!("judge {ALL_REDUCE} --nvls off --expect {}", site.display()));
    assert_eq!(output.status.code(), Some(2), "{}", out(&output));
    assert!(out(&output).contains("instead of at least 390.0 GB/s"), "{}", out(&output));
}

#[test]
fn bad_input_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let site = folder.path().join("site.toml");
    fs::write(&site, "[[expectation]]\ngpu = \"none\"\n").unwrap();
    for (arguments, message) in [
        (format!("judge {ALL_REDUCE} --expect {}", site.display()), "site.toml: "),
        (format!("judge {ALL_REDUCE} --expect nowhere.toml"), "nowhere.toml: No such file"),
        (format!("judge {ALL_REDUCE} --nics 8"), "as in 8x400"),
        ("judge nowhere.json".to_owned(), "nowhere.json: "),
        ("allreduce --backend fabric -t 2 --judge --expect nowhere.toml".to_owned(), "nowhere.toml: "),
    ] {
        let output = run(&arguments);
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""), "{arguments}");
        assert!(err(&output).contains(message), "{}", err(&output));
    }
}

#[test]
fn a_run_ends_with_its_verdict() {
    let output = nccl_bench("allreduce --backend fabric -t 2 -b 8 -e 64 --nvls off").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    let (_, end) = text.split_once("# Collective test concluded").unwrap();
    assert!(
        end.contains("\n# Verdict: UNKNOWN\n# allreduce: not compared: values are known for NCCL only\n"),
        "{text}"
    );
}
