//! `nccl-bench ladder` over host memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

mod program;
use program::{err, nccl_bench, out, run};

/// The numbers of ranks in the rows of a table.
fn rungs(text: &str) -> Vec<usize> {
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_whitespace().next().unwrap().parse().unwrap()).collect()
}

fn read_file(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_ladder_measures_each_rung_and_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ladder.json");
    let output = format!("ladder --backend fabric -t 4 -e 64K -n 2 --output {}", path.display());
    let first = run(&format!("{output} --steps 2"));
    assert_eq!(first.status.code(), Some(0), "{}", err(&first));
    assert_eq!(rungs(&out(&first)), [2]);

    let file = read_file(&path);
    let rung = &file["rungs"][0];
    assert_eq!((&rung["ranks"], &rung["wrong"], &file["bytes"]), (&2.into(), &0.into(), &65536.into()));
    assert!(rung["busbw_gbps"].as_f64().unwrap() > 0.0 && rung["latency_us"].as_f64().unwrap() > 0.0);
    let phases: Vec<&str> =
        rung["start_phases"].as_array().unwrap().iter().map(|one| one["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["device", "connection"]);

    // The first rung is taken from the file, with its very numbers.
    let second = run(&format!("{output} --resume {}", path.display()));
    assert_eq!(second.status.code(), Some(0), "{}", err(&second));
    assert_eq!(rungs(&out(&second)), [2, 4]);
    let whole = read_file(&path);
    assert_eq!(whole["rungs"][0], *rung);
    assert_eq!((&whole["rungs"][1]["ranks"], &whole["outcome"]["state"]), (&4.into(), &"complete".into()));

    let other = run(&format!("ladder allgather --backend fabric -t 4 -e 2M --resume {}", path.display()));
    assert_eq!(other.status.code(), Some(2));
    assert!(err(&other).contains("cannot be continued: the collective differs"), "{}", err(&other));
}

#[test]
fn impossible_ladders_are_refused() {
    for (arguments, message) in [
        ("--backend fabric -t 1", "at least 2 ranks are needed"),
        ("--backend fabric -t 4 --steps 8", "--steps has 8, and the job has 4"),
        ("--backend fabric -t 4 -e 8", "the large size (-e) is at least 16 bytes"),
        ("--backend fabric -t 4 --per host", "compare them with --per rank"),
        ("--backend fabric -t 4 --resume nowhere.json", "nowhere.json cannot be read"),
    ] {
        let output = run(&format!("ladder {arguments}"));
        assert_eq!((output.status.code(), rungs(&out(&output))), (Some(2), vec![]), "{arguments}");
        assert!(err(&output).contains(message), "{}", err(&output));
    }
}

#[test]
fn an_interrupted_ladder_keeps_its_rungs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ladder.json");
    // The later rungs would take hours.
    let arguments =
        format!("ladder --backend fabric -t 4 -e 64K -n 1000000 --steps 2,3,4 --output {}", path.display());
    let mut quick = nccl_bench(&arguments);
    quick.stdout(Stdio::piped());
    let mut child = quick.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let head = lines.find(|line| line.as_ref().unwrap().contains("the job has 4 ranks"));
    assert!(head.is_some());
    // A shell that starts the tests in the background makes them ignore SIGINT.
    // SAFETY: the call only sends a signal to the child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let file = read_file(&path);
    assert_eq!(file["outcome"]["state"], "interrupted", "{file}");
    assert!(file["rungs"].as_array().unwrap().len() < 3);
}
