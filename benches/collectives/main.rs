//! Collectives by size, on this machine's GPUs and over its memory, for criterion:
//!
//! ```text
//! cargo bench --bench collectives -- --save-baseline before
//! cargo bench --bench collectives -- --baseline before 'host/all_reduce'
//! ```
//!
//! Ranks are threads: `gpu/...` has one per GPU, `host/...` two. The time of an operation is that of the
//! slowest rank, the throughput counts the bytes that nccl-tests calls the size: the vector, or all ranks'
//! blocks together. GPUs are waited for once per batch. Every case is verified before it is measured.

#![allow(clippy::disallowed_methods, reason = "an error ends the measurement")]

#[path = "../build/mod.rs"]
mod build;
mod case;
mod gpu;
mod host;
mod team;

use std::process::ExitCode;

use criterion::{BenchmarkId, Criterion, Throughput};

use case::{COLLECTIVES, Case, SIZES};
use team::Team;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    println!("{}", build::DESCRIPTION);
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    let ended = [measure(&mut criterion, "gpu", gpu::team()), measure(&mut criterion, "host", host::team())];
    criterion.final_summary();
    let mut code = ExitCode::SUCCESS;
    for error in ended.into_iter().filter_map(Result::err) {
        eprintln!("collectives: {error}");
        code = ExitCode::FAILURE;
    }
    code
}

/// Measures all cases with the ranks of a team, or prints why there are none.
fn measure(
    criterion: &mut Criterion,
    backend: &str,
    team: Result<Result<Team, String>, Failure>,
) -> Result<(), Failure> {
    let mut team = match team? {
        Ok(team) => team,
        Err(reason) => {
            println!("{backend}: not measured: {reason}");
            return Ok(());
        }
    };
    println!("{backend}: {}", team.description);
    for collective in COLLECTIVES {
        let mut group = criterion.benchmark_group(format!("{backend}/{collective}"));
        for bytes in SIZES {
            let case = Case { collective, bytes, ranks: team.ranks() };
            let mut result = Ok(());
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_with_input(BenchmarkId::from_parameter(bytes), &case, |bencher, &case| {
                result = team.prepare(case);
                if result.is_ok() {
                    bencher.iter_custom(|calls| {
                        team.time(calls).unwrap_or_else(|error| {
                            eprintln!("collectives: {backend}/{collective}/{bytes}: {error}");
                            std::process::exit(1)
                        })
                    });
                }
            });
            result.map_err(|error| format!("{backend}/{collective}/{bytes}: {error}"))?;
        }
        group.finish();
    }
    Ok(())
}
