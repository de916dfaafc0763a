//! `nccl-bench fabric pingpong`, `bw` and `rma`: transfers between libfabric's endpoints of two ranks.
//!
//! The ranks join over TCP in `rendezvous`, and `job` opens their endpoints and measures each pair: `memory`
//! is the source and destination of a transfer, `measure` one side of a pair, `parallel` runs several
//! endpoints at the same time, `report` prints.

mod arguments;
mod exchange;
mod job;
mod measure;
mod memory;
mod options;
mod parallel;
mod rendezvous;
mod report;
mod wait_notice;

use std::io::{self, Write};

use collectives::fabric::Library;
use collectives::world;

pub use arguments::{
    Arguments, Bandwidth, Completion, Inject, Memory, Messages, PingPong, Remote, Until, Windowed,
};

use crate::mpi_exec::JoinRequest;
use diagnosis::host::available_memory;
use engine::process::Process;
use engine::request::Size;
use engine::supervision::{Interrupt, Signal, Stop, Verdict};
use job::Job;
pub(super) use options::TestOptions;
use rendezvous::RankInfo;

/// Runs a test, prints to `out`, and aborts the world where it fails. `join` joins the world through MPI.
///
/// # Errors
/// When the ranks cannot join, the provider cannot be used, or an operation fails.
pub(super) fn run(
    options: TestOptions<'_>,
    out: &mut dyn Write,
    join: impl FnOnce(&JoinRequest) -> Result<world::Handle, Stop>,
) -> Result<Verdict, Stop> {
    let TestOptions { arguments, endpoints, .. } = options;
    if arguments.min_bytes.0 > arguments.max_bytes.0 {
        return Err(Stop::Refused(format!(
            "-b {} is more than -e {}",
            arguments.min_bytes, arguments.max_bytes
        )));
    }
    let domains = arguments.domains.len();
    if endpoints < domains {
        return Err(Stop::Refused(format!(
            "--endpoints {endpoints} are fewer than the {domains} of --domains: each domain needs one"
        )));
    }
    if arguments.shared_domain && options.test.is_remote() {
        return Err(Stop::Refused(
            "--shared-domain is for pingpong and bw: libfabric looks up the regions of a domain without a \
             lock, so that rma needs a domain for each endpoint"
                .to_owned(),
        ));
    }
    if arguments.completion == Completion::Block && !options.pause.is_zero() {
        return Err(Stop::Refused(
            "--pause is for --completion poll: with block the rank does not poll".to_owned(),
        ));
    }
    let process = Process::start()?;
    let library = Library::load().map_err(|error| Stop::Refused(error.to_string()))?;
    // Before this side waits for the other. Ranks of a launcher are all here, and tell each other.
    if arguments.listen.is_some() || arguments.connect.is_some() {
        job::check(options).map_err(job::stop)?;
    }
    let process = process.join(rendezvous::join(arguments, join)?);
    let ended = measure(options, library, out, process.world(), process.interrupt());
    process.interrupt().done();
    match ended {
        // Other ranks wait for this one, perhaps in MPI, which has no timeout.
        Err(Stop::Failed(error)) => process.fail(&error, Stop::code_of(&error)),
        ended => ended,
    }
}

/// Measures all pairs of the world's ranks.
fn measure(
    options: TestOptions<'_>,
    library: &Library,
    out: &mut dyn Write,
    world: &world::Handle,
    interrupt: &Interrupt,
) -> Result<Verdict, Stop> {
    if world.size() < 2 {
        return Err(Stop::Refused("this test needs two ranks; only one was started".to_owned()));
    }
    let arguments = options.arguments;
    let ranks = rendezvous::agree(world, &RankInfo::new(options))?;
    exchange::on_all_ranks(check_memory(options, world, &ranks), world)?;
    let mut job = Job::open(options, world, &ranks, interrupt)?;
    let mut document = job.document(library);
    let out = &mut Output { out, interrupt };
    // Rank 0 prints. With --listen and --connect, both sides do, each on its own terminal.
    let prints = world.rank() == 0 || arguments.connect.is_some();
    let prints_table = prints && !arguments.json;
    if prints_table {
        write!(out, "# {}\n# {}; {}\n", document.program, document.summary(), document.library)?;
    }
    let table: &mut dyn Write = if prints_table { &mut *out } else { &mut io::sink() };
    let starts = if arguments.all_pairs { world.size() - 1 } else { 1 };
    let pairs = (0..starts).flat_map(|one| (one + 1..world.size()).map(move |other| [one, other]));
    for pair in pairs {
        let (pair, stopped) = job.pair(pair, table)?;
        document.pairs.push(pair);
        if stopped {
            break;
        }
    }
    if prints && arguments.json {
        serde_json::to_writer_pretty(&mut *out, &document).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    // Waits for all ranks: one that left early would be taken for dead.
    let stopped = interrupt.requested_by_any(&**world)?;
    let mut rows = document.pairs.iter().flat_map(|pair| &pair.rows);
    Ok(match stopped {
        Some(signal) => Verdict::Stopped(signal),
        None if rows.all(|row| row.wrong.unwrap_or(0) == 0) => Verdict::Good,
        None => Verdict::Wrong,
    })
}

/// Refuses sizes that do not fit into the host's memory: the system would kill the process.
fn check_memory(options: TestOptions<'_>, world: &world::Handle, ranks: &[RankInfo]) -> Result<(), Stop> {
    let TestOptions { arguments, endpoints: count, .. } = options;
    let here = ranks.iter().filter(|rank| rank.host_id == ranks[world.rank()].host_id).count() as u64;
    let available = available_memory()? / here;
    let buffers = if arguments.memory == Memory::Host { 2 } else { 0 };
    let verifying = if arguments.check > 0 { 2 } else { 0 };
    let region = u64::from(options.test.is_remote() && arguments.memory == Memory::Host);
    let parts = (buffers + verifying + region) * count as u64;
    if arguments.max_bytes.0.saturating_mul(parts) <= available {
        return Ok(());
    }
    let most = Size(available / parts);
    Err(Stop::Refused(format!(
        "size {} does not fit: the memory of {} has room for transfers of {most} at most (-e), {count} at a \
         time (--endpoints)",
        arguments.max_bytes,
        ranks[world.rank()].host
    )))
}

/// Standard output. A closed pipe ends the measurement on all ranks, as a signal does.
struct Output<'a> {
    out: &'a mut dyn Write,
    interrupt: &'a Interrupt,
}

impl Output<'_> {
    fn unless_closed<T>(&self, result: io::Result<T>, closed: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.interrupt.request(Signal::SIGPIPE);
                Ok(closed)
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("writing to standard output: {error}"))),
            Ok(value) => Ok(value),
        }
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.out.write(bytes);
        self.unless_closed(result, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.unless_closed(result, ())
    }
}
