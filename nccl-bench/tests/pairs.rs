//! `nccl-bench pairs` over host memory: ranks as threads, and as processes of several hosts by `NCCL_HOSTID`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/port/mod.rs"]
mod port;
mod program;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use port::reserve_port;
use program::{err, nccl_bench, out, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Short rounds of small messages.
const SHORT: &str = "pairs --backend fabric -b 4K --seconds 0.01 --repeats 3";

/// Starts one process for each host in `hosts`.
fn start_hosts(hosts: &[&str], arguments: &str) -> Vec<Child> {
    let port = reserve_port();
    let start = |(rank, host): (usize, &&str)| {
        let mut command = nccl_bench(arguments);
        command.env("NCCL_BENCH_RANK", rank.to_string()).env("NCCL_BENCH_SIZE", hosts.len().to_string());
        command.env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}")).env("NCCL_HOSTID", host);
        pipe(command)
    };
    hosts.iter().enumerate().map(start).collect()
}

fn pipe(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The outputs of all ranks.
fn await_all(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Reads standard error up to the result of the first round.
fn await_first_round(rank: &mut Child) {
    let mut line = String::new();
    let mut messages = BufReader::new(rank.stderr.as_mut().unwrap());
    while !line.starts_with("round 1 of ") {
        line.clear();
        assert!(messages.read_line(&mut line).unwrap() > 0, "it ended before the first round");
    }
}

#[test]
fn the_file_the_text_and_the_exit_code_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (json, svg) = (folder.path().join("pairs.json"), folder.path().join("pairs.svg"));
    let arguments = format!("{SHORT} -t 5 --output {} --svg {}", json.display(), svg.display());
    let output = run(&arguments);
    let file = read_json(&json);
    let code = match file["conclusion"]["verdict"].as_str().unwrap() {
        "alike" | "seen_once" => 0,
        "slow" => 1,
        "cannot_tell" => 3,
        other => panic!("{other}"),
    };
    assert_eq!(output.status.code(), Some(code), "{}", err(&output));
    let text = out(&output);
    for sentence in file["sentences"].as_array().unwrap() {
        assert!(text.contains(sentence.as_str().unwrap()), "{text}");
    }
    assert_eq!((file["unit"].as_str(), file["units"].as_array().unwrap().len()), (Some("rank"), 5));
    assert_eq!(file["outcome"]["state"], "complete");
    // Five ranks meet in five rounds, in each of which one rests.
    let rounds = file["rounds"].as_array().unwrap();
    let survey: Vec<&Value> = rounds.iter().filter(|round| round["purpose"] == "survey").collect();
    assert_eq!((survey.len(), file["conclusion"]["pairs_measured"].as_u64()), (5, Some(10)));
    for pair in rounds.iter().flat_map(|round| round["pairs"].as_array().unwrap()) {
        let repeats = pair["gbps"].as_array().unwrap();
        assert!(!repeats.is_empty() && repeats.iter().all(|each| each.as_f64().unwrap() > 0.0), "{pair}");
        assert_eq!(pair["wrong"], 0);
    }
    let drawing = fs::read_to_string(&svg).unwrap();
    let drawing = roxmltree::Document::parse(&drawing).unwrap();
    let cells = drawing.descendants().filter(|node| node.tag_name().name() == "title").count();
    assert_eq!(cells, 20, "each pair in both directions");

    // Its own files are replaced, and no others.
    assert_eq!(run(&arguments).status.code().unwrap() & !3, 0);
    fs::write(&json, "notes").unwrap();
    let refused = run(&arguments);
    assert_eq!((refused.status.code(), out(&refused)), (Some(2), String::new()));
    assert!(err(&refused).contains("is not a file of pairs of nccl-bench"), "{}", err(&refused));
}

#[test]
fn hosts_are_compared_with_all_their_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("pairs.json");
    let arguments = format!("{SHORT} --output {}", json.display());
    let outputs = await_all(start_hosts(&["h0", "h0", "h1", "h1"], &arguments));
    let codes: Vec<_> = outputs.iter().map(|output| output.status.code()).collect();
    assert_eq!(codes, [Some(3); 4], "{}", err(&outputs[0]));
    assert!(out(&outputs[0]).contains("cannot tell: two hosts have one pair"), "{}", out(&outputs[0]));
    assert!(outputs[1..].iter().all(|output| out(output).is_empty()));
    let file = read_json(&json);
    assert_eq!(file["unit"], "host");
    let ranks: Vec<&Value> = file["units"].as_array().unwrap().iter().map(|unit| &unit["ranks"]).collect();
    assert_eq!(ranks, [&serde_json::json!([0, 1]), &serde_json::json!([2, 3])]);
    assert_eq!(file["rounds"][0]["pairs"][0]["pair"], serde_json::json!([0, 1]));
}

#[test]
fn what_cannot_be_compared_is_refused() {
    for (arguments, expected) in [
        ("pairs --backend fabric -t 1", "at least 2 ranks"),
        ("pairs --backend fabric -t 2 --per host", "compare them with --per rank"),
        ("pairs --backend mpi", "write auto, nccl or fabric"),
        ("pairs --limit 2", "write a percentage"),
        ("pairs --limit 100%", "write a percentage"),
        ("pairs --seconds nan", "write seconds"),
        ("pairs --rounds 0", "0 is not in 1..=100000"),
        ("pairs --repeats 1", "1 is not in 2..=1000"),
        ("pairs -b 0", "it must be at least one byte"),
    ] {
        let output = run(arguments);
        assert_eq!((output.status.code(), out(&output)), (Some(2), String::new()), "{arguments}");
        assert!(err(&output).contains(expected), "{arguments}: {}", err(&output));
    }
    let outputs = await_all(start_hosts(&["h0", "h1", "h1"], SHORT));
    assert!(outputs.iter().all(|output| output.status.code() == Some(2)));
    assert!(
        err(&outputs[0]).contains("start as many on each host, or use --per rank"),
        "{}",
        err(&outputs[0])
    );
}

#[test]
fn an_interrupted_search_concludes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("pairs.json");
    let arguments = format!("pairs --backend fabric -b 4K -t 6 --seconds 0.2 --output {}", json.display());
    let mut rank = pipe(nccl_bench(&arguments));
    await_first_round(&mut rank);
    kill_process(Pid::from_child(&rank), Signal::INT).unwrap();
    let mut text = String::new();
    rank.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(rank.wait().unwrap().code(), Some(130));
    assert!(text.contains("interrupted by SIGINT: no conclusion"), "{text}");
    let file = read_json(&json);
    assert_eq!(
        (&file["conclusion"]["verdict"], &file["outcome"]["state"]),
        (&"cannot_tell".into(), &"interrupted".into())
    );
    assert_eq!(file["conclusion"]["slow"], serde_json::json!([]));
}

#[test]
fn a_dead_rank_ends_the_search_without_a_conclusion() {
    let mut ranks = start_hosts(&["h0", "h1", "h2"], "pairs --backend fabric -b 4K --seconds 0.5");
    await_first_round(&mut ranks[0]);
    kill_process(Pid::from_child(&ranks[2]), Signal::KILL).unwrap();
    let outputs = await_all(ranks);
    assert_eq!(outputs[0].status.code(), Some(3), "{}", err(&outputs[0]));
    let text = out(&outputs[0]);
    assert!(text.contains("no conclusion: ") && text.contains("rank 2"), "{text}");
    assert!(!text.contains("is slower than most"), "{text}");
}
