//! The runs that are drawn.

use clap::Parser as _;
use nccl_bench::command::plot::PlotOptions;
use record::statistics::Statistics;
use record::{Algorithm, Measurement, Placement, Rank, RankMismatch, Run};

pub(crate) const ALL_REDUCE: &str = include_str!("../data/all_reduce_g8.txt");
pub(crate) const ALL_GATHER: &str = include_str!("../data/all_gather_mpi.txt");

/// The options without arguments.
pub(crate) fn options() -> PlotOptions {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: PlotOptions,
    }
    Line::parse_from(["plot"]).options
}

/// The run of the tests of result files.
pub(crate) fn sample() -> Run {
    serde_json::from_str(include_str!("../../../crates/record/tests/data/run.json")).unwrap()
}

/// A run without measurements, on a host whose name must be escaped.
pub(crate) fn empty(ranks: usize) -> Run {
    let sample = sample();
    let rank =
        |rank| Rank { rank, device: Some(rank), host: "node<1>".to_owned(), ..sample.ranks[0].clone() };
    Run { ranks: (0..ranks).map(rank).collect(), measurements: Vec::new(), notes: Vec::new(), ..sample }
}

/// A measurement without optional parts.
pub(crate) fn measurement(
    collective: &str,
    placement: Placement,
    bytes: u64,
    time_us: f64,
    busbw_gbps: f64,
) -> Measurement {
    let plain = sample().measurements.into_iter().find(|sample| sample.statistics.is_none()).unwrap();
    Measurement {
        collective: collective.to_owned(),
        op: (collective == "allreduce").then(|| "sum".to_owned()),
        placement,
        bytes,
        count: bytes / 4,
        time_us,
        algbw_gbps: bytes as f64 / 1e3 / time_us,
        busbw_gbps,
        wrong: Some(0),
        ..plain
    }
}

/// The rows of a table of nccl-tests.
pub(crate) fn measurements(table: &str, collective: &str) -> Vec<Measurement> {
    let rows = table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let found: Vec<Measurement> = rows
        .flat_map(|row| {
            let cells: Vec<&str> = row.split_whitespace().collect();
            let number = |index: usize| cells[index].parse::<f64>().unwrap();
            let bytes = cells[0].parse().unwrap();
            [(Placement::OutOfPlace, 5), (Placement::InPlace, 9)]
                .map(|(placement, at)| measurement(collective, placement, bytes, number(at), number(at + 2)))
        })
        .collect();
    assert!(found.len() > 50, "the table was not read");
    found
}

pub(crate) fn all_reduce() -> Run {
    Run { measurements: measurements(ALL_REDUCE, "allreduce"), ..empty(8) }
}

pub(crate) fn all_gather() -> Run {
    Run { measurements: measurements(ALL_GATHER, "allgather"), ..empty(8) }
}

/// A copy of a run that is slower by a factor that grows with the size.
pub(crate) fn slower(run: &Run, factor: f64) -> Run {
    let mut slower = run.clone();
    for each in &mut slower.measurements {
        let factor = 1.0 + (factor - 1.0) * (each.bytes as f64).log2().max(0.0) / 33.0;
        each.time_us *= factor;
        each.algbw_gbps /= factor;
        each.busbw_gbps /= factor;
    }
    slower
}

/// A run with statistics, algorithms and wrong data.
pub(crate) fn with_everything() -> Run {
    let mut run = all_reduce();
    for each in &mut run.measurements {
        let times = [0.93, 0.97, 1.0, 1.0, 1.02, 1.2].map(|factor| factor * each.time_us);
        each.statistics = Statistics::from_times(&times);
        let (algorithm, protocol) = match each.bytes {
            ..=0x4000 => ("tree", Some("ll")),
            0x4001..=0x10_0000 => ("ring", Some("ll128")),
            0x10_0001..=0x100_0000 => ("ring", Some("simple")),
            _ => ("nvls", None),
        };
        each.algorithm = Some(Algorithm {
            algorithm: algorithm.to_owned(),
            protocol: protocol.map(str::to_owned),
            channels: Some(16),
        });
        if each.bytes == 1 << 20 && each.placement == Placement::InPlace {
            each.wrong = Some(3);
            let first = "element 3: expected 1.5 (0x3fc00000), found NaN (0x7fc00000)".to_owned();
            each.mismatches = vec![RankMismatch { rank: 5, wrong: 3, first }];
        }
    }
    run
}

pub(crate) fn named(runs: &[(&str, &Run)]) -> Vec<(String, Run)> {
    runs.iter().map(|&(label, run)| (label.to_owned(), run.clone())).collect()
}
