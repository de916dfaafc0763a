//! `nccl-bench doctor host`: facts of this host.

use diagnosis::examination::Examination;

use super::output::{self, Output};
use crate::command::Context;
use crate::exit::ExitError;

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// The reports to write.
    #[command(flatten)]
    pub output: Output,
}

/// Runs the command, and returns the health as exit code.
pub fn run(arguments: &Arguments, _context: &Context<'_>) -> Result<u8, ExitError> {
    output::write(&arguments.output, &[Examination::new("host")])
}
