//! A measurement as a library call: from a request to events and a verdict.
//!
//! A session knows neither terminal nor files: an [`Observer`] receives what was measured. It does own the process: signals
//! are taken over, and a rank that fails ends the job, since the other ranks may be stuck in a device's work.

mod checks;
mod observer;
mod rank;
mod start;

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;

use collectives::world::{self, Started};

use crate::agreement;
use crate::backend::{self, Node};
use crate::nccl_choice::ChoiceSources;
use crate::request::Request;
use crate::supervision::{FAILED, Interrupt, RankProgress, Salvage, Stop, Verdict, Watchdog, await_cause};
use checks::{check_ranks, within};
pub use observer::{Observer, Start};

/// One measurement by all processes of a job.
#[derive(Debug)]
pub struct Session {
    request: Request,
    choices: ChoiceSources,
    /// Reason for which NCCL's choices will not be known in full.
    choices_note: Option<String>,
    salvage: Salvage,
    interrupt: Interrupt,
    search: backend::Search,
}

impl Session {
    /// Takes over the signals of the process and begins to look for GPUs. To be called before the process starts threads
    /// and loads NCCL: variables are set, and threads that run already would not block the signals.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn new(request: Request) -> io::Result<Self> {
        let first = Started::detect().rank.is_none_or(|rank| rank == 0);
        let (choices, choices_note) = if first && request.backend.may_use_gpus() {
            ChoiceSources::start(request.log_choices)
        } else {
            Default::default()
        };
        let salvage = Salvage::default();
        let interrupt = Interrupt::install(salvage.clone())?;
        let search = backend::Search::start(&request);
        Ok(Self { request, choices, choices_note, salvage, interrupt, search })
    }

    /// Measures as one process of `world`; every process calls it with an equal request. `mpi` finds the MPI library that
    /// the program is linked to. `observer` is used by the process of rank 0 alone.
    ///
    /// A failure after the processes have agreed ends the process and the job, once the observer has saved the results.
    ///
    /// # Errors
    /// [`Stop::Refused`], on every process, when the request cannot be carried out.
    pub fn run(
        self,
        world: &world::Handle,
        observer: Arc<dyn Observer>,
        mpi: Option<backend::FindHostBackend>,
    ) -> Result<Verdict, Stop> {
        let Self { request, choices, choices_note, salvage, interrupt, search } = self;
        interrupt.joined(world);
        salvage.watch(&**world);
        let prepared = if world.rank() == 0 { observer.prepare() } else { Ok(()) };
        let result = agreement::agree(world, &request, prepared).and_then(|()| {
            let saved = Arc::clone(&observer);
            salvage.set(move |outcome| saved.salvage(outcome));
            let context = ProcessContext {
                observer: &*observer,
                choices: Mutex::new(choices),
                choices_note,
                interrupt: &interrupt,
                salvage: &salvage,
            };
            let result = measure(&request, search, mpi, world, &context);
            salvage.clear();
            result
        });
        interrupt.done();
        match result {
            Err(Stop::Failed(error)) => fail(&error, &**world, &salvage),
            other => other,
        }
    }
}

/// State context by all ranks of a process.
struct ProcessContext<'a> {
    observer: &'a dyn Observer,
    choices: Mutex<ChoiceSources>,
    choices_note: Option<String>,
    interrupt: &'a Interrupt,
    salvage: &'a Salvage,
}

/// Saves the results and ends the job.
fn fail(error: &anyhow::Error, rank: &dyn world::World, salvage: &Salvage) -> ! {
    await_cause(error, rank);
    salvage.end(rank, i32::from(FAILED), &format!("nccl-bench: {error:#}"))
}

/// Chooses the backend and runs a thread for each rank of this process.
fn measure(
    request: &Request,
    search: backend::Search,
    mpi: Option<backend::FindHostBackend>,
    process: &world::Handle,
    context: &ProcessContext<'_>,
) -> Result<Verdict, Stop> {
    let mut watchdog = Watchdog::start(process, request.timeout, context.salvage)?;
    watchdog.begin_step("looking for libraries and devices");
    let node = backend::choose(request, search, &**process, mpi)?;
    let request = &within(request, &node.capabilities());
    let ranks = world::threads(process.clone(), node.threads() * node.gpus())?;
    check_ranks(request, ranks[0].size(), node.position(0).ranks)?;
    let progress = watchdog.ranks(ranks.iter().map(|rank| rank.rank()));
    let mut verdict = Verdict::Good;
    for result in run_ranks(request, &*node, ranks, progress, context) {
        verdict = result?;
    }
    Ok(verdict)
}

/// Runs each rank on a thread of its own, and returns their results in order.
fn run_ranks(
    request: &Request,
    node: &dyn Node,
    ranks: Vec<world::Handle>,
    progress: Vec<RankProgress>,
    context: &ProcessContext<'_>,
) -> Vec<Result<Verdict, Stop>> {
    let first = ranks[0].rank();
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .zip(progress)
            .enumerate()
            .map(|(index, (world, progress))| {
                // Each thread owns its world: one that panics leaves it, and its siblings learn which rank that was.
                thread::Builder::new().name(format!("rank {}", world.rank())).spawn_scoped(scope, move || {
                    match rank::run(request, node, index, &world, &progress, context) {
                        // The siblings may be waiting for this rank: the whole job has to end.
                        Err(Stop::Failed(error)) => fail(&error, &*world, context.salvage),
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
    })
}
