//! The commands of the program. A new one is a folder here and a line in [`all`].

pub mod compare;
pub mod completions;
pub mod fabric;
pub mod help;
pub mod man;
pub mod measure;
pub mod plot;

use std::path::PathBuf;

use clap::ArgMatches;
use collectives::world;
use engine::backend;
use engine::collective::Collective;
use engine::supervision::Stop;

use crate::exit::Exit;
use crate::mpi_exec::JoinRequest;
use measure::Started;

/// A command: its place in the command line, and what it does.
pub trait Command {
    /// Name, flags and help.
    fn definition(&self) -> clap::Command;

    /// Runs the command with its arguments.
    fn run(&self, matches: &ArgMatches, context: &Context<'_>) -> Exit;
}

/// All commands, in the order of the help.
#[must_use]
pub fn all() -> Vec<Box<dyn Command>> {
    let mut commands: Vec<Box<dyn Command>> = Vec::new();
    for collective in Collective::ALL {
        commands.push(Box::new(measure::Measure(Some(collective))));
    }
    commands.push(Box::new(measure::Measure(None)));
    commands.push(Box::new(compare::Compare));
    commands.push(Box::new(plot::Plot));
    commands.push(Box::new(fabric::Fabric));
    commands.push(Box::new(help::Help));
    commands.push(Box::new(completions::Completions));
    commands.push(Box::new(man::Man));
    commands
}

/// How the program joins other processes; the two binaries differ in this.
#[derive(Clone, Copy)]
pub struct Program {
    /// Replaces this program by the one that is linked to MPI, where the ranks need that.
    pub hand_over: fn(&JoinRequest) -> Result<(), Stop>,
    /// Joins the processes of the job.
    pub join: fn(&JoinRequest) -> Result<world::Handle, Stop>,
    /// Finds the MPI library that the program is linked to, where it is linked to one.
    pub mpi: Option<backend::Find>,
}

/// Surroundings of a command.
pub struct Context<'a> {
    /// The binary.
    pub program: &'a Program,
    /// The whole command line.
    pub root: &'a clap::Command,
    /// The name of the program and the command line.
    pub started: Started,
}

impl Context<'_> {
    /// Replaces the program where that is needed, and joins the processes of the job.
    ///
    /// # Errors
    /// [`Stop::Refused`] when the processes cannot meet.
    pub fn join(&self, request: &JoinRequest) -> Result<world::Handle, Stop> {
        (self.program.hand_over)(request)?;
        (self.program.join)(request)
    }

    /// A refusal of arguments that the command line's parser accepts.
    #[must_use]
    pub fn refuse(&self, message: impl std::fmt::Display) -> Exit {
        self.root.clone().error(clap::error::ErrorKind::ValueValidation, message).into()
    }
}

/// Paths, a line each.
fn lines(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("{}\n", path.display())).collect()
}
