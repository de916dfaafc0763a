//! The command line: what may be asked for, and what it means once checked.

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};
use collectives::{DataType, ReduceOp, world};

use crate::collective::Collective;
use crate::data;
use crate::size::{Size, Step};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Measures and verifies collectives: NCCL over GPUs, libfabric over host memory.
#[derive(Parser, Debug)]
#[command(
    name = "nccl-bench",
    version = collectives::build::VERSION,
    styles = STYLES,
    subcommand_required = true,
    arg_required_else_help = true,
    infer_long_args = true,
    after_help = EXAMPLES
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  nccl-bench allreduce                                 every GPU of this machine, a thread each
  nccl-bench allreduce -g 4 -b 1M -e 1G                four GPUs, 1 MiB to 1 GiB
  mpirun -np 16 -N 8 nccl-bench allreduce -e 8G        two nodes with 8 GPUs each, a process per GPU
  torchrun --no-python --nproc-per-node 8 nccl-bench allreduce
  nccl-bench allreduce --backend fabric -t 4           four ranks over host memory, no GPU needed

Columns: time is the mean of -n operations in microseconds; algbw is size/time and busbw is algbw
times 2(n-1)/n (allreduce) or (n-1)/n (allgather), both in GB/s = 1e9 bytes per second.

Exit codes: 0 all verified; 1 failed while running; 2 bad arguments, or something is missing;
7 wrong data.";

/// More than any machine has use for; what starts millions of threads only fails later.
const MOST_THREADS: usize = 4096;

#[derive(Subcommand, Debug)]
enum Command {
    /// Every rank gets the reduction of all ranks' buffers (ncclAllReduce)
    #[command(name = "allreduce", visible_alias = "all_reduce", alias = "all_reduce_perf", after_help = EXAMPLES)]
    AllReduce(Measure),
    /// Every rank gets the concatenation of all ranks' buffers (ncclAllGather)
    #[command(name = "allgather", visible_alias = "all_gather", alias = "all_gather_perf", after_help = EXAMPLES)]
    AllGather(Measure),
}

#[derive(Args, Debug)]
struct Measure {
    /// Smallest size: bytes, or with K, M or G (binary)
    #[arg(
        short = 'b',
        long = "minbytes",
        value_name = "SIZE",
        default_value = "8",
        allow_hyphen_values = true
    )]
    min_bytes: Size,

    /// Largest size [default: 4G on GPUs or what fits into their memory, 64M on hosts]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", allow_hyphen_values = true)]
    max_bytes: Option<Size>,

    /// Add this many bytes from one size to the next, unless -f is given
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", allow_hyphen_values = true)]
    step_bytes: Option<Size>,

    /// Multiply by this whole number from one size to the next [default: 2, unless -i is given]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", value_parser = step_factor, allow_hyphen_values = true)]
    step_factor: Option<u64>,

    /// Timed operations per size
    #[arg(short = 'n', long = "iters", value_name = "N", default_value = "20", value_parser = at_least_one, allow_hyphen_values = true)]
    iterations: usize,

    /// Warm-up operations per size, not timed
    #[arg(short = 'w', long = "warmup_iters", alias = "warmup-iters", value_name = "N", default_value = "1", value_parser = count, allow_hyphen_values = true)]
    warm_up: usize,

    /// Verifications per size and placement; 0 measures without verifying (#wrong shows N/A)
    #[arg(short = 'c', long = "check", value_name = "N", default_value = "1", value_parser = count, allow_hyphen_values = true)]
    checks: usize,

    /// GPUs per thread of -t; each is driven by a thread of its own [default: all that no other process uses]
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = at_least_one, allow_hyphen_values = true)]
    gpus: Option<usize>,

    /// Ranks per process (times -g on GPUs) [default: 1; 2 for a single process over host memory]
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = thread_count, allow_hyphen_values = true)]
    threads: Option<usize>,

    /// Element type, or several with commas, or all: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float", value_parser = data_types)]
    data_types: List<DataType>,

    /// Reduction, or several with commas, or all: sum prod max min avg
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = ops)]
    ops: List<ReduceOp>,

    /// What carries the data: NCCL between GPUs, or libfabric between host buffers
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,

    /// libfabric provider of the fabric backend: auto (shm inside a host, tcp between), shm, tcp, or its name
    #[arg(long, value_name = "NAME", default_value = "auto")]
    provider: String,

    /// How the processes find each other: auto (as the launcher says), single, tcp or mpi
    #[arg(long, value_name = "WORLD", default_value = "auto")]
    world: world::Kind,

    /// Damage element INDEX of rank RANK's result before each check, to see that it is found
    #[arg(long, value_name = "RANK:INDEX", value_parser = fault)]
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

/// Several values of one argument.
#[derive(Clone, Debug)]
struct List<T>(Vec<T>);

/// What a run shall do. Made by [`parse`]; each number is in its range.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What to measure.
    pub collective: Collective,
    /// Smallest size in bytes, at least 1.
    pub min_bytes: u64,
    /// Largest size in bytes, at least `min_bytes`; `None`: the backend's default.
    pub max_bytes: Option<u64>,
    /// From one size to the next.
    pub step: Step,
    /// Timed operations per size, at least 1.
    pub iterations: usize,
    /// Warm-up operations per size.
    pub warm_up: usize,
    /// Verifications per size and placement.
    pub checks: usize,
    /// GPUs per thread; `None`: all that no other process of the host uses.
    pub gpus: Option<usize>,
    /// Threads per process; `None`: the backend's default.
    pub threads: Option<usize>,
    /// Element types to loop over.
    pub data_types: Vec<DataType>,
    /// Operators to loop over where the collective reduces.
    pub ops: Vec<ReduceOp>,
    /// What carries the data.
    pub backend: BackendChoice,
    /// libfabric provider.
    pub provider: String,
    /// How the processes find each other.
    pub world: world::Kind,
    /// One element to damage.
    pub fault: Option<Fault>,
}

/// Reads the command line.
///
/// # Errors
/// What clap answers: also `--help` and `--version`. [`clap::Error::exit`] prints it and ends with 0 or 2.
pub fn parse<I, T>(arguments: I) -> Result<Settings, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let (collective, measure) = match Arguments::try_parse_from(arguments)?.command {
        Command::AllReduce(measure) => (Collective::AllReduce, measure),
        Command::AllGather(measure) => (Collective::AllGather, measure),
    };
    let conflict = |message: String| {
        use clap::CommandFactory as _;
        Arguments::command().error(clap::error::ErrorKind::ValueValidation, message)
    };
    if let Some(max) = measure.max_bytes
        && max < measure.min_bytes
    {
        return Err(conflict(format!(
            "the largest size (-e {max}) is below the smallest (-b {})",
            measure.min_bytes
        )));
    }
    let largest = measure.data_types.0.iter().map(|data_type| data_type.size()).max().unwrap_or(1);
    if measure.max_bytes.is_some_and(|max| max.0 < largest as u64) {
        return Err(conflict(format!("the largest size (-e) is below one element of {largest} bytes")));
    }
    Ok(Settings {
        collective,
        min_bytes: measure.min_bytes.0,
        max_bytes: measure.max_bytes.map(|size| size.0),
        step: match (measure.step_factor, measure.step_bytes) {
            (Some(factor), _) => Step::Factor(factor),
            (None, Some(bytes)) => Step::Bytes(bytes.0),
            (None, None) => Step::Factor(2),
        },
        iterations: measure.iterations,
        warm_up: measure.warm_up,
        checks: measure.checks,
        gpus: measure.gpus,
        threads: measure.threads,
        data_types: measure.data_types.0,
        ops: measure.ops.0,
        backend: measure.backend,
        provider: measure.provider,
        world: measure.world,
        fault: measure.inject_fault,
    })
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse::<u32>() {
        Ok(value) => Ok(value as usize),
        Err(_) => Err("write a whole number from 0 on".to_owned()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse::<u32>() {
        Ok(value) if value >= 1 => Ok(value as usize),
        _ => Err("write a whole number from 1 on".to_owned()),
    }
}

fn thread_count(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&count| count <= MOST_THREADS)
        .ok_or_else(|| format!("write a whole number from 1 to {MOST_THREADS}"))
}

fn step_factor(text: &str) -> Result<u64, String> {
    match text.parse::<u32>() {
        Ok(factor) if factor >= 2 => Ok(u64::from(factor)),
        Ok(_) => {
            Err("a factor below 2 would never reach the largest size; write 2 or more, or use -i".to_owned())
        }
        Err(_) => Err("write a whole number from 2 on; for finer steps use -i".to_owned()),
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
    let supported = data::supported_types();
    let problem = match name.parse() {
        Ok(data_type) if supported.contains(&data_type) => return Ok(data_type),
        Ok(data_type) => format!("'{data_type}' is not supported yet; write one"),
        Err(_) => format!("'{name}' is none"),
    };
    let names: Vec<_> = supported.into_iter().map(DataType::name).collect();
    Err(format!("{problem} of {}, or all", names.join(", ")))
}

fn ops(text: &str) -> Result<List<ReduceOp>, String> {
    list(text, &ReduceOp::ALL, |name| name.parse().map_err(|error| format!("{error}, or all")))
}

fn fault(text: &str) -> Result<Fault, String> {
    text.split_once(':')
        .and_then(|(rank, index)| Some(Fault { rank: rank.parse().ok()?, index: index.parse().ok()? }))
        .ok_or_else(|| "write RANK:INDEX, as in 1:0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(arguments: &[&str]) -> String {
        let error = parse(["nccl-bench"].iter().chain(arguments)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn the_flags_of_nccl_tests_have_their_meaning() {
        let settings = parse(
            "nccl-bench all_reduce_perf -b 8 -e 8G -f 2 -w 5 -n 20 -c 1 -g 8 -t 1 -d half -o max".split(' '),
        )
        .unwrap();
        assert_eq!(settings.collective, Collective::AllReduce);
        assert_eq!((settings.min_bytes, settings.max_bytes), (8, Some(8 << 30)));
        assert_eq!(settings.step, Step::Factor(2));
        assert_eq!((settings.warm_up, settings.iterations, settings.checks), (5, 20, 1));
        assert_eq!((settings.gpus, settings.threads), (Some(8), Some(1)));
        assert_eq!((settings.data_types, settings.ops), (vec![DataType::Float16], vec![ReduceOp::Max]));
    }

    #[test]
    fn lists_and_all_expand_in_order() {
        let settings = parse(["nccl-bench", "allgather", "-d", "f32,int8", "-o", "all", "-i", "1M"]).unwrap();
        assert_eq!(settings.data_types, [DataType::Float32, DataType::Int8]);
        assert_eq!(settings.ops, ReduceOp::ALL);
        assert_eq!(settings.step, Step::Bytes(1 << 20));
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
            (
                &["allreduce", "-d", "nonsense"],
                "'nonsense' is none of int8, uint8, int32, uint32, int64, uint64, half, float, \
                 double, bfloat16, or all",
            ),
            (
                &["allreduce", "-d", "half,f8e4m3"],
                "'f8e4m3' is not supported yet; write one of int8, uint8, int32, uint32, int64, uint64, half, float, \
                 double, bfloat16, or all",
            ),
            (&["allgather", "-d", "F8E5M2"], "'f8e5m2' is not supported yet; write one of int8"),
            (&["allreduce", "-o", "mean"], "'mean' is none of sum"),
            (&["allreduce", "-b", "1T"], "unit is unknown"),
            (&["allreduce", "-e", "-5"], "it is negative"),
            (&["allreduce", "-n", "0"], "whole number from 1 on"),
            (&["allreduce", "-n", "ten"], "whole number from 1 on"),
            (&["allreduce", "-g", "-1"], "whole number from 1 on"),
            (&["allreduce", "-t", "0"], "whole number from 1 to 4096"),
            (&["allreduce", "-t", "4294967295"], "whole number from 1 to 4096"),
            (&["allreduce", "--stepfactr", "2"], "--stepfactor"),
            (&["allreduce", "--inject-fault", "x"], "RANK:INDEX"),
            (&["allredcue"], "allreduce"),
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
    fn all_types_are_those_with_test_data() {
        let settings = parse(["nccl-bench", "allreduce", "-d", "all"]).unwrap();
        assert_eq!(settings.data_types, DataType::ALL[..10]);
    }
}
