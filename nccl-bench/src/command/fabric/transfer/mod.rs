//! `nccl-bench fabric pingpong`, `bw` and `rma`: what libfabric's endpoints do between two ranks.
//!
//! `meeting` brings the ranks together, `waiting` reports a rank that is missing, `endpoints` opens endpoints
//! on all of them, `memory` is where data is, `measure` is what each side of a pair does, `together` several
//! pairs at once, `report` what becomes of it. Ranks meet over TCP: as a launcher says, or one listens and
//! the other connects.

mod arguments;
mod endpoints;
mod measure;
mod meeting;
mod memory;
mod report;
mod together;
mod waiting;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use collectives::fabric::Library;
use collectives::fabric::rdm::{Endpoint, Region, RemoteRegion};
use collectives::world;
use serde::{Deserialize, Serialize};

pub use arguments::{
    Arguments, Bandwidth, Completion, Inject, Memory, Messages, PingPong, Remote, Until, Windowed,
};

use crate::mpi_exec::Meeting;
use diagnosis::host::available_memory;
use endpoints::Endpoints;
use engine::agreement::ANOTHER_COMMAND;
use engine::request::{Size, Step, Sweep};
use engine::supervision::Salvage;
use engine::supervision::{Interrupt, Signal};
use engine::supervision::{Stop, Verdict, await_cause};
use measure::Side;
use memory::{Device, Gpu};
use record::provenance;
use report::{Document, Pair, Row, SCHEMA_VERSION};
use together::Buffers;

/// Bytes that a size moves in all its rounds unless told otherwise, within these numbers of transfers: but a window is filled
/// by up to as many bytes in each round.
const BYTES: u64 = 256 << 20;
const LEAST_TRANSFERS: u64 = 2;
const MOST_TRANSFERS: u64 = 1000;

/// Nanoseconds that ranks leave the library alone between two looks when several messages are in flight: over `shm` short
/// messages were measured to take two thirds of the time then.
const PAUSE: u64 = 2000;

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

/// What is measured, and how.
#[derive(Clone, Copy, Debug)]
struct Kind {
    test: Test,
    /// Transfers in flight at a time.
    window: usize,
    /// Whether messages have no tags.
    plain: bool,
    /// Whether both ranks access the other's memory.
    both_ways: bool,
    /// Whether the clock of writing stops before the other rank has answered.
    completed: bool,
    /// How long ranks that wait leave the library alone.
    pause: Duration,
}

impl Kind {
    fn of(test: Test, window: u64) -> Self {
        Self {
            test,
            window: window as usize,
            plain: false,
            both_ways: false,
            completed: false,
            pause: Duration::ZERO,
        }
    }
}

/// A latency of messages.
///
/// # Errors
/// When ranks do not meet, the provider cannot be used, or an operation fails; as all in here.
pub fn pingpong(
    asked: &PingPong,
    out: &mut dyn Write,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
) -> Result<Verdict, Stop> {
    let plain = asked.messages == Messages::Plain;
    run(Kind { plain, ..Kind::of(Test::PingPong, 1) }, &asked.arguments, out, join)
}

/// A bandwidth of messages.
///
/// # Errors
/// As [`pingpong`].
pub fn bandwidth(
    asked: &Bandwidth,
    out: &mut dyn Write,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
) -> Result<Verdict, Stop> {
    let plain = asked.messages == Messages::Plain;
    let window = asked.windowed.window;
    let pause = asked.pause.unwrap_or(if window > 1 { PAUSE } else { 0 });
    let kind = Kind { plain, pause: Duration::from_nanos(pause), ..Kind::of(Test::Bandwidth, window) };
    run(kind, &asked.windowed.arguments, out, join)
}

/// Reading or writing remote memory.
///
/// # Errors
/// As [`pingpong`].
pub fn remote(
    asked: &Remote,
    out: &mut dyn Write,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
) -> Result<Verdict, Stop> {
    let test = if asked.read { Test::Read } else { Test::Write };
    let completed = asked.until == Until::Completed;
    let kind = Kind { both_ways: asked.both_ways, completed, ..Kind::of(test, asked.windowed.window) };
    run(kind, &asked.windowed.arguments, out, join)
}

/// What each rank says after a size.
#[derive(Serialize, Deserialize)]
struct Told {
    /// What the first of the pair has measured.
    row: Option<Row>,
    /// Whether a signal asks the rank to stop.
    stops: bool,
}

/// How it ended.
fn run(
    kind: Kind,
    arguments: &Arguments,
    out: &mut dyn Write,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
) -> Result<Verdict, Stop> {
    let (min, max) = (arguments.min_bytes.0, arguments.max_bytes.0);
    if min > max {
        return Err(Stop::Refused(format!(
            "-b {} is more than -e {}",
            arguments.min_bytes, arguments.max_bytes
        )));
    }
    let count = endpoints::count(arguments)?;
    // Before anything that starts threads or loads libraries: libfabric's providers install handlers of their own.
    let interrupt = Interrupt::install(Salvage::default())?;
    let library = Library::load().map_err(|error| Stop::Refused(error.to_string()))?;
    let world = meeting::meet(arguments, join)?;
    interrupt.joined(&world);
    let ended = measure(kind, arguments, (library, count), out, &world, &interrupt);
    interrupt.done();
    match ended {
        // Others wait for this rank, perhaps through MPI, which has no end to that.
        Err(Stop::Failed(error)) => {
            await_cause(&error, &*world);
            let text = format!("nccl-bench: {error:#}");
            world.abort(i32::from(Stop::Failed(error).code()), &text)
        }
        ended => ended,
    }
}

/// What all ranks do once they have met.
fn measure(
    kind: Kind,
    arguments: &Arguments,
    (library, count): (&Library, usize),
    out: &mut dyn Write,
    world: &world::Handle,
    interrupt: &Interrupt,
) -> Result<Verdict, Stop> {
    if world.size() < 2 {
        return Err(Stop::Refused("it takes two ranks, and this is the only one".to_owned()));
    }
    let ranks: Vec<meeting::Rank> = endpoints::gathered(world, &meeting::Rank::new(kind, arguments, count))
        .map_err(|stop| match stop {
        Stop::Failed(error) if error.is::<serde_json::Error>() => {
            Stop::Refused(format!("the other rank {ANOTHER_COMMAND}"))
        }
        other => other,
    })?;
    if let Some(difference) = meeting::difference(&ranks) {
        return Err(Stop::Refused(difference));
    }
    endpoints::on_all_ranks(room(kind, arguments, count, world, &ranks), world)?;
    let size = usize::try_from(arguments.max_bytes.0)?;
    // Dropped after the endpoints that it is registered with.
    let gpus;
    let mut endpoints = Endpoints::open(kind, arguments, count, world, &ranks)?;
    gpus = endpoints::on_all_ranks(gpu_memory(arguments, world, count, size), world)?;
    let devices = endpoints::on_all_ranks(registered(&gpus, &mut endpoints.all), world)?;
    let longest_inject = endpoints.all.iter().map(Endpoint::longest_inject).min();
    let injecting = arguments.inject == Inject::Auto && arguments.memory == Memory::Host;
    let inject = longest_inject.filter(|_| injecting);
    let out = &mut Output { out, interrupt };
    let mut document = document(kind, arguments, library, &endpoints, inject);
    // Rank 0 prints. With --listen and --connect, both sides do, each on its own terminal.
    let prints = world.rank() == 0 || arguments.connect.is_some();
    let printing = prints && !arguments.json;
    if printing {
        write!(out, "# {}\n# {}; {}\n", document.program, document.summary(), document.library)?;
    }
    let on_host = if arguments.memory == Memory::Host { size } else { 0 };
    let buffers = (0..count).map(|_| Buffers::new(on_host)).collect();
    let printed: &mut dyn Write = if printing { &mut *out } else { &mut io::sink() };
    let mut job = Job {
        kind,
        arguments,
        inject,
        world,
        ranks: &ranks,
        interrupt,
        endpoints,
        devices,
        buffers,
        regions: Vec::new(),
        printed,
    };
    let starts = if arguments.all_pairs { world.size() - 1 } else { 1 };
    let pairs = (0..starts).flat_map(|one| (one + 1..world.size()).map(move |other| [one, other]));
    for pair in pairs {
        let (pair, stopped) = job.pair(pair)?;
        document.pairs.push(pair);
        if stopped {
            break;
        }
    }
    if prints && arguments.json {
        serde_json::to_writer_pretty(&mut *out, &document).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    // A rank that left while others still needed it would be taken for dead.
    let stopped = signal(world, interrupt)?;
    let mut rows = document.pairs.iter().flat_map(|pair| &pair.rows);
    Ok(match stopped {
        Some(signal) => Verdict::Stopped(signal),
        None if rows.all(|row| row.wrong.unwrap_or(0) == 0) => Verdict::Good,
        None => Verdict::Wrong,
    })
}

/// The signal that asks any rank to stop. All ranks take part.
fn signal(world: &world::Handle, interrupt: &Interrupt) -> Result<Option<Signal>, Stop> {
    let own = interrupt.requested().map_or(0, Signal::number);
    let all: Vec<i32> = endpoints::gathered(world, &own)?;
    Ok(all.into_iter().filter_map(Signal::from_number).max())
}

/// Standard output, whose reader may go: that ends the measurement on all ranks, as a signal does.
struct Output<'a> {
    out: &'a mut dyn Write,
    interrupt: &'a Interrupt,
}

impl Output<'_> {
    fn unless_gone<T>(&self, result: io::Result<T>, gone: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.interrupt.request(Signal::Pipe);
                Ok(gone)
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("writing to standard output: {error}"))),
            Ok(value) => Ok(value),
        }
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.out.write(bytes);
        self.unless_gone(result, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.unless_gone(result, ())
    }
}

/// What is told of a measurement before there is any pair.
fn document(
    kind: Kind,
    arguments: &Arguments,
    library: &Library,
    endpoints: &Endpoints,
    inject: Option<usize>,
) -> Document {
    let test = kind.test;
    let on_host = arguments.memory == Memory::Host;
    Document {
        schema_version: SCHEMA_VERSION,
        program: format!("nccl-bench {}", crate::build::VERSION),
        command: std::env::args().collect(),
        started_at: provenance::now_utc(),
        test: test.name(),
        library: format!("libfabric {} from {}", library.version(), library.path().display()),
        provider: endpoints.provider().to_owned(),
        messages: (!test.is_remote()).then_some(if kind.plain { "plain" } else { "tagged" }),
        window: (test != Test::PingPong).then_some(kind.window),
        both_ways: test == Test::PingPong || kind.both_ways,
        pause_ns: kind.pause.as_nanos() as u64,
        until: test.is_remote().then_some(if kind.completed { "completed" } else { "arrived" }),
        inject: inject.filter(|_| test != Test::Read),
        memory: if on_host { "host" } else { "cuda" },
        direct: (!on_host).then(|| endpoints.all.iter().all(Endpoint::is_direct)),
        completion: if arguments.completion == Completion::Block { "block" } else { "poll" },
        endpoints: endpoints.all.len(),
        shared_domain: arguments.shared_domain,
        pairs: Vec::new(),
    }
}

/// What this rank measures with.
struct Job<'a> {
    kind: Kind,
    arguments: &'a Arguments,
    /// Up to how many bytes are injected, if any.
    inject: Option<usize>,
    world: &'a world::Handle,
    ranks: &'a [meeting::Rank],
    interrupt: &'a Interrupt,
    endpoints: Endpoints,
    devices: Vec<Device>,
    buffers: Vec<Buffers>,
    /// What is accessed in the host's memory, by endpoint, once anything is.
    regions: Vec<Region>,
    /// The table.
    printed: &'a mut dyn Write,
}

impl Job<'_> {
    /// All sizes between two ranks, in which all take part; or those until a signal came to any, and whether it did.
    fn pair(&mut self, [one, other]: [usize; 2]) -> Result<(Pair, bool), Stop> {
        let Self { kind, arguments, inject, world, ranks, endpoints, devices, regions, .. } = self;
        let Kind { test, both_ways, .. } = *kind;
        let count = endpoints.all.len();
        let mut pair = Pair {
            ranks: [one, other],
            hosts: [one, other].map(|rank| ranks[rank].host.clone()),
            addresses: [one, other].map(|rank| endpoints.texts[rank].clone()),
            domains: [one, other].map(|rank| endpoints.domains[rank].clone()),
            rows: Vec::new(),
        };
        self.printed.write_all(report::head(&pair).as_bytes())?;
        let size = usize::try_from(arguments.max_bytes.0)?;
        let rank = world.rank();
        let accessed = test.is_remote() && (rank == other || both_ways && rank == one);
        if accessed && devices.is_empty() && regions.is_empty() {
            let all = endpoints.all.iter_mut().map(|endpoint| endpoint.region(size));
            *regions = all.collect::<Result<_, _>>()?;
        }
        let on_host = regions.iter().filter(|_| accessed);
        let on_device = devices.iter().filter(|_| accessed).map(|device| device.memory.remote());
        let described = on_host.map(Region::remote).chain(on_device);
        let described: Vec<u8> = described.flat_map(RemoteRegion::to_bytes).collect();
        let described = world.all_gather(&described)?;
        let peer = if rank == one { other } else { one };
        let mut sides = Vec::new();
        if rank == one || rank == other {
            let (theirs, _) = described[peer].as_chunks::<{ RemoteRegion::BYTES }>();
            let pairs = endpoints.all.iter_mut().zip(&endpoints.addresses[peer]);
            for (index, (endpoint, address)) in pairs.enumerate() {
                sides.push(Side {
                    peer: endpoint.insert(address)?,
                    endpoint,
                    first: rank == one,
                    kind: *kind,
                    inject: *inject,
                    remote: theirs.get(index).copied().map(RemoteRegion::from_bytes),
                    accessed,
                    region: regions.get(index).filter(|_| accessed),
                    device: devices.get(index).cloned(),
                });
            }
        }
        let sweep = Sweep {
            min: arguments.min_bytes.0,
            max: arguments.max_bytes.0,
            step: Step::Factor(arguments.factor),
        };
        let mut stopped = false;
        for bytes in sweep.sizes() {
            let row = together::measure(&mut sides, &mut self.buffers, arguments, bytes)?;
            let told = Told { row: row.filter(|_| rank == one), stops: self.interrupt.requested().is_some() };
            let mut told: Vec<Told> = endpoints::gathered(world, &told)?;
            stopped = told.iter().any(|told| told.stops);
            if let Some(row) = told.swap_remove(one).row {
                self.printed.write_all(row.line(count).as_bytes())?;
                self.printed.flush()?;
                pair.rows.push(row);
            }
            if stopped {
                break;
            }
        }
        sides.iter_mut().try_for_each(Side::end)?;
        Ok((pair, stopped))
    }
}

/// Refuses what the host's memory has no room for, which the system would end the process for.
fn room(
    kind: Kind,
    arguments: &Arguments,
    count: usize,
    world: &world::Handle,
    ranks: &[meeting::Rank],
) -> Result<(), Stop> {
    let here = ranks.iter().filter(|rank| rank.host_id == ranks[world.rank()].host_id).count() as u64;
    let room = available_memory()? / here;
    let buffers = if arguments.memory == Memory::Host { 2 } else { 0 };
    let verifying = if arguments.check > 0 { 2 } else { 0 };
    let region = u64::from(kind.test.is_remote() && arguments.memory == Memory::Host);
    let parts = (buffers + verifying + region) * count as u64;
    if arguments.max_bytes.0.saturating_mul(parts) <= room {
        return Ok(());
    }
    let most = Size(room / parts);
    Err(Stop::Refused(format!(
        "size {} does not fit: the memory of {} has room for transfers of {most} at most (-e), {count} at a time \
         (--endpoints)",
        arguments.max_bytes,
        ranks[world.rank()].host
    )))
}

/// Memory of GPUs for so many endpoints, if data is there.
fn gpu_memory(
    arguments: &Arguments,
    world: &world::Handle,
    count: usize,
    size: usize,
) -> Result<Vec<Arc<Gpu>>, Stop> {
    let Memory::Cuda(number) = arguments.memory else { return Ok(Vec::new()) };
    let gpus = Gpu::count()?;
    let number = number.unwrap_or_else(|| world.local_rank());
    if number >= gpus {
        return Err(Stop::Refused(format!("--memory cuda: there is no GPU {number}, but {gpus} from 0 on")));
    }
    (0..count).map(|_| Gpu::new(number, size).map(Arc::new)).collect()
}

/// That memory, as the endpoints use it.
fn registered(gpus: &[Arc<Gpu>], endpoints: &mut [Endpoint]) -> Result<Vec<Device>, Stop> {
    let registered = gpus.iter().zip(endpoints).map(|(gpu, endpoint)| {
        // SAFETY: `run` drops the endpoints first.
        let memory = unsafe { gpu.register(endpoint) }.map_err(endpoints::stop)?;
        Ok(Device { gpu: Arc::clone(gpu), memory })
    });
    registered.collect()
}
