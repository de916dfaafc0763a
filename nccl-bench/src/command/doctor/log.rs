//! `nccl-bench doctor log`: NCCL's log.

use diagnosis::examination::Examination;

use super::output::{self, EXIT_CODES, Output};
use crate::command::Context;
use crate::exit::ExitError;

const EXAMPLES: &str = "\
Examples:
  nccl-bench doctor log job.log                      the output of a job that ran with NCCL_DEBUG=INFO
  nccl-bench doctor log rank*.log.gz --html job.html a file per rank, and a page with the picture of all pairs
  kubectl logs job-0 | nccl-bench doctor log         standard input

Run the job with NCCL_DEBUG=INFO, better with NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,P2P,SHM,TUNING, and pass
the logs of all ranks.";

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Arguments {
    /// The reports to write.
    #[command(flatten)]
    pub output: Output,
}

/// Runs the command, and returns the health as exit code.
pub fn run(arguments: &Arguments, _context: &Context<'_>) -> Result<u8, ExitError> {
    arguments.output.check(&[])?;
    output::write(&arguments.output, &[Examination::new("log")])
}
