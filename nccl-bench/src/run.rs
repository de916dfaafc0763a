//! A whole run of one process: from settings to an exit code.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;

use collectives::DataType;
use collectives::world::{self, Started};

use crate::agreement;
use crate::backend::{self, Abilities, Backend, Node, Place, Work};
use crate::cli::{Roots, Settings};
use crate::collective::{Collective, Member};
use crate::files::provenance;
use crate::handover::Meeting;
use crate::interrupt::{Interrupt, Signal};
use crate::progress::Progress;
use crate::record::{self, Outcome, Rank, Run, SCHEMA_VERSION};
use crate::recorder::Recorder;
use crate::rescue::Rescue;
use crate::size::{Size, Step, Sweep};
use crate::sizing;
use crate::stop::{FAILED, REFUSED, Stop, Verdict, await_cause};
use crate::sweep::{self, End, Event, Observer, Plan};
use crate::table::{self, MemoryUsage};
use crate::traffic::{Pattern, Traffic};
use crate::tuning;
use crate::watch::{Watch, Watched};

/// Measures, and returns the code that the process ends with. `join` joins the world that the settings ask for, and `mpi`
/// finds the MPI library that the program is linked to.
pub fn measure(
    settings: &Settings,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
    mpi: Option<backend::Find>,
) -> ExitCode {
    // Variables can only be set as long as there is one thread, and what follows starts others.
    let first = Started::detect().rank.is_none_or(|rank| rank == 0);
    let choices = if first && settings.backend.may_use_gpus() {
        tuning::Sources::start(settings.show_algorithm)
    } else {
        Default::default()
    };
    let rescue = Rescue::default();
    // Before anything that starts threads or loads libraries.
    let interrupt = match Interrupt::install(rescue.clone()) {
        Ok(interrupt) => interrupt,
        Err(error) => return Stop::from(error).tell(),
    };
    let search = backend::Search::start(settings);
    let world = match join(&settings.into()) {
        Ok(world) => world,
        Err(stop) => return stop.tell(),
    };
    interrupt.joined(&world);
    rescue.watch(&*world);
    let recorder =
        if world.rank() == 0 { Recorder::open(settings, choices) } else { Ok(Recorder::default()) };
    let result = agreement::agree(&world, settings, recorder).and_then(|recorder| {
        let saved = recorder.clone();
        rescue.set(move |outcome| saved.rescue(outcome));
        let surroundings = Surroundings { recorder, interrupt: &interrupt, rescue: &rescue };
        let result = run(settings, search, mpi, &world, &surroundings);
        rescue.clear();
        result
    });
    interrupt.done();
    match result {
        Ok(verdict) => verdict.code(),
        Err(stop @ Stop::Refused(_)) if world.rank() == 0 || has_terminal_of_its_own() => stop.tell(),
        Err(Stop::Refused(_)) => ExitCode::from(REFUSED),
        Err(Stop::Failed(error)) => {
            await_cause(&error, &*world);
            rescue.end(&*world, i32::from(FAILED), &format!("nccl-bench: {error:#}"))
        }
    }
}

/// True for a process that was started by hand or as a pod: no other process's output is shown beside its own.
fn has_terminal_of_its_own() -> bool {
    matches!(Started::detect().launcher, world::Launcher::Explicit | world::Launcher::Kubernetes)
}

/// What all ranks of a process share.
struct Surroundings<'a> {
    recorder: Recorder,
    interrupt: &'a Interrupt,
    rescue: &'a Rescue,
}

fn run(
    settings: &Settings,
    search: backend::Search,
    mpi: Option<backend::Find>,
    process: &world::Handle,
    surroundings: &Surroundings<'_>,
) -> Result<Verdict, Stop> {
    let mut watch = Watch::start(process, settings.timeout, surroundings.rescue)?;
    watch.phase("looking for libraries and devices");
    let node = backend::choose(settings, search, &**process, mpi)?;
    let settings = &within(settings, &node.abilities());
    let ranks = world::threads(process.clone(), node.threads() * node.gpus())?;
    check_ranks(settings, ranks[0].size(), node.place(0).ranks)?;
    let node = &*node;
    let first = ranks[0].rank();
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
                            await_cause(&error, &*world);
                            surroundings.rescue.end(&*world, i32::from(FAILED), &message)
                        }
                        result => result,
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .zip(first..)
            .map(|(thread, rank)| match thread?.join() {
                Ok(result) => result,
                Err(_) => Err(Stop::Failed(anyhow::anyhow!("the thread of rank {rank} panicked"))),
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
    let impossible = settings.collectives.iter().find(|collective| !collective.runs_over(group));
    if let Some(collective) = impossible.filter(|_| !settings.all.collectives) {
        return Err(Stop::Refused(format!(
            "{collective} needs a power of two of ranks, and there are {group}: change their number, or leave it out"
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
    let (max_bytes, rooms, reduced_to) = sizing::sizes(settings, node, &*device, place, &**world)?;
    check_fault(settings, max_bytes, place)?;
    let out_of_place_only = node.abilities().out_of_place_only;
    let plan = Plan { out_of_place_only, versus: node.versus(), ..Plan::new(settings, max_bytes) };
    check_elements(settings, plan.sweep, place)?;
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
    failed_checks: u64,
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
            self.failed_checks += measurement.failed_checks();
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

    fn listen(&mut self, on: bool) {
        if self.recorder.is_some() {
            tuning::profiler::listen(on);
        }
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

/// Refuses sizes that are too small to give any rank an element, as 8 bytes of an alltoall among 8 ranks. Of what `all` asks
/// for, one case with elements is enough.
fn check_elements(settings: &Settings, sweep: Sweep, place: Place) -> Result<(), Stop> {
    let (ranks, largest) = (place.ranks, sweep.sizes().last().unwrap_or(0));
    let member = Member { rank: 0, ranks, root: Some(0) };
    let has_elements = |collective: Collective, data_type: DataType| match collective {
        Collective::AllToAllV => {
            Traffic::new(&settings.variables.pattern, largest, data_type, ranks).busiest() > 0
        }
        _ => collective.counts(largest, data_type, member, None).parameter > 0,
    };
    let types = &settings.data_types;
    let is_measured = |collective: Collective| match settings.all.data_types {
        true => types.iter().any(|&data_type| has_elements(collective, data_type)),
        false => types.iter().all(|&data_type| has_elements(collective, data_type)),
    };
    let mut empty = settings.collectives.iter().filter(|&&collective| !is_measured(collective));
    let enough = if settings.all.collectives { settings.collectives.len() - 1 } else { 0 };
    match empty.clone().count() > enough {
        true => Err(Stop::Refused(format!(
            "{}: the largest size, {}, gives no rank an element among {ranks} ranks: give a larger one (-e)",
            empty.next().map_or("", |collective| collective.name()),
            Size(largest),
        ))),
        false => Ok(()),
    }
}

fn check_fault(settings: &Settings, max_bytes: u64, place: Place) -> Result<(), Stop> {
    let Some(fault) = settings.fault else { return Ok(()) };
    let roots = match settings.roots {
        Roots::One(root) => root..root + 1,
        Roots::All => 0..place.ranks,
    };
    let rank = fault.rank % place.ranks;
    let verified = roots.flat_map(|root| {
        let member = Member { rank, ranks: place.ranks, root: Some(root) };
        settings.collectives.iter().flat_map(move |&collective| {
            settings.data_types.iter().filter_map(move |&data_type| {
                let counts = collective.counts(max_bytes, data_type, member, None);
                // In alltoallv every rank receives; how much depends on the pattern.
                let has_result = collective == Collective::AllToAllV
                    || !collective.result(&counts, member, None).is_empty();
                has_result.then_some(counts.receive)
            })
        })
    });
    match verified.max() {
        Some(largest) if fault.index < largest => Ok(()),
        Some(largest) => Err(Stop::Refused(format!(
            "--inject-fault names element {}, but the largest result has {largest}, counted from 0",
            fault.index
        ))),
        None => Err(Stop::Refused(format!(
            "--inject-fault names rank {}, which has no result that is verified: name another, or another -r",
            fault.rank
        ))),
    }
}

/// The variables that change what is measured, but those that this program has set itself.
fn environment() -> BTreeMap<String, String> {
    let mut variables = provenance::environment();
    let own = tuning::own_variables();
    variables.retain(|name, _| !own.contains(&name.as_str()));
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
    if let Some(rounds) = settings.stream_checks {
        notes.push(format!(
            "Check on the stream: {rounds} rounds per size and placement without the host between, eager and as a graph"
        ));
    }
    let (step_factor, step_bytes) = match settings.step {
        Step::Factor(factor) => (Some(factor), None),
        Step::Bytes(bytes) => (None, Some(bytes)),
    };
    Run {
        schema_version: SCHEMA_VERSION,
        program: format!("nccl-bench {}", crate::build::VERSION),
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
            stream_checks: settings.stream_checks,
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
            rounds: (settings.rounds > 1 && settings.until_stable.is_none()).then_some(settings.rounds),
            until_stable: settings.until_stable,
            budget_seconds: settings.budget.map(|budget| budget.as_secs_f64()),
        },
        ranks,
        measurements: Vec::new(),
        notes,
    }
}
