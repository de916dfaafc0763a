//! The commands of the program. A new command is a module here and a line in [`all_commands`].

pub mod compare;
pub mod completions;
pub mod doctor;
pub mod fabric;
pub mod help;
pub mod judge;
pub mod ladder;
pub mod man;
mod markup;
pub mod measure;
mod option_name;
mod output_file;
pub mod pairs;
pub mod plot;
mod starts;
mod table;
pub mod topo;
pub mod versus;

use std::path::PathBuf;

use clap::ArgMatches;
use collectives::world;
use engine::backend;
use engine::collective::Collective;
use engine::supervision::{Interrupt, Salvage, Stop};

use crate::exit::ExitError;
use crate::mpi_exec::JoinRequest;
use measure::Invocation;

/// A command of the program.
pub trait Command {
    /// Returns its name, flags and help.
    fn define_command(&self) -> clap::Command;

    /// Returns true if the command takes over the signals itself. It first sets environment variables, and
    /// for this the process must have a single thread. Until then, signals wait.
    fn takes_over_signals(&self) -> bool {
        false
    }

    /// Runs the command with its arguments, and returns the exit code.
    ///
    /// # Errors
    /// The reason for an earlier end.
    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError>;
}

/// Makes a signal end this process with a message and the signal's exit code. Call it before libraries are
/// loaded: libfabric's providers install handlers of their own, which end the process with code 1 and no
/// message.
///
/// # Errors
/// [`Stop::Failed`] when no thread can be started.
pub(crate) fn take_over_signals() -> Result<(), Stop> {
    Interrupt::install(Salvage::default())?;
    Ok(())
}

/// Returns all commands, in the order of the help.
pub fn all_commands() -> Vec<Box<dyn Command>> {
    let mut commands: Vec<Box<dyn Command>> = Vec::new();
    for collective in Collective::ALL {
        commands.push(Box::new(measure::Measure(Some(collective))));
    }
    commands.push(Box::new(measure::Measure(None)));
    commands.push(Box::new(pairs::Pairs));
    commands.push(Box::new(ladder::Ladder));
    commands.push(Box::new(compare::Compare));
    commands.push(Box::new(judge::Judge));
    commands.push(Box::new(versus::VersusCommand));
    commands.push(Box::new(plot::Plot));
    commands.push(Box::new(fabric::FabricCommand));
    commands.push(Box::new(doctor::Doctor));
    commands.push(Box::new(topo::Topo));
    commands.push(Box::new(help::Help));
    commands.push(Box::new(completions::Completions));
    commands.push(Box::new(man::Man));
    commands
}

/// Functions that differ between the two binaries.
#[derive(Clone, Copy)]
pub struct Program {
    /// Replaces this process by the program linked to MPI, if the ranks need MPI.
    pub hand_over: fn(&JoinRequest) -> Result<(), Stop>,
    /// Joins the processes of the job.
    pub join: fn(&JoinRequest) -> Result<world::Handle, Stop>,
    /// Finds the MPI library of the program; `None` in a program without MPI.
    pub mpi: Option<backend::FindHostBackend>,
}

/// Environment of a command.
pub struct Context<'a> {
    /// The functions of this binary.
    pub program: &'a Program,
    /// The whole command line.
    pub root: &'a clap::Command,
    /// The command line, and the defaults selected by the program's name.
    pub invocation: Invocation,
}

impl Context<'_> {
    /// Replaces the process if MPI is needed, and joins the job.
    ///
    /// # Errors
    /// [`Stop::Refused`] when the processes cannot join.
    pub fn join_job(&self, request: &JoinRequest) -> Result<world::Handle, Stop> {
        (self.program.hand_over)(request)?;
        (self.program.join)(request)
    }
}

/// Returns the paths, one per line.
fn path_lines(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("{}\n", path.display())).collect()
}
