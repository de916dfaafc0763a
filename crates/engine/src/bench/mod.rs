//! Measurements as library calls: from a request to events and a verdict, as often as a job lives.
//!
//! A [`Bench`] uses neither a terminal nor files: an [`Observer`] receives the results of each run. Runs may
//! differ in everything but the number of ranks: collectives, sizes, backend, and the ranks that measure. A
//! run is one of collectives ([`Request`]) or of pairs of ranks ([`PairRequest`]).
//!
//! A rank that fails to open its device, or to connect over libfabric, ends its run only: [`Bench::run`]
//! returns the same [`RunFailure`] on all processes, and the next run can start. A rank that fails at any
//! other point ends the process and the job ([`process`](crate::process)), because other ranks may wait for
//! it inside a library.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use collectives::world;
//! use engine::bench::{Bench, Observer, Start};
//! use engine::collective::Collective;
//! use engine::process::Process;
//! use engine::request::{BackendChoice, Request};
//! use engine::sweep::SweepEvent;
//! use record::RunOutcome;
//!
//! struct Print;
//!
//! impl Observer for Print {
//!     fn start_run(&self, start: Start<'_>) -> anyhow::Result<()> {
//!         println!("{} ranks over {}", start.run.ranks.len(), start.run.provenance.backend);
//!         Ok(())
//!     }
//!
//!     fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
//!         if let SweepEvent::Measured(measurement, _) = event {
//!             println!("{} bytes: {:.2} us", measurement.bytes, measurement.time_us);
//!         }
//!         Ok(())
//!     }
//!
//!     fn finish_run(&self, _outcome: RunOutcome) -> anyhow::Result<()> {
//!         Ok(())
//!     }
//!
//!     fn salvage_results(&self, _outcome: RunOutcome) {}
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     // Four ranks, each a thread of this process with buffers in host memory.
//!     let request = Request {
//!         backend: BackendChoice::Fabric,
//!         threads: Some(4),
//!         ..Request::new(vec![Collective::AllReduce])
//!     };
//!     let process = Process::start_for(&request)?;
//!     // Several processes would join the world of `world::from_environment`.
//!     let process = process.join_world(world::single());
//!     let mut bench = Bench::open(&process, None);
//!     for pair in [[0, 1], [0, 2], [0, 3]] {
//!         let request = Request { groups: Some(vec![pair.to_vec()]), ..request.clone() };
//!         println!("{:?}", bench.run(&request, Arc::new(Print)));
//!     }
//!     Ok(())
//! }
//! ```

mod checks;
mod clock;
mod links;
mod observer;
mod pairs;
mod placement;
mod plan;
mod rank;
mod start;

use std::sync::{Arc, mpsc};
use std::thread;

use collectives::world;
use record::RunOutcome;

use crate::agreement::agree_on_options;
use crate::backend::{self, Connections};
use crate::failure::AtFailure;
pub use crate::failure::RunFailure;
use crate::pairs::PairRequest;
use crate::process::{Joined, end_after_error};
use crate::request::Request;
use crate::supervision::{FAILED, RankProgress, Stop, Verdict, Watchdog, explain_missing_thread};
pub use checks::check_ranks;
use checks::limit_to_capabilities;
pub use observer::{Connection, Observer, Start};
pub use plan::HostPlan;

/// The measurements of a job, on one of its processes. From its drop on, only a second signal ends the
/// process early.
#[derive(Debug)]
pub struct Bench<'a> {
    process: &'a Joined,
    mpi: Option<backend::FindHostBackend>,
    /// The ranks of this process; empty before the first run.
    ranks: Vec<world::Handle>,
    connections: Connections,
}

/// A request that a bench can carry out.
#[derive(Clone, Copy, Debug)]
pub enum BenchRequest<'a> {
    /// Collectives.
    Collectives(&'a Request),
    /// Pairs of ranks.
    Pairs(&'a PairRequest),
}

impl<'a> From<&'a Request> for BenchRequest<'a> {
    fn from(request: &'a Request) -> Self {
        Self::Collectives(request)
    }
}

impl<'a> From<&'a PairRequest> for BenchRequest<'a> {
    fn from(request: &'a PairRequest) -> Self {
        Self::Pairs(request)
    }
}

impl<'a> Bench<'a> {
    /// Measures with the ranks of a job. `mpi` is `backend::mpi::find_mpi` in a program linked to MPI,
    /// else `None`.
    pub fn open(process: &'a Joined, mpi: Option<backend::FindHostBackend>) -> Self {
        Self { process, mpi, ranks: Vec::new(), connections: Connections::default() }
    }

    /// Number of ranks of the job; 0 before the first run.
    pub fn rank_count(&self) -> usize {
        self.ranks.first().map_or(0, |rank| rank.size())
    }

    /// Carries out a request. Every process calls it with an equal request ([`Request`], [`PairRequest`]) and
    /// gets the same result, once all ranks have closed their devices. `observer` is called in the process of
    /// rank 0, whichever ranks measure, and in processes with [`PairRequest::reports`].
    ///
    /// # Errors
    /// The same on every process: a refusal when the request cannot be carried out, or a [`RunFailure`].
    /// [`Observer::finish_run`] has been called for the latter.
    pub fn run<'r>(
        &mut self,
        request: impl Into<BenchRequest<'r>>,
        observer: Arc<dyn Observer>,
    ) -> Result<Verdict, Stop> {
        let result = match self.process.interrupt().requested_by_any(&**self.process.job_world()) {
            Ok(Some(signal)) => return Ok(Verdict::Stopped(signal)),
            Ok(None) => self.measure_request(request.into(), &observer, AtFailure::EndRun),
            Err(error) => Err(Stop::Failed(error)),
        };
        match result {
            Err(Stop::Failed(error)) if !error.is::<RunFailure>() => self.end_with_failure(&error, observer),
            result => result,
        }
    }

    /// Carries out a request as the last one of the job: like [`Bench::run`], but a failure of any rank ends
    /// the process and the job, after the observer has saved the results.
    ///
    /// # Errors
    /// A refusal, the same on every process, when the request cannot be carried out.
    pub fn run_last<'r>(
        mut self,
        request: impl Into<BenchRequest<'r>>,
        observer: Arc<dyn Observer>,
    ) -> Result<Verdict, Stop> {
        // Communicators are closed before the run ends, so that a failure to close one fails the run.
        self.connections = Connections::without_reuse();
        match self.measure_request(request.into(), &observer, AtFailure::EndJob) {
            Err(Stop::Failed(error)) => self.end_with_failure(&error, observer),
            result => result,
        }
    }

    /// Ends the process and the job.
    fn end_with_failure(&self, error: &anyhow::Error, observer: Arc<dyn Observer>) -> ! {
        self.process.interrupt().mark_done();
        observer.report_failure(&format!("{error:#}"));
        // So that it removes files that it has only created.
        drop(observer);
        self.process.fail_job(error, Stop::code_of(error))
    }

    /// Agrees on the request with the other processes, and measures while an end of the process saves the
    /// results.
    fn measure_request(
        &mut self,
        request: BenchRequest<'_>,
        observer: &Arc<dyn Observer>,
        at_failure: AtFailure,
    ) -> Result<Verdict, Stop> {
        let world = self.process.job_world();
        let (checked, timeout, prefix) = match request {
            BenchRequest::Collectives(asked) => (asked.check_values(), asked.timeout, "nccl-bench measure 2"),
            BenchRequest::Pairs(asked) => (asked.check_values(), Some(asked.timeout), "nccl-bench pairs 2"),
        };
        let (options, names, command) = match request {
            BenchRequest::Collectives(asked) => (asked.compared_options(), asked.names, &asked.command),
            BenchRequest::Pairs(asked) => (asked.compared_options(), asked.names, &asked.command),
        };
        let reports = world.rank() == 0 || matches!(request, BenchRequest::Pairs(request) if request.reports);
        let checked = checked.map_err(Stop::Refused);
        let prepared = checked.and_then(|()| if reports { observer.open_outputs() } else { Ok(()) });
        agree_on_options(world, prefix, options?, names, command, prepared)?;
        let watchdog = Watchdog::start(world, timeout, self.process.salvage())?;
        let saved = Arc::clone(observer);
        self.process.salvage().set_hook(move |outcome| saved.salvage_results(outcome));
        let context = RunContext { process: self.process, observer: &**observer, at_failure };
        let mut result = match request {
            BenchRequest::Collectives(request) => self.measure_collectives(request, watchdog, &context),
            BenchRequest::Pairs(request) => self.measure_pairs(request, reports, watchdog, &context),
        };
        if let Err(Stop::Failed(error)) = &result
            && error.is::<RunFailure>()
            && reports
            && let Err(error) = observer.finish_run(RunOutcome::Failed { message: error.to_string() })
        {
            result = Err(Stop::Failed(error));
        }
        self.process.salvage().remove_hook();
        result
    }

    fn measure_collectives(
        &mut self,
        request: &Request,
        watchdog: Watchdog,
        context: &RunContext<'_>,
    ) -> Result<Verdict, Stop> {
        watchdog.begin_step("looking for libraries and devices");
        let node =
            backend::choose_backend(request, &**self.process.job_world(), self.mpi, &self.connections)?;
        let request = &limit_to_capabilities(request, &node.capabilities);
        self.make_ranks(node.threads * node.gpus)?;
        check_ranks(request, self.ranks[0].size(), &node.groups)?;
        run_ranks(&mut self.ranks, watchdog, context, &|index, world, progress| {
            rank::run_rank(request, &node, index, world, progress, context)
        })
    }

    fn measure_pairs(
        &mut self,
        request: &PairRequest,
        reports: bool,
        watchdog: Watchdog,
        context: &RunContext<'_>,
    ) -> Result<Verdict, Stop> {
        self.make_ranks(request.threads)?;
        run_ranks(&mut self.ranks, watchdog, context, &|index, world, progress| {
            pairs::run_pairs(request, reports && index == 0, world, progress, context)
        })
    }

    /// Makes the ranks of this process, which live as long as the bench.
    fn make_ranks(&mut self, count: usize) -> Result<(), Stop> {
        if self.ranks.is_empty() {
            self.ranks = world::threads(self.process.job_world().clone(), count)?;
        } else if self.ranks.len() != count {
            return Err(Stop::Refused(format!(
                "each process has {} ranks since the first request, and this one asks for {count}",
                self.ranks.len()
            )));
        }
        Ok(())
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        self.process.interrupt().mark_done();
    }
}

/// Reports the rank to the others when its thread panics. Connections of earlier runs keep its world open.
struct PanicGuard<'a>(&'a dyn world::World);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(world::Reason::Died("its thread panicked".to_owned()));
        }
    }
}

/// State that the ranks of a process share during a run.
struct RunContext<'a> {
    process: &'a Joined,
    observer: &'a dyn Observer,
    at_failure: AtFailure,
}

/// Runs each rank on a thread of its own: `run` takes its index in this process. Returns the verdict of the
/// last rank, or the first error. The threads own `ranks` meanwhile.
fn run_ranks(
    ranks: &mut Vec<world::Handle>,
    mut watchdog: Watchdog,
    context: &RunContext<'_>,
    run: &(impl Fn(usize, &world::Handle, &RankProgress) -> Result<Verdict, Stop> + Sync),
) -> Result<Verdict, Stop> {
    let first = ranks[0].rank();
    let progress = watchdog.watch_ranks(ranks.iter().map(|rank| rank.rank()));
    let salvage = context.process.salvage();
    let results: Vec<_> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, world) in ranks.iter().enumerate() {
            let name = format!("rank {}", world.rank());
            let (start, started) = mpsc::channel::<(world::Handle, RankProgress)>();
            let body = move || {
                let (world, progress) = started.recv().map_err(anyhow::Error::from)?;
                let guard = PanicGuard(&*world);
                match run(index, &world, &progress) {
                    // Other ranks may wait for this one, so the job ends.
                    Err(Stop::Failed(error)) if !error.is::<RunFailure>() => {
                        end_after_error(&error, Stop::code_of(&error), &*world, salvage)
                    }
                    result => {
                        drop(guard);
                        Ok((world, result))
                    }
                }
            };
            match thread::Builder::new().name(name.clone()).spawn_scoped(scope, body) {
                Ok(thread) => threads.push((start, thread)),
                // Before any rank has begun: later, the other ranks would report that this rank has left.
                Err(error) => {
                    end_after_error(&explain_missing_thread(&name, &error).into(), FAILED, &**world, salvage)
                }
            }
        }
        let starts = ranks.drain(..).zip(progress).zip(threads);
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
                Ok(Ok((world, result))) => {
                    ranks.push(world);
                    result
                }
                Ok(Err(error)) => Err(Stop::Failed(error)),
                Err(_) => Err(Stop::Failed(anyhow::anyhow!("the thread of rank {rank} panicked"))),
            })
            .collect()
    });
    results.into_iter().try_fold(Verdict::Good, |_, result| result)
}
