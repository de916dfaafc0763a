//! A whole run of one process: from settings to an exit code.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use collectives::world::Started;
use collectives::{DataType, world};

use crate::backend::{self, Abilities, Backend, Device, Node, Place, Rooms, Schedule, Work};
use crate::cli::{self, Command, Roots, Settings};
use crate::collective::{Collective, Member};
use crate::compare;
use crate::dry_run;
use crate::files::{self, provenance};
use crate::guide;
use crate::interrupt::{Interrupt, Signal};
use crate::plot;
use crate::progress::Progress;
use crate::record::{self, Outcome, Rank, Run, SCHEMA_VERSION};
use crate::recorder::Recorder;
use crate::rescue::Rescue;
use crate::shell;
use crate::size::{Size, Step, Sweep};
use crate::sweep::{self, End, Event, Observer, Plan};
use crate::table::{self, MemoryUsage};
use crate::traffic::{Pattern, Traffic};
use crate::tuning;
use crate::watch::{Watch, Watched};

/// Exit code when something failed while running.
const FAILED: u8 = 1;
/// Exit code for bad arguments, or when something is missing.
const REFUSED: u8 = 2;
/// Exit code for wrong data, as in nccl-tests.
const WRONG_DATA: u8 = 7;
/// Exit code when the reader of standard output has gone: what a shell says of a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 141;

/// Why a run ended early.
#[derive(Debug)]
pub enum Stop {
    /// What was asked for cannot be done. Every process says so; one of them prints it.
    Refused(String),
    /// Something failed while running.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// How a rank's run ended, as far as all ranks know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Wrong,
    Stopped(Signal),
}

/// Runs `nccl-bench` with the arguments of this process. For a measurement `hand_over` may first replace this program by
/// another, and `join` joins the world that the settings ask for.
#[must_use]
pub fn main(
    hand_over: impl FnOnce(&Settings) -> Result<(), Stop>,
    join: impl FnOnce(&Settings) -> Result<world::Handle, Stop>,
) -> ExitCode {
    if let Err(stop) = start_log() {
        return stopped(&stop);
    }
    tracing::debug!("started");
    match cli::parse(std::env::args_os()) {
        Ok(Command::Measure(settings)) if settings.dry_run => print(&dry_run::render(&settings)),
        Ok(Command::Measure(settings)) => match hand_over(&settings) {
            Ok(()) => measure(&settings, join),
            Err(stop) => stopped(&stop),
        },
        Ok(Command::Compare(arguments)) => match compare::run(&arguments, &mut io::stdout().lock()) {
            Ok(verdict) => ExitCode::from(verdict.code()),
            Err(compare::Error::Output(error)) => unwritable(error),
            Err(error) => stopped(&Stop::Refused(error.to_string())),
        },
        Ok(Command::Plot(arguments)) => match plot::run(&arguments, |path| {
            files::read(path).map_err(|error| anyhow::anyhow!(error.problem))
        }) {
            Ok(written) => print(&lines(&written)),
            Err(error) => stopped(&Stop::Refused(format!("{error:#}"))),
        },
        Ok(Command::Help(topic)) => help(topic.as_deref()),
        Ok(Command::Completions(shell)) => {
            let mut text = Vec::new();
            match shell::completions(shell, &mut cli::command(), &mut text) {
                Ok(()) => print(&String::from_utf8_lossy(&text)),
                Err(error) => stopped(&Stop::Failed(error.into())),
            }
        }
        Ok(Command::Man(folder)) => manual(folder.as_deref()),
        Err(error) => error.exit(),
    }
}

/// The variable that says how much is told on standard error.
const LOG: &str = "NCCL_BENCH_LOG";

/// Warnings go to standard error, or as much as [`LOG`] says.
fn start_log() -> Result<(), Stop> {
    use tracing_subscriber::filter::LevelFilter;
    let level = match std::env::var(LOG) {
        Ok(level) => level.parse().map_err(|_| {
            Stop::Refused(format!("{LOG}={level}: give off, error, warn, info, debug or trace"))
        })?,
        Err(_) => LevelFilter::WARN,
    };
    tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(level).init();
    Ok(())
}

/// Prints a whole text.
fn print(text: &str) -> ExitCode {
    io::stdout().write_all(text.as_bytes()).map_or_else(unwritable, |()| ExitCode::SUCCESS)
}

/// Standard output cannot be written: quietly when its reader has gone.
fn unwritable(error: io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ExitCode::from(CLOSED_PIPE),
        _ => stopped(&Stop::Failed(anyhow::Error::new(error).context("writing to standard output"))),
    }
}

fn help(topic: Option<&str>) -> ExitCode {
    let Some(name) = topic else { return print(&guide::list()) };
    if let Some(text) = guide::text(name) {
        return print(text);
    }
    let mut command = cli::command();
    match command.find_subcommand_mut(name) {
        Some(command) => print(&command.render_long_help().to_string()),
        None => stopped(&Stop::Refused(guide::unknown(name))),
    }
}

fn manual(folder: Option<&Path>) -> ExitCode {
    let command = cli::command();
    let Some(folder) = folder else {
        let mut text = Vec::new();
        return match shell::man(&command, &mut text) {
            Ok(()) => print(&String::from_utf8_lossy(&text)),
            Err(error) => stopped(&Stop::Failed(error.into())),
        };
    };
    match shell::write_pages(&command, folder) {
        Ok(written) => print(&lines(&written)),
        Err(error) => stopped(&Stop::Refused(error.to_string())),
    }
}

/// What was written, a line each.
fn lines(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("{}\n", path.display())).collect()
}

fn measure(settings: &Settings, join: impl FnOnce(&Settings) -> Result<world::Handle, Stop>) -> ExitCode {
    // Variables can only be set as long as there is one thread, and what follows starts others.
    let first = Started::detect().rank.is_none_or(|rank| rank == 0);
    let log = (settings.show_algorithm && first).then(tuning::Log::start);
    let rescue = Rescue::default();
    // Before anything that starts threads or loads libraries.
    let interrupt = match Interrupt::install(rescue.clone()) {
        Ok(interrupt) => interrupt,
        Err(error) => return stopped(&Stop::from(error)),
    };
    let search = backend::Search::start(settings);
    let world = match join(settings) {
        Ok(world) => world,
        Err(stop) => return stopped(&stop),
    };
    interrupt.joined(&world);
    rescue.watch(&*world);
    let recorder = if world.rank() == 0 { Recorder::open(settings, log) } else { Ok(Recorder::default()) };
    let result = agree(&world, recorder).and_then(|recorder| {
        let saved = recorder.clone();
        rescue.set(move |outcome| saved.rescue(outcome));
        let result =
            run(settings, search, &world, &Surroundings { recorder, interrupt: &interrupt, rescue: &rescue });
        rescue.clear();
        result
    });
    interrupt.done();
    match result {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::from(WRONG_DATA),
        Ok(Verdict::Stopped(signal)) => ExitCode::from(signal.exit_code()),
        Err(stop @ Stop::Refused(_)) if world.rank() == 0 => stopped(&stop),
        Err(Stop::Refused(_)) => ExitCode::from(REFUSED),
        Err(Stop::Failed(error)) => {
            rescue.end(&*world, &*world, i32::from(FAILED), &format!("nccl-bench: {error:#}"))
        }
    }
}

/// What all ranks of a process share.
struct Surroundings<'a> {
    recorder: Recorder,
    interrupt: &'a Interrupt,
    rescue: &'a Rescue,
}

/// What rank 0 found, on every process.
fn agree(world: &world::Handle, own: Result<Recorder, Stop>) -> Result<Recorder, Stop> {
    let problem = match &own {
        Err(Stop::Refused(problem)) => problem.clone(),
        _ => String::new(),
    };
    let all = world.all_gather(problem.as_bytes())?;
    let first = String::from_utf8_lossy(all.first().map(Vec::as_slice).unwrap_or_default()).into_owned();
    if first.is_empty() { own } else { Err(Stop::Refused(first)) }
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

fn run(
    settings: &Settings,
    search: backend::Search,
    process: &world::Handle,
    surroundings: &Surroundings<'_>,
) -> Result<Verdict, Stop> {
    let mut watch = Watch::start(process, settings.timeout, surroundings.rescue)?;
    watch.phase("looking for libraries and devices");
    let node = backend::choose(settings, search, &**process)?;
    let settings = &within(settings, &node.abilities());
    let ranks = world::threads(process.clone(), node.threads() * node.gpus())?;
    check_ranks(settings, ranks[0].size(), node.place(0).ranks)?;
    let node = &*node;
    let watched = watch.ranks(ranks.iter().map(|rank| rank.rank()));
    let results: Vec<Result<Verdict, Stop>> = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .zip(watched)
            .enumerate()
            .map(|(index, (world, watched))| {
                // Each thread owns its world: one that panics leaves it, and its siblings learn which rank that was.
                thread::Builder::new().name(format!("rank {}", world.rank())).spawn_scoped(scope, move || {
                    match rank(settings, node, index, &world, &watched, surroundings) {
                        // The siblings may be waiting for this rank: the whole job has to end.
                        Err(Stop::Failed(error)) => {
                            let message = format!("nccl-bench: {error:#}");
                            surroundings.rescue.end(&**process, &*world, i32::from(FAILED), &message)
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
    let mut verdict = Verdict::Good;
    for result in results {
        verdict = result?;
    }
    Ok(verdict)
}

/// `all` is all that the backend has.
fn within(settings: &Settings, abilities: &Abilities) -> Settings {
    let mut settings = settings.clone();
    let mut notes = Vec::new();
    if settings.all.collectives {
        keep(&mut settings.collectives, &abilities.collectives, &mut notes);
    }
    if settings.all.data_types {
        keep(&mut settings.data_types, &abilities.data_types, &mut notes);
    }
    if settings.all.ops {
        keep(&mut settings.ops, &abilities.ops, &mut notes);
    }
    settings.notes.append(&mut notes);
    settings
}

/// Keeps what is known, and notes the rest.
fn keep<T: PartialEq + std::fmt::Display>(asked: &mut Vec<T>, known: &[T], notes: &mut Vec<String>) {
    asked.retain(|each| {
        let is_known = known.contains(each);
        if !is_known {
            notes.push(format!("{each} is left out: there is none here"));
        }
        is_known
    });
}

/// What only makes sense with the number of ranks known.
fn check_ranks(settings: &Settings, ranks: usize, group: usize) -> Result<(), Stop> {
    if let Some(fault) = settings.fault.filter(|fault| fault.rank >= ranks) {
        return Err(Stop::Refused(format!(
            "--inject-fault names rank {}, but there are {ranks} ranks, counted from 0",
            fault.rank
        )));
    }
    let rooted = settings.collectives.iter().any(|collective| collective.has_root());
    if let Roots::One(root) = settings.roots
        && rooted
        && root >= group
    {
        return Err(Stop::Refused(format!("-r {root}: there are {group} ranks, counted from 0")));
    }
    if let Pattern::Matrix(matrix) = &settings.variables.pattern
        && settings.collectives.contains(&Collective::AllToAllV)
    {
        if matrix.ranks() < group {
            return Err(Stop::Refused(format!(
                "NCCL_TESTS_ALLTOALLV_MATRIX_FILE has {} rows, but there are {group} ranks",
                matrix.ranks()
            )));
        }
        let busiest = matrix.busiest(group);
        if settings.max_bytes.is_some_and(|max| max < busiest) {
            return Err(Stop::Refused(format!(
                "NCCL_TESTS_ALLTOALLV_MATRIX_FILE has a rank that sends or receives {busiest} bytes: give -b {busiest} \
                 -e {busiest}"
            )));
        }
    }
    Ok(())
}

/// One rank, on its own thread.
fn rank(
    settings: &Settings,
    node: &dyn Node,
    index: usize,
    world: &world::Handle,
    watched: &Watched,
    surroundings: &Surroundings<'_>,
) -> Result<Verdict, Stop> {
    watched.phase("opening its device");
    let device = node.open(index)?;
    watched.place(device.memory());
    watched.phase("the exchange of sizes and devices");
    let place = node.place(index);
    let (max_bytes, rooms, reduced_to) = sizes(settings, node, &*device, place, &**world)?;
    check_fault(settings, max_bytes, place)?;
    let plan = plan(settings, max_bytes);
    let host = world::host().name;
    let own = Rank { rank: world.rank(), pid: std::process::id(), host, ..device.describe() };
    let all = world.all_gather(&serde_json::to_vec(&own)?)?;
    let ranks: Vec<Rank> = all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?;
    let recorder = (world.rank() == 0).then_some(&surroundings.recorder);
    watched.unlimited("writing the report");
    if let Some(recorder) = recorder {
        let run = start_of_record(settings, node, &**world, ranks, max_bytes);
        recorder.start(run, plan.collectives[0], reduced_to, Progress::new(&plan, place))?;
    }

    let mut rank = RankObserver {
        recorder,
        watched,
        interrupt: surroundings.interrupt,
        traffic_summary: settings.variables.traffic_summary,
        pattern: settings.variables.pattern.clone(),
        failed_checks: 0,
        measured: 0,
        busbw_sum: 0.0,
    };
    let mut end = End::Complete;
    watched.phase("connecting to the other ranks");
    device.connect(world, rooms, &mut |backend: &mut dyn Backend| {
        if let Some(recorder) = recorder {
            recorder.connected(backend.transport(), backend.notes())?;
        }
        end = sweep::run(&plan, &**world, place, backend, &mut rank)?;
        watched.phase("closing its device");
        Ok(())
    })?;
    watched.unlimited("writing the report");
    if let Some(recorder) = recorder {
        recorder.finish(match end {
            End::Complete => Outcome::Complete,
            End::Stopped(signal) => signal.outcome(),
        })?;
    }
    let mean = rank.busbw_sum / rank.measured as f64;
    let slow = table::enough(mean, settings.variables.min_bandwidth) == Some(false);
    Ok(match end {
        _ if rank.failed_checks > 0 => Verdict::Wrong,
        End::Stopped(signal) => Verdict::Stopped(signal),
        End::Complete if slow => Verdict::Wrong,
        End::Complete => Verdict::Good,
    })
}

/// What one rank does with what happens in the sweep.
struct RankObserver<'a> {
    /// Rank 0's.
    recorder: Option<&'a Recorder>,
    watched: &'a Watched,
    interrupt: &'a Interrupt,
    traffic_summary: bool,
    pattern: Pattern,
    failed_checks: usize,
    measured: usize,
    busbw_sum: f64,
}

/// What each rank of an alltoallv moved, as nccl-tests reports it.
fn traffic_summary(
    pattern: &Pattern,
    traffic: &Traffic,
    measurement: &record::Measurement,
    work: &Work,
) -> String {
    let size = work.data_type.size();
    let bytes = |elements: usize| (elements * size) as u64;
    let kind = match pattern {
        Pattern::Spread(spread) => table::Traffic::Generated {
            total_bytes: bytes(traffic.parameter() * work.member.ranks),
            spread: *spread,
        },
        Pattern::Matrix(matrix) => {
            table::Traffic::Matrix { dimension: matrix.ranks(), scale: matrix.scale() }
        }
    };
    let ranks: Vec<(u64, u64)> = (0..work.member.ranks)
        .map(|rank| (bytes(traffic.sent(rank)), bytes(traffic.received(rank))))
        .collect();
    table::alltoallv_summary(kind, measurement.time_us, &ranks)
}

impl Observer for RankObserver<'_> {
    fn event(&mut self, event: Event<'_>) -> anyhow::Result<()> {
        if let Event::Measured(measurement, _) = event {
            self.failed_checks += measurement.mismatches.len();
            self.measured += 1;
            self.busbw_sum += measurement.busbw_gbps;
        }
        let Some(recorder) = self.recorder else { return Ok(()) };
        match event {
            Event::Begin(collective) => recorder.begin(collective),
            Event::Measured(measurement, work) => {
                recorder.measurement(measurement)?;
                match &work.traffic {
                    Some(traffic) if self.traffic_summary => {
                        recorder.comment(&traffic_summary(&self.pattern, traffic, measurement, work))
                    }
                    _ => Ok(()),
                }
            }
            Event::LeftOut(collective, reason) => {
                recorder.note(format!("{collective} is left out: {reason}"))
            }
            Event::End(memory) => recorder.end(memory.map(memory_usage)),
        }
    }

    fn phase(&self, what: &dyn Fn() -> String) {
        let what = what();
        if let Some(recorder) = self.recorder {
            recorder.phase(&what);
        }
        self.watched.phase(what);
    }

    fn before(&mut self, _work: &Work) -> anyhow::Result<()> {
        self.recorder.map_or(Ok(()), Recorder::forget_choices)
    }

    fn algorithm(&mut self, work: &Work, aggregated: usize) -> anyhow::Result<Option<record::Algorithm>> {
        let operation = tuning::Operation {
            collective: work.collective.name(),
            count_bytes: (work.counts.parameter * work.data_type.size()) as u64,
            ranks: work.member.ranks,
            aggregated,
        };
        self.recorder.map_or(Ok(None), |recorder| recorder.chosen(&operation))
    }

    fn unlimited(&self, what: &'static str) {
        self.watched.unlimited(what);
    }

    fn stop(&self) -> Option<Signal> {
        if self.recorder.is_some_and(Recorder::pipe_is_closed) {
            self.interrupt.request(Signal::Pipe);
        }
        self.interrupt.requested()
    }
}

fn memory_usage(memory: backend::MemoryUse) -> MemoryUsage {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    MemoryUsage {
        initialization: signed(memory.initialization),
        buffers: signed(memory.buffers),
        collective: signed(memory.operations),
    }
}

fn check_fault(settings: &Settings, max_bytes: u64, place: Place) -> Result<(), Stop> {
    let Some(fault) = settings.fault else { return Ok(()) };
    let member = Member { rank: place.rank, ranks: place.ranks, root: Some(0) };
    let results = settings.collectives.iter().flat_map(|collective| {
        settings
            .data_types
            .iter()
            .map(move |&data_type| collective.counts(max_bytes, data_type, member, None).receive)
    });
    let largest = results.max().unwrap_or(0);
    if fault.index < largest {
        return Ok(());
    }
    Err(Stop::Refused(format!(
        "--inject-fault names element {}, but the largest result has {largest}, counted from 0",
        fault.index
    )))
}

pub(crate) fn plan(settings: &Settings, max_bytes: u64) -> Plan {
    Plan {
        collectives: settings.collectives.clone(),
        sweep: Sweep { min: settings.min_bytes, max: max_bytes, step: settings.step },
        data_types: settings.data_types.clone(),
        ops: settings.ops.clone(),
        roots: settings.roots,
        pattern: settings.variables.pattern.clone(),
        warm_up: settings.warm_up,
        schedule: Schedule {
            iterations: settings.iterations,
            aggregated: settings.aggregated,
            blocking: settings.blocking,
            graph_launches: settings.graph_launches,
            each: settings.per_iteration,
        },
        skip: settings.per_iteration_skip,
        statistics: settings.per_iteration || settings.stats || !settings.outputs.is_empty(),
        average: settings.average,
        cpu_time: settings.cpu_time,
        checks: settings.checks,
        cycles: settings.cycles,
        until_stable: settings.until_stable,
        budget: settings.budget,
        fault: settings.fault,
        memory_report: settings.memory_report,
    }
}

/// The variables that change what is measured, but those that this program has set itself.
fn environment() -> BTreeMap<String, String> {
    let mut variables = provenance::environment();
    variables.retain(|name, _| !tuning::own_variables().contains(&name.as_str()));
    variables
}

/// The record before anything is measured.
fn start_of_record(
    settings: &Settings,
    node: &dyn Node,
    world: &dyn world::World,
    ranks: Vec<Rank>,
    max_bytes: u64,
) -> Run {
    let mut notes = node.notes();
    notes.extend(settings.notes.iter().cloned());
    if let Some(fault) = settings.fault {
        notes.push(format!(
            "Fault injection: element {} of rank {}'s result is damaged before each check",
            fault.index, fault.rank
        ));
    }
    let (step_factor, step_bytes) = match settings.step {
        Step::Factor(factor) => (Some(factor), None),
        Step::Bytes(bytes) => (None, Some(bytes)),
    };
    Run {
        schema_version: SCHEMA_VERSION,
        program: format!("nccl-bench {}", collectives::build::VERSION),
        command: settings.command.clone(),
        started_at: provenance::now_utc(),
        ended_at: None,
        outcome: Outcome::Running,
        provenance: record::Provenance {
            world: world.describe(),
            system: provenance::system(),
            environment: environment(),
            ..node.provenance()
        },
        settings: record::Settings {
            threads: node.threads(),
            gpus: node.gpus(),
            min_bytes: settings.min_bytes,
            max_bytes: settings.max_bytes.unwrap_or(max_bytes),
            step_factor,
            step_bytes,
            iterations: settings.iterations,
            aggregated: settings.aggregated,
            warm_up: settings.warm_up,
            cycles: settings.cycles,
            checks: settings.checks,
            average: settings.average,
            blocking: settings.blocking,
            graph_launches: settings.graph_launches,
            registration: settings.registration,
            unaligned: settings.unaligned,
            per_iteration: settings.per_iteration,
            per_iteration_skip: settings.per_iteration_skip,
            parallel_init: settings.parallel_init,
            cpu_time: settings.cpu_time,
            time_stamps: settings.time_stamps,
            cta_policy: settings.cta_policy,
            default_stream: settings.default_stream,
            until_stable: settings.until_stable,
            budget_seconds: settings.budget.map(|budget| budget.as_secs_f64()),
        },
        ranks,
        measurements: Vec::new(),
        notes,
    }
}

/// The sweep's largest size, the buffers for it, and what it was reduced to where memory did not allow what was asked
/// for. The same on every rank.
fn sizes(
    settings: &Settings,
    node: &dyn Node,
    device: &dyn Device,
    place: Place,
    world: &dyn world::World,
) -> Result<(u64, Rooms, Option<u64>), Stop> {
    let host = world::host().name;
    let mine = format!("{} {} of rank {} on {host}", device.capacity(), device.memory(), world.rank());
    let capacities = world.all_gather(mine.as_bytes())?;
    let (capacity, owner) = capacities
        .iter()
        .filter_map(|text| {
            let (capacity, owner) = std::str::from_utf8(text).ok()?.split_once(' ')?;
            Some((capacity.parse::<u64>().ok()?, owner.to_owned()))
        })
        .min()
        .unwrap_or((0, "no memory".to_owned()));
    let fitting = largest_fitting(settings, capacity, place.ranks);
    if settings.min_bytes > fitting {
        return Err(Stop::Refused(format!(
            "size {} does not fit: {owner} has room for buffers of {} at most (-e)",
            Size(settings.min_bytes),
            Size(fitting),
        )));
    }
    let asked = settings.max_bytes;
    let default = || node.default_max_bytes().min(power_of_two_below(fitting)).max(settings.min_bytes);
    let max_bytes = asked.map_or_else(default, |asked| asked.min(fitting));
    let rooms = rooms(settings, max_bytes, capacity, place.ranks)?;
    Ok((max_bytes, rooms, asked.filter(|&asked| asked > fitting).map(|_| fitting)))
}

/// Bytes of the two buffers for sizes up to `max_bytes`. Both have room for the largest size, so that operations move on
/// in both alike; where memory is short, the send buffer is only as large as what is sent.
fn rooms(settings: &Settings, max_bytes: u64, capacity: u64, ranks: usize) -> Result<Rooms, Stop> {
    let size = usize::try_from(max_bytes)?;
    let send = if max_bytes.saturating_mul(2) <= capacity {
        size
    } else {
        usize::try_from(sent(settings, max_bytes, ranks))?
    };
    Ok(Rooms { size, send, receive: size })
}

/// The most that a rank sends of a size, in bytes.
fn sent(settings: &Settings, max_bytes: u64, ranks: usize) -> u64 {
    let member = Member { rank: 0, ranks, root: Some(0) };
    let bytes = |collective: &Collective, data_type: DataType| match collective {
        // Each rank sends what its row of the matrix says: at most the size.
        Collective::AllToAllV => max_bytes,
        _ => (collective.counts(max_bytes, data_type, member, None).send * data_type.size()) as u64,
    };
    let all = settings.collectives.iter().flat_map(|collective| {
        settings.data_types.iter().map(move |&data_type| bytes(collective, data_type))
    });
    all.max().unwrap_or(max_bytes)
}

/// The largest size whose buffers fit into `capacity` bytes, in whole MiB where that is much.
fn largest_fitting(settings: &Settings, capacity: u64, ranks: usize) -> u64 {
    const MIB: u64 = 1 << 20;
    let needed = |max_bytes: u64| max_bytes + sent(settings, max_bytes, ranks);
    let (mut fits, mut too_much) = (0, capacity + 1);
    while too_much - fits > 1 {
        let middle = fits + (too_much - fits) / 2;
        if needed(middle) <= capacity { fits = middle } else { too_much = middle }
    }
    if fits > MIB { fits / MIB * MIB } else { fits }
}

fn power_of_two_below(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Settings {
        let Command::Measure(settings) = cli::parse(line.split_whitespace()).unwrap() else {
            unreachable!("a measurement")
        };
        *settings
    }

    #[test]
    fn buffers_are_as_large_as_the_collective_needs() {
        let capacity = 9 << 30;
        let reduce = settings("nccl-bench allreduce");
        assert_eq!(largest_fitting(&reduce, capacity, 8), (9 << 30) / 2);
        let gather = settings("nccl-bench allgather");
        // The receive buffer and an eighth of it.
        assert_eq!(largest_fitting(&gather, capacity, 8), 8 << 30);
        let both = settings("nccl-bench allgather,allreduce");
        assert_eq!(largest_fitting(&both, capacity, 8), (9 << 30) / 2);
        let room = |line, max_bytes| rooms(&settings(line), max_bytes, capacity, 8).unwrap();
        let gib = 1_usize << 30;
        assert_eq!(
            room("nccl-bench allgather", 8 << 30),
            Rooms { size: 8 * gib, send: gib, receive: 8 * gib }
        );
        assert_eq!(
            room("nccl-bench allgather", 4 << 30),
            Rooms { size: 4 * gib, send: 4 * gib, receive: 4 * gib }
        );
    }
}
