//! `nccl-bench ladder`: the same collective over more and more hosts.
//!
//! Rank 0 decides on each rung from the results of the last one, and sends it to the other processes.

mod file;
mod model;
mod report;
mod session;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, Args as _, FromArgMatches as _};
use collectives::world;
use engine::bench::Bench;
use engine::collective::Collective;
use engine::process::Process;
use engine::request::{BackendChoice, Request, Size};
use engine::supervision::{REFUSED, Stop};
use record::Settings;

use super::judge::JudgeBasis;
use super::measure::{NAMES, has_terminal_of_its_own};
use super::pairs::{Unit, parse_backend};
use super::{Command, Context};
use crate::exit::ExitError;
use crate::mpi_exec::JoinRequest;
use session::Session;

/// Exit code of a ladder with a failed rung.
const FAILED_RUNG: u8 = 1;
/// Exit code of a ladder that has not ended.
const NOT_WHOLE: u8 = 3;
/// Returns the small size, for the latency. Where each rank has a part of the data, 8 bytes are none.
const fn small_bytes(collective: Collective) -> u64 {
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 8,
        _ => 1 << 20,
    }
}

const HELP: &str = "\
Examples:
  srun -N 64 --ntasks-per-node 8 nccl-bench ladder      2, 4, 8, 16, 32 and 64 hosts
  nccl-bench ladder                                     2, 4, ... GPUs of this host
  mpirun -np 640 -N 8 nccl-bench ladder --steps 2,8,80 -e 8G --output ladder.json
  mpirun -np 640 -N 8 nccl-bench ladder --resume ladder.json --output ladder.json

Each rung measures the collective at 8 bytes (1M where each rank has a part) and at
the large size, over the first hosts of the job. A rung that fails ends the ladder, unless --keep-going is given.

Exit codes:
  0  all rungs were measured, verified, and none is judged FAIL
  1  a rung is judged FAIL, or could not start
  2  wrong arguments, or something is missing
  3  the ladder was not measured to its end
  7  wrong data
  128 + n  ended by signal n";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Ladder;

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = HELP)]
pub struct LadderArguments {
    /// The collective
    #[arg(value_name = "COLLECTIVE", default_value = "allreduce")]
    collective: Collective,

    /// Numbers of hosts, or of ranks, with commas [default: 2, 4, 8, ... and all]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..))]
    steps: Vec<u32>,

    /// Unit of the rungs [default: hosts; ranks if all are on one host]
    #[arg(long, value_name = "UNIT")]
    per: Option<Unit>,

    /// The large size in bytes, also with K, M, G [default: 1G on GPUs, 4M on hosts]
    #[arg(short = 'e', long = "bytes", alias = "maxbytes", value_name = "SIZE", allow_hyphen_values = true)]
    bytes: Option<Size>,

    /// Timed operations of each size
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,

    /// Go on after a rung that fails
    #[arg(long)]
    keep_going: bool,

    /// Skip the rungs that this file of an earlier ladder has
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,

    /// A file for all rungs, in JSON; it is written after each rung
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace this file, whatever it contains; without it, only files of nccl-bench ladder are replaced
    #[arg(long)]
    force: bool,

    /// Facts and expectations of the verdicts.
    #[command(flatten)]
    basis: JudgeBasis,

    /// NCCL between GPUs, or libfabric between buffers in host memory
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = parse_backend)]
    backend: BackendChoice,

    /// libfabric provider: auto (shm inside a host, tcp between), shm, tcp, or its name
    #[arg(long, value_name = "NAME", default_value = "auto")]
    provider: String,

    /// GPUs per process [default: all that no other process uses]
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    gpus: Option<u32>,

    /// Ranks per process in host memory [default: 1; 2 for a single process]
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,

    /// World of the ranks: auto, mpi, tcp, single
    #[arg(long, value_name = "WORLD", default_value = "auto")]
    world: world::Kind,

    /// Time limit in seconds for all processes to join, and for each step
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 300,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    timeout: u64,
}

impl Command for Ladder {
    fn define_command(&self) -> clap::Command {
        LadderArguments::augment_args(clap::Command::new("ladder"))
            .about("Measure a collective over 2, 4, ... all hosts, with the time of the start")
    }

    fn takes_over_signals(&self) -> bool {
        true
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = LadderArguments::from_arg_matches(matches)?;
        let basis = arguments.basis.load_basis()?;
        let earlier = arguments.resume.as_deref().map(file::read_earlier).transpose();
        let earlier = earlier.map_err(|error| ExitError::refused(format!("{error:#}")))?;
        let request = make_request(&arguments, context);
        let join = JoinRequest::from(&request);
        (context.program.hand_over)(&join)?;
        let process = Process::start_for(&request).map_err(Stop::from)?.failing_with(NOT_WHOLE);
        let process = process.join_world((context.program.join)(&join)?);
        let leads = process.job_world().rank() == 0;
        let session = Arc::new(Session::new(arguments, basis, earlier, &request));
        let mut bench = Bench::open(&process, context.program.mpi);
        match steps::climb_ladder(&process, &mut bench, &session, &request) {
            Ok(code) => Ok(code),
            // All processes are refused with the same message; one of them prints it.
            Err(stop) if stop.refusal_text().is_some() && !leads && !has_terminal_of_its_own() => Ok(REFUSED),
            Err(stop) => Err(stop.into()),
        }
    }
}

/// A request for the collective, still without sizes.
fn make_request(arguments: &LadderArguments, context: &Context<'_>) -> Request {
    let gpus = arguments.gpus.map(|gpus| gpus as usize);
    Request {
        program: format!("nccl-bench {}", crate::build::VERSION),
        command: context.invocation.command.clone(),
        backend: arguments.backend,
        provider: arguments.provider.clone(),
        gpus,
        asks_for_gpus: gpus.map(|gpus| format!("-g {gpus}")),
        threads: arguments.threads.map(|threads| threads as usize),
        out_of_place: true,
        timeout: Some(Duration::from_secs(arguments.timeout)),
        world: arguments.world,
        names: NAMES,
        settings: Settings { iterations: arguments.iterations as usize, ..Settings::of_collectives() },
        ..Request::new(vec![arguments.collective])
    }
}
