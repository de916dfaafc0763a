//! The host backend's collectives next to those of the MPI library that the program runs under.
//!
//! ```text
//! mpirun -np 2 --mca pml ob1 --mca btl self,vader host_collectives --transport shm --output result.json
//! ```
//!
//! For every size both sides run in turn, for several rounds: a round is a batch of operations back to back
//! of one side, then a batch as long of the other. A batch's time is that of the slowest rank, divided by its
//! operations. Both sides' last results are verified. `measurements/tools/host_collectives.sh` runs it under
//! Open MPI and MPICH, on shared memory and on TCP, with the settings that make them use the same transport.
//!
//! With `--tune` every algorithm that serves the collective takes part, with several segments: the rules of
//! the host backend come from these measurements.

#[path = "../../benches/build/mod.rs"]
mod build;

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use collectives::fabric::{Algorithm, Collective, Communicator, Options};
use collectives::{ReduceOp, world};
use mpi::collective::{CommunicatorCollectives, Root, SystemOperation};
use mpi::topology::{Communicator as _, SimpleCommunicator};
use serde_json::{Value, json};

/// The measured collectives.
const MEASURED: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
];

type Failure = Box<dyn std::error::Error>;

/// Compares the host backend's collectives with those of the MPI library, interleaved.
#[derive(Debug, Parser)]
struct Arguments {
    /// Transport of the host backend: a libfabric provider, as shm or tcp.
    #[arg(long, default_value = "shm")]
    transport: String,
    /// Smallest message in bytes: the vector, or of all_gather one block.
    #[arg(long, default_value_t = 8)]
    min: usize,
    /// Largest message in bytes; of all_gather all blocks together.
    #[arg(long, default_value_t = 64 << 20)]
    max: usize,
    /// Each size is this many times the one before.
    #[arg(long, default_value_t = 4)]
    factor: usize,
    /// Rounds per size.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// About how long a batch takes, in milliseconds.
    #[arg(long, default_value_t = 4.0)]
    batch: f64,
    /// Run these collectives only, as all_reduce,broadcast.
    #[arg(long, value_delimiter = ',', default_values_t = MEASURED)]
    only: Vec<Collective>,
    /// Algorithm in place of the table's; the collective must be the only one.
    #[arg(long)]
    algorithm: Option<Algorithm>,
    /// Bytes of a segment, in place of the table's.
    #[arg(long)]
    segment: Option<usize>,
    /// Segments in flight, in place of the table's.
    #[arg(long)]
    in_flight: Option<usize>,
    /// Measure every algorithm, with several segments, and say which is fastest.
    #[arg(long, conflicts_with_all = ["algorithm", "segment", "in_flight"])]
    tune: bool,
    /// Also write the results to this file, as JSON.
    #[arg(long)]
    output: Option<String>,
}

/// Microseconds per operation of each round.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn best(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Mpi,
    /// With one of the plans.
    Ours(usize),
}

/// Both sides, their buffers, and the expected results.
struct Pair<'a> {
    world: &'a SimpleCommunicator,
    /// One for each plan that is measured.
    ours: Vec<Communicator>,
    rank: usize,
    ranks: usize,
    send: Vec<f32>,
    receive: Vec<f32>,
}

impl Pair<'_> {
    fn element(rank: usize, index: usize) -> f32 {
        ((index * 7 + rank * 3) % 61) as f32 - 30.0
    }

    /// Elements that a rank sends and receives, for `bytes` as on the command line; of a broadcast, both are
    /// the vector.
    fn counts(&self, collective: Collective, bytes: usize) -> (usize, usize) {
        let ranks = self.ranks;
        let count = (bytes / size_of::<f32>()).max(1);
        let blocks = count.div_ceil(ranks);
        match collective {
            Collective::AllGather => (count, count * ranks),
            Collective::ReduceScatter => (blocks * ranks, blocks),
            Collective::AllToAll => (blocks * ranks, blocks * ranks),
            _ => (count, count),
        }
    }

    fn prepare(&mut self, collective: Collective, bytes: usize) {
        let rank = self.rank;
        let (sent, received) = self.counts(collective, bytes);
        self.send.clear();
        self.send.extend((0..sent).map(|index| Self::element(rank, index)));
        self.receive.clear();
        self.receive.resize(received, f32::NAN);
    }

    /// Expected content of `receive`.
    fn expected(&self, collective: Collective, index: usize) -> f32 {
        let (rank, ranks, sent) = (self.rank, self.ranks, self.send.len());
        let sum = |index| (0..ranks).map(|rank| Self::element(rank, index)).sum();
        match collective {
            Collective::AllReduce => sum(index),
            Collective::ReduceScatter => sum(rank * self.receive.len() + index),
            Collective::AllGather => Self::element(index / sent, index % sent),
            Collective::AllToAll => {
                let part = sent / ranks;
                Self::element(index / part, rank * part + index % part)
            }
            _ => Self::element(0, index),
        }
    }

    fn operate(&mut self, side: Side, collective: Collective) -> Result<(), Failure> {
        let (send, receive) = (&self.send[..], &mut self.receive[..]);
        let sum = SystemOperation::sum();
        match (side, collective) {
            (Side::Mpi, Collective::AllReduce) => self.world.all_reduce_into(send, receive, sum),
            (Side::Mpi, Collective::AllGather) => self.world.all_gather_into(send, receive),
            (Side::Mpi, Collective::ReduceScatter) => {
                self.world.reduce_scatter_block_into(send, receive, sum);
            }
            (Side::Mpi, Collective::AllToAll) => self.world.all_to_all_into(send, receive),
            (Side::Mpi, _) => self.world.process_at_rank(0).broadcast_into(receive),
            (Side::Ours(plan), _) => {
                let ours = self.ours.get_mut(plan).ok_or("no such plan")?;
                match collective {
                    Collective::AllReduce => ours.all_reduce(send, receive, ReduceOp::Sum)?,
                    Collective::AllGather => ours.all_gather(send, receive)?,
                    Collective::ReduceScatter => ours.reduce_scatter(send, receive, ReduceOp::Sum)?,
                    Collective::AllToAll => ours.all_to_all(send, receive)?,
                    _ => ours.broadcast_in_place(receive, 0)?,
                }
            }
        }
        Ok(())
    }

    /// Seconds per operation of the slowest rank.
    fn batch(&mut self, side: Side, collective: Collective, operations: usize) -> Result<f64, Failure> {
        // The second barrier is of the side that is measured, so that all its ranks start together.
        self.world.barrier();
        match side {
            Side::Mpi => self.world.barrier(),
            Side::Ours(plan) => self.ours.get_mut(plan).ok_or("no such plan")?.barrier()?,
        }
        let start = Instant::now();
        for _ in 0..operations {
            self.operate(side, collective)?;
        }
        Ok(self.slowest(start.elapsed().as_secs_f64()) / operations as f64)
    }

    fn slowest(&self, mine: f64) -> f64 {
        let mut slowest = 0.0;
        self.world.all_reduce_into(&mine, &mut slowest, SystemOperation::max());
        slowest
    }

    /// Fails on every rank when the result of one is wrong.
    fn verify(&mut self, side: Side, collective: Collective) -> Result<(), Failure> {
        self.receive.fill(f32::NAN);
        if collective == Collective::Broadcast && self.rank == 0 {
            self.receive.copy_from_slice(&self.send);
        }
        self.operate(side, collective)?;
        let values = self.receive.iter().enumerate();
        let wrong = values.filter(|&(index, &value)| value != self.expected(collective, index)).count();
        let anywhere = self.slowest(wrong as f64);
        if anywhere > 0.0 {
            let side = if side == Side::Mpi { "MPI" } else { "the host backend" };
            return Err(
                format!("{collective} of {} elements: {side} got {anywhere} wrong", self.send.len()).into()
            );
        }
        Ok(())
    }

    /// The times of MPI, and of each plan.
    fn measure(
        &mut self,
        collective: Collective,
        bytes: usize,
        arguments: &Arguments,
    ) -> Result<(Times, Vec<Times>), Failure> {
        self.prepare(collective, bytes);
        let sides = || std::iter::once(Side::Mpi).chain((0..self.ours.len()).map(Side::Ours));
        let sides: Vec<_> = sides().collect();
        // Warm all up, and see how many operations make a batch.
        let mut once: f64 = 0.0;
        for &side in &sides {
            self.verify(side, collective)?;
            once = once.max(self.batch(side, collective, 3)?);
        }
        let operations = ((arguments.batch / 1e3 / once) as usize).clamp(1, 10_000);
        let mut times: Vec<_> = sides.iter().map(|_| Times::default()).collect();
        for _ in 0..arguments.rounds {
            for (&side, times) in sides.iter().zip(&mut times) {
                times.0.push(self.batch(side, collective, operations)? * 1e6);
            }
        }
        for &side in &sides {
            self.verify(side, collective)?;
        }
        let ours = times.split_off(1);
        Ok((times.pop().unwrap_or_default(), ours))
    }
}

/// The plans that are measured, as options for communicators; none in a communicator of its own decides
/// otherwise than for `collective`.
fn plans(arguments: &Arguments, collective: Collective, ranks: usize) -> Vec<Options> {
    let with = |algorithm, segment, in_flight| {
        let mut options = Options::default();
        options.provider = Some(arguments.transport.clone());
        if let Some(algorithm) = algorithm {
            options.set_algorithm(collective, algorithm);
        }
        options.segment = segment;
        options.in_flight = in_flight;
        options
    };
    if !arguments.tune {
        return vec![with(arguments.algorithm, arguments.segment, arguments.in_flight)];
    }
    // Ranks of one host, as the script starts them, have no hierarchy.
    let mut plans = Vec::new();
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.serves(collective, ranks)) {
        let on_one_host = arguments.transport == "shm";
        if algorithm == Algorithm::Board && !on_one_host || algorithm == Algorithm::Hierarchical {
            continue;
        }
        let whole = (usize::MAX, 1);
        let pieces = [whole, (32 << 10, 1), (16 << 10, 1), (8 << 10, 1)];
        let segments = [whole, (1 << 20, 2), (256 << 10, 3), (64 << 10, 4)];
        for (segment, in_flight) in if algorithm == Algorithm::Board { pieces } else { segments } {
            if segment == usize::MAX || algorithm.is_segmented(collective) {
                plans.push(with(Some(algorithm), Some(segment), Some(in_flight)));
            }
        }
    }
    plans
}

fn write_header(out: &mut impl Write) -> io::Result<()> {
    let header = ["collective", "bytes", "MPI best", "median", "ours best", "median", "ratio best", "median"];
    let [collective, rest @ ..] = header;
    write!(out, "{collective:<14}")?;
    for title in rest {
        write!(out, "{title:>12}")?;
    }
    writeln!(out, "  algorithm")?;
    Ok(())
}

/// Writes a line for each plan, fastest first, with its times relative to MPI's.
fn write_rows(
    out: &mut impl Write,
    collective: Collective,
    bytes: usize,
    mpi: &Times,
    plans: &mut [(String, Times)],
) -> io::Result<()> {
    plans.sort_by(|(_, one), (_, other)| one.best().total_cmp(&other.best()));
    for (algorithm, ours) in plans {
        let (best, median) = (ours.best() / mpi.best(), ours.median() / mpi.median());
        write!(out, "{collective:<14}{bytes:>12}{:>12.2}{:>12.2}", mpi.best(), mpi.median())?;
        writeln!(out, "{:>12.2}{:>12.2}{best:>12.2}{median:>12.2}  {algorithm}", ours.best(), ours.median())?;
    }
    Ok(())
}

fn run(arguments: &Arguments, ranks: world::Handle) -> Result<(), Failure> {
    if arguments.algorithm.is_some() && arguments.only.len() != 1 {
        return Err("--algorithm needs one collective: add --only".into());
    }
    let world = &SimpleCommunicator::world();
    let (rank, size) = (ranks.rank(), ranks.size());
    let first = rank == 0;
    let describe = {
        let mut options = Options::default();
        options.provider = Some(arguments.transport.clone());
        Communicator::new(ranks.clone(), &options)?.describe().to_owned()
    };
    let library = mpi::environment::library_version()?;
    let library = library.lines().next().unwrap_or_default().trim_end_matches('\0').to_owned();
    let mut out = io::stdout().lock();
    if first {
        writeln!(out, "# {size} ranks; MPI: {library}; host backend: {describe}; {}", build::DESCRIPTION)?;
        writeln!(out, "# times in us; ratio = host backend / MPI; {} rounds, interleaved", arguments.rounds)?;
        write_header(&mut out)?;
    }
    let mut pair = Pair { world, ours: Vec::new(), rank, ranks: size, send: Vec::new(), receive: Vec::new() };
    let mut rows: Vec<Value> = Vec::new();
    for &collective in &arguments.only {
        pair.ours.clear();
        for options in plans(arguments, collective, size) {
            pair.ours.push(Communicator::new(ranks.clone(), &options)?);
        }
        let largest = if collective == Collective::AllGather { arguments.max / size } else { arguments.max };
        let sizes = std::iter::successors(Some(arguments.min), |size| size.checked_mul(arguments.factor));
        let mut sizes: Vec<_> = sizes.take_while(|&size| size < largest).collect();
        sizes.push(largest);
        for bytes in sizes {
            let (mpi, ours) = pair.measure(collective, bytes, arguments)?;
            if !first {
                continue;
            }
            let mut plans: Vec<_> =
                pair.ours.iter().map(|ours| ours.plan(collective, bytes).to_string()).zip(ours).collect();
            let times: serde_json::Map<_, _> =
                plans.iter().map(|(plan, times)| (plan.clone(), json!(times.0))).collect();
            write_rows(&mut out, collective, bytes, &mpi, &mut plans)?;
            rows.push(json!({
                "collective": collective.name(),
                "bytes": bytes,
                "mpi_us": mpi.0,
                "ours_us": times,
            }));
        }
    }
    if let Some(path) = arguments.output.as_ref().filter(|_| first) {
        let report = json!({
            "ranks": size,
            "mpi": library,
            "host_backend": describe,
            "command_line": env::args().collect::<Vec<_>>(),
            "build": build::DESCRIPTION,
            "rounds": arguments.rounds,
            "results": rows,
        });
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer_pretty(&mut file, &report)?;
        writeln!(file)?;
        file.flush()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ranks = match world::mpi(&world::Options::default()) {
        Ok(ranks) => ranks,
        Err(error) => {
            eprintln!("host_collectives: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = run(&arguments, ranks.clone()) {
        ranks.abort(1, &format!("host_collectives: {error}"));
    }
    ExitCode::SUCCESS
}
