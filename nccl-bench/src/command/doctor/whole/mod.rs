//! `nccl-bench doctor`: everything at once, and a short verified measurement whose log proves the transport.

mod collector;
mod exchange;
mod measurement;
mod message;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use collectives::world;
use diagnosis::examination::Health;
use engine::bench::{Bench, Observer};
use engine::collective::Collective;
use engine::nccl_choice::CapturedLog;
use engine::process::Process;
use engine::request::{BackendChoice, Request};
use engine::supervision::{FAILED, Salvage, Stop, Verdict, interrupted_outcome, signal_code};
use record::Settings;

use super::output::{self, Output};
use super::{environment, host};
use crate::command::Context;
use crate::command::measure::NAMES;
use crate::exit::ExitError;
use crate::mpi_exec::JoinRequest;
use collector::Collector;
use exchange::LogExchange;
use measurement::End;

/// Largest size of the measurement.
const MAX_BYTES: u64 = 64 << 20;

/// The collectives of the measurement, each of which has to be verified.
const COLLECTIVES: [Collective; 2] = [Collective::AllReduce, Collective::AllToAll];

/// Examples for the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  nccl-bench doctor                                    this machine, with all of its GPUs
  mpirun -np 16 -N 8 nccl-bench doctor --html two.html two nodes with 8 GPUs; also srun, torchrun, Kubernetes
  nccl-bench doctor log job.log                        only a log; doctor PART --help has more

Without a part it examines the environment and all hosts, and runs a short verified allreduce and alltoall
with NCCL's log on. The log proves the transport between all ranks. Only the variables of its own process are
changed. With --backend fabric it judges host memory, libfabric and the data exchanged by at least two ranks;
checks of GPUs do not apply.";

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct DoctorWholeArguments {
    /// Measure NCCL between GPUs, or libfabric between buffers in host memory (fabric: no checks of GPUs)
    #[arg(long, value_name = "BACKEND", default_value = "nccl", value_parser = backend)]
    pub backend: BackendChoice,

    /// World of the ranks: auto, mpi, tcp, single
    #[arg(long, value_name = "WORLD", default_value = "auto")]
    pub world: world::Kind,

    /// Time limit in seconds for all processes to join, and for each step of the measurement
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,

    /// The reports to write.
    #[command(flatten)]
    pub output: Output,
}

/// Runs the command, and returns the health as exit code.
pub fn run_whole_doctor(arguments: &DoctorWholeArguments, context: &Context<'_>) -> Result<u8, ExitError> {
    arguments.output.check_outputs(&[])?;
    let request = make_request(arguments);
    let join = JoinRequest::from(&request);
    (context.program.hand_over)(&join)?;
    // Before this process sets variables of its own.
    let environment = diagnosis::environment::Process::this_process();
    let log = CapturedLog::start_capture().map_err(Stop::from)?;
    let process = Process::start_for(&request).map_err(Stop::from)?;
    let process = process.failing_with(Health::Broken.exit_code()).join_world((context.program.join)(&join)?);
    let world = process.job_world();
    let exchange = LogExchange::gather_members(world, log)?;
    // Without the thread, the report lists the log of this process as unseen.
    let _answering = exchange.start_answering().ok();
    let collector = Arc::new(Collector::new(exchange, arguments.output.clone(), world.rank() == 0));
    let observer: Arc<dyn Observer> = Arc::clone(&collector) as _;
    let saved = Arc::clone(&observer);
    process.save_with(move |outcome| saved.salvage_results(outcome));
    let (salvage, interrupt) = (process.salvage(), process.interrupt());
    let watch = collector.watch_endings(world).map_err(Stop::from)?;
    match examine_cluster(&environment, world, &collector, arguments.backend) {
        Err(Stop::Failed(error)) => process.fail_job(&error, FAILED),
        examined => examined?,
    }
    let mut result = Bench::open(&process, context.program.mpi).run_last(&request, Arc::clone(&observer));
    // A process may still die before rank 0 has its log.
    salvage.set_hook(move |outcome| observer.salvage_results(outcome));
    if result.as_ref().is_err_and(|stop| stop.refusal_text().is_some())
        && let Some(signal) = or_end(interrupt.requested_by_any(&**world), &**world, salvage)
    {
        // It came before anything was measured, where no process looks for it.
        result = Ok(Verdict::Stopped(signal));
    }
    drop(watch);
    let refusal;
    let end = match result {
        Ok(Verdict::Stopped(signal)) => {
            // The same signal on every process: rank 0 reports, and the others wait for that.
            collector.salvage_results(interrupted_outcome(signal));
            salvage.remove_hook();
            return Ok(signal_code(signal));
        }
        Ok(_) => End::Complete,
        Err(stop @ Stop::Failed(_)) => return Err(stop.into()),
        Err(refused) => {
            refusal = refused;
            End::Refused(&refusal)
        }
    };
    match gather_and_report(arguments, world, &collector, end) {
        Err(ExitError::Stopped(Stop::Failed(error))) if error.is::<world::Error>() => {
            or_end(Err(error), &**world, salvage)
        }
        reported => {
            salvage.remove_hook();
            reported
        }
    }
}

/// The value, or the end of this process and the job, as broken and with the report, when another process has
/// gone.
fn or_end<T>(value: anyhow::Result<T>, world: &dyn world::World, salvage: &Salvage) -> T {
    value.unwrap_or_else(|error| salvage.end_rank(world, Health::Broken.exit_code(), &format!("{error:#}")))
}

/// Examines the environments and the hosts. Collective.
fn examine_cluster(
    environment: &diagnosis::environment::Process,
    world: &world::Handle,
    collector: &Collector,
    backend: BackendChoice,
) -> Result<(), Stop> {
    let arguments = environment::DoctorEnvArguments::default();
    collector.add_examinations([environment::of_job(&arguments, environment, world, Some(backend))?]);
    collector.add_examinations(host::examine_job(world, backend)?);
    Ok(())
}

/// Reads the name of a backend of the doctor.
fn backend(name: &str) -> Result<BackendChoice, String> {
    match name {
        "nccl" => Ok(BackendChoice::Nccl),
        "fabric" => Ok(BackendChoice::Fabric),
        _ => Err("nccl or fabric".to_owned()),
    }
}

/// A sweep that connects every pair and verifies.
fn make_request(arguments: &DoctorWholeArguments) -> Request {
    Request {
        program: format!("nccl-bench {}", crate::build::VERSION),
        backend: arguments.backend,
        max_bytes: Some(MAX_BYTES),
        settings: Settings { step_factor: Some(8), ..Settings::of_collectives() },
        timeout: Some(Duration::from_secs(arguments.timeout)),
        world: arguments.world,
        names: NAMES,
        ..Request::new(COLLECTIVES.to_vec())
    }
}

/// Gathers the logs, and has rank 0 report. Collective; returns the same exit code on every process.
fn gather_and_report(
    arguments: &DoctorWholeArguments,
    world: &world::Handle,
    collector: &Collector,
    end: End<'_>,
) -> Result<u8, ExitError> {
    let logs = collector.complete_logs(world)?;
    let write = || {
        let mut examinations: Vec<_> = collector.of_logs(logs, None).into_iter().collect();
        examinations.push(collector.examine_measurement(end));
        examinations.extend(collector.take_examinations());
        collector::drop_repeated_faults(&mut examinations);
        output::write_reports(&arguments.output, &examinations)
    };
    let code = if world.rank() == 0 { collector.report_once(write)? } else { 0 };
    let codes = world.all_gather(&[code]).map_err(anyhow::Error::from).map_err(Stop::Failed)?;
    Ok(codes.first().and_then(|code| code.first()).copied().unwrap_or(Health::CannotTell.exit_code()))
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use engine::supervision::Interrupt;
    use record::RunOutcome;

    use super::*;

    /// A world whose other process has gone. Its end is a panic with the exit code.
    struct Left;

    impl Left {
        fn error() -> world::Error {
            let reason = world::Reason::Left("it does not come to the report".to_owned());
            world::Error::RankFailed { rank: 1, host: "there".to_owned(), reason }
        }
    }

    impl world::World for Left {
        fn position(&self) -> world::Position {
            world::Position { rank: 0, size: 2, local_rank: 0, local_size: 2 }
        }

        fn describe(&self) -> String {
            String::new()
        }

        fn barrier(&self) -> Result<(), world::Error> {
            Err(Self::error())
        }

        fn all_gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
            Err(Self::error())
        }

        fn check(&self) -> Result<(), world::Error> {
            Err(Self::error())
        }

        fn abort(&self, code: i32, _: &str) -> ! {
            resume_unwind(Box::new(code))
        }
    }

    #[test]
    fn a_process_that_has_gone_after_a_refusal_is_reported_as_broken() {
        let (saved, salvage) = (Arc::new(Mutex::new(None)), Salvage::default());
        let hooked = Arc::clone(&saved);
        salvage.set_hook(move |outcome| *lock_mutex(&hooked) = Some(outcome));
        let asked = || or_end(Interrupt::default().requested_by_any(&Left), &Left, &salvage);
        let ended = catch_unwind(AssertUnwindSafe(asked)).unwrap_err();
        assert_eq!(ended.downcast_ref(), Some(&i32::from(Health::Broken.exit_code())));
        let reported = lock_mutex(&saved).take();
        assert_eq!(reported, Some(RunOutcome::Failed { message: Left::error().to_string() }));
    }
}
