//! `nccl-bench allreduce`, ..., `nccl-bench all`: measurement of collectives.

mod arguments;
mod dry_run;
mod recorder;
mod request;
mod starts;
mod values;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::{ArgMatches, Args as _, FromArgMatches as _};
use collectives::world;
use engine::bench::Bench;
use engine::collective::{Collective, on_fabric};
use engine::process::Process;
use engine::request::{Request, Variables};
use engine::supervision::{REFUSED, Signal, Stop, Verdict, WRONG_DATA, print_message};
use judge::Grade;

use super::{Command, Context, take_over_signals};
use crate::exit::{ExitError, SUCCESS, parser_refusal, print_text};
use crate::mpi_exec::JoinRequest;
pub(crate) use arguments::NAMES;
use arguments::SHORT_EXAMPLES;
pub use arguments::{EXAMPLES, MeasureArguments};
pub(super) use recorder::Recorder;
pub use request::{Invocation, build_request};
pub(crate) use values::{collectives, output};

/// Name of the command that measures several collectives.
pub const ALL: &str = "all";

/// The command of one collective, or of all.
#[derive(Clone, Copy, Debug)]
pub struct Measure(pub Option<Collective>);

/// A parsed command line.
#[derive(Debug)]
pub struct ParsedMeasurement {
    /// The arguments; the report needs some of them.
    pub arguments: MeasureArguments,
    /// The request for the engine.
    pub request: Request,
}

/// Converts the arguments of a command into a measurement.
///
/// # Errors
/// The parser's answer, or in its form, wrong variables and arguments that exclude each other.
pub fn parse_measurement(
    collective: Option<Collective>,
    matches: &ArgMatches,
    invocation: &Invocation,
    variables: Result<Variables, String>,
) -> Result<ParsedMeasurement, clap::Error> {
    let mut arguments = MeasureArguments::from_arg_matches(matches)?;
    if let Some(number) = arguments.nth_start {
        starts::make_nth_start(&mut arguments, number);
    }
    let collectives = match (collective, &arguments.collectives) {
        (Some(collective), _) => vec![collective],
        (None, Some(list)) => list.0.clone(),
        (None, None) => Collective::ALL.to_vec(),
    };
    let request =
        variables.and_then(|variables| build_request(&arguments, collectives, invocation, variables));
    let request = request.map_err(parser_refusal)?;
    Ok(ParsedMeasurement { arguments, request })
}

impl Command for Measure {
    fn define_command(&self) -> clap::Command {
        let name = self.0.map_or(ALL, Collective::collective_name);
        let command = MeasureArguments::augment_args(clap::Command::new(name))
            .after_help(SHORT_EXAMPLES)
            .after_long_help(EXAMPLES);
        let Some(collective) = self.0 else {
            return command
                .about("Every collective in one start; a list (allreduce,alltoall) selects collectives");
        };
        let program = collective.nccl_tests_name();
        let stem = program.strip_suffix("_perf").filter(|&stem| stem != name);
        let of_library = on_fabric(collective).map(|collective| collective.name());
        let of_library = of_library.filter(|&other| other != name && Some(other) != stem);
        command
            .about(describe_collective(collective))
            .alias(program)
            .visible_aliases(stem.into_iter().chain(of_library))
    }

    fn takes_over_signals(&self) -> bool {
        true
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let variables = Variables::read_values(|name| std::env::var(name).ok());
        let measurement = parse_measurement(self.0, matches, &context.invocation, variables)?;
        if measurement.arguments.dry_run {
            take_over_signals()?;
            if is_printed_by_rank_0(measurement.arguments.world) {
                return Ok(SUCCESS);
            }
            return print_text(&dry_run::render_plan(&measurement)?);
        }
        if let Some(count) = measurement.arguments.starts {
            return starts::measure_starts(count, &measurement.arguments, &context.invocation);
        }
        measure_collectives(measurement, context)
    }
}

/// Joins the job, measures, and reports.
fn measure_collectives(measurement: ParsedMeasurement, context: &Context<'_>) -> Result<u8, ExitError> {
    let ParsedMeasurement { arguments, request } = measurement;
    let judges = arguments.judge || arguments.basis.is_given();
    let basis = judges.then(|| arguments.basis.load_basis()).transpose()?;
    let join_request = JoinRequest::from(&request);
    (context.program.hand_over)(&join_request)?;
    let recorder = Recorder::new(&arguments, &request, basis);
    let begun = recorder.begun_flag();
    let grade = recorder.grade_cell();
    let process = Process::start_for(&request).map_err(Stop::from)?;
    let process = process.join_world((context.program.join)(&join_request)?);
    let world = process.job_world();
    // Only the bench has the recorder, and drops it before it ends the process: then the files that it has
    // only created go.
    match Bench::open(&process, context.program.mpi).run_last(&request, Arc::new(recorder)) {
        Ok(verdict) => {
            // A table ends with the signal. It came before there was one.
            if let Verdict::Stopped(signal) = verdict
                && signal != Signal::SIGPIPE
                && world.rank() == 0
                && !begun.load(Ordering::SeqCst)
            {
                print_message(format_args!("nccl-bench: ended by {signal}"));
            }
            Ok(match verdict {
                Verdict::Good if grade.get() == Some(&Grade::Fail) => WRONG_DATA,
                other => other.verdict_code(),
            })
        }
        // All processes are refused with the same message; one of them prints it.
        Err(stop) if stop.refusal_text().is_some() && world.rank() != 0 && !has_terminal_of_its_own() => {
            Ok(REFUSED)
        }
        // Before the world is left, which can take a minute, and in which the launcher may end this process.
        Err(stop) => Ok(ExitError::from(stop).report_error()),
    }
}

/// True for a process other than rank 0 of a launcher that prints the output of all processes together.
/// `RANK` alone may be left over, and is no such launcher.
fn is_printed_by_rank_0(kind: world::Kind) -> bool {
    let started = world::Started::detect();
    let together = matches!(
        started.launcher,
        world::Launcher::OpenMpi | world::Launcher::Mpich | world::Launcher::Slurm
    );
    together && kind != world::Kind::Single && started.rank.is_some_and(|rank| rank != 0)
}

/// True for a process that was started by hand or as a pod: its output is not mixed with that of other
/// processes.
pub(super) fn has_terminal_of_its_own() -> bool {
    matches!(world::Started::detect().launcher, world::Launcher::Explicit | world::Launcher::Kubernetes)
}

fn describe_collective(collective: Collective) -> &'static str {
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
            "Every rank sends each rank a part with a length of its own (ncclSend and ncclRecv in a group)"
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
