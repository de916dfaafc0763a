//! Measures and verifies collectives over NCCL and libfabric.

use std::process::ExitCode;

use nccl_bench::{handover, run};

fn main() -> ExitCode {
    run::main(|settings| handover::hand_over(settings.world), |settings| handover::join(settings.world))
}
