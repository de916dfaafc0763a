//! Processors of the ranks of one process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod program;

use std::collections::BTreeSet;
use std::process::Output;
use std::thread::available_parallelism;

use program::{err, out, run};

/// Runs `ranks` threads with `--bind rule`.
fn run_bound(ranks: usize, rule: &str) -> Output {
    run(&format!("allreduce --backend fabric -b 8 -e 8 -n 1 -t {ranks} --bind {rule}"))
}

/// The processors of the ranks, in the list of devices.
fn listed_processors(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    let ranks = out(output);
    let of_rank = |line: &str| Some(line.split_once(" processors ")?.1.split_once(" NUMA ")?.0.to_owned());
    ranks.lines().filter(|line| line.starts_with("#  Rank ")).filter_map(of_rank).collect()
}

fn is_one_processor(listed: &str) -> bool {
    listed.parse::<usize>().is_ok()
}

#[test]
fn ranks_of_a_process_have_a_processor_each() {
    if available_parallelism().unwrap().get() < 2 {
        // They share it.
        assert_eq!(listed_processors(&run_bound(2, "auto")), listed_processors(&run_bound(2, "none")));
        return;
    }
    for rule in ["auto", "core"] {
        let processors = listed_processors(&run_bound(2, rule));
        assert!(processors.iter().all(|listed| is_one_processor(listed)), "{processors:?}");
        assert_eq!(processors.into_iter().collect::<BTreeSet<_>>().len(), 2);
    }
    let unbound = listed_processors(&run_bound(2, "none"));
    assert_eq!(unbound.len(), 2);
    assert!(unbound[0] == unbound[1] && !is_one_processor(&unbound[0]), "{unbound:?}");
}

#[test]
fn a_single_rank_of_a_process_is_bound_on_demand() {
    assert!(is_one_processor(&listed_processors(&run_bound(1, "core"))[0]));
}

#[test]
fn more_ranks_than_processors_are_not_bound() {
    let ranks = available_parallelism().unwrap().get() + 1;
    let processors = listed_processors(&run_bound(ranks, "auto"));
    assert_eq!(processors.len(), ranks);
    assert!(processors.iter().all(|listed| *listed == processors[0]), "{processors:?}");
    let refused = run_bound(ranks, "core");
    assert_eq!((refused.status.code(), out(&refused)), (Some(2), String::new()));
    let text = err(&refused);
    assert!(
        text.contains("--bind core: the host of rank 0 has") && text.contains("start fewer ranks"),
        "{text}"
    );
}
