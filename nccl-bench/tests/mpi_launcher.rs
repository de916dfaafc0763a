//! The program under real MPI launchers. Built with `--features mpi` against the MPI whose `mpirun` is the
//! default.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;

/// Variables for Open MPI's launcher. Launchers that start at the same time race for one folder in the usual
/// place.
fn for_launcher(session: &tempfile::TempDir) -> [(&'static str, std::ffi::OsString); 4] {
    [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1".into()),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".into()),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1".into()),
        ("TMPDIR", session.path().into()),
    ]
}

fn under(launcher: &str, ranks: usize, arguments: &str) -> Output {
    under_with(launcher, ranks, arguments, &[])
}

fn under_with(launcher: &str, ranks: usize, arguments: &str, variables: &[(&str, &str)]) -> Output {
    // Naming the sibling makes cargo build it; nccl-bench finds it beside itself.
    assert!(std::path::Path::new(env!("CARGO_BIN_EXE_nccl-bench-mpi")).exists());
    let session = tempfile::tempdir().unwrap();
    Command::new(launcher)
        .args(["-np", &ranks.to_string(), env!("CARGO_BIN_EXE_nccl-bench")])
        .args(arguments.split_whitespace())
        .envs(for_launcher(&session))
        .envs(variables.iter().copied())
        .output()
        .expect("the launcher is installed by make test")
}

/// The start of the record's `world`.
fn started(processes: usize) -> String {
    format!("Open MPI's mpirun, {processes} processes")
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
    assert!(out.contains(&format!("# World: {}, Open MPI ", started(3))), "{out}");
    for rank in 0..3 {
        assert!(out.contains(&format!("#  Rank  {rank} Group  0 Pid")), "{out}");
    }
    assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
}

#[test]
fn processes_without_the_variables_of_their_launcher_are_refused() {
    let session = tempfile::tempdir().unwrap();
    let start = |more: &str| {
        let mut command = Command::new("mpirun");
        command.args(["-np", "2", "env", "-i", env!("CARGO_BIN_EXE_nccl-bench")]);
        command.args("allreduce --backend fabric -t 1 -e 8 -n 1".split_whitespace());
        command.args(more.split_whitespace()).envs(for_launcher(&session)).output().unwrap()
    };
    let refused = start("");
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(2), ""));
    assert!(
        text(&refused.stderr).contains("mpirun has started this process, but its variables"),
        "{refused:?}"
    );
    assert!(start("--world single").status.success());
}

#[test]
fn two_ranks_in_host_memory_are_healthy_without_gpus() {
    // They harm a job on GPUs.
    let variables = [("NCCL_IB_DISABLE", "yes"), ("NCCL_NET", "Sockets"), ("NCCL_TOPO_FILE", "/nowhere.xml")];
    let output = under_with("mpirun", 2, "doctor --backend fabric --json", &variables);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["health"], "healthy", "{report:#}");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let of = |subject: &str| {
        let examinations = report["examinations"].as_array().unwrap();
        examinations.iter().find(|one| one["subject"] == subject).unwrap().clone()
    };
    assert_eq!(of("measurement")["facts"]["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(
        of("host")["not_applicable"][0],
        "GPUs, NVLinks and NCCL: only host memory and the network are used"
    );
    assert_eq!(
        of("host")["findings"].as_array().unwrap().iter().filter(|one| one["severity"] != "advice").count(),
        0
    );
}

#[test]
fn every_group_of_a_split_has_its_own_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("split.json");
    let of_nccl_tests = folder.path().join("nccl-tests.json");
    let arguments = format!(
        "allreduce --backend fabric -b 64 -e 128 -n 2 --inject-fault 3:0 --output {} -J {}",
        path.display(),
        of_nccl_tests.display()
    );
    // Ranks 0 to 2, and rank 3.
    let output = under_with("mpirun", 4, &arguments, &[("NCCL_TESTS_SPLIT", "DIV 3")]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let run: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let groups: Vec<u64> =
        run["ranks"].as_array().unwrap().iter().map(|rank| rank["group"].as_u64().unwrap()).collect();
    assert_eq!(groups, [0, 0, 0, 1]);
    let measurements = run["measurements"].as_array().unwrap();
    let found: Vec<_> = measurements
        .iter()
        .map(|each| {
            let wrong_ranks = each.get("mismatches").and_then(Value::as_array);
            let wrong_ranks = wrong_ranks.into_iter().flatten().map(|found| found["rank"].as_u64().unwrap());
            (
                each["bytes"].as_u64().unwrap(),
                each["group"].as_u64().unwrap(),
                each["placement"].as_str().unwrap(),
                each["per_rank"].as_array().unwrap().len(),
                wrong_ranks.collect::<Vec<_>>(),
            )
        })
        .collect();
    let expected = [64, 128].map(|bytes| {
        [
            (bytes, 0, "out_of_place", 3, vec![]),
            (bytes, 1, "out_of_place", 1, vec![3]),
            (bytes, 0, "in_place", 3, vec![]),
            (bytes, 1, "in_place", 1, vec![3]),
        ]
    });
    assert_eq!(found, expected.concat());
    let rows = text(&output.stdout);
    let group = |line: &str| line.split_whitespace().last().unwrap().to_owned();
    let of_rows: Vec<String> =
        rows.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(group).collect();
    assert_eq!(of_rows, ["0", "1", "0", "1"], "{rows}");
    let file: Value = serde_json::from_slice(&std::fs::read(&of_nccl_tests).unwrap()).unwrap();
    let of_file: Vec<u64> =
        file["results"].as_array().unwrap().iter().map(|row| row["group"].as_u64().unwrap()).collect();
    assert_eq!(of_file, [0, 1, 0, 1]);
    // Two groups of two ranks are not comparable.
    let other = folder.path().join("halves.json");
    let arguments = format!("allreduce --backend fabric -b 64 -e 128 -n 2 --output {}", other.display());
    let output = under_with("mpirun", 4, &arguments, &[("NCCL_TESTS_SPLIT", "DIV 2")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let compared = Command::new(env!("CARGO_BIN_EXE_nccl-bench"))
        .args(["compare", "--threshold", "100000%", "--partial"])
        .args([&other, &other.with_file_name("split.json")])
        .output()
        .unwrap();
    assert_eq!(compared.status.code(), Some(1), "{compared:?}");
    assert!(text(&compared.stdout).contains("ranks"), "{compared:?}");
}

#[test]
fn the_plan_of_a_run_is_printed_once() {
    let output = under("mpirun", 3, "allreduce --backend fabric -e 1K --dry-run");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    assert_eq!(out.matches("3 ranks; sizes from 8 to 1K").count(), 1, "{out}");
}

/// The other ranks end at once, whereupon the launcher ends this one: several tries, since that is a race.
#[test]
fn a_refusal_is_printed_before_the_launcher_ends_the_job() {
    for _ in 0..8 {
        let output = under("mpirun", 4, "allreduce --backend fabric -G 1");
        let err = text(&output.stderr);
        assert!(!output.status.success() && err.contains("error: -G (CUDA graphs)"), "{err}");
    }
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

/// The environment of ranks on several hosts, whose address mpirun does not tell.
#[test]
fn endpoints_of_several_hosts_meet_through_mpi() {
    assert!(std::path::Path::new(env!("CARGO_BIN_EXE_nccl-bench-mpi")).exists());
    let session = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_nccl-bench");
    let file = session.path().join("run.json");
    let rank = format!(
        "OMPI_COMM_WORLD_LOCAL_SIZE=1 MPI_LOCALNRANKS=1 exec {program} fabric bw -e 64 -n 4 --output {}",
        file.display()
    );
    let output = Command::new("mpirun")
        .args(["-np", "2", "sh", "-c", &rank])
        .envs(for_launcher(&session))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = record::files::read_run(&file).unwrap();
    let found: Vec<_> = run.measurements.iter().map(|row| (row.bytes, row.wrong)).collect();
    assert_eq!(found, [8, 16, 32, 64].map(|bytes| (bytes, Some(0))));
}

/// After a rendezvous through MPI, nothing ends the wait of the other ranks by itself.
#[test]
fn a_rank_that_fails_ends_those_that_wait_in_mpi() {
    let session = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_nccl-bench");
    let rank = format!(
        "OMPI_COMM_WORLD_LOCAL_SIZE=1 MPI_LOCALNRANKS=1 exec {program} fabric bw -e 64 -n 4 > /dev/full"
    );
    let output = Command::new("timeout")
        .args(["60", "mpirun", "-np", "2", "sh", "-c", &rank])
        .envs(for_launcher(&session))
        .output()
        .unwrap();
    let message = text(&output.stderr);
    assert!(message.contains("writing to standard output: No space left on device"), "{message}");
    assert!(!output.status.success() && output.status.code() != Some(124), "{message}");
}

/// MPI itself waits without a limit for a process that never starts it.
#[test]
fn a_process_that_does_not_start_mpi_ends_the_others_wait() {
    let session = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_nccl-bench");
    let line = format!("60 mpirun -np 1 {program} allreduce --backend fabric -e 64 -T 3 : -np 1 sleep 100");
    let output =
        Command::new("timeout").args(line.split_whitespace()).envs(for_launcher(&session)).output().unwrap();
    let message = text(&output.stderr);
    assert!(message.contains("did not finish starting MPI within 3 s"), "{message}");
    assert_eq!(output.status.code(), Some(4), "{message}");
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

/// The values of these fields in the record, each once.
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
        let run = record(ranks, "all --backend mpi -b 8 -e 128K -f 128 -n 2 -r all");
        let found = measured(&run, &["collective", "placement"]);
        for collective in COLLECTIVES {
            // A hypercube needs a power of two; MPI has no alltoallv in place whose parts differ.
            let there = collective != "hypercube" || ranks == 2;
            assert_eq!(found.contains(&format!("{collective} out_of_place")), there, "{found:?}");
            let in_place = there && collective != "alltoallv";
            assert_eq!(found.contains(&format!("{collective} in_place")), in_place, "{found:?}");
        }
        let unverified = measured(&run, &["collective", "placement", "wrong", "bytes"]);
        let unverified: BTreeSet<&str> = unverified
            .iter()
            .filter(|row| !row.ends_with(" 0"))
            .filter_map(|row| Some(row.split_once(" null")?.0))
            .collect();
        assert_eq!(Vec::from_iter(unverified), ["alltoall in_place", "sendrecv in_place"]);
        let roots = measured(&run, &["collective", "root"]);
        assert!(roots.contains(&format!("scatter {}", ranks - 1)), "{roots:?}");
        let provenance = &run["provenance"];
        assert_eq!(provenance["backend"], "mpi");
        let world = format!("{}, Open MPI ", started(ranks));
        assert!(provenance["world"].as_str().unwrap().starts_with(&world), "{provenance}");
        assert!(provenance["library_path"].as_str().unwrap().contains("/libmpi"), "{provenance}");
        assert!(run["notes"].to_string().contains("alltoallv in place is skipped"), "{}", run["notes"]);
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
        assert!(notes.contains(&format!("{left_out} is skipped")), "{notes}");
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
    for placement in ["out of place", "in place"] {
        let told = format!("WRONG {placement}: rank 1 has 1 wrong elements; the first: element 3:");
        assert_eq!(out.matches(&told).count(), 2, "{out}");
    }
}

#[test]
fn what_mpi_cannot_do_is_refused_before_anything_is_measured() {
    for (arguments, part) in [
        ("allreduce --backend mpi -t 2", "mpirun -np"),
        ("allreduce --backend mpi -o avg", "sum, prod, max and min"),
        ("allreduce --backend mpi -G 1", "this run measures host memory"),
        ("broadcast --backend mpi -r 2", "there are 2 ranks"),
        ("allreduce --backend mpi --world tcp", "remove --world"),
        ("allreduce --vs mpi --world tcp", "--vs mpi needs ranks that meet through MPI"),
        ("allreduce --vs mpi -t 2", "mpirun -np"),
        ("allreduce --vs mpi -d half", "MPI reduces int32"),
        ("allreduce --vs mpi --provider nonsense", "--provider nonsense"),
    ] {
        let output = under("mpirun", 2, arguments);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(2), "{arguments}: {err}");
        assert!(err.contains(part) && out.is_empty(), "{arguments}: {out}{err}");
    }
}

/// A number of a measurement.
fn number(measurement: &Value, name: &str) -> f64 {
    measurement.pointer(name).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {name}: {measurement}"))
}

#[test]
fn both_sides_are_measured_and_verified_and_stand_in_all_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |suffix: &str| folder.path().join(format!("run.{suffix}"));
    let files: String =
        ["json", "jsonl", "csv", "md"].map(|suffix| format!(" --output {}", path(suffix).display())).concat();
    let output = under("mpirun", 3, &format!("all --vs mpi -b 8 -e 1K -f 128 -n 3 --rounds 2 -r 1{files}"));
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    let read = |suffix: &str| std::fs::read_to_string(path(suffix)).unwrap();

    let run: Value = serde_json::from_str(&read("json")).unwrap();
    let (provenance, versus) = (&run["provenance"], &run["provenance"]["versus"]);
    assert_eq!((&provenance["backend"], &versus["backend"]), (&"fabric".into(), &"mpi".into()));
    let version = versus["library_version"].as_str().unwrap();
    assert_eq!(provenance["world"], format!("{}, {version}", started(3)));
    assert_eq!(run["settings"]["rounds"], 2);
    let measurements = run["measurements"].as_array().unwrap();
    for measurement in measurements {
        let name = (measurement["collective"].as_str().unwrap(), measurement["placement"].as_str().unwrap());
        let alone = name == ("alltoallv", "in_place");
        assert_eq!(measurement["versus"].is_null(), alone, "{measurement}");
        let unverified = measurement["bytes"] == 0
            || ["alltoall", "alltoallv", "sendrecv"].contains(&name.0) && name.1 == "in_place";
        let wrong = if unverified { Value::Null } else { 0.into() };
        assert_eq!(measurement["wrong"], wrong, "{measurement}");
        if alone {
            continue;
        }
        assert_eq!(measurement["versus"]["wrong"], wrong, "{measurement}");
        assert_eq!(measurement["operations"], 6);
        let ratio = number(measurement, "/time_us") / number(measurement, "/versus/time_us");
        assert!((number(measurement, "/versus/ratio") / ratio - 1.0).abs() < 1e-9, "{measurement}");
        let best = |rounds: &str| {
            let rounds = measurement.pointer(rounds).unwrap().as_array().unwrap();
            assert_eq!(rounds.len(), 2, "{measurement}");
            rounds.iter().map(|round| round.as_f64().unwrap()).fold(f64::INFINITY, f64::min)
        };
        let ratio = best("/rounds_us") / best("/versus/rounds_us");
        assert!((number(measurement, "/versus/best_ratio") / ratio - 1.0).abs() < 1e-9, "{measurement}");
        let bandwidths = number(measurement, "/busbw_gbps") / number(measurement, "/versus/busbw_gbps");
        let times = number(measurement, "/versus/ratio");
        // Nothing moved: neither has a bandwidth.
        assert!(measurement["bytes"] == 0 || (bandwidths * times - 1.0).abs() < 1e-9, "{measurement}");
    }
    assert_eq!(measured(&run, &["collective"]).len(), COLLECTIVES.len() - 1, "all but hypercube");

    // As of another run: one is not compared with itself.
    let other = path("other.jsonl");
    std::fs::write(&other, read("jsonl").replacen("\"started_at\":\"2", "\"started_at\":\"1", 1)).unwrap();
    let compared = Command::new(env!("CARGO_BIN_EXE_nccl-bench"))
        .args(["compare".into(), "--threshold".into(), "0%".into(), path("json"), other])
        .output()
        .unwrap();
    let compared = text(&compared.stdout);
    assert!(provenance["transport"].is_string(), "{provenance}");
    assert!(
        compared.contains("PASS: B is nowhere slower") && !compared.contains("Not the same"),
        "{compared}"
    );

    // The same in the others.
    let with_versus = measurements.iter().filter(|measurement| !measurement["versus"].is_null()).count();
    let lines: Vec<Value> = read("jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(&lines[0]["provenance"]["versus"], versus);
    assert_eq!(lines.iter().filter(|line| !line["versus"].is_null()).count(), with_versus);
    let csv = read("csv");
    let mut rows = csv.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let head = rows.next().unwrap();
    let column = head.iter().position(|&name| name == "ratio").unwrap();
    assert_eq!(rows.filter(|row| !row[column].is_empty()).count(), with_versus);
    let markdown = read("md");
    assert!(markdown.contains("- Versus: mpi ") && markdown.contains("versus time"), "{markdown}");
    assert_eq!(markdown.matches("Time over the other side's: medians ").count(), 10, "{markdown}");

    // The table: its rows have eight more fields, and each collective a summary.
    assert!(out.contains(&format!("# Versus: mpi {version} from ")), "{out}");
    for line in out.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        assert_eq!(line.split_whitespace().count(), 13 + 8, "{line}");
    }
    assert_eq!(out.matches("# Time over mpi        : medians ").count(), 10, "{out}");
}

#[test]
fn wrong_data_of_either_side_is_found() {
    let output = under("mpirun", 2, "reducescatter --vs mpi -b 1K -e 1K -n 1 --rounds 1 --inject-fault 1:3");
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{out}\n{}", text(&output.stderr));
    for side in ["", "mpi "] {
        for placement in ["out of place", "in place"] {
            assert_eq!(
                out.matches(&format!("# WRONG {side}{placement}: rank 1 has 1 wrong")).count(),
                1,
                "{out}"
            );
        }
    }
    assert!(out.contains("# Out of bounds values : 4 FAILED"), "{out}");
}

#[test]
fn sides_that_are_stable_or_out_of_time_end_together() {
    let run = record(2, "allreduce --vs mpi -b 64 -e 64 -n 2 --until-stable 0.001% --budget 0.2");
    for measurement in run["measurements"].as_array().unwrap() {
        let rounds = |pointer: &str| measurement.pointer(pointer).unwrap().as_array().unwrap().len();
        assert_eq!(rounds("/rounds_us"), rounds("/versus/rounds_us"), "{measurement}");
        assert!(rounds("/rounds_us") > 1, "{measurement}");
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

/// A rank that never starts MPI: the other one waits for it in `MPI_Init`.
#[test]
fn the_time_limit_holds_while_mpi_starts() {
    let session = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_nccl-bench");
    let script = format!(
        "if [ \"${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\" = 1 ]; then exec sleep 600; fi; exec {program} \
         allreduce --backend fabric -e 8 -T 2"
    );
    let output = Command::new("mpirun")
        .args(["-np", "2", "sh", "-c", &script])
        .envs(for_launcher(&session))
        .output()
        .expect("the launcher is installed by make test");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{error}");
    let host = collectives::world::host().name;
    let told = format!("nccl-bench: rank 0 on {host} did not finish starting MPI within 2 s");
    assert!(error.lines().any(|line| line == told), "{error}");
    assert_eq!(text(&output.stdout), "", "nothing was measured");
}
