//! `nccl-bench fabric`: information about libfabric, and measurements of its endpoints.

pub mod algorithms;
pub mod info;
pub mod transfer;

use std::io;

use clap::{ArgMatches, FromArgMatches as _, Subcommand as _};

use super::{Command, Context};
use crate::exit::{ExitError, SUCCESS};
use transfer::Asked;

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct FabricCommand;

/// The subcommands.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// What libfabric offers on this machine, and why something is missing
    Info(info::FabricInfoArguments),
    /// The table of algorithms of the collectives over host memory
    Algorithms(algorithms::FabricAlgorithmsArguments),
    /// The latency of messages between two ranks
    Pingpong(transfer::PingPong),
    /// The bandwidth of messages between two ranks
    Bw(transfer::Bandwidth),
    /// Reading or writing another rank's memory
    Rma(transfer::Remote),
}

impl Command for FabricCommand {
    fn define_command(&self) -> clap::Command {
        Subcommand::augment_subcommands(clap::Command::new("fabric"))
            .about("Show what libfabric offers on this host, and why something is missing")
            .disable_help_subcommand(true)
            .subcommand_required(true)
            .arg_required_else_help(true)
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let command = &context.invocation.command;
        let asked = match &Subcommand::from_arg_matches(matches)? {
            Subcommand::Info(arguments) => {
                return Ok(if info::print_info(arguments, &mut io::stdout().lock())? { 0 } else { 1 });
            }
            Subcommand::Algorithms(arguments) => {
                return algorithms::print_algorithms(arguments, &mut io::stdout().lock())
                    .map(|()| SUCCESS)
                    .map_err(ExitError::Output);
            }
            Subcommand::Pingpong(asked) => {
                transfer::run_transfer(Asked::from_pingpong(asked, command), context)
            }
            Subcommand::Bw(asked) => transfer::run_transfer(Asked::from_bandwidth(asked, command), context),
            Subcommand::Rma(asked) => transfer::run_transfer(Asked::from_remote(asked, command), context),
        };
        Ok(asked?)
    }
}
