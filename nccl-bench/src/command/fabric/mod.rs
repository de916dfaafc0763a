//! `nccl-bench fabric`: information about libfabric, and measurements of its endpoints.

pub mod algorithms;
pub mod info;
pub mod transfer;

use std::io;

use clap::{ArgMatches, FromArgMatches as _, Subcommand as _};
use engine::supervision::{Signal, Verdict, print_message};

use super::{Command, Context};
use crate::exit::{ExitError, SUCCESS};

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Fabric;

/// The subcommands.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// What libfabric offers on this machine, and why something is missing
    Info(info::Arguments),
    /// The table of algorithms of the collectives over host memory
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

    fn run(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let out = &mut io::stdout().lock();
        let join = |request: &_| context.join(request);
        let verdict = match &Subcommand::from_arg_matches(matches)? {
            Subcommand::Info(arguments) => return Ok(if info::run(arguments, out)? { 0 } else { 1 }),
            Subcommand::Algorithms(arguments) => {
                return algorithms::run(arguments, out).map(|()| SUCCESS).map_err(ExitError::Output);
            }
            Subcommand::Pingpong(asked) => transfer::run(asked.into(), out, join)?,
            Subcommand::Bw(asked) => transfer::run(asked.into(), out, join)?,
            Subcommand::Rma(asked) => transfer::run(asked.into(), out, join)?,
        };
        if let Verdict::Stopped(signal) = verdict
            && signal != Signal::SIGPIPE
        {
            print_message(format_args!("nccl-bench: interrupted by {signal}; not all sizes were measured"));
        }
        Ok(verdict.code())
    }
}
