//! The program under real MPI launchers. Built with `--features mpi` against the MPI whose `mpirun` is the default.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;

fn under(launcher: &str, ranks: usize, arguments: &str) -> Output {
    // Naming the sibling makes cargo build it; nccl-bench finds it beside itself.
    assert!(std::path::Path::new(env!("CARGO_BIN_EXE_nccl-bench-mpi")).exists());
    // Open MPI's launchers that start at the same time race for one folder in the usual place.
    let session = tempfile::tempdir().unwrap();
    Command::new(launcher)
        .args(["-np", &ranks.to_string(), env!("CARGO_BIN_EXE_nccl-bench")])
        .args(arguments.split_whitespace())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("TMPDIR", session.path())
        .output()
        .expect("the launcher is installed by make test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ranks_of_mpirun_form_one_job_and_only_rank_0_prints() {
    let output = under("mpirun", 3, "allreduce --backend fabric -e 4K -n 1");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert_eq!(out.matches("# Collective test starting: all_reduce_perf").count(), 1, "{out}");
    assert!(out.contains("# World: Open MPI"), "{out}");
    for rank in 0..3 {
        assert!(out.contains(&format!("#  Rank  {rank} Group  0 Pid")), "{out}");
    }
    assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
}

#[test]
fn processes_and_threads_multiply() {
    let output = under("mpirun", 2, "allgather --backend fabric -t 2 -b 4K -e 4K -n 1");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert!(out.contains("#  Rank  3 Group  0 Pid"), "{out}");
}

#[test]
fn processes_have_every_collective_over_host_memory() {
    let output = under("mpirun", 2, "all --backend fabric -e 64K -n 2");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert_eq!(out.matches("# Out of bounds values : 0 OK").count(), 11, "{out}");
}

/// The record of a run of `ranks` ranks whose data is all right.
fn record(ranks: usize, arguments: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let output = under("mpirun", ranks, &format!("{arguments} --output {}", file.display()));
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    let run: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for measurement in run["measurements"].as_array().unwrap() {
        assert!(measurement["wrong"].as_u64().is_none_or(|wrong| wrong == 0), "{measurement}");
    }
    run
}

/// What was measured: the values of these fields, once each.
fn measured(run: &Value, fields: &[&str]) -> BTreeSet<String> {
    let measurements = run["measurements"].as_array().unwrap();
    let text = |measurement: &Value, field: &&str| match &measurement[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let join =
        |measurement| fields.iter().map(|field| text(measurement, field)).collect::<Vec<_>>().join(" ");
    measurements.iter().map(join).collect()
}

const COLLECTIVES: [&str; 11] = [
    "allreduce",
    "allgather",
    "reducescatter",
    "broadcast",
    "reduce",
    "alltoall",
    "alltoallv",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
];

#[test]
fn mpi_carries_every_collective_in_place_and_out() {
    for ranks in [2, 3] {
        let run = record(ranks, "all --backend mpi -b 8 -e 1M -f 32 -n 2 -r all");
        let found = measured(&run, &["collective", "placement"]);
        for collective in COLLECTIVES {
            // A hypercube needs a power of two; MPI has no alltoallv in place whose parts differ.
            let there = collective != "hypercube" || ranks == 2;
            assert_eq!(found.contains(&format!("{collective} out_of_place")), there, "{found:?}");
            let in_place = there && collective != "alltoallv";
            assert_eq!(found.contains(&format!("{collective} in_place")), in_place, "{found:?}");
        }
        let unverified = measured(&run, &["collective", "placement", "wrong"]);
        let unverified: Vec<&String> = unverified.iter().filter(|each| each.ends_with("null")).collect();
        assert_eq!(unverified, ["alltoall in_place null", "sendrecv in_place null"]);
        let roots = measured(&run, &["collective", "root"]);
        assert!(roots.contains(&format!("scatter {}", ranks - 1)), "{roots:?}");
        let provenance = &run["provenance"];
        assert_eq!(provenance["backend"], "mpi");
        assert_eq!(provenance["library_version"], provenance["world"]);
        assert!(provenance["library_path"].as_str().unwrap().contains("/libmpi"), "{provenance}");
        assert!(run["notes"].to_string().contains("alltoallv in place is left out"), "{}", run["notes"]);
    }
}

#[test]
fn mpi_reduces_all_its_types_and_moves_all_others() {
    let run = record(3, "allreduce,reduce,reducescatter --backend mpi -d all -o all -b 1K -e 1K -n 1");
    let types = ["int32", "uint32", "int64", "uint64", "float", "double"];
    let expected =
        types.iter().flat_map(|name| ["sum", "prod", "max", "min"].map(|op| format!("{name} {op}")));
    assert_eq!(measured(&run, &["data_type", "op"]), expected.collect());
    let notes = run["notes"].to_string();
    for left_out in ["int8", "uint8", "half", "bfloat16", "f8e4m3", "f8e5m2", "avg", "mulsum"] {
        assert!(notes.contains(&format!("{left_out} is left out")), "{notes}");
    }
    let run = record(2, "allgather,alltoallv,hypercube --backend mpi -d all -b 1K -e 1K -n 1");
    assert_eq!(measured(&run, &["data_type"]).len(), 12);
}

#[test]
fn one_rank_of_a_launcher_is_a_world_of_mpi() {
    let run = record(1, "all --backend mpi -b 1K -e 1K -n 1");
    assert_eq!(run["provenance"]["backend"], "mpi");
    assert_eq!(measured(&run, &["collective"]).len(), COLLECTIVES.len());
}

#[test]
fn wrong_data_of_mpi_is_found_where_mpi_leaves_the_result() {
    let output =
        under("mpirun", 2, "reducescatter,scatter --backend mpi -b 1K -e 1K -n 1 --inject-fault 1:3");
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{out}\n{}", text(&output.stderr));
    for placement in ["out-of-place", "in-place"] {
        let told = format!("WRONG {placement}: rank 1 has 1 wrong elements; the first: element 3:");
        assert_eq!(out.matches(&told).count(), 2, "{out}");
    }
}

#[test]
fn what_mpi_cannot_do_is_refused_before_anything_is_measured() {
    for (arguments, part) in [
        ("allreduce --backend mpi -t 2", "mpirun -np"),
        ("allreduce --backend mpi -o avg", "sum, prod, max and min"),
        ("allreduce --backend mpi -G 1", "this is host memory"),
        ("broadcast --backend mpi -r 2", "there are 2 ranks"),
        ("allreduce --backend mpi --world tcp", "leave --world out"),
    ] {
        let output = under("mpirun", 2, arguments);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(2), "{arguments}: {err}");
        assert!(err.contains(part) && out.is_empty(), "{arguments}: {out}{err}");
    }
}

#[test]
fn bad_input_is_refused_under_a_launcher_too() {
    let output = under("mpirun", 2, "allreduce -f 1");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("write 2 or more"));
}

#[test]
fn a_launcher_of_another_mpi_is_reported_and_nothing_is_measured() {
    let output = under("mpirun.mpich", 2, "allreduce --backend fabric -e 4K -n 1");
    assert!(!output.status.success());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!out.contains("Collective test starting"), "{out}");
    assert!(err.contains("MPICH") && err.contains("--world tcp"), "{err}");
}
