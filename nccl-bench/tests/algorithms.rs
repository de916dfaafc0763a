//! The selection of the fabric backend's algorithms, and their report.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

/// `nccl-bench` without a launcher's variables or NCCL's.
fn run(arguments: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    command.args(arguments.split_whitespace());
    for (name, _) in std::env::vars() {
        let launcher = ["OMPI_", "PMI", "SLURM_", "NCCL_", "RANK", "WORLD_SIZE", "JOB_COMPLETION_"];
        if launcher.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

fn refusal(arguments: &str) -> String {
    let output = run(arguments, &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
    text
}

fn report(arguments: &str) -> String {
    let output = run(arguments, &[]);
    let (text, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{arguments}: {error}\n{text}");
    text
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    for (arguments, parts) in [
        ("allreduce --backend fabric --algo rign", &["'rign' is none of board, direct", "hierarchical"][..]),
        (
            "allreduce --backend fabric --algo allreduse=ring",
            &["'allreduse' is none of all_reduce, all_gather"],
        ),
        ("allreduce --backend fabric --algo bruck", &["all_reduce has board, direct", "rabenseifner"]),
        ("allreduce --backend fabric --algo allreduce=bruck", &["all_reduce has board, direct"]),
        ("allreduce --backend fabric --algo all_gather=ring", &["all_gather is not measured"]),
        ("sendrecv --backend fabric --algo ring", &["the measured collectives have no choice of algorithms"]),
        ("allreduce --backend fabric --between bord", &["'bord' is none of"]),
        (
            "allreduce --backend fabric --between bruck",
            &["has this algorithm between hosts; all_reduce has direct, recursive-doubling"],
        ),
        ("alltoallv --backend fabric --between ring", &["all_to_all_v has none"]),
        ("allreduce --backend fabric --in-flight 0", &["from 1 to 16384"]),
        // Ranks of one host.
        (
            "allreduce --backend fabric -t 2 -n 1 --algo hierarchical",
            &["--algo hierarchical: the algorithm does not support all_reduce on 2 ranks of one host"],
        ),
        (
            "allgather --backend fabric -t 3 -n 1 --algo recursive-doubling",
            &["--algo recursive-doubling: the algorithm does not support all_gather on 3 ranks"],
        ),
    ] {
        let output = run(arguments, &[]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(parts.iter().all(|part| text.contains(part)), "{arguments}: {text}");
    }
    let text = refusal("allreduce --backend mpi --algo ring");
    assert!(text.contains("MPI"), "{text}");
}

#[test]
fn the_algorithm_that_is_asked_for_is_measured_and_shown() {
    let sizes = "--backend fabric -t 3 -b 64K -e 1M -f 16 -n 1 --show-algorithm";
    for (arguments, algorithm) in [
        ("allreduce --algo ring", "ring/-/-"),
        ("allreduce --algo allreduce=pairwise --segment 10K --in-flight 3", "pairwise/-/-"),
        ("reducescatter,broadcast --algo reduce_scatter=ring,broadcast=ring", "ring/-/-"),
    ] {
        let text = report(&format!("{arguments} {sizes}"));
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("float")).collect();
        assert!(rows.len() >= 2 && rows.iter().all(|row| row.ends_with(algorithm)), "{arguments}: {text}");
        assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
    }
    // In place an alltoall is direct, whatever is asked for.
    let text = report(&format!("alltoall --algo pairwise {sizes}"));
    assert!(text.contains("pairwise/-/-|direct/-/-"), "{text}");
}

#[test]
fn the_algorithm_is_in_the_files_without_being_asked_for() {
    let folder = std::env::temp_dir().join(format!("nccl-bench-algorithms-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("run.json");
    report(&format!("allgather --backend fabric -t 2 -b 1M -e 1M -n 1 --output {}", file.display()));
    let run: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    for measurement in run["measurements"].as_array().unwrap() {
        assert!(measurement["algorithm"]["algorithm"].is_string(), "{measurement}");
    }
}

#[test]
fn the_table_can_be_read() {
    let text = report("fabric algorithms allreduce,all_to_all --ranks 8");
    assert!(
        text.lines().skip(1).all(|line| line.starts_with("all_reduce ") || line.starts_with("all_to_all "))
    );
    assert!(text.contains("hierarchical") && text.contains("shared-memory"), "{text}");
    let lines: serde_json::Value = serde_json::from_str(&report("fabric algorithms --json")).unwrap();
    assert!(lines.as_array().unwrap().iter().any(|line| line["medium"] == "hosts"));
    assert!(refusal("fabric algorithms all_reduse").contains("'all_reduse' is none of"));
    assert!(
        refusal("fabric algorithms --medium host")
            .contains("'host' is none of shared-memory, network, hosts")
    );
}
