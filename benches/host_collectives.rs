//! The host backend's collectives next to those of the MPI library that the program runs under.
//!
//! ```text
//! mpirun -np 2 --mca pml ob1 --mca btl self,vader host_collectives --transport shm --output result.json
//! ```
//!
//! For every size both sides run in turn, for several rounds: a round is a batch of operations back to back of one
//! side, then a batch as long of the other. A batch's time is that of the slowest rank, divided by its operations.
//! Both sides' last results are verified. `host_collectives.sh` runs it under Open MPI and MPICH, on shared memory
//! and on TCP, with the settings that make them use the same transport.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use collectives::fabric::{Algorithm, Communicator, Options};
use collectives::{ReduceOp, build, world};
use mpi::collective::{CommunicatorCollectives, SystemOperation};
use mpi::topology::SimpleCommunicator;
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

/// Compares the host backend's collectives with those of the MPI library, interleaved.
#[derive(Debug, Parser)]
struct Arguments {
    /// Transport of the host backend: a libfabric provider, as shm or tcp.
    #[arg(long, default_value = "shm")]
    transport: String,
    /// Smallest message: all_reduce's vector, all_gather's block, in bytes.
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
    /// Run this collective only: all_reduce or all_gather.
    #[arg(long)]
    only: Option<String>,
    /// Algorithm for all_reduce, in place of the table's.
    #[arg(long)]
    all_reduce: Option<Algorithm>,
    /// Algorithm for all_gather, in place of the table's.
    #[arg(long)]
    all_gather: Option<Algorithm>,
    /// Bytes of a segment, in place of the table's.
    #[arg(long)]
    segment: Option<usize>,
    /// Segments in flight, in place of the table's.
    #[arg(long)]
    in_flight: Option<usize>,
    /// Also write the results to this file, as JSON.
    #[arg(long)]
    output: Option<String>,
    /// What cargo bench passes.
    #[arg(long, hide = true)]
    bench: bool,
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
    Ours,
}

/// Both sides, their buffers, and what the results must be.
struct Pair<'a> {
    world: &'a SimpleCommunicator,
    ours: Communicator,
    send: Vec<f32>,
    receive: Vec<f32>,
}

impl Pair<'_> {
    fn element(rank: usize, index: usize) -> f32 {
        ((index * 7 + rank * 3) % 61) as f32 - 30.0
    }

    fn prepare(&mut self, collective: &str, count: usize) {
        let (rank, ranks) = (self.ours.rank(), self.ours.size());
        let results = if collective == "all_reduce" { count } else { count * ranks };
        self.send.clear();
        self.send.extend((0..count).map(|index| Self::element(rank, index)));
        self.receive.clear();
        self.receive.resize(results, f32::NAN);
    }

    fn operate(&mut self, side: Side, collective: &str) -> Result<(), Failure> {
        match (side, collective) {
            (Side::Mpi, "all_reduce") => {
                self.world.all_reduce_into(&self.send[..], &mut self.receive[..], SystemOperation::sum());
            }
            (Side::Mpi, _) => self.world.all_gather_into(&self.send[..], &mut self.receive[..]),
            (Side::Ours, "all_reduce") => {
                self.ours.all_reduce(&self.send, &mut self.receive, ReduceOp::Sum)?;
            }
            (Side::Ours, _) => self.ours.all_gather(&self.send, &mut self.receive)?,
        }
        Ok(())
    }

    /// Seconds per operation of the slowest rank.
    fn batch(&mut self, side: Side, collective: &str, operations: usize) -> Result<f64, Failure> {
        // The second barrier is of the side that is measured, so that all its ranks start together.
        self.world.barrier();
        match side {
            Side::Mpi => self.world.barrier(),
            Side::Ours => self.ours.barrier()?,
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
    fn verify(&mut self, side: Side, collective: &str) -> Result<(), Failure> {
        self.receive.fill(f32::NAN);
        self.operate(side, collective)?;
        let (ranks, count) = (self.ours.size(), self.send.len());
        let expected = |index: usize| {
            if collective == "all_reduce" {
                (0..ranks).map(|rank| Self::element(rank, index)).sum()
            } else {
                Self::element(index / count, index % count)
            }
        };
        let wrong =
            self.receive.iter().enumerate().filter(|&(index, &value)| value != expected(index)).count();
        let anywhere = self.slowest(wrong as f64);
        if anywhere > 0.0 {
            let side = if side == Side::Mpi { "MPI" } else { "the host backend" };
            return Err(format!("{collective} of {count} elements: {side} got {anywhere} wrong").into());
        }
        Ok(())
    }

    fn measure(
        &mut self,
        collective: &str,
        count: usize,
        arguments: &Arguments,
    ) -> Result<(Times, Times), Failure> {
        self.prepare(collective, count);
        for side in [Side::Mpi, Side::Ours] {
            self.verify(side, collective)?;
        }
        // Warm both sides up, and see how many operations make a batch.
        let once = self.batch(Side::Ours, collective, 3)?.max(self.batch(Side::Mpi, collective, 3)?);
        let operations = ((arguments.batch / 1e3 / once) as usize).clamp(1, 10_000);
        let (mut mpi, mut ours) = (Times::default(), Times::default());
        for _ in 0..arguments.rounds {
            mpi.0.push(self.batch(Side::Mpi, collective, operations)? * 1e6);
            ours.0.push(self.batch(Side::Ours, collective, operations)? * 1e6);
        }
        for side in [Side::Mpi, Side::Ours] {
            self.verify(side, collective)?;
        }
        Ok((mpi, ours))
    }
}

fn run(arguments: &Arguments, ranks: world::Handle) -> Result<(), Failure> {
    let world = &SimpleCommunicator::world();
    let mut options = Options::default();
    options.provider = Some(arguments.transport.clone());
    options.all_reduce = arguments.all_reduce;
    options.all_gather = arguments.all_gather;
    options.segment = arguments.segment;
    options.in_flight = arguments.in_flight;
    let ours = Communicator::new(ranks, &options)?;
    let first = ours.rank() == 0;
    let ranks = ours.size();
    let describe = ours.describe().to_owned();
    let library = mpi::environment::library_version()?;
    let library = library.lines().next().unwrap_or_default().trim_end_matches('\0').to_owned();
    let mut out = io::stdout().lock();
    if first {
        writeln!(
            out,
            "# {ranks} ranks; MPI: {library}; host backend: {describe}; revision {}",
            build::GIT_REVISION
        )?;
        writeln!(out, "# times in us; ratio = host backend / MPI; {} rounds, interleaved", arguments.rounds)?;
        let header =
            ["collective", "bytes", "MPI best", "median", "ours best", "median", "ratio best", "median"];
        let [collective, rest @ ..] = header;
        write!(out, "{collective:<12}")?;
        for title in rest {
            write!(out, "{title:>12}")?;
        }
        writeln!(out, "  algorithm")?;
    }
    let mut pair = Pair { world, ours, send: Vec::new(), receive: Vec::new() };
    let mut rows: Vec<Value> = Vec::new();
    for collective in ["all_reduce", "all_gather"] {
        if arguments.only.as_ref().is_some_and(|only| only != collective) {
            continue;
        }
        let largest = if collective == "all_reduce" { arguments.max } else { arguments.max / ranks };
        let sizes = std::iter::successors(Some(arguments.min), |size| size.checked_mul(arguments.factor));
        let mut sizes: Vec<_> = sizes.take_while(|&size| size < largest).collect();
        sizes.push(largest);
        for bytes in sizes {
            let (mpi, ours) = pair.measure(collective, (bytes / 4).max(1), arguments)?;
            if !first {
                continue;
            }
            let (best, median) = (ours.best() / mpi.best(), ours.median() / mpi.median());
            let algorithm = pair.ours.plan(collective.parse()?, bytes).to_string();
            write!(out, "{collective:<12}{bytes:>12}{:>12.2}{:>12.2}", mpi.best(), mpi.median())?;
            writeln!(
                out,
                "{:>12.2}{:>12.2}{best:>12.2}{median:>12.2}  {algorithm}",
                ours.best(),
                ours.median()
            )?;
            rows.push(json!({
                "collective": collective,
                "bytes": bytes,
                "algorithm": algorithm,
                "mpi_us": mpi.0,
                "ours_us": ours.0,
                "ratio_of_best": best,
                "ratio_of_medians": median,
            }));
        }
    }
    if let Some(path) = arguments.output.as_ref().filter(|_| first) {
        let report = json!({
            "ranks": ranks,
            "mpi": library,
            "host_backend": describe,
            "command_line": std::env::args().collect::<Vec<_>>(),
            "revision": build::GIT_REVISION,
            "compiler": build::COMPILER,
            "profile": build::PROFILE,
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
