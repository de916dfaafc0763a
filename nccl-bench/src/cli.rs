//! The command line: what may be asked for, and what it means once checked.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::error::ErrorKind;
use clap::{Arg, Args, FromArgMatches as _, ValueEnum, value_parser};
use clap_complete::Shell;
use collectives::{DataType, world};

use crate::collective::Collective;
use crate::compare;
use crate::data::{self, Op};
use crate::environment::Variables;
use crate::files::Output;
use crate::plot;
use crate::record::{Average, Blocking, Registration};
use crate::size::{Size, Step};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  nccl-bench allreduce                                 every GPU of this machine, a thread each
  nccl-bench allreduce -g 4 -b 1M -e 1G                four GPUs, 1 MiB to 1 GiB
  nccl-bench all --output pod.json                     every collective in one start, with a result file
  nccl-bench allreduce,alltoall -d half -o sum,max     a list of collectives, types and operators
  mpirun -np 16 -N 8 nccl-bench allreduce -e 8G        two nodes with 8 GPUs each, a process per GPU
  torchrun --no-python --nproc-per-node 8 nccl-bench allreduce
  nccl-bench allreduce --backend fabric -t 4           four ranks over host memory, no GPU needed
  nccl-bench allreduce --dry-run --ranks 16            what would be measured, without a GPU
  ln -s nccl-bench all_reduce_perf                     the name gives nccl-tests' defaults

Columns: time is the mean of -n operations in microseconds; algbw is size/time and busbw is algbw
times what each rank's link must carry at least, both in GB/s = 1e9 bytes per second
(nccl-bench help busbw).

Exit codes: 0 all verified; 1 failed while running; 2 bad arguments, or something is missing;
4 timeout (-T); 7 wrong data, or NCCL_TESTS_MIN_BW not reached; 128 and the signal's number when one
ended the run: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP, 141 when nobody reads the output any more.";

/// More than any machine has use for; what starts millions of threads only fails later.
const MOST_THREADS: usize = 4096;
/// What nccl-tests measures when it is not told otherwise.
const NCCL_TESTS_BYTES: u64 = 32 << 20;
const NCCL_TESTS_STEP: u64 = 1 << 20;
const MEASURING: &str = "What to measure";
const REPORTING: &str = "What to report";
const RUNNING: &str = "How to run";

#[derive(Args, Debug)]
struct Measure {
    /// The collectives of a list.
    #[arg(long, hide = true, value_delimiter = ',', value_parser = collective)]
    collectives: Vec<Collective>,

    /// Smallest size: bytes, or with K, M or G (binary) [default: 8; 32M for a link of nccl-tests' name]
    #[arg(
        short = 'b',
        long = "minbytes",
        value_name = "SIZE",
        allow_hyphen_values = true,
        help_heading = MEASURING
    )]
    min_bytes: Option<Size>,

    /// Largest size [default: 4G on GPUs or what fits into their memory, 64M on hosts]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", allow_hyphen_values = true, help_heading = MEASURING)]
    max_bytes: Option<Size>,

    /// Add this many bytes from one size to the next, unless -f is given
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", allow_hyphen_values = true, help_heading = MEASURING)]
    step_bytes: Option<Size>,

    /// Multiply by this whole number from one size to the next [default: 2, unless -i is given]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", value_parser = step_factor, allow_hyphen_values = true, help_heading = MEASURING)]
    step_factor: Option<u64>,

    /// Element type, or several with commas, or all: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float", value_parser = data_types, help_heading = MEASURING)]
    data_types: List<DataType>,

    /// Reduction, or several with commas, or all: sum prod max min avg mulsum
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = ops, help_heading = MEASURING)]
    ops: List<Op>,

    /// Root of broadcast, reduce, gather and scatter; -1 or all: each rank in turn
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0", value_parser = roots, allow_hyphen_values = true, help_heading = MEASURING)]
    roots: Roots,

    /// Timed iterations per size and placement
    #[arg(short = 'n', long = "iters", value_name = "N", default_value = "20", value_parser = at_least_one, allow_hyphen_values = true, help_heading = MEASURING)]
    iterations: usize,

    /// Operations per iteration, in one NCCL group; the time is that of one operation
    #[arg(short = 'm', long = "agg_iters", alias = "agg-iters", value_name = "N", default_value = "1", value_parser = at_least_one, allow_hyphen_values = true, help_heading = MEASURING)]
    aggregated: usize,

    /// Warm-up operations per size, not timed
    #[arg(short = 'w', long = "warmup_iters", alias = "warmup-iters", value_name = "N", default_value = "1", value_parser = count, allow_hyphen_values = true, help_heading = MEASURING)]
    warm_up: usize,

    /// Runs of all sizes; 0: until it is ended with Ctrl-C
    #[arg(short = 'N', long = "run_cycles", alias = "run-cycles", value_name = "N", default_value = "1", value_parser = count, allow_hyphen_values = true, help_heading = MEASURING)]
    cycles: usize,

    /// Verifications per size and placement; 0 measures without verifying (#wrong shows N/A)
    #[arg(short = 'c', long = "check", value_name = "N", default_value = "1", value_parser = count, allow_hyphen_values = true, help_heading = MEASURING)]
    checks: usize,

    /// How the ranks' times become one: 0 the first rank's, 1 mean, 2 min, 3 max
    #[arg(short = 'a', long = "average", value_name = "0-3", default_value = "1", value_parser = average, allow_hyphen_values = true, help_heading = MEASURING)]
    average: Average,

    /// Wait for the GPU: 0 at the end, 1 after each operation and for all ranks, 2 after each operation, 3 after each iteration and for all ranks, which is not timed
    #[arg(short = 'z', long = "blocking", value_name = "0-3", default_value = "0", value_parser = blocking, allow_hyphen_values = true, help_heading = MEASURING)]
    blocking: Blocking,

    /// Capture all iterations in a CUDA graph and launch it so many times; 0: no graph
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value = "0", value_parser = count, allow_hyphen_values = true, help_heading = MEASURING)]
    graph_launches: usize,

    /// Register the buffers with NCCL: 0 no, 1 each rank its own, 2 as symmetric windows
    #[arg(short = 'R', long = "local_register", alias = "local-register", value_name = "0-2", default_value = "0", value_parser = registration, allow_hyphen_values = true, help_heading = MEASURING)]
    registration: Registration,

    /// Shift the buffers by so many elements from their alignment
    #[arg(short = 'u', long = "unalign", value_name = "N", default_value = "0", value_parser = count, allow_hyphen_values = true, help_heading = MEASURING)]
    unaligned: usize,

    /// Repeat each measurement until its median is known this well: 1%
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = MEASURING)]
    until_stable: Option<f64>,

    /// Seconds that one size may take; ends --until-stable, and cuts -n for sizes that would take longer
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = MEASURING)]
    budget: Option<Duration>,

    /// Report the time to enqueue an operation (column cputime) instead of the time until it is done: 1
    #[arg(short = 'C', long = "report_cputime", alias = "report-cputime", value_name = "0|1", default_value = "0", action = clap::ArgAction::Set, value_parser = switch, help_heading = REPORTING)]
    cpu_time: bool,

    /// A column with the time of day: 1
    #[arg(short = 'S', long = "report_timestamps", alias = "report-timestamps", value_name = "0|1", default_value = "0", action = clap::ArgAction::Set, value_parser = switch, help_heading = REPORTING)]
    time_stamps: bool,

    /// Time each iteration by CUDA events, too, with columns for min, max, 99th percentile and variation: 1
    #[arg(short = 'I', long = "per_iter_timing", alias = "per-iter-timing", value_name = "0|1", default_value = "0", action = clap::ArgAction::Set, value_parser = switch, help_heading = REPORTING)]
    per_iteration: bool,

    /// Leave so many of the first iterations out of what -I reports
    #[arg(short = 'K', long = "per_iter_skip", alias = "per-iter-skip", value_name = "N", default_value = "0", value_parser = count, allow_hyphen_values = true, help_heading = REPORTING)]
    per_iteration_skip: usize,

    /// Report the GPU memory that was used: 1
    #[arg(short = 'M', long = "memory_report", alias = "memory", alias = "memory-report", value_name = "0|1", default_value = "0", action = clap::ArgAction::Set, value_parser = switch, help_heading = REPORTING)]
    memory_report: bool,

    /// Columns with minimum, median and 99th percentile of the operations' times
    #[arg(long, help_heading = REPORTING)]
    stats: bool,

    /// A column with the algorithm, protocol and channels that NCCL chose, also in the files. NCCL's log says it, which
    /// costs rank 0 about a microsecond per operation
    #[arg(long, help_heading = REPORTING)]
    show_algorithm: bool,

    /// A file as nccl-tests writes it; its name ends in .json
    #[arg(short = 'J', long = "output_file", alias = "output-file", value_name = "FILE", help_heading = REPORTING)]
    nccl_tests_json: Option<PathBuf>,

    /// A file for the results, by its suffix: .json, .jsonl (grows while it runs), .csv or .md; may be repeated
    #[arg(long, value_name = "FILE", help_heading = REPORTING)]
    output: Vec<Output>,

    /// GPUs per thread of -t; each is driven by a thread of its own [default: all that no other process uses; 1 for a link of nccl-tests' name]
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = at_least_one, allow_hyphen_values = true, help_heading = RUNNING)]
    gpus: Option<usize>,

    /// Ranks per process (times -g on GPUs) [default: 1; 2 for a single process over host memory]
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = thread_count, allow_hyphen_values = true, help_heading = RUNNING)]
    threads: Option<usize>,

    /// Initialise NCCL in all threads at once: 1. It always is; the flag only shows in the report
    #[arg(short = 'p', long = "parallel_init", alias = "parallel-init", value_name = "0|1", default_value = "0", action = clap::ArgAction::Set, value_parser = switch, help_heading = RUNNING)]
    parallel_init: bool,

    /// End the job with code 4 when a rank takes longer than this for one step: meeting the others over TCP (unless
    /// NCCL_BENCH_TIMEOUT is set; MPI meets without a limit), initialising, the operations of one size, waiting for the
    /// others; 0: no limit but 60 s for the meeting
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS", default_value = "0", value_parser = count, allow_hyphen_values = true, help_heading = RUNNING)]
    timeout: usize,

    /// Work on the legacy default stream: 1
    #[arg(short = 'y', long = "stream_null", alias = "stream-null", value_name = "0|1", default_value = "0", action = clap::ArgAction::Set, value_parser = switch, help_heading = RUNNING)]
    default_stream: bool,

    /// NCCL's policy for thread blocks: 0 default, 1 efficiency, 2 zero (NCCL 2.27; 2 from 2.28 on)
    #[arg(short = 'x', long = "cta_policy", alias = "cta-policy", value_name = "0-2", value_parser = cta_policy, allow_hyphen_values = true, help_heading = RUNNING)]
    cta_policy: Option<u32>,

    /// nccl-tests' own kernels over NCCL's device API: not supported, only 0
    #[arg(short = 'D', long = "device_implementation", alias = "device-implementation", value_name = "0", default_value = "0", value_parser = no_device_implementation, allow_hyphen_values = true, hide = true)]
    _device_implementation: NoImplementation,

    /// For -D only.
    #[arg(short = 'V', long = "device_cta_count", alias = "device-cta-count", value_name = "N", value_parser = count, hide = true)]
    _device_cta_count: Option<usize>,

    /// What carries the data: NCCL between GPUs, or libfabric between host buffers
    #[arg(long, value_name = "BACKEND", default_value = "auto", help_heading = RUNNING)]
    backend: BackendChoice,

    /// libfabric provider of the fabric backend: auto (shm inside a host, tcp between), shm, tcp, or its name
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = RUNNING)]
    provider: String,

    /// How the processes find each other: auto (as the launcher says), single, tcp or mpi
    #[arg(long, value_name = "WORLD", default_value = "auto", help_heading = RUNNING)]
    world: world::Kind,

    /// Print the sizes, counts and memory of the run, and measure nothing; needs no GPU
    #[arg(long, help_heading = RUNNING)]
    dry_run: bool,

    /// How many ranks --dry-run shall think of [default: those that the launcher started]
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "dry_run", help_heading = RUNNING)]
    ranks: Option<usize>,

    /// Damage element INDEX of rank RANK's result before each check, to see that it is found
    #[arg(long, value_name = "RANK:INDEX", value_parser = fault, help_heading = RUNNING)]
    inject_fault: Option<Fault>,
}

/// What carries the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// NCCL where a CUDA driver, a GPU and libnccl are found, else libfabric over host memory
    Auto,
    /// NCCL between GPUs
    Nccl,
    /// libfabric between host buffers
    Fabric,
}

/// One element to damage, to see that verification finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank whose result is damaged.
    pub rank: usize,
    /// The element of its receive buffer.
    pub index: usize,
}

/// Which ranks are the root, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roots {
    /// This one.
    One(usize),
    /// Each in turn.
    All,
}

/// The only value of `-D`.
#[derive(Clone, Copy, Debug)]
struct NoImplementation;

/// Several values of one argument.
#[derive(Clone, Debug)]
struct List<T>(Vec<T>);

/// What shall be done.
#[derive(Debug)]
pub enum Command {
    /// Measure.
    Measure(Box<Settings>),
    /// Compare result files.
    Compare(compare::Arguments),
    /// Draw result files.
    Plot(plot::Arguments),
    /// Explain this topic, or a command; without one list the topics.
    Help(Option<String>),
    /// Print the completions of a shell.
    Completions(Shell),
    /// Print the manual page, or write all pages into a folder.
    Man(Option<PathBuf>),
}

/// Which lists were given as `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct All {
    /// The collectives.
    pub collectives: bool,
    /// The types.
    pub data_types: bool,
    /// The operators.
    pub ops: bool,
}

/// What a run shall do. Made by [`parse`]; each number is in its range.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What to measure, in this order.
    pub collectives: Vec<Collective>,
    /// The command line, for the record.
    pub command: Vec<String>,
    /// Smallest size in bytes, at least 1.
    pub min_bytes: u64,
    /// Largest size in bytes, at least `min_bytes`; `None`: the backend's default.
    pub max_bytes: Option<u64>,
    /// From one size to the next.
    pub step: Step,
    /// Element types to loop over.
    pub data_types: Vec<DataType>,
    /// Which of the lists are simply all, of which a backend may lack some.
    pub all: All,
    /// Operators to loop over where the collective reduces.
    pub ops: Vec<Op>,
    /// Roots to loop over where the collective has one.
    pub roots: Roots,
    /// Timed iterations per size, at least 1.
    pub iterations: usize,
    /// Operations per iteration, at least 1.
    pub aggregated: usize,
    /// Warm-up operations per size.
    pub warm_up: usize,
    /// Runs of all sizes; 0: without end.
    pub cycles: usize,
    /// Verifications per size and placement.
    pub checks: usize,
    /// How the ranks' times become one.
    pub average: Average,
    /// When the host waits.
    pub blocking: Blocking,
    /// Launches of a graph of all iterations; 0: no graph.
    pub graph_launches: usize,
    /// How NCCL knows the buffers.
    pub registration: Registration,
    /// Elements by which the buffers are shifted.
    pub unaligned: usize,
    /// Repeat until the median is known this well.
    pub until_stable: Option<f64>,
    /// What one size may take.
    pub budget: Option<Duration>,
    /// Report the host's time.
    pub cpu_time: bool,
    /// Report the time of day.
    pub time_stamps: bool,
    /// Time each iteration inside the timed loop.
    pub per_iteration: bool,
    /// Iterations that the report on them leaves out.
    pub per_iteration_skip: usize,
    /// Report the memory used.
    pub memory_report: bool,
    /// Report statistics of the operations' times.
    pub stats: bool,
    /// Report NCCL's choice.
    pub show_algorithm: bool,
    /// nccl-tests' file.
    pub nccl_tests_json: Option<PathBuf>,
    /// Our files.
    pub outputs: Vec<Output>,
    /// GPUs per thread; `None`: all that no other process of the host uses.
    pub gpus: Option<usize>,
    /// Threads per process; `None`: the backend's default.
    pub threads: Option<usize>,
    /// Whether `-p` was given.
    pub parallel_init: bool,
    /// What waiting may take.
    pub timeout: Option<Duration>,
    /// Work on the default stream.
    pub default_stream: bool,
    /// NCCL's `CTAPolicy`.
    pub cta_policy: Option<u32>,
    /// What carries the data.
    pub backend: BackendChoice,
    /// libfabric provider.
    pub provider: String,
    /// How the processes find each other.
    pub world: world::Kind,
    /// Only say what would be done.
    pub dry_run: bool,
    /// The ranks of a dry run.
    pub ranks: Option<usize>,
    /// One element to damage.
    pub fault: Option<Fault>,
    /// nccl-tests' variables.
    pub variables: Variables,
    /// What was changed in what was asked for, and why.
    pub notes: Vec<String>,
}

/// The whole command line, also for completions and manual pages.
#[must_use]
pub fn command() -> clap::Command {
    let mut command = clap::Command::new("nccl-bench")
        .version(collectives::build::VERSION)
        .about("Measures and verifies collectives: NCCL over GPUs, libfabric over host memory")
        .styles(STYLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .infer_long_args(true)
        .after_help(EXAMPLES);
    for collective in Collective::ALL {
        let program = collective.nccl_tests_name();
        let mut sub = measuring(collective.name()).about(about(collective)).alias(program);
        if let Some(stem) = program.strip_suffix("_perf").filter(|&stem| stem != collective.name()) {
            sub = sub.visible_alias(stem);
        }
        command = command.subcommand(sub);
    }
    let about = "Every collective in one start; a list (allreduce,alltoall) only those";
    command
        .subcommand(measuring(ALL).about(about))
        .subcommand(
            compare::Arguments::augment_args(clap::Command::new(COMPARE))
                .about("Compare result files, ours or nccl-tests', and fail where one is slower"),
        )
        .subcommand(
            plot::Arguments::augment_args(clap::Command::new(PLOT))
                .about("Draw result files, ours or nccl-tests': SVG, or a page that needs nothing else"),
        )
        .disable_help_subcommand(true)
        .subcommand(
            clap::Command::new(HELP)
                .about("Explain a topic: busbw, sizes, launchers, troubleshooting, ...")
                .arg(Arg::new(TOPIC).help("A topic or a command; without one all topics are listed")),
        )
        .subcommand(
            clap::Command::new(COMPLETIONS)
                .about("Print the completions of a shell")
                .arg(Arg::new(SHELL).required(true).value_parser(value_parser!(Shell)).help("Which shell")),
        )
        .subcommand(
            clap::Command::new(MAN).about("Print the manual page").arg(
                Arg::new(FOLDER)
                    .long(FOLDER)
                    .value_name("FOLDER")
                    .value_parser(value_parser!(PathBuf))
                    .help("Write the pages of all commands and topics into this folder instead"),
            ),
        )
}

const COMPARE: &str = "compare";
const PLOT: &str = "plot";
const HELP: &str = "help";
const TOPIC: &str = "topic";
const COMPLETIONS: &str = "completions";
const SHELL: &str = "shell";
const MAN: &str = "man";
const FOLDER: &str = "output";

/// The command that measures several collectives.
const ALL: &str = "all";

fn measuring(name: &'static str) -> clap::Command {
    // As in nccl-tests the last one counts.
    Measure::augment_args(clap::Command::new(name)).args_override_self(true).after_help(EXAMPLES)
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

/// The collective that the program's own name asks for: `all_reduce_perf`, also with a suffix.
fn from_program_name(program: &Path) -> Option<Collective> {
    let name = program.file_name()?.to_str()?;
    let stem = name.split_once("_perf").map_or(name, |(stem, _)| stem);
    stem.parse().ok()
}

/// Reads the command line, and nccl-tests' variables.
///
/// # Errors
/// What clap answers: also `--help` and `--version`. [`clap::Error::exit`] prints it and ends with 0 or 2.
pub fn parse<I, T>(arguments: I) -> Result<Command, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let variables = Variables::read(|name| env::var(name).ok());
    parse_with(arguments, variables)
}

fn parse_with<I, T>(arguments: I, variables: Result<Variables, String>) -> Result<Command, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let text: Vec<String> = arguments.iter().map(|each| each.to_string_lossy().into_owned()).collect();
    let by_name = text.first().and_then(|program| from_program_name(Path::new(program)));
    if let Some(collective) = by_name {
        arguments.insert(1, collective.name().into());
    } else if let Some(list) = text.get(1).filter(|first| first.contains(',') && !first.starts_with('-')) {
        arguments.splice(1..2, [ALL.into(), "--collectives".into(), list.into()]);
    }
    let matches = command().try_get_matches_from(arguments)?;
    let (name, matches) = matches.subcommand().ok_or_else(|| conflict("a command is missing"))?;
    match name {
        COMPARE => return Ok(Command::Compare(compare::Arguments::from_arg_matches(matches)?)),
        PLOT => return Ok(Command::Plot(plot::Arguments::from_arg_matches(matches)?)),
        HELP => return Ok(Command::Help(matches.get_one(TOPIC).cloned())),
        COMPLETIONS => {
            let shell = matches.get_one(SHELL).ok_or_else(|| conflict("a shell is missing"))?;
            return Ok(Command::Completions(*shell));
        }
        MAN => return Ok(Command::Man(matches.get_one(FOLDER).cloned())),
        _ => {}
    }
    let measure = Measure::from_arg_matches(matches)?;
    let collectives = match name.parse::<Collective>() {
        Ok(collective) => vec![collective],
        Err(_) if measure.collectives.is_empty() => Collective::ALL.to_vec(),
        Err(_) => measure.collectives.clone(),
    };
    let variables = variables.map_err(conflict)?;
    settle(measure, collectives, by_name.is_some(), variables, text).map(Box::new).map(Command::Measure)
}

fn conflict(message: impl std::fmt::Display) -> clap::Error {
    command().error(ErrorKind::ValueValidation, message)
}

/// Checks what the arguments say together.
fn settle(
    measure: Measure,
    collectives: Vec<Collective>,
    as_nccl_tests: bool,
    variables: Variables,
    command: Vec<String>,
) -> Result<Settings, clap::Error> {
    let mut notes = Vec::new();
    let default_min = if as_nccl_tests { NCCL_TESTS_BYTES } else { 8 };
    let min_bytes = measure.min_bytes.map_or(default_min, |size| size.0);
    let max_bytes = measure.max_bytes.map(|size| size.0).or(as_nccl_tests.then_some(NCCL_TESTS_BYTES));
    if let Some(max) = max_bytes
        && max < min_bytes
    {
        return Err(conflict(format!(
            "the largest size (-e {}) is below the smallest (-b {})",
            Size(max),
            Size(min_bytes)
        )));
    }
    let largest = measure.data_types.0.iter().map(|data_type| data_type.size()).max().unwrap_or(1);
    if max_bytes.is_some_and(|max| max < largest as u64) {
        return Err(conflict(format!("the largest size (-e) is below one element of {largest} bytes")));
    }
    if let crate::traffic::Pattern::Matrix(_) = &variables.pattern
        && collectives.contains(&Collective::AllToAllV)
        && max_bytes != Some(min_bytes)
    {
        return Err(conflict(
            "a matrix (NCCL_TESTS_ALLTOALLV_MATRIX_FILE) says how much each rank sends: give one size with -b and -e, \
             at least what the busiest rank sends or receives",
        ));
    }
    let mut blocking = measure.blocking;
    let mut per_iteration = measure.per_iteration;
    if measure.graph_launches > 0 {
        match blocking {
            Blocking::No => {}
            Blocking::Outer => {
                notes.push("-z 3 is left out: a graph (-G) has no iterations to wait for".to_owned());
                blocking = Blocking::No;
            }
            Blocking::Wait | Blocking::WaitAndBarrier => {
                return Err(conflict(
                    "-z 1 and -z 2 wait inside what -G captures, which CUDA does not allow",
                ));
            }
        }
        if measure.default_stream {
            return Err(conflict("-y: CUDA cannot capture the default stream into a graph (-G)"));
        }
        if per_iteration {
            notes.push("-I is left out: a graph (-G) is launched as a whole".to_owned());
            per_iteration = false;
        }
    }
    let mut per_iteration_skip = measure.per_iteration_skip;
    if per_iteration_skip > 0 && (!per_iteration || per_iteration_skip >= measure.iterations) {
        notes.push("-K is left out: it needs -I, and fewer iterations to skip than -n".to_owned());
        per_iteration_skip = 0;
    }
    let step = match (measure.step_factor, measure.step_bytes) {
        (Some(factor), _) => Step::Factor(factor),
        (None, Some(bytes)) => Step::Bytes(bytes.0),
        (None, None) if as_nccl_tests => Step::Bytes(NCCL_TESTS_STEP),
        (None, None) => Step::Factor(2),
    };
    Ok(Settings {
        command,
        min_bytes,
        max_bytes,
        step,
        all: All {
            collectives: collectives.len() == Collective::ALL.len(),
            data_types: measure.data_types.0.len() == DataType::ALL.len(),
            ops: measure.ops.0.len() == Op::ALL.len(),
        },
        collectives,
        data_types: measure.data_types.0,
        ops: measure.ops.0,
        roots: measure.roots,
        iterations: measure.iterations,
        aggregated: measure.aggregated,
        warm_up: measure.warm_up,
        cycles: measure.cycles,
        checks: measure.checks,
        average: measure.average,
        blocking,
        graph_launches: measure.graph_launches,
        registration: measure.registration,
        unaligned: measure.unaligned,
        until_stable: measure.until_stable,
        budget: measure.budget,
        cpu_time: measure.cpu_time,
        time_stamps: measure.time_stamps,
        per_iteration,
        per_iteration_skip,
        memory_report: measure.memory_report,
        stats: measure.stats,
        show_algorithm: measure.show_algorithm,
        nccl_tests_json: measure.nccl_tests_json,
        outputs: measure.output,
        gpus: measure.gpus.or(as_nccl_tests.then_some(1)),
        threads: measure.threads,
        parallel_init: measure.parallel_init,
        timeout: (measure.timeout > 0).then(|| Duration::from_secs(measure.timeout as u64)),
        default_stream: measure.default_stream,
        cta_policy: measure.cta_policy,
        backend: measure.backend,
        provider: measure.provider,
        world: measure.world,
        dry_run: measure.dry_run,
        ranks: measure.ranks,
        fault: measure.inject_fault,
        variables,
        notes,
    })
}

fn collective(text: &str) -> Result<Collective, String> {
    text.parse().map_err(|error: crate::collective::UnknownCollective| error.to_string())
}

/// A number as C's `strtol` reads it with base 0.
fn whole(text: &str) -> Option<u32> {
    let lower = text.trim().to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).ok();
    }
    match lower.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        Some(digits) => u32::from_str_radix(digits, 8).ok(),
        None => lower.parse().ok(),
    }
}

fn count(text: &str) -> Result<usize, String> {
    whole(text).map(|value| value as usize).ok_or_else(|| "write a whole number from 0 on".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match whole(text) {
        Some(value) if value >= 1 => Ok(value as usize),
        _ => Err("write a whole number from 1 on".to_owned()),
    }
}

fn thread_count(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&count| count <= MOST_THREADS)
        .ok_or_else(|| format!("write a whole number from 1 to {MOST_THREADS}"))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("write 0 or 1".to_owned()),
    }
}

fn one_of<T: Copy>(text: &str, values: &[T]) -> Result<T, String> {
    let value = whole(text).and_then(|index| values.get(index as usize)).copied();
    value.ok_or_else(|| format!("write a number from 0 to {}", values.len() - 1))
}

fn average(text: &str) -> Result<Average, String> {
    one_of(text, &[Average::Rank0, Average::Mean, Average::Min, Average::Max])
}

fn blocking(text: &str) -> Result<Blocking, String> {
    one_of(text, &[Blocking::No, Blocking::WaitAndBarrier, Blocking::Wait, Blocking::Outer])
}

fn registration(text: &str) -> Result<Registration, String> {
    one_of(text, &[Registration::None, Registration::Local, Registration::Symmetric])
}

fn cta_policy(text: &str) -> Result<u32, String> {
    one_of(text, &[0, 1, 2])
}

fn no_device_implementation(text: &str) -> Result<NoImplementation, String> {
    match whole(text) {
        Some(0) => Ok(NoImplementation),
        _ => {
            Err("kernels of our own over NCCL's device API are not supported; measure NCCL's with 0, or use \
                  nccl-tests for -D 1 to 4"
                .to_owned())
        }
    }
}

fn roots(text: &str) -> Result<Roots, String> {
    match text {
        "all" | "-1" => Ok(Roots::All),
        _ => count(text).map(Roots::One).map_err(|_| "write a rank from 0 on, or all".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value / unit < 1.0 => Ok(value / unit),
        _ => Err("write a share between 0 and 1, or percent, as in 1%".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).trim().parse::<f64>();
    number
        .ok()
        .filter(|&seconds| seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "write seconds, as in 2 or 0.5".to_owned())
}

fn step_factor(text: &str) -> Result<u64, String> {
    match whole(text) {
        Some(factor) if factor >= 2 => Ok(u64::from(factor)),
        Some(_) => {
            Err("a factor below 2 would never reach the largest size; write 2 or more, or use -i".to_owned())
        }
        None => Err("write a whole number from 2 on; for finer steps use -i".to_owned()),
    }
}

fn list<T: Copy>(text: &str, all: &[T], one: fn(&str) -> Result<T, String>) -> Result<List<T>, String> {
    if text == "all" {
        return Ok(List(all.to_vec()));
    }
    text.split(',').map(one).collect::<Result<_, _>>().map(List)
}

fn data_types(text: &str) -> Result<List<DataType>, String> {
    list(text, &data::supported_types(), data_type)
}

fn data_type(name: &str) -> Result<DataType, String> {
    let names = || data::supported_types().into_iter().map(DataType::name).collect::<Vec<_>>().join(", ");
    name.parse().map_err(|_| format!("'{name}' is none of {}, or all", names()))
}

fn ops(text: &str) -> Result<List<Op>, String> {
    list(text, &Op::ALL, |name| name.parse().map_err(|error| format!("{error}, or all")))
}

fn fault(text: &str) -> Result<Fault, String> {
    text.split_once(':')
        .and_then(|(rank, index)| Some(Fault { rank: rank.parse().ok()?, index: index.parse().ok()? }))
        .ok_or_else(|| "write RANK:INDEX, as in 1:0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Settings {
        match parse_with(line.split_whitespace(), Ok(Variables::default())).unwrap() {
            Command::Measure(settings) => *settings,
            other => panic!("{other:?} is no measurement"),
        }
    }

    fn refusal(arguments: &[&str]) -> String {
        let arguments = ["nccl-bench"].iter().chain(arguments);
        let error = parse_with(arguments, Ok(Variables::default())).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn the_flags_of_nccl_tests_have_their_meaning() {
        let found = settings(
            "nccl-bench all_reduce_perf -b 8 -e 8G -f 2 -w 5 -n 20 -c 1 -g 8 -t 1 -d half -o max -m 2 -N 3 -a 3 -z 2 \
             -R 2 -u 1 -C 1 -S 1 -I 1 -K 5 -M 1 -p 1 -T 30 -y 1 -x 1 -J out.json -D 0",
        );
        assert_eq!(found.collectives, [Collective::AllReduce]);
        assert_eq!((found.min_bytes, found.max_bytes), (8, Some(8 << 30)));
        assert_eq!(found.step, Step::Factor(2));
        assert_eq!((found.warm_up, found.iterations, found.checks), (5, 20, 1));
        assert_eq!((found.gpus, found.threads), (Some(8), Some(1)));
        assert_eq!((found.data_types, found.ops), (vec![DataType::Float16], vec![Op::Max]));
        assert_eq!((found.aggregated, found.cycles, found.unaligned), (2, 3, 1));
        assert_eq!((found.average, found.blocking), (Average::Max, Blocking::Wait));
        assert_eq!((found.registration, found.cta_policy), (Registration::Symmetric, Some(1)));
        assert!(found.cpu_time && found.time_stamps && found.per_iteration && found.memory_report);
        assert!(found.parallel_init && found.default_stream);
        assert_eq!((found.per_iteration_skip, found.timeout), (5, Some(Duration::from_secs(30))));
        assert_eq!(found.nccl_tests_json, Some(PathBuf::from("out.json")));
        assert_eq!(found.notes, [""; 0]);
        let long = settings(
            "nccl-bench broadcast --minbytes 0x10 --maxbytes 1e3 --root -1 --agg_iters 010 --cudagraph 2 --run_cycles 0",
        );
        assert_eq!((long.min_bytes, long.max_bytes), (16, Some(1000)));
        assert_eq!((long.roots, long.aggregated, long.graph_launches, long.cycles), (Roots::All, 8, 2, 0));
    }

    #[test]
    fn a_name_of_nccl_tests_brings_its_defaults() {
        for name in ["all_reduce_perf", "/opt/bin/all_reduce_perf_mpi", "./all_reduce"] {
            let found = settings(name);
            assert_eq!(found.collectives, [Collective::AllReduce]);
            assert_eq!((found.min_bytes, found.max_bytes), (32 << 20, Some(32 << 20)));
            assert_eq!((found.step, found.gpus), (Step::Bytes(1 << 20), Some(1)));
        }
        let found = settings("nccl-bench allreduce -b 8 -b 16 -e 1K -c 2 -c 0");
        assert_eq!((found.min_bytes, found.checks), (16, 0), "the last one counts");
        let found = settings("nccl-bench all_reduce_perf");
        assert_eq!((found.min_bytes, found.max_bytes, found.gpus), (8, None, None));
        assert_eq!(found.step, Step::Factor(2));
    }

    #[test]
    fn lists_and_all_expand_in_order() {
        let found = settings("nccl-bench allgather,sendrecv,all_reduce -d f32,int8 -o all -i 1M");
        let expected = [Collective::AllGather, Collective::SendRecv, Collective::AllReduce];
        assert_eq!(found.collectives, expected);
        assert_eq!(found.data_types, [DataType::Float32, DataType::Int8]);
        assert_eq!(found.ops, Op::ALL);
        assert_eq!(found.step, Step::Bytes(1 << 20));
        let all = settings("nccl-bench all -d all");
        assert_eq!(all.collectives, Collective::ALL);
        assert_eq!(all.data_types, data::supported_types());
    }

    #[test]
    fn what_does_not_go_together_is_refused_or_left_out_with_a_note() {
        let found = settings("nccl-bench allreduce -G 1 -z 3 -I 1 -K 2");
        assert_eq!((found.blocking, found.per_iteration, found.per_iteration_skip), (Blocking::No, false, 0));
        assert_eq!(found.notes.len(), 3);
        assert!(refusal(&["allreduce", "-G", "1", "-z", "1"]).contains("-G captures"));
        assert!(refusal(&["allreduce", "-G", "1", "-y", "1"]).contains("default stream"));
        assert!(refusal(&["allreduce", "-D", "1"]).contains("not supported"));
    }

    #[test]
    fn bad_input_is_refused_with_what_to_do() {
        for (arguments, expected) in [
            (&["allreduce", "-b", "0"][..], "at least one byte"),
            (
                &["allreduce", "-b", "64M", "-e", "1M"],
                "the largest size (-e 1M) is below the smallest (-b 64M)",
            ),
            (&["allreduce", "-f", "1.5"], "write a whole number from 2 on"),
            (&["allreduce", "-f", "1"], "write 2 or more"),
            (&["allreduce", "-f", "-2"], "write a whole number from 2 on"),
            (&["allreduce", "-d", "nonsense"], "'nonsense' is none of int8, uint8, int32, uint32"),
            (&["allreduce", "-o", "mean"], "'mean' is none of sum"),
            (&["allreduce", "-r", "-2"], "write a rank from 0 on, or all"),
            (&["allreduce", "-a", "4"], "write a number from 0 to 3"),
            (&["allreduce", "-C", "yes"], "write 0 or 1"),
            (&["allreduce", "-b", "1T"], "unit is unknown"),
            (&["allreduce", "-e", "-5"], "it is negative"),
            (&["allreduce", "-n", "0"], "whole number from 1 on"),
            (&["allreduce", "-n", "ten"], "whole number from 1 on"),
            (&["allreduce", "-g", "-1"], "whole number from 1 on"),
            (&["allreduce", "-t", "0"], "whole number from 1 to 4096"),
            (&["allreduce", "-t", "4294967295"], "whole number from 1 to 4096"),
            (&["allreduce", "--stepfactr", "2"], "--stepfactor"),
            (&["allreduce", "--inject-fault", "x"], "RANK:INDEX"),
            (&["allreduce", "--until-stable", "100%"], "as in 1%"),
            (&["allreduce", "--budget", "0"], "write seconds"),
            (&["allredcue"], "allreduce"),
            (&["allreduce,alltoal"], "'alltoal' is no collective; write one of allreduce"),
            (&["allreduce", "-b", "1", "-e", "2"], "below one element of 4 bytes"),
        ] {
            let message = refusal(arguments);
            assert!(message.contains(expected), "{arguments:?} gave: {message}");
        }
    }

    #[test]
    fn help_is_not_an_error() {
        let answer = parse(["nccl-bench", "allreduce", "--help"]).unwrap_err();
        assert_eq!(answer.exit_code(), 0);
        let text = answer.to_string();
        assert!(text.contains("mpirun -np 16"));
        let names: Vec<_> = data::supported_types().into_iter().map(DataType::name).collect();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("or all: {} [default: float]", names.join(" "))), "{text}");
    }

    #[test]
    fn the_command_is_well_formed() {
        command().debug_assert();
    }
}
