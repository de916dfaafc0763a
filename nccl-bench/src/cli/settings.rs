//! What a run shall do: the arguments with their defaults, checked against each other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use collectives::{DataType, world};

use super::arguments::Measure;
use super::conflict;
use super::values::{BackendChoice, Fault, Roots, Tuning, Versus};
use crate::collective::Collective;
use crate::data::Op;
use crate::environment::{SYMMETRIC_FENCE, Variables};
use crate::files::Output;
use crate::record::{Average, Blocking, Registration};
use crate::size::{Size, Step};
use crate::traffic::Pattern;

/// What nccl-tests measures when it is not told otherwise.
const NCCL_TESTS_BYTES: u64 = 32 << 20;
const NCCL_TESTS_STEP: u64 = 1 << 20;

/// Rounds of two sides in turn, when it is not said how many.
const ROUNDS_OF_BOTH: usize = 9;

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

/// What a run shall do. Made by [`parse`](super::parse); each number is in its range.
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
    /// Rounds of the check on the stream, at least 1; `None`: there is none.
    pub stream_checks: Option<usize>,
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
    /// Rounds of the timed iterations, at least 1.
    pub rounds: usize,
    /// What is measured in turn with the backend, which is libfabric then.
    pub versus: Option<Versus>,
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
    /// The argument or variable that asks for GPUs, so that host memory is no answer: `-g 1`.
    pub asks_for_gpus: Option<String>,
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
    /// How the fabric backend shall carry out collectives.
    pub tuning: Tuning,
    /// How the processes find each other.
    pub world: world::Kind,
    /// Only say what would be done.
    pub dry_run: bool,
    /// The ranks of a dry run.
    pub ranks: Option<usize>,
    /// One element to damage.
    pub fault: Option<Fault>,
    /// nccl-tests' variables, and ours.
    pub variables: Variables,
    /// What was changed in what was asked for, and why.
    pub notes: Vec<String>,
}

impl Settings {
    /// The options and variables that must be equal on all processes: by name, with the value as text that is equal
    /// exactly when the values are. Of output files only whether there are any, since each process may name its own.
    #[must_use]
    pub fn common(&self) -> Vec<(&'static str, String)> {
        // All fields are named, so that a new one cannot be forgotten.
        #[rustfmt::skip]
        let Self {
            collectives, command: _, min_bytes, max_bytes, step, data_types, all: _, ops, roots, iterations, aggregated,
            warm_up, cycles, checks, stream_checks, average, blocking, graph_launches, registration, unaligned, rounds,
            versus, until_stable, budget, cpu_time, time_stamps, per_iteration, per_iteration_skip, memory_report, stats,
            show_algorithm, nccl_tests_json, outputs, gpus, asks_for_gpus: _, threads, parallel_init, timeout: _,
            default_stream, cta_policy, backend, provider, tuning, world: _, dry_run: _, ranks: _, fault, variables:
            Variables { split, device: _, min_bandwidth, pattern, traffic_summary, without_symmetric_fence }, notes: _
        } = self;
        let pattern_name = match pattern {
            Pattern::Spread(_) => "NCCL_TESTS_ALLTOALLV_SPREAD",
            Pattern::Matrix(_) => "NCCL_TESTS_ALLTOALLV_MATRIX_FILE",
        };
        let value = |value: &dyn std::fmt::Debug| format!("{value:?}");
        vec![
            ("the collectives", value(collectives)),
            ("-b", value(min_bytes)),
            ("-e", value(max_bytes)),
            ("-f or -i", value(step)),
            ("-d", value(data_types)),
            ("-o", value(ops)),
            ("-r", value(roots)),
            ("-n", value(iterations)),
            ("-m", value(aggregated)),
            ("-w", value(warm_up)),
            ("-N", value(cycles)),
            ("-c", value(checks)),
            ("--check-on-stream", value(stream_checks)),
            ("-a", value(average)),
            ("-z", value(blocking)),
            ("-G", value(graph_launches)),
            ("-R", value(registration)),
            ("-u", value(unaligned)),
            ("--rounds", value(rounds)),
            ("--vs", value(versus)),
            ("--until-stable", value(until_stable)),
            ("--budget", value(budget)),
            ("-C", value(cpu_time)),
            ("-S", value(time_stamps)),
            ("-I", value(per_iteration)),
            ("-K", value(per_iteration_skip)),
            ("-M", value(memory_report)),
            ("--stats", value(stats)),
            ("--show-algorithm", value(show_algorithm)),
            ("-J", value(&nccl_tests_json.is_some())),
            ("--output", value(&!outputs.is_empty())),
            ("-g", value(gpus)),
            ("-t", value(threads)),
            ("-p", value(parallel_init)),
            ("-y", value(default_stream)),
            ("-x", value(cta_policy)),
            ("--backend", value(backend)),
            ("--provider", value(provider)),
            ("--algo, --between, --segment or --in-flight", value(tuning)),
            ("--inject-fault", value(fault)),
            ("NCCL_TESTS_SPLIT", value(split)),
            ("NCCL_TESTS_MIN_BW", value(min_bandwidth)),
            (pattern_name, value(pattern)),
            ("NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY", value(traffic_summary)),
            (SYMMETRIC_FENCE, value(without_symmetric_fence)),
        ]
    }
}

/// Checks what the arguments say together.
pub(super) fn settle(
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
    if let Pattern::Matrix(_) = &variables.pattern
        && collectives.contains(&Collective::AllToAllV)
        && max_bytes != Some(min_bytes)
    {
        return Err(conflict(
            "a matrix (NCCL_TESTS_ALLTOALLV_MATRIX_FILE) says how much each rank sends: give one size with -b and -e, \
             at least what the busiest rank sends or receives",
        ));
    }
    if measure.inject_fault.is_some() && measure.checks == 0 {
        return Err(conflict(
            "--inject-fault damages what is verified, and -c 0 verifies nothing: leave one out",
        ));
    }
    if measure.check_on_stream.is_some() {
        check_stream(&measure)?;
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
    let backend = match (measure.vs, measure.backend) {
        (Some(Versus::Mpi), BackendChoice::Mpi) => {
            return Err(conflict("--vs mpi would compare MPI with itself: leave --backend mpi out"));
        }
        (Some(Versus::Fabric), BackendChoice::Fabric) => {
            return Err(conflict(
                "--vs fabric would compare libfabric with itself: leave --backend fabric out",
            ));
        }
        // Buffers in host memory on both sides, unless NCCL is asked for.
        (Some(Versus::Mpi), BackendChoice::Auto) => BackendChoice::Fabric,
        (Some(Versus::Fabric), BackendChoice::Auto) => BackendChoice::Nccl,
        (_, asked) => asked,
    };
    let tuning = Tuning {
        algorithms: measure.algo,
        between: measure.between,
        segment: measure.segment.map(|size| usize::try_from(size.0).unwrap_or(usize::MAX)),
        in_flight: measure.in_flight,
    };
    tuning.choices(&collectives).map_err(conflict)?;
    let asks_for_gpus = match measure.gpus {
        Some(gpus) => Some(format!("-g {gpus}")),
        None if as_nccl_tests => {
            let program = command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
            Some(format!("the program's name, {},", program.to_string_lossy()))
        }
        None => gpu_variable(),
    };
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
        stream_checks: measure.check_on_stream,
        average: measure.average,
        blocking,
        graph_launches: measure.graph_launches,
        registration: measure.registration,
        unaligned: measure.unaligned,
        rounds: measure.rounds.unwrap_or(if measure.vs.is_some() { ROUNDS_OF_BOTH } else { 1 }),
        versus: measure.vs,
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
        asks_for_gpus,
        threads: measure.threads,
        parallel_init: measure.parallel_init,
        timeout: (measure.timeout > 0).then(|| Duration::from_secs(measure.timeout as u64)),
        default_stream: measure.default_stream,
        cta_policy: measure.cta_policy,
        backend,
        provider: measure.provider,
        tuning,
        world: measure.world,
        dry_run: measure.dry_run,
        ranks: measure.ranks,
        fault: measure.inject_fault,
        variables,
        notes,
    })
}

/// Refuses what `--check-on-stream` cannot be combined with.
fn check_stream(measure: &Measure) -> Result<(), clap::Error> {
    if measure.checks == 0 {
        return Err(conflict("--check-on-stream verifies, and -c 0 does not: leave one out"));
    }
    if measure.default_stream {
        return Err(conflict(
            "-y: CUDA cannot capture the default stream into a graph, which --check-on-stream does",
        ));
    }
    if measure.vs.is_some() {
        return Err(conflict("--check-on-stream is for NCCL alone: leave --vs out"));
    }
    Ok(())
}

/// The variable that chooses GPUs, or NCCL, for this process, with its value. `-1` and Slurm's `NoDevFiles` choose none.
fn gpu_variable() -> Option<String> {
    let value = |name: &str| std::env::var(name).ok();
    let first = |value: &str| value.split(',').next().unwrap_or_default().trim().to_owned();
    let no_gpu = |value: &String| ["-1", "NoDevFiles"].contains(&first(value).as_str());
    if value("CUDA_VISIBLE_DEVICES").as_ref().is_some_and(no_gpu) {
        return None;
    }
    ["CUDA_VISIBLE_DEVICES", "NCCL_TESTS_DEVICE", "NCCL_LIBRARY"].into_iter().find_map(|name| {
        let value = value(name)?;
        (!first(&value).is_empty() && !no_gpu(&value)).then(|| format!("{name}={value}"))
    })
}
