//! A whole run of one process: from settings to an exit code.

use std::io;
use std::process::ExitCode;
use std::thread;

use anyhow::Context as _;
use collectives::world;

use crate::backend::{self, Node};
use crate::cli::{self, Settings};
use crate::report::TextReport;
use crate::size::{Size, Sweep};
use crate::sweep::{self, Plan, Tally};
use crate::table::{self, Head};

/// Exit code when something failed while running.
const FAILED: u8 = 1;
/// Exit code for bad arguments, or when something is missing.
const REFUSED: u8 = 2;
/// Exit code for wrong data, as nccl-tests has it.
const WRONG_DATA: u8 = 7;
/// What fails when the output is closed or its disk is full.
const WRITING: &str = "writing the report to standard output";

/// Why a run ends without a result.
#[derive(Debug)]
pub enum Stop {
    /// Nothing was started: bad arguments, or something is missing. All processes come to the same verdict.
    Refused(String),
    /// Something failed while running.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Reads the command line, joins the world with `join`, measures, and reports.
pub fn main(join: impl FnOnce(&Settings) -> Result<world::Handle, Stop>) -> ExitCode {
    let settings = match cli::parse(std::env::args_os()) {
        Ok(settings) => settings,
        // All ranks come to the same answer: one of them says it.
        Err(answer) if world::Started::detect().rank.is_some_and(|rank| rank > 0) => {
            return ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(REFUSED));
        }
        Err(answer) => answer.exit(),
    };
    // The library's warnings, such as that nobody notices a rank that hangs.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .init();
    let world = match join(&settings) {
        Ok(world) => world,
        Err(stop) => return stopped(&stop),
    };
    match run(&settings, &world) {
        Ok(tally) if tally.failed_checks == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(WRONG_DATA),
        Err(stop @ Stop::Refused(_)) if world.rank() == 0 => stopped(&stop),
        Err(Stop::Refused(_)) => ExitCode::from(REFUSED),
        Err(Stop::Failed(error)) => world.abort(i32::from(FAILED), &format!("nccl-bench: {error:#}")),
    }
}

fn stopped(stop: &Stop) -> ExitCode {
    match stop {
        Stop::Refused(message) => {
            eprintln!("error: {message}");
            ExitCode::from(REFUSED)
        }
        Stop::Failed(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(settings: &Settings, process: &world::Handle) -> Result<Tally, Stop> {
    let node = backend::choose(settings, &**process)?;
    let ranks = world::threads(process.clone(), node.threads() * node.gpus())?;
    if let Some(fault) = settings.fault.filter(|fault| fault.rank >= ranks[0].size()) {
        return Err(Stop::Refused(format!(
            "--inject-fault names rank {}, but there are {} ranks, counted from 0",
            fault.rank,
            ranks[0].size()
        )));
    }
    let node = &*node;
    let results: Vec<Result<Tally, Stop>> = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .enumerate()
            .map(|(index, world)| {
                // Each thread owns its world: one that panics leaves it, and its siblings learn which rank that was.
                thread::Builder::new().name(format!("rank {}", world.rank())).spawn_scoped(scope, move || {
                    match rank(settings, node, index, &world) {
                        // The siblings may be waiting for this rank: the whole job has to end.
                        Err(Stop::Failed(error)) => {
                            world.abort(i32::from(FAILED), &format!("nccl-bench: {error:#}"))
                        }
                        result => result,
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread?.join() {
                Ok(result) => result,
                Err(_) => Err(Stop::Failed(anyhow::anyhow!("a rank's thread panicked"))),
            })
            .collect()
    });
    let mut tally = Tally::default();
    for result in results {
        tally = result?;
    }
    Ok(tally)
}

/// One rank, on its own thread.
fn rank(settings: &Settings, node: &dyn Node, index: usize, world: &world::Handle) -> Result<Tally, Stop> {
    let device = node.open(index)?;
    let max_bytes = largest_size(settings, node, &*device, &**world)?;
    if let Some(fault) = settings.fault {
        let results = settings
            .data_types
            .iter()
            .map(|&data_type| settings.collective.counts(max_bytes, data_type, world.size()).receive);
        let largest = results.max().unwrap_or(0);
        if fault.index >= largest {
            return Err(Stop::Refused(format!(
                "--inject-fault names element {}, but the largest result has {largest}, counted from 0",
                fault.index
            )));
        }
    }
    let plan = Plan {
        collective: settings.collective,
        sweep: Sweep { min: settings.min_bytes, max: max_bytes, step: settings.step },
        data_types: settings.data_types.clone(),
        ops: settings.ops.clone(),
        warm_up: settings.warm_up,
        iterations: settings.iterations,
        checks: settings.checks,
        fault: settings.fault,
    };
    let lines = world.all_gather(rank_line(world.rank(), &device.line()).as_bytes())?;
    let mut report = (world.rank() == 0).then(|| TextReport::new(io::stdout().lock()));
    if let Some(report) = &mut report {
        report.text(&head(&plan, node, &**world, &lines).render()).context(WRITING)?;
    }

    let bytes = usize::try_from(max_bytes)?;
    let mut backend = device.connect(world, bytes)?;
    if let Some(report) = &mut report {
        let transport = backend.transport().map(|transport| format!("#\n# Transport: {transport}\n"));
        report.text(&(transport.unwrap_or_default() + table::COLUMNS)).context(WRITING)?;
    }
    let tally = sweep::run(&plan, &**world, &mut *backend, &mut |measurement| match &mut report {
        Some(report) => report.measurement(measurement).context(WRITING),
        None => Ok(()),
    })?;
    if let Some(report) = &mut report {
        let foot = table::foot(
            plan.collective,
            (plan.checks > 0).then_some(tally.failed_checks),
            tally.mean_bus_bandwidth(),
        );
        report.text(&foot).context(WRITING)?;
    }
    Ok(tally)
}

/// The sweep's end: what was asked for if it fits on every rank, else the backend's default as far as it fits.
fn largest_size(
    settings: &Settings,
    node: &dyn Node,
    device: &dyn backend::Device,
    world: &dyn world::World,
) -> Result<u64, Stop> {
    let host = world::host().name;
    let mine = format!("{} {} of rank {} on {host}", device.capacity(), device.memory(), world.rank());
    let capacities = world.all_gather(mine.as_bytes())?;
    let (capacity, place) = capacities
        .iter()
        .filter_map(|text| {
            let (capacity, place) = std::str::from_utf8(text).ok()?.split_once(' ')?;
            Some((capacity.parse::<u64>().ok()?, place.to_owned()))
        })
        .min()
        .unwrap_or((0, "no memory".to_owned()));
    match settings.max_bytes.or((settings.min_bytes > capacity).then_some(settings.min_bytes)) {
        Some(bytes) if bytes > capacity => Err(Stop::Refused(format!(
            "size {} does not fit: every rank needs two buffers of that size, and {place} has room for two of {} \
             bytes; at most -e {} fits",
            Size(bytes),
            capacity,
            Size(power_of_two_below(capacity)),
        ))),
        Some(bytes) => Ok(bytes),
        None => Ok(node.default_max_bytes().min(power_of_two_below(capacity)).max(settings.min_bytes)),
    }
}

fn power_of_two_below(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

fn rank_line(rank: usize, device: &str) -> String {
    table::rank_line(rank, 0, std::process::id(), &world::host().name, device)
}

fn head(plan: &Plan, node: &dyn Node, world: &dyn world::World, lines: &[Vec<u8>]) -> Head {
    let mut provenance = vec![format!("nccl-bench version {}", collectives::build::VERSION)];
    provenance.extend(node.provenance());
    provenance.push(format!("World: {}", world.describe()));
    if let Some(fault) = plan.fault {
        provenance.push(format!(
            "Fault injection: element {} of rank {}'s result is damaged before each check",
            fault.index, fault.rank
        ));
    }
    Head {
        provenance,
        collective: plan.collective,
        threads: node.threads(),
        gpus: node.gpus(),
        min_bytes: plan.sweep.min,
        max_bytes: plan.sweep.max,
        step: plan.sweep.step,
        warm_up: plan.warm_up,
        iterations: plan.iterations,
        checks: plan.checks,
        ranks: lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect(),
    }
}
