//! A process of a job: its signals, its world, and its end. Used by measurements, the doctor and tests of
//! libfabric.

use std::io;
use std::sync::Mutex;

use collectives::world::{self, Started};
use record::RunOutcome;

use crate::nccl_choice::ChoiceSources;
use crate::request::Request;
use crate::supervision::{Interrupt, Salvage, await_cause};

/// A process before it joins its job.
#[derive(Debug)]
pub struct Process {
    choices: RecordedChoices,
    salvage: Salvage,
    interrupt: Interrupt,
}

/// Sources of NCCL's choices in the process of rank 0.
#[derive(Debug, Default)]
pub(crate) struct RecordedChoices {
    pub(crate) sources: Mutex<ChoiceSources>,
    /// Note for the record when NCCL's choices will not be known in full.
    pub(crate) note: Option<String>,
}

/// A process after it has joined the world of its job. A signal stops all ranks at the same point, and the
/// end of another process saves the results of this one.
#[derive(Debug)]
pub struct Joined {
    world: world::Handle,
    choices: RecordedChoices,
    salvage: Salvage,
    interrupt: Interrupt,
}

impl Process {
    /// Takes over the signals that end a run (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM,
    /// SIGXCPU).
    ///
    /// Call it in `main`, before the process starts threads or loads libraries: threads already running would
    /// still receive the signals. A program with an installed [`Interrupt`] has taken over the signals
    /// already.
    ///
    /// # Errors
    /// When the signal thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let salvage = Salvage::default();
        let interrupt = Interrupt::install(salvage.clone())?;
        Ok(Self { choices: RecordedChoices::default(), salvage, interrupt })
    }

    /// Starts a process for measurements. Prepares the record of NCCL's choices for requests like this one
    /// ([`Request::log_choices`]), which may set environment variables, then does the same as
    /// [`Process::start`]. Call it before NCCL is loaded.
    ///
    /// # Errors
    /// The errors of [`Process::start`].
    pub fn start_for(request: &Request) -> io::Result<Self> {
        let leads = Started::detect().rank.is_none_or(|rank| rank == 0);
        let (sources, note) = if leads && request.backend.may_use_gpus() {
            ChoiceSources::start_sources(request.log_choices)
        } else {
            Default::default()
        };
        // Not before: it starts a thread.
        let process = Self::start()?;
        Ok(Self { choices: RecordedChoices { sources: Mutex::new(sources), note }, ..process })
    }

    /// Sets the exit code of the process when the run fails, instead of 1 (failed) and 4 (timed out).
    #[must_use]
    pub fn failing_with(self, code: u8) -> Self {
        self.salvage.set_failure_code(code);
        self
    }

    /// Joins the other processes of `world`. The result keeps the world until it is dropped.
    pub fn join_world(self, world: world::Handle) -> Joined {
        let Self { choices, salvage, interrupt } = self;
        interrupt.set_world(&world);
        salvage.watch_world(&*world);
        Joined { world, choices, salvage, interrupt }
    }
}

impl Joined {
    /// Returns the world of the processes.
    pub fn job_world(&self) -> &world::Handle {
        &self.world
    }

    pub(crate) fn recorded_choices(&self) -> &RecordedChoices {
        &self.choices
    }

    /// Returns the request to stop, set by signals.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Returns the object for saving the results at an early end of this process.
    pub fn salvage(&self) -> &Salvage {
        &self.salvage
    }

    /// Sets the function for saving the results at an early end of this process: see [`Salvage::set_hook`].
    pub fn save_with(&self, save: impl FnOnce(RunOutcome) + Send + 'static) {
        self.salvage.set_hook(save);
    }

    /// Ends this process and the job with this exit code after an error. The error may be the consequence of
    /// another rank's failure.
    pub fn fail_job(&self, error: &anyhow::Error, code: u8) -> ! {
        end_after_error(error, code, &*self.world, &self.salvage)
    }
}

/// Ends this process and the job after an error of the rank of `world`.
pub(crate) fn end_after_error(
    error: &anyhow::Error,
    code: u8,
    world: &dyn world::World,
    salvage: &Salvage,
) -> ! {
    await_cause(error, world);
    salvage.end_rank(world, code, &format!("{error:#}"))
}
