//! The measurement on GPUs: what is wrong is found, on the rank where it is, and what cannot be is refused.
//!
//! Some tests start this program again with `GPU_SWEEP_PROGRAM` set: then it is `nccl-bench` in a world of its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

#[path = "../../tests/gpu/mod.rs"]
mod gpu;

use std::process::{Command, ExitCode};
use std::thread;

use collectives::{nccl, world};
use nccl_bench::collective::Placement;
use nccl_bench::size::Sweep;
use nccl_bench::sweep::{self, Measurement, Plan};
use nccl_bench::{backend, cli, run};

fn main() -> ExitCode {
    if std::env::var_os("GPU_SWEEP_PROGRAM").is_some() {
        return run::main(|_| Ok(world::single()));
    }
    gpu::run(gpu::tests! {
        1 => [
            every_type_and_operator_is_right_in_and_out_of_place,
            a_damaged_element_is_found_on_its_rank_with_index_and_values,
            a_damaged_element_is_reported_with_rank_index_and_values,
            more_gpus_than_there_are_are_refused,
            a_size_that_does_not_fit_is_refused_with_what_would,
        ],
    })
}

/// Runs a sweep over all GPUs of this machine; returns what each rank observed.
fn measure(arguments: &str) -> Vec<Vec<Measurement>> {
    let settings = cli::parse(arguments.split_whitespace()).unwrap();
    let node = backend::choose(&settings, &*world::single()).unwrap();
    let node = &*node;
    let bytes = settings.max_bytes.unwrap();
    let plan = &Plan {
        collective: settings.collective,
        sweep: Sweep { min: settings.min_bytes, max: bytes, step: settings.step },
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

fn every_type_and_operator_is_right_in_and_out_of_place() {
    let gpus = nccl::device_count().unwrap();
    for (collective, operators) in [("allreduce", 5), ("allgather", 1)] {
        let seen = measure(&format!(
            "nccl-bench {collective} --backend nccl -b 1000 -e 1M -f 1000 -n 2 -d all -o all"
        ));
        assert_eq!(seen.len(), gpus);
        assert_eq!(seen[0].len(), 10 * operators * 2 * Placement::BOTH.len());
        for measurement in &seen[0] {
            assert_eq!(measurement.wrong, Some(0), "{measurement:?}");
            assert!(measurement.work.bytes() > 0 && measurement.seconds > 0.0, "{measurement:?}");
        }
    }
}

fn a_damaged_element_is_found_on_its_rank_with_index_and_values() {
    let gpus = nccl::device_count().unwrap();
    let last = gpus - 1;
    for collective in ["allreduce", "allgather"] {
        let seen = measure(&format!(
            "nccl-bench {collective} --backend nccl -b 64K -e 64K -n 1 --inject-fault {last}:777"
        ));
        assert_eq!(seen.len(), gpus);
        for observed in &seen {
            assert_eq!(observed.len(), Placement::BOTH.len());
            for measurement in observed {
                assert_eq!(measurement.wrong, Some(1));
                let [(rank, found)] = measurement.mismatches[..] else { panic!("{measurement:?}") };
                let first = found.first.unwrap();
                assert_eq!((rank, found.wrong, first.index), (last, 1, 777));
                assert_eq!(first.expected_bits ^ first.found_bits, 1, "the lowest bit was flipped");
            }
        }
    }
}

/// Runs `nccl-bench` on all GPUs of this machine: its exit code, and what it wrote to standard output and error.
fn nccl_bench(arguments: &str) -> (Option<i32>, String, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(arguments.split_whitespace())
        .env("GPU_SWEEP_PROGRAM", "1")
        .output()
        .unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

fn a_damaged_element_is_reported_with_rank_index_and_values() {
    let last = nccl::device_count().unwrap() - 1;
    let (code, out, err) =
        nccl_bench(&format!("allreduce --backend nccl -b 64K -e 64K -n 1 --inject-fault {last}:777"));
    assert_eq!(code, Some(7), "{out}{err}");
    for placement in ["out-of-place", "in-place"] {
        let start = format!("# WRONG {placement}: rank {last} has 1 wrong");
        let Some(note) = out.lines().find(|line| line.starts_with(&start)) else { panic!("{out}") };
        for part in ["element 777", "expected ", "found "] {
            assert!(note.contains(part), "{note}");
        }
    }
    assert!(out.contains("# Out of bounds values : 2 FAILED"), "{out}");
}

fn more_gpus_than_there_are_are_refused() {
    let gpus = nccl::device_count().unwrap();
    let (code, out, err) = nccl_bench("allreduce --backend nccl -g 99");
    assert_eq!(code, Some(2), "{out}{err}");
    assert!(err.contains("99 GPUs (-g 99)") && err.contains(&format!("it has {gpus}.")), "{err}");
    assert!(!out.contains("# nccl-bench"), "{out}");
}

fn a_size_that_does_not_fit_is_refused_with_what_would() {
    let (code, out, err) = nccl_bench("allreduce --backend nccl -e 900000G");
    assert_eq!(code, Some(2), "{out}{err}");
    for part in ["does not fit", "GPU ", "at most -e "] {
        assert!(err.contains(part), "no '{part}' in: {err}");
    }
    assert!(!err.contains("-e 0 "), "{err}");
    assert!(!out.contains("# nccl-bench"), "{out}");
}
