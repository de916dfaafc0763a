//! `nccl-bench fabric`: libfabric itself, without collectives.

pub mod algorithms;
pub mod info;
pub mod transfer;

use std::io;

use clap::{ArgMatches, FromArgMatches as _, Subcommand as _};
use engine::supervision::Stop;

use super::{Command, Context};
use crate::exit::Exit;

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Fabric;

/// The commands below it.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// What libfabric offers on this machine, and why something is missing
    Info(info::Arguments),
    /// Which algorithm carries out each collective over host memory: the table
    Algorithms(algorithms::Arguments),
    /// The latency of messages between two ranks
    Pingpong(transfer::PingPong),
    /// The bandwidth of messages between two ranks
    Bw(transfer::Bandwidth),
    /// Reading or writing another rank's memory
    Rma(transfer::Remote),
}

impl Command for Fabric {
    fn definition(&self) -> clap::Command {
        Subcommand::augment_subcommands(clap::Command::new("fabric"))
            .about("Look at libfabric itself: what it offers here, and why something is missing")
            .disable_help_subcommand(true)
            .subcommand_required(true)
            .arg_required_else_help(true)
    }

    fn run(&self, matches: &ArgMatches, context: &Context<'_>) -> Exit {
        let command = match Subcommand::from_arg_matches(matches) {
            Ok(command) => command,
            Err(error) => return error.into(),
        };
        let out = &mut io::stdout().lock();
        let join = |request: &_| context.join(request);
        let ended = match &command {
            Subcommand::Info(arguments) => {
                return match info::run(arguments, out) {
                    Ok(verdict) => Exit::Code(verdict.code()),
                    Err(info::Error::Output(error)) => Exit::Output(error),
                    Err(info::Error::Fabric(error)) => Stop::Failed(error.into()).into(),
                    Err(error @ info::Error::Library(_)) => Exit::refused(error.to_string()),
                };
            }
            Subcommand::Algorithms(arguments) => {
                return algorithms::run(arguments, out).map_or_else(Exit::Output, |()| Exit::SUCCESS);
            }
            Subcommand::Pingpong(arguments) => transfer::pingpong(arguments, out, join),
            Subcommand::Bw(arguments) => transfer::bandwidth(arguments, out, join),
            Subcommand::Rma(arguments) => transfer::remote(arguments, out, join),
        };
        ended.map_or_else(Exit::from, Exit::interrupted)
    }
}
