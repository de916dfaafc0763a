//! Measures and verifies collectives over NCCL and libfabric.

use std::process::ExitCode;

use nccl_bench::{handover, program};

fn main() -> ExitCode {
    program::main(handover::hand_over, handover::join, None)
}
