//! `nccl-bench allreduce` and so on: measures collectives.

mod arguments;
mod dry_run;
mod recorder;
mod request;
mod values;

use std::sync::Arc;

use clap::{ArgMatches, Args as _, FromArgMatches as _};
use collectives::world;
use engine::collective::{Collective, Layout as _};
use engine::request::{Request, Variables};
use engine::session::Session;
use engine::supervision::{REFUSED, Stop};

use super::{Command, Context};
use crate::exit::{Exit, print};
use crate::mpi_exec::JoinRequest;
pub use arguments::{Arguments, EXAMPLES};
use recorder::Recorder;
pub use request::{Started, request};

/// Name of the command that measures several collectives.
pub const ALL: &str = "all";

/// The command of one collective, or of all.
#[derive(Clone, Copy, Debug)]
pub struct Measure(pub Option<Collective>);

/// A measurement as the command line asks for it.
#[derive(Debug)]
pub struct Measurement {
    /// The arguments, of which the report needs some.
    pub arguments: Arguments,
    /// The request made of them.
    pub request: Request,
}

/// Reason for which arguments make no request.
#[derive(Debug)]
pub enum Refusal {
    /// The parser's answer.
    Parser(clap::Error),
    /// Arguments or variables that are wrong, or exclude each other.
    Conflict(String),
}

/// The measurement that the arguments of a command ask for.
///
/// # Errors
/// Arguments that exclude each other.
pub fn parse(
    collective: Option<Collective>,
    matches: &ArgMatches,
    started: &Started,
    variables: Variables,
) -> Result<Measurement, Refusal> {
    let arguments = Arguments::from_arg_matches(matches).map_err(Refusal::Parser)?;
    let collectives = match collective {
        Some(collective) => vec![collective],
        None if arguments.collectives.is_empty() => Collective::ALL.to_vec(),
        None => arguments.collectives.clone(),
    };
    let request = request(&arguments, collectives, started, variables).map_err(Refusal::Conflict)?;
    Ok(Measurement { arguments, request })
}

impl Command for Measure {
    fn definition(&self) -> clap::Command {
        let name = self.0.map_or(ALL, Collective::name);
        // As in nccl-tests the last one counts.
        let command =
            Arguments::augment_args(clap::Command::new(name)).args_override_self(true).after_help(EXAMPLES);
        let Some(collective) = self.0 else {
            return command.about("Every collective in one start; a list (allreduce,alltoall) only those");
        };
        let program = collective.nccl_tests_name();
        let stem = program.strip_suffix("_perf").filter(|&stem| stem != name);
        let of_library = collective.on_fabric().map(|collective| collective.name());
        let of_library = of_library.filter(|&other| other != name && Some(other) != stem);
        command.about(about(collective)).alias(program).visible_aliases(stem.into_iter().chain(of_library))
    }

    fn run(&self, matches: &ArgMatches, context: &Context<'_>) -> Exit {
        let variables = Variables::read(|name| std::env::var(name).ok());
        let measurement = variables
            .map_err(Refusal::Conflict)
            .and_then(|variables| parse(self.0, matches, &context.started, variables));
        match measurement {
            Ok(measurement) if measurement.arguments.dry_run => print(&dry_run::render(&measurement)),
            Ok(measurement) => measure(measurement, context),
            Err(Refusal::Parser(error)) => error.into(),
            Err(Refusal::Conflict(message)) => context.refuse(message),
        }
    }
}

/// Measures, and reports.
fn measure(measurement: Measurement, context: &Context<'_>) -> Exit {
    let Measurement { arguments, request } = measurement;
    let join_request = JoinRequest::from(&request);
    if let Err(stop) = (context.program.hand_over)(&join_request) {
        return stop.into();
    }
    let recorder = Arc::new(Recorder::new(&arguments, &request));
    let session = match Session::new(request) {
        Ok(session) => session,
        Err(error) => return Stop::from(error).into(),
    };
    let world = match (context.program.join)(&join_request) {
        Ok(world) => world,
        Err(stop) => return stop.into(),
    };
    match session.run(&world, recorder, context.program.mpi) {
        Ok(verdict) => verdict.into(),
        // Every process is refused alike; one of them says so.
        Err(Stop::Refused(_)) if world.rank() != 0 && !has_terminal_of_its_own() => Exit::Code(REFUSED),
        Err(stop) => stop.into(),
    }
}

/// True for a process that was started by hand or as a pod: no other process's output is shown beside its own.
fn has_terminal_of_its_own() -> bool {
    matches!(world::Started::detect().launcher, world::Launcher::Explicit | world::Launcher::Kubernetes)
}

fn about(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "Every rank gets the reduction of all ranks' buffers (ncclAllReduce)",
        Collective::AllGather => "Every rank gets the concatenation of all ranks' buffers (ncclAllGather)",
        Collective::ReduceScatter => {
            "Every rank gets its part of the reduction of all ranks' buffers (ncclReduceScatter)"
        }
        Collective::Broadcast => "Every rank gets the root's buffer (ncclBroadcast)",
        Collective::Reduce => "The root gets the reduction of all ranks' buffers (ncclReduce)",
        Collective::AllToAll => "Every rank sends each rank a part of its buffer (ncclAlltoAll)",
        Collective::AllToAllV => {
            "Every rank sends each rank a part of its own length (ncclSend and ncclRecv in a group)"
        }
        Collective::Gather => "The root gets the concatenation of all ranks' buffers (ncclGather)",
        Collective::Scatter => "Every rank gets its part of the root's buffer (ncclScatter)",
        Collective::SendRecv => {
            "Every rank sends to the next and receives from the previous (ncclSend, ncclRecv)"
        }
        Collective::Hypercube => {
            "Every rank gets all ranks' buffers by exchanges of pairs (ncclSend, ncclRecv)"
        }
    }
}
