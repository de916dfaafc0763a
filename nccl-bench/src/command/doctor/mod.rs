//! `nccl-bench doctor`: is this cluster set up right, and if not, what is wrong?

pub mod environment;
pub mod host;
pub mod job;
pub mod log;
pub(in crate::command) mod output;

use clap::{ArgMatches, FromArgMatches as _, Subcommand as _};

use super::{Command, Context};
use crate::exit::ExitError;

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Doctor;

/// The subcommands.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// Read the log of a job: what each pair of ranks used, and what went wrong
    Log(log::Arguments),
    /// Ask a running job: which ranks are missing, and who has not arrived
    Job(job::Arguments),
    /// Judge the variables of NCCL, its plugins and libfabric
    Env(environment::Arguments),
    /// Look at this host, or at all hosts of a job: GPUs, networks, limits, libraries
    Host(host::Arguments),
}

impl Command for Doctor {
    fn definition(&self) -> clap::Command {
        Subcommand::augment_subcommands(clap::Command::new("doctor"))
            .about("Tell whether a cluster is set up right, and if not, what is wrong")
            .disable_help_subcommand(true)
    }

    fn run(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        match Subcommand::from_arg_matches(matches)? {
            Subcommand::Log(arguments) => log::run(&arguments, context),
            Subcommand::Job(arguments) => job::run(&arguments, context),
            Subcommand::Env(arguments) => environment::run(&arguments, context),
            Subcommand::Host(arguments) => host::run(&arguments, context),
        }
    }
}
