//! A measurement as a library call: from a request to events and a verdict.
//!
//! A session uses neither a terminal nor files: an [`Observer`] receives the results. A rank that fails ends
//! the process and the job ([`process`](crate::process)), because the other ranks may wait for a device.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use collectives::world;
//! use engine::collective::Collective;
//! use engine::request::{BackendChoice, Request};
//! use engine::session::{Observer, Session, Start};
//! use engine::sweep::Event;
//! use record::Outcome;
//!
//! struct Print;
//!
//! impl Observer for Print {
//!     fn start(&self, start: Start<'_>) -> anyhow::Result<()> {
//!         println!("{} ranks over {}", start.run.ranks.len(), start.run.provenance.backend);
//!         Ok(())
//!     }
//!
//!     fn event(&self, event: Event<'_>) -> anyhow::Result<()> {
//!         if let Event::Measured(measurement, _) = event {
//!             println!("{} bytes: {:.2} us", measurement.bytes, measurement.time_us);
//!         }
//!         Ok(())
//!     }
//!
//!     fn finish(&self, _outcome: Outcome) -> anyhow::Result<()> {
//!         Ok(())
//!     }
//!
//!     fn salvage(&self, _outcome: Outcome) {}
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     // Two ranks, each a thread of this process with buffers in host memory.
//!     let request = Request {
//!         backend: BackendChoice::Fabric,
//!         threads: Some(2),
//!         ..Request::new(vec![Collective::AllReduce])
//!     };
//!     let (session, process) = Session::start(request)?;
//!     // Several processes would join the world of `world::from_environment`.
//!     let verdict = session.run(&process.join(world::single()), Arc::new(Print), None);
//!     println!("{verdict:?}");
//!     Ok(())
//! }
//! ```

mod checks;
mod observer;
mod placement;
mod plan;
mod rank;
mod start;

use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use collectives::world::{self, Started};

use crate::agreement;
use crate::backend::{self, Node};
use crate::nccl_choice::ChoiceSources;
use crate::process::{Joined, Process, fail};
use crate::request::Request;
use crate::supervision::{
    FAILED, Interrupt, RankProgress, Salvage, Stop, Verdict, Watchdog, explain_missing_thread,
};
pub use checks::check_ranks;
use checks::within;
pub use observer::{Observer, Start};
pub use plan::HostPlan;

/// One process's part in carrying out a request.
#[derive(Debug)]
pub struct Session {
    request: Request,
    choices: ChoiceSources,
    /// Note for the record when NCCL's choices will not be known in full.
    choices_note: Option<String>,
}

impl Session {
    /// Prepares to record the choices of NCCL, then starts the process. Call it in `main`, before other
    /// threads start and before NCCL is loaded: it may set environment variables, and [`Process::start`]
    /// starts a thread.
    ///
    /// # Errors
    /// Those of [`Process::start`].
    pub fn start(request: Request) -> io::Result<(Self, Process)> {
        let first = Started::detect().rank.is_none_or(|rank| rank == 0);
        let (choices, choices_note) = if first && request.backend.may_use_gpus() {
            ChoiceSources::start(request.log_choices)
        } else {
            Default::default()
        };
        Ok((Self { request, choices, choices_note }, Process::start()?))
    }

    /// Runs the measurement as one process of its job. Every process calls it with an equal request
    /// ([`Request::common`]) and gets the same verdict, once all ranks have closed their devices. Only the
    /// process of rank 0 calls `observer`. `mpi` is `backend::mpi::find` in a program that is linked to MPI,
    /// else `None`.
    ///
    /// A failure while running does not return: the observer saves the results, and the process and the job
    /// end.
    ///
    /// # Errors
    /// A refusal, the same on every process, when the request cannot be carried out.
    pub fn run(
        self,
        process: &Joined,
        observer: Arc<dyn Observer>,
        mpi: Option<backend::FindHostBackend>,
    ) -> Result<Verdict, Stop> {
        let Self { request, choices, choices_note } = self;
        let (world, salvage, interrupt) = (process.world(), process.salvage(), process.interrupt());
        let checked = request.check().map_err(Stop::Refused);
        let prepared = checked.and_then(|()| if world.rank() == 0 { observer.prepare() } else { Ok(()) });
        let result = agreement::agree(world, &request, prepared).and_then(|()| {
            let saved = Arc::clone(&observer);
            salvage.set(move |outcome| saved.salvage(outcome));
            let context = ProcessContext {
                process: &**world,
                observer: &*observer,
                choices: Mutex::new(choices),
                choices_note,
                interrupt,
                salvage,
            };
            let result = measure(&request, mpi, world, &context);
            salvage.clear();
            result
        });
        interrupt.done();
        match result {
            Err(Stop::Failed(error)) => {
                observer.failed(&format!("{error:#}"));
                // So that it removes files that it has only created.
                drop(observer);
                process.fail(&error, FAILED)
            }
            other => other,
        }
    }
}

struct ProcessContext<'a> {
    /// The world of the processes.
    process: &'a dyn world::World,
    observer: &'a dyn Observer,
    choices: Mutex<ChoiceSources>,
    choices_note: Option<String>,
    interrupt: &'a Interrupt,
    salvage: &'a Salvage,
}

fn measure(
    request: &Request,
    mpi: Option<backend::FindHostBackend>,
    process: &world::Handle,
    context: &ProcessContext<'_>,
) -> Result<Verdict, Stop> {
    let mut watchdog = Watchdog::start(process, request.timeout, context.salvage)?;
    watchdog.begin_step("looking for libraries and devices");
    let node = backend::choose(request, &**process, mpi)?;
    let request = &within(request, &node.capabilities);
    let ranks = world::threads(process.clone(), node.threads * node.gpus)?;
    check_ranks(request, ranks[0].size(), node.first.ranks)?;
    let progress = watchdog.ranks(ranks.iter().map(|rank| rank.rank()));
    let mut verdict = Verdict::Good;
    for result in run_ranks(request, &node, ranks, progress, context) {
        verdict = result?;
    }
    Ok(verdict)
}

/// Runs each rank on a thread of its own, and returns their results in order.
fn run_ranks(
    request: &Request,
    node: &Node,
    ranks: Vec<world::Handle>,
    progress: Vec<RankProgress>,
    context: &ProcessContext<'_>,
) -> Vec<Result<Verdict, Stop>> {
    let first = ranks[0].rank();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, world) in ranks.iter().enumerate() {
            let name = format!("rank {}", world.rank());
            let (start, started) = mpsc::channel::<(world::Handle, RankProgress)>();
            let body = move || {
                // Each thread owns its world, which reports the rank when the thread panics.
                let (world, progress) = started.recv().map_err(anyhow::Error::from)?;
                match rank::run(request, node, index, &world, &progress, context) {
                    // Other ranks may wait for this one, so the job ends.
                    Err(Stop::Failed(error)) => fail(&error, FAILED, &*world, context.salvage),
                    result => result,
                }
            };
            match thread::Builder::new().name(name.clone()).spawn_scoped(scope, body) {
                Ok(thread) => threads.push((start, thread)),
                // Before any rank has begun: the others would be told that this one has left.
                Err(error) => {
                    fail(&explain_missing_thread(&name, &error).into(), FAILED, &**world, context.salvage)
                }
            }
        }
        let starts = ranks.into_iter().zip(progress).zip(threads);
        let threads: Vec<_> = starts
            .map(|(rank, (start, thread))| {
                // A thread that cannot take it has panicked, and says so below.
                let _ = start.send(rank);
                thread
            })
            .collect();
        threads
            .into_iter()
            .zip(first..)
            .map(|(thread, rank)| match thread.join() {
                Ok(result) => result,
                Err(_) => Err(Stop::Failed(anyhow::anyhow!("the thread of rank {rank} panicked"))),
            })
            .collect()
    })
}
