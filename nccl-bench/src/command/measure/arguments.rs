//! The arguments of a measurement: flags, values and help.

use std::path::PathBuf;

use clap::Args;
use collectives::DataType;
use collectives::fabric::Algorithm;
use collectives::world;
use engine::collective::Collective;
use engine::data::Op;
use engine::request::{AlgorithmChoice, BackendChoice, Binding, Fault, Names, Roots, Size, Versus};
use record::files::Output;
use record::{Average, Blocking, Registration, Settings};

use super::values::{
    List, NoImplementation, at_least_one, average, blocking, collectives, count, cta_policy, data_types,
    fault, no_device_implementation, ops, output, registration, roots, seconds, segments_in_flight, share,
    step_factor, switch, thread_count,
};
use crate::command::judge::JudgeBasis;
use crate::command::option_name::name_option;
/// Examples below the short help.
pub(super) const SHORT_EXAMPLES: &str = "\
Examples:
  nccl-bench allreduce                               every GPU, a thread each
  nccl-bench allreduce -g 4 -b 1M -e 1G              four GPUs, 1 MiB to 1 GiB
  nccl-bench all --output pod.json                   all, with a result file
  mpirun -np 16 -N 8 nccl-bench allreduce -e 8G      two nodes with 8 GPUs each
  nccl-bench allreduce --backend fabric -t 4         four ranks, no GPU needed

All options: --help. Topics, as sizes, busbw, exit-codes: nccl-bench help.";

/// Examples, columns and exit codes, below the long help.
pub const EXAMPLES: &str = "\
Examples:
  nccl-bench allreduce                               every GPU, a thread each
  nccl-bench allreduce -g 4 -b 1M -e 1G              four GPUs, 1 MiB to 1 GiB
  nccl-bench all --output pod.json                   all, with a result file
  nccl-bench allreduce,alltoall -d half -o sum,max   a list of each
  mpirun -np 16 -N 8 nccl-bench allreduce -e 8G      two nodes with 8 GPUs each
  torchrun --no-python --nproc-per-node 8 nccl-bench allreduce
  nccl-bench allreduce --backend fabric -t 4         four ranks, no GPU needed
  nccl-bench allreduce --dry-run --backend nccl --ranks 16
  ln -s nccl-bench all_reduce_perf                   defaults of nccl-tests

Columns: time is the mean of -n operations in microseconds; algbw is size/time
and busbw is algbw times what each rank's link must carry at least, both in
GB/s = 1e9 bytes per second (nccl-bench help busbw).

Exit codes: 0 all verified; 1 failed while running; 2 bad arguments, or
something is missing; 4 timeout (-T); 7 wrong data, NCCL_TESTS_MIN_BW not
reached, or FAIL of --judge; 128 and the signal's number when one ended the run:
130 Ctrl-C, 143 SIGTERM, 129 SIGHUP, 138 SIGUSR1, 141 when nobody reads the
output any more.";

const MEASURING: &str = "What to measure";
const REPORTING: &str = "What to report";
const RUNNING: &str = "How to run";

/// Default size and step of nccl-tests in bytes.
pub(super) const NCCL_TESTS_BYTES: u64 = 32 << 20;
const NCCL_TESTS_STEP: u64 = 1 << 20;

/// Default number of rounds with a baseline.
const PAIRED_ROUNDS: usize = 9;

/// Flags of a measurement, as they were typed. Fields have the names of those of `Request` and `Settings`.
#[derive(Args, Clone, Debug)]
pub struct MeasureArguments {
    /// The collectives of a list.
    #[arg(long, hide = true, value_parser = collectives)]
    pub(crate) collectives: Option<List<Collective>>,

    /// Smallest size: bytes, or with K, M, G or T (binary) [default: 8; 32M for a link of nccl-tests' name]
    #[arg(
        short = 'b',
        long = "minbytes",
        value_name = "SIZE",
        allow_hyphen_values = true,
        help_heading = MEASURING
    )]
    pub(crate) min_bytes: Option<Size>,

    /// Largest size [default: 4G on GPUs or what fits into their memory, 64M on hosts]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", allow_hyphen_values = true,
          help_heading = MEASURING)]
    pub(crate) max_bytes: Option<Size>,

    /// Add this many bytes from one size to the next, unless -f is given
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", allow_hyphen_values = true,
          hide_short_help = true, help_heading = MEASURING)]
    pub(crate) step_bytes: Option<Size>,

    /// Multiply by this whole number from one size to the next [default: 2, unless -i is given]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", value_parser = step_factor,
          allow_hyphen_values = true, help_heading = MEASURING)]
    pub(crate) step_factor: Option<u64>,

    /// Element type, or several with commas, or all: int8 uint8 int32 uint32 int64 uint64 half float double
    /// bfloat16 f8e4m3 f8e5m2 [default: float]
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float",
          value_parser = data_types, hide_default_value = true, help_heading = MEASURING)]
    pub(crate) data_types: List<DataType>,

    /// Reduction, or several with commas, or all: sum prod max min avg mulsum [default: sum]
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = ops,
          hide_default_value = true, help_heading = MEASURING)]
    pub(crate) ops: List<Op>,

    /// Root of broadcast, reduce, gather and scatter; -1 or all: each rank in turn [default: 0]
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0", value_parser = roots,
          allow_hyphen_values = true, hide_default_value = true, hide_short_help = true,
          help_heading = MEASURING)]
    pub(crate) roots: Roots,

    /// Timed iterations per size and placement [default: 20]
    #[arg(short = 'n', long = "iters", value_name = "N", default_value = "20", value_parser = at_least_one,
          allow_hyphen_values = true, hide_default_value = true, help_heading = MEASURING)]
    pub(crate) iterations: usize,

    /// Operations per iteration, in one NCCL group; the time is per operation [default: 1]
    #[arg(short = 'm', long = "agg_iters", alias = "agg-iters", value_name = "N", default_value = "1",
          value_parser = at_least_one, allow_hyphen_values = true, hide_default_value = true,
          hide_short_help = true, help_heading = MEASURING)]
    pub(crate) aggregated: usize,

    /// Warm-up operations per size, not timed [default: 1]
    #[arg(short = 'w', long = "warmup_iters", alias = "warmup-iters", value_name = "N", default_value = "1",
          value_parser = count, allow_hyphen_values = true, hide_default_value = true,
          help_heading = MEASURING)]
    pub(crate) warm_up: usize,

    /// Runs of all sizes; 0: until Ctrl-C [default: 1]
    #[arg(short = 'N', long = "run_cycles", alias = "run-cycles", value_name = "N", default_value = "1",
          value_parser = count, allow_hyphen_values = true, hide_default_value = true, hide_short_help = true,
          help_heading = MEASURING)]
    pub(crate) cycles: usize,

    /// Verifications per size and placement; 0 measures without verifying (#wrong shows N/A) [default: 1]
    #[arg(short = 'c', long = "check", value_name = "N", default_value = "1", value_parser = count,
          allow_hyphen_values = true, hide_default_value = true, help_heading = MEASURING)]
    pub(crate) checks: usize,

    /// Then verify N more times without waits of the host: fill, operation and check follow each other on the
    /// GPU's stream, and again in a CUDA graph [N: 200]
    #[arg(long = "check-on-stream", value_name = "N", num_args = 0..=1, default_missing_value = "200",
          value_parser = at_least_one, hide_short_help = true, help_heading = MEASURING)]
    pub(crate) stream_checks: Option<usize>,

    /// Combination of the ranks' times: 0 the first rank's, 1 mean, 2 min, 3 max [default: 1]
    #[arg(short = 'a', long = "average", value_name = "0-3", default_value = "1", value_parser = average,
          allow_hyphen_values = true, hide_default_value = true, hide_short_help = true,
          help_heading = MEASURING)]
    pub(crate) average: Average,

    /// Wait for the GPU: 0 at the end, 1 after each operation and for all ranks, 2 after each operation, 3
    /// after each iteration and for all ranks, which is not timed [default: 0]
    #[arg(short = 'z', long = "blocking", value_name = "0-3", default_value = "0", value_parser = blocking,
          allow_hyphen_values = true, hide_default_value = true, hide_short_help = true,
          help_heading = MEASURING)]
    pub(crate) blocking: Blocking,

    /// Capture all iterations in a CUDA graph and launch it N times; 0: no graph [default: 0]
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value = "0", value_parser = count,
          allow_hyphen_values = true, hide_default_value = true, help_heading = MEASURING)]
    pub(crate) graph_launches: usize,

    /// Register the buffers with NCCL: 0 no, 1 each rank its own, 2 as symmetric windows [default: 0]
    #[arg(short = 'R', long = "local_register", alias = "local-register", value_name = "0-2",
          default_value = "0", value_parser = registration, allow_hyphen_values = true,
          hide_default_value = true, help_heading = MEASURING)]
    pub(crate) registration: Registration,

    /// Shift the buffers by N elements from their alignment [default: 0]
    #[arg(short = 'u', long = "unalign", value_name = "N", default_value = "0", value_parser = count,
          allow_hyphen_values = true, hide_default_value = true, hide_short_help = true,
          help_heading = MEASURING)]
    pub(crate) unaligned: usize,

    /// Rounds of the timed iterations; a rank's time is the median of its rounds [default: 1; 9 with --vs]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "until_stable",
          hide_short_help = true, help_heading = MEASURING)]
    pub(crate) rounds: Option<usize>,

    /// Also measure each size on this backend, in turn with --backend (nccl-bench help backends)
    ///
    /// The backends take turns in rounds. Columns show the time and bandwidth of this backend, and the ratio
    /// of times. mpi: together with libfabric, or with NCCL (--backend nccl); fabric: together with NCCL
    #[arg(long = "vs", value_name = "BACKEND", help_heading = MEASURING)]
    pub(crate) versus: Option<Versus>,

    /// Repeat each measurement until its median is known within this share: 1%
    ///
    /// Until the 95 % confidence intervals of the first and the second half of its rounds, and the difference
    /// of their medians, are within the share. Sizes that do not get there within --budget [default: 5 s]
    /// are marked NOT STABLE
    #[arg(long, value_name = "PERCENT%", value_parser = share, allow_hyphen_values = true,
          help_heading = MEASURING)]
    pub(crate) until_stable: Option<f64>,

    /// Time limit in seconds for one size with all its rounds; ends --until-stable and --rounds, and reduces
    /// -n for sizes that would take longer
    #[arg(long = "budget", value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true,
          hide_short_help = true, help_heading = MEASURING)]
    pub(crate) budget_seconds: Option<f64>,

    /// Report the time to enqueue an operation (column cputime) instead of the time until it is done: 1
    /// [default: 0]
    #[arg(short = 'C', long = "report_cputime", alias = "report-cputime", value_name = "0|1",
          default_value = "0", action = clap::ArgAction::Set, value_parser = switch,
          hide_default_value = true, hide_short_help = true, help_heading = REPORTING)]
    pub(crate) cpu_time: bool,

    /// A column with the time of day: 1 [default: 0]
    #[arg(short = 'S', long = "report_timestamps", alias = "report-timestamps", value_name = "0|1",
          default_value = "0", action = clap::ArgAction::Set, value_parser = switch,
          hide_default_value = true, hide_short_help = true, help_heading = REPORTING)]
    pub(crate) time_stamps: bool,

    /// Also time each iteration by CUDA events, with columns for min, max, 99th percentile and variation: 1
    /// [default: 0]
    #[arg(short = 'I', long = "per_iter_timing", alias = "per-iter-timing", value_name = "0|1",
          default_value = "0", action = clap::ArgAction::Set, value_parser = switch,
          hide_default_value = true, hide_short_help = true, help_heading = REPORTING)]
    pub(crate) per_iteration: bool,

    /// Skip the first N iterations in the report of -I [default: 0]
    #[arg(short = 'K', long = "per_iter_skip", alias = "per-iter-skip", value_name = "N", default_value = "0",
          value_parser = count, allow_hyphen_values = true, hide_default_value = true, hide_short_help = true,
          help_heading = REPORTING)]
    pub(crate) per_iteration_skip: usize,

    /// Report the used GPU memory: 1 [default: 0]
    #[arg(short = 'M', long = "memory_report", alias = "memory", alias = "memory-report", value_name = "0|1",
          default_value = "0", action = clap::ArgAction::Set, value_parser = switch,
          hide_default_value = true, hide_short_help = true, help_heading = REPORTING)]
    pub(crate) memory_report: bool,

    /// Columns with minimum, median and 99th percentile of single operations
    ///
    /// i_min, i_med and i_p99 are times of the slowest rank, from a second pass with each operation timed.
    /// The column time is the mean of the first pass
    #[arg(long, help_heading = REPORTING)]
    pub(crate) stats: bool,

    /// A short table: fewer comment lines, and sizes as 64K, 1M, 4G; the files are whole in any case
    #[arg(long, help_heading = REPORTING)]
    pub(crate) brief: bool,

    /// A column with the chosen algorithm, protocol and channels
    ///
    /// The choice of NCCL, or the algorithm of the fabric backend; the files always contain it. NCCL's log is
    /// also read: this costs rank 0 about a microsecond per operation
    #[arg(long = "show-algorithm", help_heading = REPORTING)]
    pub(crate) log_choices: bool,

    /// A JSON file as nccl-tests writes it; its name ends in .json, and a number is appended if it exists
    #[arg(short = 'J', long = "output_file", alias = "output-file", value_name = "FILE",
          help_heading = REPORTING)]
    pub(crate) nccl_tests_json: Option<PathBuf>,

    /// A file for the results, by its suffix: .json, .jsonl (grows while it runs), .csv or .md; may be
    /// repeated. In its name %h is the host, %t the time (UTC), %% a percent sign
    #[arg(long, value_name = "FILE", value_parser = output, help_heading = REPORTING)]
    pub(crate) output: Vec<Output>,

    /// Replace the files of --output, whatever they contain; without it, only result files are replaced
    #[arg(long, requires = "output", hide_short_help = true, help_heading = REPORTING)]
    pub(crate) force: bool,

    /// GPUs per thread of -t; each GPU has its own thread [default: all GPUs that no other process uses; 1
    /// for a link of nccl-tests' name]
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = at_least_one,
          allow_hyphen_values = true, help_heading = RUNNING)]
    pub(crate) gpus: Option<usize>,

    /// Ranks per process (times -g on GPUs) [default: 1; 2 for a single process over host memory]
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = thread_count,
          allow_hyphen_values = true, help_heading = RUNNING)]
    pub(crate) threads: Option<usize>,

    /// Bind ranks over host memory to a processor each. auto: ranks that share a process, if the host has
    /// enough processors; core: all ranks, or refuse; none: no rank
    #[arg(long = "bind", value_name = "RULE", default_value = "auto", hide_short_help = true,
          help_heading = RUNNING)]
    pub(crate) binding: Binding,

    /// Accepted for compatibility: NCCL is always initialised in all threads at once [default: 0]
    #[arg(short = 'p', long = "parallel_init", alias = "parallel-init", value_name = "0|1",
          default_value = "0", action = clap::ArgAction::Set, value_parser = switch,
          hide_default_value = true, hide_short_help = true, help_heading = RUNNING)]
    pub(crate) parallel_init: bool,

    /// End the job with code 4 if a rank takes longer than this for one step; 0: no limit [default: 0]
    ///
    /// A step is the rendezvous (unless NCCL_BENCH_TIMEOUT is set), initialisation, the operations of one
    /// size, or a wait for other ranks. With 0, a rendezvous over TCP may take 60 s, and the start of MPI
    /// 300 s
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS", default_value = "0", value_parser = count,
          allow_hyphen_values = true, hide_default_value = true, help_heading = RUNNING)]
    pub(crate) timeout: usize,

    /// Work on the legacy default stream: 1 [default: 0]
    #[arg(short = 'y', long = "stream_null", alias = "stream-null", value_name = "0|1", default_value = "0",
          action = clap::ArgAction::Set, value_parser = switch, hide_default_value = true,
          hide_short_help = true, help_heading = RUNNING)]
    pub(crate) default_stream: bool,

    /// NCCL's policy for thread blocks: 0 default, 1 efficiency, 2 zero (NCCL 2.27; 2 from 2.28 on)
    #[arg(short = 'x', long = "cta_policy", alias = "cta-policy", value_name = "0-2",
          value_parser = cta_policy, allow_hyphen_values = true, hide_short_help = true,
          help_heading = RUNNING)]
    pub(crate) cta_policy: Option<u32>,

    /// nccl-tests' own kernels over NCCL's device API: not supported, only 0
    #[arg(short = 'D', long = "device_implementation", alias = "device-implementation", value_name = "0",
          default_value = "0", value_parser = no_device_implementation, allow_hyphen_values = true,
          hide = true)]
    _device_implementation: NoImplementation,

    /// For -D only.
    #[arg(short = 'V', long = "device_cta_count", alias = "device-cta-count", value_name = "N",
          value_parser = count, hide = true)]
    _device_cta_count: Option<usize>,

    /// Library that moves the data: NCCL between GPUs, libfabric or an MPI library between host buffers
    #[arg(long, value_name = "BACKEND", default_value = "auto", help_heading = RUNNING)]
    pub(crate) backend: BackendChoice,

    /// libfabric provider of the fabric backend: auto (shm inside a host, tcp between), shm, tcp, or its name
    /// [default: auto]
    #[arg(long, value_name = "NAME", default_value = "auto", hide_default_value = true,
          hide_short_help = true, help_heading = RUNNING)]
    pub(crate) provider: String,

    /// Algorithm of the fabric backend: ring for all collectives, or all_reduce=ring,all_gather=bruck;
    /// nccl-bench fabric algorithms lists them
    #[arg(long = "algo", value_name = "ALGORITHM", value_delimiter = ',', hide_short_help = true,
          help_heading = RUNNING)]
    pub(crate) algorithms: Vec<AlgorithmChoice>,

    /// Algorithm of --algo hierarchical between hosts
    #[arg(long, value_name = "ALGORITHM", hide_short_help = true, help_heading = RUNNING)]
    pub(crate) between: Option<Algorithm>,

    /// Segment size of long messages of the fabric backend, in bytes
    #[arg(long, value_name = "SIZE", hide_short_help = true, help_heading = RUNNING)]
    pub(crate) segment: Option<Size>,

    /// Number of segments in flight
    #[arg(long, value_name = "N", value_parser = segments_in_flight, hide_short_help = true,
          help_heading = RUNNING)]
    pub(crate) in_flight: Option<usize>,

    /// Rendezvous of the processes: auto (as the launcher says), single, tcp or mpi [default: auto]
    #[arg(long, value_name = "WORLD", default_value = "auto", hide_default_value = true,
          hide_short_help = true, help_heading = RUNNING)]
    pub(crate) world: world::Kind,

    /// Measure in N starts of fresh processes, one after another, and report medians of the starts
    ///
    /// A process can be fast or slow for as long as it lives, which repetition in it does not show. The files
    /// of --output get the number of the start: run-1.json
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_hyphen_values = true,
          help_heading = RUNNING)]
    pub(crate) starts: Option<usize>,

    /// Command that starts the processes of each start: 'mpirun -np 4'
    #[arg(long, value_name = "COMMAND", requires = "starts", help_heading = RUNNING)]
    pub(crate) launcher: Option<String>,

    /// This run is start N of --starts.
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) nth_start: Option<usize>,

    /// Print the sizes, counts and memory of the run, and measure nothing. Without a GPU, the run is over
    /// host memory; --backend nccl plans one on GPUs
    #[arg(long, help_heading = RUNNING)]
    pub(crate) dry_run: bool,

    /// Number of ranks that --dry-run assumes [default: the ranks started by the launcher]
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "dry_run", hide_short_help = true,
          help_heading = RUNNING)]
    pub(crate) ranks: Option<usize>,

    /// Damage element INDEX of rank RANK's result before each check, to test that the check finds it
    #[arg(long = "inject-fault", value_name = "RANK:INDEX", value_parser = fault, hide_short_help = true,
          help_heading = RUNNING)]
    pub(crate) fault: Option<Fault>,

    /// Judge the results at the end, as nccl-bench judge does: a verdict of FAIL is exit code 7; implied by
    /// the options of the verdict
    #[arg(long, help_heading = "Verdict", hide_short_help = true)]
    pub(crate) judge: bool,

    /// Facts and expectations of the verdict.
    #[command(flatten)]
    pub(crate) basis: JudgeBasis,
}

/// Names of the fields of a request and its settings.
pub(crate) const NAMES: Names =
    Names(|field| name_option(&MeasureArguments::augment_args(clap::Command::new("measurement")), field));

impl MeasureArguments {
    /// The options that the record has, with the defaults of nccl-tests or of this program.
    pub(super) fn to_settings(&self, as_nccl_tests: bool) -> Settings {
        let defaults = Settings::of_collectives();
        let min_bytes = if as_nccl_tests { NCCL_TESTS_BYTES } else { defaults.min_bytes };
        let (step_factor, step_bytes) = match (self.step_factor, self.step_bytes) {
            (None, None) if as_nccl_tests => (None, Some(NCCL_TESTS_STEP)),
            (None, None) => (defaults.step_factor, None),
            (None, bytes) => (None, bytes.map(|size| size.0)),
            (factor, _) => (factor, None),
        };
        Settings {
            min_bytes: self.min_bytes.map_or(min_bytes, |size| size.0),
            step_factor,
            step_bytes,
            iterations: self.iterations,
            aggregated: self.aggregated,
            warm_up: self.warm_up,
            cycles: self.cycles,
            checks: self.checks,
            stream_checks: self.stream_checks,
            average: self.average,
            blocking: self.blocking,
            graph_launches: self.graph_launches,
            registration: self.registration,
            unaligned: self.unaligned,
            per_iteration: self.per_iteration,
            per_iteration_skip: self.per_iteration_skip,
            parallel_init: self.parallel_init,
            cpu_time: self.cpu_time,
            time_stamps: self.time_stamps,
            cta_policy: self.cta_policy,
            default_stream: self.default_stream,
            rounds: self.rounds.or(self.versus.map(|_| PAIRED_ROUNDS)).filter(|&rounds| rounds > 1),
            until_stable: self.until_stable,
            budget_seconds: self.budget_seconds,
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::NAMES;
    use crate::cli::tests::measurement;
    use crate::command::fabric::transfer::NAMES as PAIR_NAMES;

    #[test]
    fn every_option_that_processes_must_share_has_the_name_that_users_type() {
        let request = measurement("nccl-bench allreduce --stats").request;
        let compared = serde_json::to_value(&request).unwrap();
        let names =
            compared.as_object().unwrap().keys().map(|field| (field.as_str(), NAMES.field_name(field)));
        // Variables have their own names, and the statistics follow from what is compared in their place.
        let known = |name: &str| name.starts_with('-') || name.starts_with("NCCL_");
        let others: Vec<_> = names.filter(|(_, name)| !known(name)).collect();
        // The groups and placements are those of `pairs`, where rank 0 chooses them for all processes.
        let expected = [
            ("collectives", "the collectives"),
            ("groups", "groups"),
            ("out_of_place", "out_of_place"),
            ("statistics", "statistics"),
        ];
        assert_eq!(others, expected.map(|(field, name)| (field, name.to_owned())));
        assert_eq!(
            ["iterations", "stream_checks", "versus", "output"].map(|field| NAMES.field_name(field)),
            ["-n", "--check-on-stream", "--vs", "--output"]
        );
    }

    /// The texts of all source files below a folder.
    fn sources(folder: &Path) -> Vec<String> {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths
            .flat_map(
                |path| if path.is_dir() { sources(&path) } else { vec![fs::read_to_string(path).unwrap()] },
            )
            .collect()
    }

    #[test]
    fn every_field_that_a_message_of_the_engine_names_has_a_flag() {
        let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/engine/src");
        let sources = sources(&engine);
        let names_in = |call| sources.iter().flat_map(move |text| text.split(call).skip(1));
        let fields = names_in("names.field_name(\"")
            .chain(names_in("names.with_value(\""))
            .filter_map(|rest| rest.split('"').next());
        let fields: Vec<&str> = fields.collect();
        assert!(fields.len() > 30, "{fields:?}");
        let has_flag =
            |field: &&str| [NAMES, PAIR_NAMES].iter().any(|names| names.field_name(field).starts_with('-'));
        let unknown: Vec<_> = fields.into_iter().filter(|field| !has_flag(field)).collect();
        assert_eq!(unknown, [""; 0]);
    }
}
