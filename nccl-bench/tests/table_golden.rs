//! The text table against what nccl-tests 2.19.6 printed on 8 H200: the same numbers in, the same bytes out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use collectives::{DataType, ReduceOp};
use nccl_bench::collective::{Bandwidth, Collective, Counts};
use nccl_bench::size::Step;
use nccl_bench::table::{self, Head};

const ALL_REDUCE: &str = include_str!("data/all_reduce_g8.txt");
const ALL_GATHER: &str = include_str!("data/all_gather_mpi.txt");

/// A row's time and bandwidths have few digits; what was printed from the unrounded numbers prints alike from them.
fn half(fields: &[&str]) -> String {
    let number = |index: usize| fields[index].parse::<f64>().unwrap();
    let bandwidth = Bandwidth { algorithm: number(1), bus: number(2) };
    table::row_half(number(0) / 1e6, bandwidth, Some(fields[3].parse().unwrap()))
}

fn rows(text: &str, collective: Collective, op: Option<ReduceOp>, ranks: usize) -> usize {
    let mut rows = 0;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let counts = collective.counts(fields[0].parse().unwrap(), DataType::Float32, ranks);
        let expected = Counts { parameter: fields[1].parse().unwrap(), ..counts };
        assert_eq!(counts, expected, "{line}");
        let row =
            table::row_start(&counts, DataType::Float32, op) + &half(&fields[5..9]) + &half(&fields[9..13]);
        assert_eq!(row, line);
        rows += 1;
    }
    rows
}

#[test]
fn every_row_comes_out_byte_for_byte() {
    assert_eq!(rows(ALL_REDUCE, Collective::AllReduce, Some(ReduceOp::Sum), 8), 31);
    assert_eq!(rows(ALL_GATHER, Collective::AllGather, None, 8), 30);
}

#[test]
fn the_head_and_the_foot_come_out_byte_for_byte_below_the_version_line() {
    let head = Head {
        provenance: vec!["nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809".to_owned()],
        collective: Collective::AllReduce,
        threads: 1,
        gpus: 8,
        min_bytes: 8,
        max_bytes: 8 << 30,
        step: Step::Factor(2),
        warm_up: 5,
        iterations: 20,
        checks: 1,
        ranks: (0..8)
            .map(|rank| {
                let device = table::gpu(rank, (0, 0, 6 + rank as u32), "NVIDIA H200");
                table::rank_line(rank, 0, 2376, "vm", &device)
            })
            .collect(),
    };
    let (expected, _) = ALL_REDUCE.split_once("           8             2").unwrap();
    assert_eq!(head.render() + table::COLUMNS, expected);
    let foot = table::foot(Collective::AllReduce, Some(0), 118.406);
    assert!(ALL_REDUCE.ends_with(&foot), "{foot}");
}
