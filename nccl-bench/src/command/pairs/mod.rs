//! `nccl-bench pairs`: measures pairs of hosts or ranks, and names the slow part of a cluster.
//!
//! The schedule and the statistics are those of [`judge::pairs`]. Rank 0 decides on each round from the
//! results of the last one, and sends it to the other processes.

mod file;
mod report;
mod results;
mod sentences;
mod session;
mod steps;
mod units;

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
use record::{Average, Settings};
use serde::{Deserialize, Serialize};

use super::measure::{NAMES, has_terminal_of_its_own};
use super::{Command, Context};
use crate::exit::ExitError;
use crate::mpi_exec::JoinRequest;
use session::Session;
pub(super) use steps::gather;
pub(super) use units::{ProcessHost, Units};

/// Exit code when slow parts are named.
const SLOW: u8 = 1;
/// Exit code without a conclusion.
const CANNOT_TELL: u8 = 3;

/// Default size on GPUs.
const GPU_BYTES: u64 = 64 << 20;
/// Default size in host memory.
const HOST_BYTES: u64 = 4 << 20;

const HELP: &str = "\
Examples:
  mpirun -np 64 -N 8 nccl-bench pairs            8 hosts with 8 GPUs: which host or connection is slow?
  nccl-bench pairs                               the GPUs of this host
  srun -n 512 nccl-bench pairs --per rank        each rank on its own
  mpirun -np 16 -N 2 nccl-bench pairs --backend fabric --output pairs.json

All pairs of a round exchange data at the same time. What is slow in the survey is measured again with good
partners, and named only if it is slow again.

Exit codes:
  0  no part is slow; or one was slow once and not again, which is printed
  1  a host, rank or connection is slow
  2  wrong arguments, or something is missing
  3  no conclusion: two hosts or ranks only, too many differ, or the measurement failed
  7  wrong data
  128 and the number of a signal that ended it";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Pairs;

/// The unit that is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// Hosts: the first ranks of two hosts exchange data, the second ones, and so on, all at the same time
    #[default]
    Host,
    /// Ranks
    Rank,
}

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = HELP)]
pub struct PairsArguments {
    /// Unit of the comparison [default: hosts; ranks if all are on one host]
    #[arg(long, value_name = "UNIT")]
    pub(crate) per: Option<Unit>,

    /// Rounds of the survey. A round has each host or rank in one pair
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,

    /// Repeats of a pair in a round. Their upper quartile counts, because other work only slows repeats
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) repeats: u32,

    /// Time for the repeats of a round, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Bytes that each rank sends and receives at a time, also with K, M, G [default: 64M on GPUs, 4M on
    /// hosts]
    #[arg(short = 'b', long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) bytes: Option<Size>,

    /// A part is slow from this share below the median on
    #[arg(long, value_name = "PERCENT%", default_value = "2%", value_parser = share)]
    pub(crate) limit: f64,

    /// NCCL between GPUs, or libfabric between buffers in host memory
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = parse_backend)]
    pub(crate) backend: BackendChoice,

    /// libfabric provider: auto (shm inside a host, tcp between), shm, tcp, or its name
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) provider: String,

    /// GPUs per process [default: all that no other process uses]
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) gpus: Option<u32>,

    /// Ranks per process in host memory [default: 1; 2 for a single process]
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) threads: Option<u32>,

    /// World of the ranks: auto, mpi, tcp, single
    #[arg(long, value_name = "WORLD", default_value = "auto")]
    pub(crate) world: world::Kind,

    /// Time limit in seconds for all processes to join, and for each step
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) timeout: u64,

    /// A file for all measurements and the conclusion, in JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// A file for a drawing of the matrix
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Replace these files, whatever they contain; without it, only files of nccl-bench pairs are replaced
    #[arg(long)]
    pub(crate) force: bool,
}

impl Unit {
    /// Returns its name.
    pub(super) const fn unit_name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Rank => "rank",
        }
    }
}

impl Command for Pairs {
    fn define_command(&self) -> clap::Command {
        PairsArguments::augment_args(clap::Command::new("pairs"))
            .about("Measure pairs of hosts or ranks, and name the slow host, rank or connection")
    }

    fn takes_over_signals(&self) -> bool {
        true
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = PairsArguments::from_arg_matches(matches)?;
        let mut request = make_request(&arguments, context);
        let join = JoinRequest::from(&request);
        (context.program.hand_over)(&join)?;
        let process = Process::start_for(&request).map_err(Stop::from)?.failing_with(CANNOT_TELL);
        let process = process.join_world((context.program.join)(&join)?);
        let leads = process.job_world().rank() == 0;
        request.settings.min_bytes = steps::agree_on_bytes(&arguments, &process);
        request.max_bytes = Some(request.settings.min_bytes);
        let session = Arc::new(Session::new(arguments, &request));
        let mut bench = Bench::open(&process, context.program.mpi);
        match steps::run_steps(&process, &mut bench, &session, &request) {
            Ok(code) => Ok(code),
            // All processes are refused with the same message; one of them prints it.
            Err(stop) if stop.refusal_text().is_some() && !leads && !has_terminal_of_its_own() => Ok(REFUSED),
            Err(stop) => Err(stop.into()),
        }
    }
}

/// A request for an exchange between the ranks of each group, of one size, with repeats.
fn make_request(arguments: &PairsArguments, context: &Context<'_>) -> Request {
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
        settings: Settings {
            iterations: 1_000_000,
            // An untimed operation precedes each measurement in any case.
            warm_up: 0,
            average: Average::Max,
            rounds: Some(arguments.repeats as usize),
            budget_seconds: Some(arguments.seconds),
            ..Settings::of_collectives()
        },
        ..Request::new(vec![Collective::SendRecv])
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.001..=3600.0).contains(value));
    value.ok_or_else(|| "write seconds, from 0.001 to 3600".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let share = percent.map(|percent| percent / 100.0).filter(|share| (0.001..=0.9).contains(share));
    share.ok_or_else(|| "write a percentage from 0.1% to 90%, as in 2%".to_owned())
}

/// Reads the name of a backend that measures parts of the ranks.
pub(super) fn parse_backend(name: &str) -> Result<BackendChoice, String> {
    match name {
        "auto" => Ok(BackendChoice::Auto),
        "nccl" => Ok(BackendChoice::Nccl),
        "fabric" => Ok(BackendChoice::Fabric),
        _ => Err("write auto, nccl or fabric".to_owned()),
    }
}
