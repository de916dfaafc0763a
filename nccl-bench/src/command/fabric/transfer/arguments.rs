//! The arguments of the measurements between two ranks.

use std::time::Duration;

use clap::Args as _;
use engine::pairs::{PairMemory, PairRequest, Test};
use engine::request::{Names, Size, SizeStep};
use engine::supervision::Stop;
use record::files::Output;
use record::{Completion, Messages, Until};

use crate::command::measure::output;
use crate::command::option_name::name_option;

const EXAMPLES: &str = "\
Two ways to meet:
  mpirun -np 2 nccl-bench fabric pingpong              as a launcher says: mpirun, srun, torchrun, ...
  nccl-bench fabric pingpong --listen 10.0.0.1:7000    one here,
  nccl-bench fabric pingpong --connect 10.0.0.1:7000   and one there

Start all ranks with the same options. The first rank prints; with --connect, the connecting rank also \
prints: give the two ranks different --output files on a shared file system. If mpirun starts ranks on \
several hosts, they meet through MPI (this needs nccl-bench-mpi), or at an address of rank 0: mpirun -x \
NCCL_BENCH_ADDR=node1:29500 ...

With more than two ranks, rank 0 measures with every other rank in turn; --all-pairs measures all pairs.

  nccl-bench fabric bw -p shm -e 16M                   64 messages in flight
  nccl-bench fabric bw --endpoints 4                   four threads with an endpoint and a domain each
  nccl-bench fabric bw --domains eth0,eth1             two devices at once
  nccl-bench fabric rma --read --window 1              the latency of reading remote memory
  nccl-bench fabric rma --both-ways --until completed  what fabtests' fi_rma_bw measures
  nccl-bench fabric pingpong --completion block        the latency of threads that sleep
  nccl-bench fabric bw -p efa --memory cuda            from GPU to GPU

The time of one transfer is half of a round trip (pingpong), or the time of a round divided by its \
transfers. A round of writes ends with the answer of the other rank. With several endpoints, the time is the \
slowest endpoint's time in each round, and GB/s add up all endpoints. Each size is verified before it is \
measured (-c 0: not verified).

--output writes the same files as measurements of collectives, for nccl-bench compare and plot. The first \
rank writes its files, and the rank with --connect also writes its own.

Short messages and writes are injected, up to the provider's limit: the sending call copies them, and there \
is no completion (--inject never: no injection).

With --memory cuda the header shows whether the provider guarantees to move GPU memory directly \
(FI_HMEM_P2P_REQUIRED). Otherwise the provider may copy through host memory.

Exit codes: 0 good; 1 failed; 2 bad arguments, or something is missing; 4 time limit (-T); 7 wrong data; 128 \
plus the number of a signal.";

/// The arguments that all measurements have.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TransferArguments {
    /// The provider: tcp, shm, efa, 'verbs;ofi_rxm'; see `nccl-bench fabric info -t rdm`
    #[arg(short = 'p', long, value_name = "PROVIDER", default_value = "tcp")]
    pub provider: String,

    /// Smallest size
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8")]
    pub min_bytes: Size,

    /// Largest size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "16M")]
    pub max_bytes: Size,

    /// Multiply by this factor from one size to the next
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value = "2",
          value_parser = clap::value_parser!(u64).range(2..))]
    pub factor: u64,

    /// Transfers of each endpoint in a round; round trips with pingpong [default: up to 1000, as many as make
    /// 256 MiB in all rounds, or a window of up to 256 MiB]
    #[arg(short = 'n', long = "iters", value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub transfers: Option<u64>,

    /// Rounds per size; the table has the median, the fastest and the slowest round
    #[arg(long, value_name = "COUNT", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rounds: u64,

    /// Untimed rounds before
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub warm_up: u64,

    /// Verify each size: 0 or 1
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(0..=1))]
    pub check: u8,

    /// Injection of short messages and writes
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub inject: Inject,

    /// Memory of the data: host, cuda for the GPU with the rank's number on its host, or cuda:N. GPU memory
    /// needs a provider with FI_HMEM and a libfabric with CUDA (efa, 'verbs;ofi_rxm', shm), and is never
    /// injected
    #[arg(long, value_name = "host|cuda[:N]", default_value = "host")]
    pub memory: PairMemory,

    /// Method of waiting
    #[arg(long, value_name = "HOW", default_value = "poll")]
    pub completion: Completion,

    /// Endpoints of each rank, measured at the same time, each in its own thread [default: one for each of
    /// --domains, or one]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub endpoints: Option<u64>,

    /// All endpoints of a rank use one domain, with the library's locks, instead of a domain without locks
    /// each; not for rma
    #[arg(long)]
    pub shared_domain: bool,

    /// The provider's domains to use in turn, network interfaces or devices: eth0,eth1 or mlx5_0,mlx5_1; see
    /// `nccl-bench fabric info` [default: the provider's first]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub domains: Vec<String>,

    /// The local address to bind to [default: the provider's choice; 127.0.0.1 for tcp when all ranks are
    /// on one host and no domain is named]
    #[arg(long, value_name = "ADDRESS")]
    pub source: Option<String>,

    /// Seconds without progress of a rank after which the measurement fails
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,

    /// Measure all pairs of ranks, not only pairs with rank 0
    #[arg(long)]
    pub all_pairs: bool,

    /// Wait at this address for the other rank
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    pub listen: Option<String>,

    /// Connect to the rank that listens at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,

    /// A file for the results, by its suffix: .json, .jsonl (grows while it runs), .csv or .md; may be
    /// repeated. In its name %h is the host, %t the time (UTC), %% a percent sign
    #[arg(long, value_name = "FILE", value_parser = output)]
    pub output: Vec<Output>,

    /// Replace the files of --output, whatever they contain; without it, only result files are replaced
    #[arg(long, requires = "output")]
    pub force: bool,
}

/// Injection of short messages: sending without a completion.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// Up to the length that the provider allows
    Auto,
    /// Each message has its own completion
    Never,
}

/// The arguments of `pingpong`.
#[derive(clap::Args, Clone, Debug)]
pub struct PingPong {
    /// The common arguments.
    #[command(flatten)]
    pub arguments: TransferArguments,

    /// Kind of messages
    #[arg(long, value_name = "KIND", default_value = "tagged")]
    pub messages: Messages,
}

/// The arguments of `bw`.
#[derive(clap::Args, Clone, Debug)]
pub struct Bandwidth {
    /// The arguments with a window.
    #[command(flatten)]
    pub windowed: Windowed,

    /// Kind of messages
    #[arg(long, value_name = "KIND", default_value = "tagged")]
    pub messages: Messages,

    /// Nanoseconds between two polls of a rank that waits (not with --completion block): each poll can
    /// disturb the sender [default: 2000; 0 with --window 1]
    #[arg(long, value_name = "NANOSECONDS", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub pause: Option<u64>,
}

/// The arguments that `bw` and `rma` share.
#[derive(clap::Args, Clone, Debug)]
pub struct Windowed {
    /// The common arguments.
    #[command(flatten)]
    pub arguments: TransferArguments,

    /// Transfers in flight at a time
    #[arg(long, value_name = "COUNT", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub window: u64,
}

/// The arguments of `rma`.
#[derive(clap::Args, Clone, Debug)]
pub struct Remote {
    /// The common arguments.
    #[command(flatten)]
    pub windowed: Windowed,

    /// Read remote memory instead of writing it
    #[arg(long)]
    pub read: bool,

    /// Both ranks access each other's memory at the same time; the time is the first's
    #[arg(long)]
    pub both_ways: bool,

    /// End of the timed interval of writes
    #[arg(long, value_name = "WHEN", default_value = "arrived", conflicts_with = "read")]
    pub until: Until,
}

/// Names of the fields of a request.
pub(in crate::command) const NAMES: Names = Names(|field| {
    let field = match field {
        "test" => return "the test".to_owned(),
        "pairs" => "all_pairs",
        "step" => "factor",
        field => field,
    };
    let command = clap::Command::new("pairs");
    name_option(&PingPong::augment_args(Remote::augment_args(command)), field)
});

/// The command line, and the request that follows from it.
#[derive(Debug)]
pub(in super::super) struct Asked<'a> {
    pub(super) arguments: &'a TransferArguments,
    pub(super) request: PairRequest,
}

impl TransferArguments {
    /// The request for a test, without the pairs, which depend on the number of ranks.
    fn make_request(&self, test: Test, command: &[String]) -> PairRequest {
        PairRequest {
            program: format!("nccl-bench {}", crate::build::VERSION),
            command: command.to_owned(),
            names: NAMES,
            reports: self.connect.is_some(),
            provider: self.provider.clone(),
            min_bytes: self.min_bytes.0,
            max_bytes: self.max_bytes.0,
            step: SizeStep::Factor(self.factor),
            transfers: self.transfers,
            rounds: self.rounds,
            warm_up: self.warm_up,
            check: self.check > 0,
            inject: self.inject == Inject::Auto,
            memory: self.memory,
            completion: self.completion,
            endpoints: self.endpoints.map_or(self.domains.len().max(1), |count| count as usize),
            shared_domain: self.shared_domain,
            domains: self.domains.clone(),
            source: self.source.clone(),
            timeout: Duration::from_secs(self.timeout),
            ..PairRequest::new(test)
        }
    }
}

impl<'a> Asked<'a> {
    pub(in super::super) fn from_pingpong(
        PingPong { arguments, messages }: &'a PingPong,
        command: &[String],
    ) -> Self {
        let request = arguments.make_request(Test::PingPong, command);
        Self { arguments, request: PairRequest { messages: *messages, ..request } }
    }

    pub(in super::super) fn from_bandwidth(asked: &'a Bandwidth, command: &[String]) -> Self {
        let Bandwidth { windowed: Windowed { arguments, window }, messages, pause } = asked;
        let polls = arguments.completion == Completion::Poll;
        let usual = if polls && *window > 1 { PairRequest::PAUSE } else { Duration::ZERO };
        let (window, pause) = (*window as usize, pause.map_or(usual, Duration::from_nanos));
        let request = arguments.make_request(Test::Bandwidth, command);
        Self { arguments, request: PairRequest { window, pause, messages: *messages, ..request } }
    }

    pub(in super::super) fn from_remote(asked: &'a Remote, command: &[String]) -> Self {
        let &Remote { windowed: Windowed { ref arguments, window }, read, both_ways, until } = asked;
        let test = if read { Test::Read } else { Test::Write };
        let (window, request) = (window as usize, arguments.make_request(test, command));
        Self { arguments, request: PairRequest { window, both_ways, until, ..request } }
    }

    /// Refuses arguments that exclude each other.
    ///
    /// # Errors
    /// [`Stop::Refused`] with the reason.
    pub(super) fn check_arguments(&self) -> Result<(), Stop> {
        let Self { arguments, request } = self;
        let domains = arguments.domains.len();
        let problem = if arguments.min_bytes > arguments.max_bytes {
            format!("-b {} is more than -e {}", arguments.min_bytes, arguments.max_bytes)
        } else if request.endpoints < domains {
            let endpoints = request.endpoints;
            format!(
                "--endpoints {endpoints} is less than the {domains} domains of --domains: each domain needs \
                 an endpoint"
            )
        } else if request.shared_domain && request.test.is_remote() {
            "--shared-domain is for pingpong and bw: libfabric looks up the regions of a domain without a \
             lock, so rma needs a domain for each endpoint"
                .to_owned()
        } else if request.completion == Completion::Block && !request.pause.is_zero() {
            "--pause is for --completion poll: with block, the rank does not poll".to_owned()
        } else {
            return Ok(());
        };
        Err(Stop::Refused(problem))
    }
}
