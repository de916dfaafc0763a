//! `nccl-bench doctor log`: NCCL's log.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use diagnosis::examination::Health;
use diagnosis::input;
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::conclusions::conclude;
use diagnosis::log::read_files;
use engine::supervision::print_message;

use super::output::layout::plain_line;
use super::output::{self, EXIT_CODES, Output};
use crate::command::Context;
use crate::exit::ExitError;

/// Size of the largest file of rules, in bytes.
const LARGEST_RULES: u64 = 4 << 20;

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
which proves NVLink between pairs that have not exchanged data yet.

A file for --rules:
  version = 1
  [[rule]]
  id = \"storage-mount-lost\"
  origin = \"any\"                     # nccl, kernel, or any for lines of other programs
  contains = \"mount lost: /data\"     # 9 letters or more that the line has
  role = \"root\"                      # root, cascade, confirmation, advice, harmless
  severity = \"broken\"                # broken, degraded, unknown, advice
  diagnosis = \"The node lost its data volume.\"
  cause = \"The storage server restarted.\"
  remedy = \"Mount it again: mount /data\"
  source = \"site handbook\"
  matches = [\"node7: mount lost: /data\"]";

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct DoctorLogArguments {
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
pub fn run_log_doctor(arguments: &DoctorLogArguments, _context: &Context<'_>) -> Result<u8, ExitError> {
    if output::is_left_to_rank_0() {
        return Ok(Health::Healthy.exit_code());
    }
    arguments.output.check_outputs(&arguments.files)?;
    for file in &arguments.rules {
        input::open_regular_file(file, LARGEST_RULES)
            .map_err(|error| ExitError::refused(format!("{}: cannot read: {error}", file.display())))?;
    }
    let rules = Rules::with_files(&arguments.rules).map_err(|error| ExitError::refused(error.to_string()))?;
    let standard_input = [PathBuf::from(STANDARD_INPUT)];
    let files = if arguments.files.is_empty() { &standard_input[..] } else { &arguments.files };
    if files.iter().any(|file| file == Path::new(STANDARD_INPUT)) && std::io::stdin().is_terminal() {
        print_message(
            "reading a log from this terminal; end it with Ctrl-D, or name a file: nccl-bench doctor log \
             FILE",
        );
    }
    let digest =
        read_files(files, &rules).map_err(|error| ExitError::refused(plain_line(&error.to_string())))?;
    output::write_reports(&arguments.output, &[conclude(&digest, &rules)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_a_rule_is_one_that_finds_its_line() {
        let (_, example) = EXAMPLES.split_once("A file for --rules:\n").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (rules, log) = (folder.path().join("site.toml"), folder.path().join("job.log"));
        std::fs::write(&rules, example).unwrap();
        std::fs::write(&log, "node7: mount lost: /data\n").unwrap();
        let rules = Rules::with_files(&[rules]).unwrap();
        let examination = conclude(&read_files(&[log], &rules).unwrap(), &rules);
        assert!(examination.findings.iter().any(|finding| finding.rule == "storage-mount-lost"));
    }
}
