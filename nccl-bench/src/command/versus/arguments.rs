//! The arguments of `nccl-bench versus`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use judge::versus::{MAX_STARTS, MIN_STARTS};
use record::matching::Threshold;

/// Examples and exit codes, below the options.
pub(super) const AFTER_HELP: &str = "\
Examples:
  nccl-bench versus --a-library /opt/old/libnccl.so.2 --b-library /opt/new/libnccl.so.2
      --launcher 'mpirun -np 8' -- allreduce -b 8 -e 1G
  nccl-bench versus --b-env NCCL_ALGO=Ring -- allreduce -b 8 -e 1M
  nccl-bench versus --a-program 'nccl-bench allreduce' --b-program ./all_reduce_perf
      --b-env LD_LIBRARY_PATH=/opt/new -- -b 8 -e 1M -g 8
  nccl-bench versus -- allreduce -e 1M       a library against itself: the noise

Exit codes:
    0  measured, whether B is slower, faster or neither
    1  a start failed or had wrong data, sides have different rows or ranks, or with
       --fail-if-slower B is slower
    2  wrong arguments
    3  with --fail-if-slower: B is nowhere seen to be slower, but some rows or the
       overall result cannot be told
  130  interrupted with Ctrl-C; what was measured is reported";

const SIDE_A: &str = "Side A";
const SIDE_B: &str = "Side B";

/// The arguments of `nccl-bench versus`.
#[derive(Args, Clone, Debug)]
pub struct VersusArguments {
    /// Starts of each side
    #[arg(long, value_name = "N", default_value = "8", value_parser = parse_starts, allow_hyphen_values = true)]
    pub starts: usize,

    /// Command that starts the processes of a start: 'mpirun -np 4'
    #[arg(long, value_name = "COMMAND")]
    pub launcher: Option<String>,

    /// A difference up to this share does not count
    #[arg(long, value_name = "PERCENT%", default_value = "2%", allow_hyphen_values = true)]
    pub threshold: Threshold,

    /// Fail (1) if B is slower in a row or overall, and (3) if that cannot be told
    #[arg(long)]
    pub fail_if_slower: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t = VersusFormat::Text)]
    pub format: VersusFormat,

    /// Also write everything, with the times of all starts, to a JSON file
    #[arg(long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,

    /// Replace the file of --output, whatever it contains
    #[arg(long, requires = "output")]
    pub force: bool,

    /// File of side A's libnccl.so.2 (sets NCCL_LIBRARY)
    #[arg(long, value_name = "PATH", help_heading = SIDE_A)]
    pub a_library: Option<PathBuf>,

    /// A variable of side A; may be repeated
    #[arg(long, value_name = "NAME=VALUE", help_heading = SIDE_A)]
    pub a_env: Vec<String>,

    /// Program of side A, with first arguments: another nccl-bench, or one of nccl-tests [default: this
    /// nccl-bench]
    #[arg(long, value_name = "COMMAND", help_heading = SIDE_A)]
    pub a_program: Option<String>,

    /// File of side B's libnccl.so.2 (sets NCCL_LIBRARY)
    #[arg(long, value_name = "PATH", help_heading = SIDE_B)]
    pub b_library: Option<PathBuf>,

    /// A variable of side B; may be repeated
    #[arg(long, value_name = "NAME=VALUE", help_heading = SIDE_B)]
    pub b_env: Vec<String>,

    /// Program of side B, with first arguments [default: this nccl-bench]
    #[arg(long, value_name = "COMMAND", help_heading = SIDE_B)]
    pub b_program: Option<String>,

    /// Arguments of both programs: a collective and its options
    #[arg(last = true, required = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<String>,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VersusFormat {
    /// Columns for a terminal
    Text,
    /// Tables of Markdown
    Markdown,
    /// A line per row, with a head
    Csv,
    /// All of it
    Json,
}

fn parse_starts(text: &str) -> Result<usize, String> {
    let starts =
        text.trim().parse::<usize>().ok().filter(|starts| (MIN_STARTS..=MAX_STARTS).contains(starts));
    starts.ok_or_else(|| {
        format!(
            "write a whole number from {MIN_STARTS} to {MAX_STARTS}: with fewer starts of each side, no \
             difference can be significant, and more take the exact test too long"
        )
    })
}
