//! The receiver of the events of a run.

use record::{Run, RunOutcome, StartPhase};

use crate::groups::Groups;
use crate::supervision::Stop;
use crate::sweep::{SweepEvent, SweepPlan, SweepStep};

/// State of a run before the first measurement.
#[derive(Debug)]
pub struct Start<'a> {
    /// The record, without measurements.
    pub run: Run,
    /// The plan of the sweep; absent for pairs of ranks.
    pub plan: Option<&'a SweepPlan>,
    /// The ranks that measure.
    pub groups: &'a Groups,
    /// Largest size in bytes, if memory limited the requested one.
    pub reduced_to: Option<u64>,
}

/// The connection of the ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Connection {
    /// The transport, if it is known.
    pub transport: Option<String>,
    /// Notes for the record.
    pub notes: Vec<String>,
    /// Times of the start.
    pub phases: Vec<StartPhase>,
}

/// Receives the events of rank 0, in order, on its thread; with
/// [`PairRequest::reports`](crate::pairs::PairRequest::reports) those of the process's first rank.
/// [`Observer::open_outputs`] is called before, on the thread of [`Bench::run`](super::Bench::run), and
/// [`Observer::salvage_results`] on any thread that ends the process early. An error of a method, such as a
/// result that cannot be written, ends the job.
pub trait Observer: Send + Sync + 'static {
    /// Opens the outputs. Called before the processes compare their requests.
    ///
    /// # Errors
    /// [`Stop::Refused`], which all processes then return.
    fn open_outputs(&self) -> Result<(), Stop> {
        Ok(())
    }

    /// Called when all ranks have opened their devices.
    fn start_run(&self, start: Start<'_>) -> anyhow::Result<()>;

    /// Called when the ranks are connected.
    fn note_connection(&self, _connection: Connection) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called for each event of the sweep.
    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()>;

    /// Called when rank 0 begins a step.
    fn show_step(&self, _step: &SweepStep) {}

    /// Called when the run has ended, also if it failed before [`Observer::start_run`].
    fn finish_run(&self, outcome: RunOutcome) -> anyhow::Result<()>;

    /// Saves the results, because the process is about to end. Called at most once, on a thread of its own:
    /// before [`Observer::start_run`], during any other method, or after [`Observer::finish_run`]. It must
    /// not wait for a lock that those hold while they block.
    fn salvage_results(&self, outcome: RunOutcome);

    /// Called on every process when it fails outside of a rank's thread, as at the start of NCCL. The process
    /// ends after it.
    fn report_failure(&self, _message: &str) {}

    /// Returns true when the reader of the results has gone. The run then stops as if by SIGPIPE.
    fn is_closed(&self) -> bool {
        false
    }
}
