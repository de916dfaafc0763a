//! Measures and verifies collectives over NCCL and libfabric.

use std::process::ExitCode;

use nccl_bench::{handover, program};

fn main() -> ExitCode {
    program::main(|settings| handover::hand_over(settings.world), |settings| handover::join(settings.world))
}
