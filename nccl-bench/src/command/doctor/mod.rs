//! `nccl-bench doctor`: is this cluster set up right, and if not, what is wrong?

pub mod environment;
pub mod host;
pub mod job;
pub mod log;
pub(in crate::command) mod output;
pub mod whole;

use std::time::Duration;

use clap::{ArgMatches, Args as _, FromArgMatches as _};
use collectives::world::{Handle, Kind, Launcher, Started, World};
use engine::agreement::ANOTHER_COMMAND;
use engine::supervision::Stop;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Command, Context, take_over_signals};
use crate::exit::ExitError;
use crate::mpi_exec::JoinRequest;

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Doctor;

/// The subcommands.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// Read the log of a job: what each pair of ranks used, and what went wrong
    Log(log::DoctorLogArguments),
    /// Ask a running job: which ranks are missing, and who has not arrived
    Job(job::DoctorJobArguments),
    /// Judge the variables of NCCL, its plugins and libfabric
    Env(environment::DoctorEnvArguments),
    /// Look at this host, or at all hosts of a job: GPUs, networks, limits, libraries
    Host(host::DoctorHostArguments),
}

/// The arguments of `nccl-bench doctor`.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "PART",
    subcommand_help_heading = "Parts"
)]
#[command(after_help = format!("{}\n\n{}", whole::EXAMPLES, output::EXIT_CODES))]
pub struct DoctorArguments {
    /// A part of it.
    #[command(subcommand)]
    pub part: Option<Subcommand>,

    /// The whole.
    #[command(flatten)]
    pub whole: whole::DoctorWholeArguments,
}

impl Command for Doctor {
    fn define_command(&self) -> clap::Command {
        DoctorArguments::augment_args(clap::Command::new("doctor"))
            .about("Check whether a cluster is set up right, and report what is wrong")
            .disable_help_subcommand(true)
    }

    fn takes_over_signals(&self) -> bool {
        true
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let DoctorArguments { part, whole } = DoctorArguments::from_arg_matches(matches)?;
        if part.is_some() {
            take_over_signals()?;
        }
        match part {
            None => whole::run_whole_doctor(&whole, context),
            Some(Subcommand::Log(arguments)) => log::run_log_doctor(&arguments, context),
            Some(Subcommand::Job(arguments)) => job::run_job_doctor(&arguments, context),
            Some(Subcommand::Env(arguments)) => environment::run_env_doctor(&arguments, context),
            Some(Subcommand::Host(arguments)) => host::run_host_doctor(&arguments, context),
        }
    }
}

/// Joins the other processes of a launcher; `None` for a process that examines its host alone.
fn join_processes(context: &Context<'_>, kind: Kind, timeout_s: u64) -> Result<Option<Handle>, ExitError> {
    let is_alone = Started::detect().launcher == Launcher::None && kind == Kind::Auto;
    if is_alone || kind == Kind::Single {
        return Ok(None);
    }
    let request = JoinRequest {
        world: kind,
        for_mpi: None,
        timeout: Some(Duration::from_secs(timeout_s)),
        instead: Some("let the ranks meet over TCP (--world tcp)"),
    };
    Ok(Some(context.join_job(&request)?))
}

/// Sends a value of this process to all others. Returns the values of all processes, in order. Collective.
fn gather_values<T: Serialize + DeserializeOwned>(world: &dyn World, own: &T) -> Result<Vec<T>, Stop> {
    let all = world.all_gather(&serde_json::to_vec(own)?)?;
    all.iter().enumerate().map(|(process, bytes)| decode_value(process, bytes)).collect()
}

/// Reads a value from another process.
fn decode_value<T: DeserializeOwned>(process: usize, bytes: &[u8]) -> Result<T, Stop> {
    serde_json::from_slice(bytes).map_err(|_| Stop::Refused(format!("process {process} {ANOTHER_COMMAND}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_another_command_is_named_in_one_sentence() {
        let Err(Stop::Refused(message)) = decode_value::<Vec<u32>>(3, b"{\"host\":\"node1\"}") else {
            panic!("it was read")
        };
        assert_eq!(
            message,
            "process 3 runs a different command or nccl-bench version; start all processes with the same one"
        );
    }
}
