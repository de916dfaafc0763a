//! The request: collectives, sizes, repetitions, verification, and the backend.

mod choices;
mod size;
mod variables;

use std::time::Duration;

use collectives::{DataType, world};
use record::{Average, Blocking, Registration};

use crate::collective::Collective;
use crate::data::Op;
use crate::data::traffic::Pattern;

pub use choices::{
    AlgorithmChoice, BackendChoice, Binding, FabricOptions, Fault, Roots, Versus, fabric_collective,
};
pub use size::{Size, Step, Sweep};
pub use variables::{GroupSplit, SYMMETRIC_FENCE, Variables};

/// Lists that were given as `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct All {
    /// The collectives.
    pub collectives: bool,
    /// The types.
    pub data_types: bool,
    /// The operators.
    pub ops: bool,
}

/// A measurement to run: collectives, sizes, repetitions, verification, and the backend.
///
/// All processes of a job run equal requests ([`Request::common`]).
#[derive(Clone, Debug)]
pub struct Request {
    /// Collectives to measure, in order.
    pub collectives: Vec<Collective>,
    /// Name and version of the program, for the record.
    pub program: String,
    /// The command line, for the record.
    pub command: Vec<String>,
    /// Ranks of the job that measure, in ascending order, each once; `None`: all. The other ranks wait. Not
    /// together with [`Variables::split`].
    pub ranks: Option<Vec<usize>>,
    /// Smallest size in bytes, at least 1.
    pub min_bytes: u64,
    /// Largest size in bytes, at least `min_bytes`; `None`: the backend's default.
    pub max_bytes: Option<u64>,
    /// Step from one size to the next.
    pub step: Step,
    /// Element types to loop over.
    pub data_types: Vec<DataType>,
    /// Lists that were given as `all`, of which a backend may lack some.
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
    /// Reduction of the ranks' times to one.
    pub average: Average,
    /// When the host waits for completion.
    pub blocking: Blocking,
    /// Launches of a graph of all iterations; 0: no graph.
    pub graph_launches: usize,
    /// Registration of the buffers with NCCL.
    pub registration: Registration,
    /// Elements by which the buffers are shifted.
    pub unaligned: usize,
    /// Rounds of the timed iterations, at least 1.
    pub rounds: usize,
    /// The baseline, which is measured in turn with the backend.
    pub versus: Option<Versus>,
    /// Relative precision of the median at which the rounds end.
    pub until_stable: Option<f64>,
    /// Time limit of one size.
    pub budget: Option<Duration>,
    /// Report the host's time.
    pub cpu_time: bool,
    /// Report the time of day.
    pub time_stamps: bool,
    /// Time each iteration inside the timed loop.
    pub per_iteration: bool,
    /// Number of first iterations that the statistics exclude.
    pub per_iteration_skip: usize,
    /// Report the memory used.
    pub memory_report: bool,
    /// Measure statistics of single operations, in a second pass unless `per_iteration` times them.
    pub statistics: bool,
    /// Read NCCL's choices from its log as well, at a cost of about a microsecond per operation on rank 0.
    pub log_choices: bool,
    /// GPUs per thread; `None`: all that no other process of the host uses.
    pub gpus: Option<usize>,
    /// The option or variable that requires GPUs, so that host memory is refused: `-g 1`.
    pub asks_for_gpus: Option<String>,
    /// Threads per process; `None`: the backend's default.
    pub threads: Option<usize>,
    /// Processors that ranks are bound to.
    pub binding: Binding,
    /// Initialise NCCL from several threads (`-p`), for the record.
    pub parallel_init: bool,
    /// Time limit of each step (`-T`).
    pub timeout: Option<Duration>,
    /// Work on the default stream.
    pub default_stream: bool,
    /// NCCL's `CTAPolicy`.
    pub cta_policy: Option<u32>,
    /// The backend.
    pub backend: BackendChoice,
    /// libfabric provider.
    pub provider: String,
    /// Algorithms of the fabric backend.
    pub tuning: FabricOptions,
    /// Way in which the processes join their world.
    pub world: world::Kind,
    /// An element to corrupt.
    pub fault: Option<Fault>,
    /// Variables of nccl-tests and of this program.
    pub variables: Variables,
    /// Changes that were made to the request, with reasons, for the record.
    pub notes: Vec<String>,
    /// Further options that must be equal on all processes, with their values. A caller that has any also
    /// lists those from which `statistics` follows, which is then not compared itself.
    pub also_equal: Vec<(&'static str, String)>,
}

impl Request {
    /// A request for `collectives` with the defaults of the program: `float`, sum, 8 bytes to the backend's
    /// default maximum, 20 iterations, one verification.
    pub fn new(collectives: Vec<Collective>) -> Self {
        Self {
            collectives,
            program: concat!("nccl-bench-engine ", env!("CARGO_PKG_VERSION")).to_owned(),
            command: Vec::new(),
            ranks: None,
            min_bytes: 8,
            max_bytes: None,
            step: Step::Factor(2),
            data_types: vec![DataType::Float32],
            all: All::default(),
            ops: vec![Op::Sum],
            roots: Roots::One(0),
            iterations: 20,
            aggregated: 1,
            warm_up: 1,
            cycles: 1,
            checks: 1,
            stream_checks: None,
            average: Average::Mean,
            blocking: Blocking::No,
            graph_launches: 0,
            registration: Registration::None,
            unaligned: 0,
            rounds: 1,
            versus: None,
            until_stable: None,
            budget: None,
            cpu_time: false,
            time_stamps: false,
            per_iteration: false,
            per_iteration_skip: 0,
            memory_report: false,
            statistics: false,
            log_choices: false,
            gpus: None,
            asks_for_gpus: None,
            threads: None,
            binding: Binding::Auto,
            parallel_init: false,
            timeout: None,
            default_stream: false,
            cta_policy: None,
            backend: BackendChoice::Auto,
            provider: "auto".to_owned(),
            tuning: FabricOptions::default(),
            world: world::Kind::Auto,
            fault: None,
            variables: Variables::default(),
            notes: Vec::new(),
            also_equal: Vec::new(),
        }
    }

    /// Checks what no backend could measure.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        let problem = if self.collectives.is_empty() || self.data_types.is_empty() || self.ops.is_empty() {
            "a list of collectives, types or operators is empty"
        } else if self
            .ranks
            .as_ref()
            .is_some_and(|ranks| ranks.is_empty() || !ranks.is_sorted_by(|a, b| a < b))
        {
            "the list of ranks that measure is empty, or not in ascending order"
        } else if self.ranks.is_some() && self.variables.split.is_some() {
            "a list of ranks that measure and NCCL_TESTS_SPLIT cannot be combined"
        } else if self.min_bytes == 0 || self.max_bytes.is_some_and(|max| max < self.min_bytes) {
            "the smallest size is 0, or above the largest"
        } else if self.iterations == 0 || self.aggregated == 0 || self.rounds == 0 {
            "iterations, operations per iteration and rounds are at least 1"
        } else if self.graph_launches > 0
            && (self.default_stream || self.per_iteration || self.blocking != Blocking::No)
        {
            "a CUDA graph cannot be captured on the default stream, with a time for each iteration, or with \
             blocking"
        } else {
            return Ok(());
        };
        Err(problem.to_owned())
    }

    /// The options and variables that must be equal on all processes: by name, with the value as text that is
    /// equal exactly when the values are.
    pub fn common(&self) -> Vec<(&'static str, String)> {
        // All fields are named, so that a new one cannot be forgotten.
        #[rustfmt::skip]
        let Self {
            collectives, program: _, command: _, ranks, min_bytes, max_bytes, step, data_types, all: _, ops, roots, iterations, aggregated,
            warm_up, cycles, checks, stream_checks, average, blocking, graph_launches, registration, unaligned, rounds,
            versus, until_stable, budget, cpu_time, time_stamps, per_iteration, per_iteration_skip, memory_report, statistics,
            log_choices, gpus, asks_for_gpus: _, threads, binding, parallel_init, timeout: _,
            default_stream, cta_policy, backend, provider, tuning, world: _, fault, variables:
            Variables { split, device: _, min_bandwidth, pattern, traffic_summary, without_symmetric_fence }, notes: _, also_equal
        } = self;
        let pattern_name = match pattern {
            Pattern::Spread(_) => "NCCL_TESTS_ALLTOALLV_SPREAD",
            Pattern::Matrix(_) => "NCCL_TESTS_ALLTOALLV_MATRIX_FILE",
        };
        let value = |value: &dyn std::fmt::Debug| format!("{value:?}");
        let mut options = vec![
            ("the collectives", value(collectives)),
            ("the ranks that measure", value(ranks)),
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
            ("--show-algorithm", value(log_choices)),
            ("-g", value(gpus)),
            ("-t", value(threads)),
            ("--bind", value(binding)),
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
        ];
        match &also_equal[..] {
            [] => options.push(("statistics", value(statistics))),
            options_of_caller => options.extend(options_of_caller.iter().cloned()),
        }
        options
    }
}
