//! `nccl-bench topo`: GPUs, NVLink, PCIe, NUMA nodes and NICs of this host, and the paths between them.

use clap::{ArgMatches, Args as _, FromArgMatches as _};

use super::{Command, Context};
use crate::exit::{ExitError, print};

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Topo;

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Command for Topo {
    fn definition(&self) -> clap::Command {
        Arguments::augment_args(clap::Command::new("topo"))
            .about("Show how GPUs and NICs of this host are connected")
    }

    fn run(&self, matches: &ArgMatches, _context: &Context<'_>) -> Result<u8, ExitError> {
        let _arguments = Arguments::from_arg_matches(matches)?;
        print("")
    }
}
