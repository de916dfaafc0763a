//! The receiver of a session's events.

use record::{Outcome, Run};

use crate::backend::GroupPosition;
use crate::supervision::Stop;
use crate::sweep::{Event, SweepPlan};

/// State of a run before the first measurement.
#[derive(Debug)]
pub struct Start<'a> {
    /// The record, without measurements.
    pub run: Run,
    /// The plan of the sweep.
    pub plan: &'a SweepPlan,
    /// The place of rank 0 in its group.
    pub position: GroupPosition,
    /// The largest size, in bytes, where memory did not allow the requested one.
    pub reduced_to: Option<u64>,
}

/// Receives what rank 0 measures, in order. It is called by the thread of rank 0, and by any thread that ends the process
/// early ([`Observer::salvage`]).
pub trait Observer: Send + Sync + 'static {
    /// Opens what the results go to. Called before the processes compare their requests.
    ///
    /// # Errors
    /// [`Stop::Refused`], which all processes then return.
    fn prepare(&self) -> Result<(), Stop> {
        Ok(())
    }

    /// The ranks have their devices.
    ///
    /// # Errors
    /// When a result cannot be written; the job ends. So in all methods.
    fn start(&self, start: Start<'_>) -> anyhow::Result<()>;

    /// The ranks are connected: by `transport`, where that is known, with notes for the record.
    ///
    /// # Errors
    /// See [`Observer::start`].
    fn connected(&self, _transport: Option<String>, _notes: Vec<String>) -> anyhow::Result<()> {
        Ok(())
    }

    /// The sweep goes on.
    ///
    /// # Errors
    /// See [`Observer::start`].
    fn event(&self, event: Event<'_>) -> anyhow::Result<()>;

    /// Rank 0 begins a step: `the timed operations of allreduce float`.
    fn step(&self, _what: &str) {}

    /// The run has ended by itself.
    ///
    /// # Errors
    /// See [`Observer::start`].
    fn finish(&self, outcome: Outcome) -> anyhow::Result<()>;

    /// Saves the results: the process is about to end. Called on another thread than the other methods, at most once; it
    /// must not wait for a lock that those hold while they block.
    fn salvage(&self, outcome: Outcome);

    /// True when nobody reads the results any more; the run then stops as if by SIGPIPE.
    fn is_closed(&self) -> bool {
        false
    }
}
