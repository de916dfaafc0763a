//! The measurement on GPUs: what is wrong is found, on the rank where it is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::thread;

use collectives::{nccl, world};
use nccl_bench::backend;
use nccl_bench::cli;
use nccl_bench::collective::Placement;
use nccl_bench::size::{Step, Sweep};
use nccl_bench::sweep::{self, Measurement, Plan};

/// How many GPUs there are; says that a test is skipped when they are too few.
fn gpus_or_skip(needed: usize) -> Option<usize> {
    let reason = match nccl::device_count() {
        Ok(count) if count >= needed => return Some(count),
        Ok(count) => format!("skipped: needs {needed} GPUs, found {count}"),
        Err(_) => "skipped: no CUDA driver".to_owned(),
    };
    // Past the harness, which keeps what passing tests print.
    #[allow(clippy::explicit_write, reason = "eprintln is captured with the output of passing tests")]
    writeln!(std::io::stderr(), "{reason}").unwrap();
    None
}

/// Runs a sweep of one size over all GPUs of this machine; returns what each rank observed.
fn measure(arguments: &str) -> Vec<Vec<Measurement>> {
    let settings = cli::parse(arguments.split_whitespace()).unwrap();
    let node = backend::choose(&settings, &*world::single()).unwrap();
    let node = &*node;
    let bytes = settings.max_bytes.unwrap();
    let plan = &Plan {
        collective: settings.collective,
        sweep: Sweep { min: settings.min_bytes, max: bytes, step: Step::Factor(2) },
        data_types: settings.data_types,
        ops: settings.ops,
        warm_up: settings.warm_up,
        iterations: settings.iterations,
        checks: settings.checks,
        fault: settings.fault,
    };
    let ranks = world::threads(world::single(), node.gpus()).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = ranks
            .into_iter()
            .enumerate()
            .map(|(index, world)| {
                scope.spawn(move || {
                    let device = node.open(index).unwrap();
                    let mut backend = device.connect(&world, usize::try_from(bytes).unwrap()).unwrap();
                    let mut seen = Vec::new();
                    sweep::run(plan, &*world, &mut *backend, &mut |measurement| {
                        seen.push(measurement.clone());
                        Ok(())
                    })
                    .unwrap();
                    seen
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn every_type_and_operator_is_right_in_and_out_of_place() {
    let Some(gpus) = gpus_or_skip(1) else { return };
    for (collective, operators) in [("allreduce", 5), ("allgather", 1)] {
        let seen = measure(&format!("nccl-bench {collective} --backend nccl -b 1M -e 1M -n 2 -d all -o all"));
        assert_eq!(seen.len(), gpus);
        assert_eq!(seen[0].len(), 10 * operators * 2);
        for measurement in &seen[0] {
            assert_eq!(measurement.wrong, Some(0), "{measurement:?}");
            assert!(measurement.seconds > 0.0);
        }
    }
}

#[test]
fn a_damaged_element_is_found_on_its_rank_with_index_and_values() {
    if gpus_or_skip(2).is_none() {
        return;
    }
    for collective in ["allreduce", "allgather"] {
        let seen = measure(&format!(
            "nccl-bench {collective} --backend nccl -b 64K -e 64K -n 1 --inject-fault 1:777"
        ));
        for observed in &seen {
            assert_eq!(observed.len(), Placement::BOTH.len());
            for measurement in observed {
                assert_eq!(measurement.wrong, Some(1));
                let [(rank, found)] = measurement.mismatches[..] else { panic!("{measurement:?}") };
                let first = found.first.unwrap();
                assert_eq!((rank, found.wrong, first.index), (1, 1, 777));
                assert_eq!(first.expected_bits ^ first.found_bits, 1, "the lowest bit was flipped");
            }
        }
    }
}
