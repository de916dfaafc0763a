//! `nccl-bench doctor log`: NCCL's log.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use diagnosis::knowledge::rules::Rules;
use diagnosis::log::conclusions::conclude;
use diagnosis::log::read_files;

use super::output::layout::plain;
use super::output::{self, EXIT_CODES, Output};
use crate::command::Context;
use crate::exit::ExitError;

/// Standard input as a file.
const STANDARD_INPUT: &str = "-";

const EXAMPLES: &str = "\
Examples:
  nccl-bench doctor log job.log                       the output of a job with NCCL_DEBUG=INFO
  nccl-bench doctor log rank*.log.gz --html job.html  a file per rank, and a page with pictures
  kubectl logs job-0 | nccl-bench doctor log          standard input
  nccl-bench doctor log --rules site.toml job.log     with rules of your own

Run the job with NCCL_DEBUG=INFO, and pass the output of all ranks: only a complete log can be
healthy. NCCL_DEBUG_SUBSYS, if set, needs INIT,BOOTSTRAP,ENV,NET,P2P,SHM. GRAPH adds the topology,
which proves NVLink between pairs that have not exchanged data yet.";

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Arguments {
    /// Logs of one job, also compressed (gzip, zstd); standard input if there is none, or for -
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// File with further rules about messages, which come before the built-in ones
    #[arg(long, value_name = "FILE")]
    pub rules: Vec<PathBuf>,

    /// The reports to write.
    #[command(flatten)]
    pub output: Output,
}

/// Runs the command, and returns the health as exit code.
pub fn run(arguments: &Arguments, _context: &Context<'_>) -> Result<u8, ExitError> {
    arguments.output.check(&arguments.files)?;
    let rules = Rules::with_files(&arguments.rules).map_err(|error| ExitError::refused(error.to_string()))?;
    let standard_input = [PathBuf::from(STANDARD_INPUT)];
    let files = if arguments.files.is_empty() { &standard_input[..] } else { &arguments.files };
    if files.iter().any(|file| file == Path::new(STANDARD_INPUT)) && std::io::stdin().is_terminal() {
        eprintln!(
            "reading a log from this terminal; end it with Ctrl-D, or name a file: nccl-bench doctor log FILE"
        );
    }
    let digest = read_files(files, &rules).map_err(|error| ExitError::refused(plain(&error.to_string())))?;
    output::write(&arguments.output, &[conclude(&digest, &rules)])
}
