//! `nccl-bench fabric pingpong`, `bw` and `rma`: what libfabric's endpoints do between two ranks.
//!
//! `measure` is what each side does, `report` what becomes of it. Ranks meet over TCP: as a launcher says, or one listens and
//! the other connects.

mod measure;
mod report;

use std::cell::Cell;
use std::io::{self, Write};
use std::time::Duration;

use collectives::fabric::rdm::{self, Endpoint, RemoteRegion};
use collectives::fabric::{self, Library};
use collectives::world::{self, Launcher, Place, Started};

use crate::files::provenance;
use crate::size::{Size, Step, Sweep};
use crate::stop::Stop;
use measure::Side;
use report::{Document, Pair, Row, SCHEMA_VERSION};

/// Bytes that a size moves in all its rounds unless told otherwise, within these numbers of transfers.
const BYTES: u64 = 256 << 20;
const LEAST_TRANSFERS: u64 = 2;
const MOST_TRANSFERS: u64 = 1000;

/// Bytes of a large page.
const LARGE_PAGE: usize = 2 << 20;

const EXAMPLES: &str = "\
Two ways to meet:
  mpirun -np 2 nccl-bench fabric pingpong              as a launcher says: mpirun, srun, torchrun, NCCL_BENCH_RANK, ...
  nccl-bench fabric pingpong --listen 10.0.0.1:7000    one here,
  nccl-bench fabric pingpong --connect 10.0.0.1:7000   and one there

With more than two ranks, rank 0 measures with each of the others, one after the other; --all-pairs all with all.

  nccl-bench fabric bw -p shm -e 16M                   64 messages in flight
  nccl-bench fabric rma --read --window 1              the latency of reading remote memory
  nccl-bench fabric rma --both-ways                    each of two ranks writes to the other, as fabtests' fi_rma_bw does

The time is that of one transfer: half of a round trip (pingpong), or a round's divided by its transfers, of writing until the
other rank has answered. Each size is verified before it is measured (-c 0: not).

Messages and writes up to a length that the provider says are injected: copied by the call that hands them over, without a
completion of their own (--inject never: not).

Exit codes: 0 good; 1 failed; 2 bad arguments, or something is missing; 4 not met in time; 7 wrong data.";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// A message there and back.
    PingPong,
    /// Messages one way.
    Bandwidth,
    /// Writing remote memory.
    Write,
    /// Reading it.
    Read,
}

impl Test {
    const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "pingpong",
            Self::Bandwidth => "bw",
            Self::Write => "rma write",
            Self::Read => "rma read",
        }
    }

    const fn is_remote(self) -> bool {
        matches!(self, Self::Write | Self::Read)
    }
}

/// How endpoints are measured.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The provider: tcp, shm, efa, 'verbs;ofi_rxm'; see `nccl-bench fabric info -t rdm`
    #[arg(short = 'p', long, value_name = "PROVIDER", default_value = "tcp")]
    pub provider: String,

    /// Smallest size
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8")]
    pub min_bytes: Size,

    /// Largest size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "16M")]
    pub max_bytes: Size,

    /// From one size to the next: a factor
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value = "2", value_parser = clap::value_parser!(u64).range(2..))]
    pub factor: u64,

    /// Transfers in each round [default: up to 1000, and 256 MiB in all rounds]
    #[arg(short = 'n', long = "iters", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub transfers: Option<u64>,

    /// How many times each size is measured, for the table's least and most
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rounds: u64,

    /// Untimed rounds before
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 1)]
    pub warm_up: usize,

    /// Verify each size: 0 or 1
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub check: u8,

    /// Whether short messages and writes are injected
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub inject: Inject,

    /// The local address to bind to [default: the provider's choice; 127.0.0.1 when all ranks are on one host]
    #[arg(long, value_name = "ADDRESS")]
    pub source: Option<String>,

    /// Seconds until a rank that does nothing ends the measurement
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,

    /// Measure all pairs of ranks, not only those with rank 0
    #[arg(long)]
    pub all_pairs: bool,

    /// Wait here for the other rank
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    pub listen: Option<String>,

    /// Meet the rank that listens there
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,

    /// JSON instead of a table (docs/results.md)
    #[arg(long)]
    pub json: bool,
}

/// Whether short messages are handed over without a completion.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// As long as the provider takes them so
    Auto,
    /// Each has a completion of its own
    Never,
}

/// Of `bw`.
#[derive(clap::Args, Clone, Debug)]
pub struct Windowed {
    /// What is the same for all measurements.
    #[command(flatten)]
    pub arguments: Arguments,

    /// Transfers in flight at a time
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub window: u64,
}

/// Of `rma`.
#[derive(clap::Args, Clone, Debug)]
pub struct Remote {
    /// What is the same for all measurements.
    #[command(flatten)]
    pub windowed: Windowed,

    /// Read remote memory instead of writing it
    #[arg(long)]
    pub read: bool,

    /// Both ranks access each other's memory at the same time; the time is the first's
    #[arg(long)]
    pub both_ways: bool,
}

/// What is measured, and how.
#[derive(Clone, Copy)]
struct Kind {
    test: Test,
    window: usize,
    both_ways: bool,
}

/// A latency of messages.
///
/// # Errors
/// When ranks do not meet, the provider cannot be used, or an operation fails; as all in here.
pub fn pingpong(arguments: &Arguments, out: &mut dyn Write) -> Result<bool, Stop> {
    run(Kind { test: Test::PingPong, window: 1, both_ways: false }, arguments, out)
}

/// A bandwidth of messages.
///
/// # Errors
/// As [`pingpong`].
pub fn bandwidth(windowed: &Windowed, out: &mut dyn Write) -> Result<bool, Stop> {
    let kind = Kind { test: Test::Bandwidth, window: windowed.window as usize, both_ways: false };
    run(kind, &windowed.arguments, out)
}

/// Reading or writing remote memory.
///
/// # Errors
/// As [`pingpong`].
pub fn remote(remote: &Remote, out: &mut dyn Write) -> Result<bool, Stop> {
    let test = if remote.read { Test::Read } else { Test::Write };
    let kind = Kind { test, window: remote.windowed.window as usize, both_ways: remote.both_ways };
    run(kind, &remote.windowed.arguments, out)
}

/// Where this rank meets the others.
fn meet(arguments: &Arguments) -> Result<world::Handle, Stop> {
    let timeout = Duration::from_secs(arguments.timeout);
    let mut options = world::Options::default();
    options.kind = world::Kind::Tcp;
    options.timeout = timeout;
    let options = options.or_environment().map_err(crate::handover::stop)?;
    let place = match (&arguments.listen, &arguments.connect) {
        (Some(address), _) => Place::new(0, 2, address),
        (_, Some(address)) => Place::new(1, 2, address),
        _ if Started::detect().launcher == Launcher::None => {
            return Err(Stop::Refused(
                "it takes two: start this by a launcher (mpirun -np 2 nccl-bench fabric ...), or give --listen HOST:PORT to \
                 one and --connect HOST:PORT to the other"
                    .to_owned(),
            ));
        }
        _ => Place::from_environment(),
    };
    let met = place.and_then(|place| world::tcp(place, &options));
    met.map_err(crate::handover::stop)
}

/// Whether all that was verified was right.
fn run(kind: Kind, arguments: &Arguments, out: &mut dyn Write) -> Result<bool, Stop> {
    let Kind { test, window, both_ways } = kind;
    let (min, max) = (arguments.min_bytes.0, arguments.max_bytes.0);
    if min > max {
        return Err(Stop::Refused(format!(
            "-b {} is more than -e {}",
            arguments.min_bytes, arguments.max_bytes
        )));
    }
    let library = Library::load().map_err(|error| Stop::Refused(error.to_string()))?;
    let started_at = provenance::now_utc();
    let world = meet(arguments)?;
    if world.size() < 2 {
        return Err(Stop::Refused("it takes two ranks, and this is the only one".to_owned()));
    }
    let hosts = world.all_gather(serde_json::to_string(&own_host())?.as_bytes())?;
    let hosts: Vec<(String, String)> =
        hosts.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?;
    let one_host = hosts.iter().all(|(_, id)| *id == hosts[0].1);
    let loopback = one_host && matches!(arguments.provider.as_str(), "tcp" | "net");
    let mut options = rdm::Options::new(&arguments.provider);
    options.source = arguments.source.clone().or_else(|| loopback.then(|| "127.0.0.1".to_owned()));
    options.remote_memory = test.is_remote();
    options.peers = world.size();
    options.timeout = Some(Duration::from_secs(arguments.timeout));
    options.world = Some(world.clone());
    let mut endpoint = open(&options, &world)?;
    let inject = Some(endpoint.longest_inject()).filter(|_| arguments.inject == Inject::Auto);
    let addresses = world.all_gather(endpoint.address())?;
    let texts = world.all_gather(endpoint.address_text().as_bytes())?;
    let text = |rank: usize| String::from_utf8_lossy(&texts[rank]).into_owned();

    let mut document = Document {
        schema_version: SCHEMA_VERSION,
        program: format!("nccl-bench {}", collectives::build::VERSION),
        command: std::env::args().collect(),
        started_at,
        test: test.name(),
        library: format!("libfabric {} from {}", library.version(), library.path().display()),
        provider: endpoint.provider().to_owned(),
        window: (test != Test::PingPong).then_some(window),
        both_ways: test == Test::PingPong || both_ways,
        inject: inject.filter(|_| test != Test::Read),
        pairs: Vec::new(),
    };
    let printing = world.rank() == 0 && !arguments.json;
    if printing {
        write!(
            out,
            "# {}\n# {} over {}{}{}{}; {}\n",
            document.program,
            test.name(),
            document.provider,
            document.window.map_or_else(String::new, |window| format!(", window {window}")),
            if both_ways { ", both ways" } else { "" },
            document.inject.map_or_else(String::new, |longest| format!(", injected up to {longest} bytes")),
            document.library
        )
        .map_err(written)?;
    }
    let sweep = Sweep { min, max, step: Step::Factor(arguments.factor) };
    let size = usize::try_from(max)?;
    let (mut data, mut place) = (vec![1_u8; size + LARGE_PAGE], vec![0_u8; size + LARGE_PAGE]);
    let (data, place) = (&*at_page(&mut data, size), at_page(&mut place, size));
    let place = Cell::from_mut(place).as_slice_of_cells();
    let starts = if arguments.all_pairs { world.size() - 1 } else { 1 };
    let mut good = true;
    for one in 0..starts {
        for other in one + 1..world.size() {
            let mut pair = Pair {
                ranks: [one, other],
                hosts: [one, other].map(|rank| hosts[rank].0.clone()),
                addresses: [one, other].map(text),
                rows: Vec::new(),
            };
            if printing {
                out.write_all(report::head(&pair).as_bytes()).map_err(written)?;
            }
            let rank = world.rank();
            let accessed = test.is_remote() && (rank == other || both_ways && rank == one);
            let region = if accessed { Some(endpoint.region(size)?) } else { None };
            let described = region.as_ref().map(|region| region.remote().to_bytes());
            let described = world.all_gather(described.as_ref().map_or(&[], |bytes| &bytes[..]))?;
            let theirs = if rank == one { other } else { one };
            let remote = <[u8; RemoteRegion::BYTES]>::try_from(&described[theirs][..]).ok();
            let mut side = match rank {
                _ if rank == one => Some((other, true)),
                _ if rank == other => Some((one, false)),
                _ => None,
            }
            .map(|(peer, first)| endpoint.insert(&addresses[peer]).map(|peer| (peer, first)))
            .transpose()?
            .map(|(peer, first)| Side {
                endpoint: &mut endpoint,
                peer,
                first,
                test,
                window,
                inject,
                remote: remote.map(RemoteRegion::from_bytes),
                region: region.as_ref(),
            });
            for bytes in sweep.sizes() {
                let row = match &mut side {
                    Some(side) => Some(measured(side, arguments, bytes, data, place)?),
                    None => None,
                };
                let told = row.filter(|_| rank == one).map(|row| serde_json::to_vec(&row)).transpose()?;
                let told = world.all_gather(told.as_deref().unwrap_or_default())?;
                let row: Row = serde_json::from_slice(&told[one])?;
                good &= row.wrong.unwrap_or(0) == 0;
                if printing {
                    out.write_all(row.line().as_bytes()).and_then(|()| out.flush()).map_err(written)?;
                }
                pair.rows.push(row);
            }
            if let Some(side) = &mut side {
                side.end()?;
            }
            document.pairs.push(pair);
        }
    }
    if world.rank() == 0 && arguments.json {
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out).map_err(written)?;
    }
    // A rank that left while others still needed it would be taken for dead.
    world.barrier()?;
    Ok(good)
}

/// The part of the memory that begins with a page, if possible one of those that transparent huge pages make.
fn at_page(memory: &mut [u8], len: usize) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(LARGE_PAGE).min(memory.len() - len);
    &mut memory[start..start + len]
}

/// One size between two ranks, on both of them.
fn measured(
    side: &mut Side<'_>,
    arguments: &Arguments,
    bytes: u64,
    data: &[u8],
    place: &[Cell<u8>],
) -> Result<Row, Stop> {
    let size = usize::try_from(bytes)?;
    let wrong = if arguments.check > 0 { Some(side.verify(size)?) } else { None };
    let transfers = arguments
        .transfers
        .unwrap_or_else(|| (BYTES / bytes.max(1) / arguments.rounds).clamp(LEAST_TRANSFERS, MOST_TRANSFERS));
    let transfers = usize::try_from(transfers)?;
    let rounds = usize::try_from(arguments.rounds)?;
    let mut times = Vec::new();
    for round in 0..arguments.warm_up + rounds {
        let time = side.time(&data[..size], &place[..size], transfers)?;
        if round >= arguments.warm_up {
            times.push(time.as_secs_f64());
        }
    }
    // There and back are two transfers.
    let both_ways = if side.test == Test::PingPong { 2 } else { 1 };
    Ok(Row::new(bytes, transfers * both_ways, &times, wrong))
}

/// Opens the endpoint on all ranks or on none; the first problem is told by all.
fn open(options: &rdm::Options, world: &world::Handle) -> Result<Endpoint, Stop> {
    let opened = Endpoint::open(options);
    let problem = opened.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let problems = world.all_gather(problem.as_bytes())?;
    match problems.iter().position(|problem| !problem.is_empty()) {
        None => Ok(opened?),
        Some(rank) => {
            let problem = String::from_utf8_lossy(&problems[rank]);
            Err(match opened {
                Err(fabric::Error::Call(_)) => Stop::Failed(anyhow::anyhow!("rank {rank}: {problem}")),
                _ => Stop::Refused(format!("rank {rank}: {problem}")),
            })
        }
    }
}

fn own_host() -> (String, String) {
    let world::Host { name, id } = world::host();
    (name, id)
}

fn written(error: io::Error) -> Stop {
    Stop::Failed(error.into())
}
