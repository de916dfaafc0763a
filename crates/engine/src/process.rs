//! A process of a job: its signals, its world, and its end. The same for measurements, the doctor and tests
//! of libfabric.

use std::io;
use std::sync::Mutex;

use collectives::world::{self, Started};
use record::Outcome;

use crate::nccl_choice::ChoiceSources;
use crate::request::Request;
use crate::supervision::{Interrupt, Salvage, await_cause};

/// A process that has not joined its job yet.
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

/// A process that has joined the world of its job. A signal stops all ranks at the same point, and the end of
/// another process saves the results of this one.
#[derive(Debug)]
pub struct Joined {
    world: world::Handle,
    choices: RecordedChoices,
    salvage: Salvage,
    interrupt: Interrupt,
}

impl Process {
    /// Takes over the signals of the process that end a run (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1,
    /// SIGUSR2, SIGALRM, SIGXCPU).
    ///
    /// Call it in `main`, before the process starts threads or loads libraries: threads that run already
    /// would still receive the signals. A program that has installed an [`Interrupt`] before has taken over
    /// the signals already.
    ///
    /// # Errors
    /// When the thread that waits for the signals cannot be started.
    pub fn start() -> io::Result<Self> {
        let salvage = Salvage::default();
        let interrupt = Interrupt::install(salvage.clone())?;
        Ok(Self { choices: RecordedChoices::default(), salvage, interrupt })
    }

    /// Starts a process that will measure. Prepares the record of NCCL's choices for requests like this one
    /// ([`Request::log_choices`]), which may set environment variables, then does the same as
    /// [`Process::start`]. Call it before NCCL is loaded.
    ///
    /// # Errors
    /// Those of [`Process::start`].
    pub fn start_for(request: &Request) -> io::Result<Self> {
        let leads = Started::detect().rank.is_none_or(|rank| rank == 0);
        let (sources, note) = if leads && request.backend.may_use_gpus() {
            ChoiceSources::start(request.log_choices)
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

    /// Joins the other processes of `world`, which this value keeps until it is dropped.
    pub fn join(self, world: world::Handle) -> Joined {
        let Self { choices, salvage, interrupt } = self;
        interrupt.joined(&world);
        salvage.watch(&*world);
        Joined { world, choices, salvage, interrupt }
    }
}

impl Joined {
    /// The world of the processes.
    pub fn world(&self) -> &world::Handle {
        &self.world
    }

    pub(crate) fn choices(&self) -> &RecordedChoices {
        &self.choices
    }

    /// The request to stop, which signals set.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Saves the results when this process ends early.
    pub fn salvage(&self) -> &Salvage {
        &self.salvage
    }

    /// Sets the function that saves the results when this process ends early: see [`Salvage::set`].
    pub fn save_with(&self, save: impl FnOnce(Outcome) + Send + 'static) {
        self.salvage.set(save);
    }

    /// Ends this process and the job with this exit code because of an error, which may be the consequence of
    /// another rank's failure.
    pub fn fail(&self, error: &anyhow::Error, code: u8) -> ! {
        fail(error, code, &*self.world, &self.salvage)
    }
}

/// Ends this process and the job because of an error of the rank of `world`.
pub(crate) fn fail(error: &anyhow::Error, code: u8, world: &dyn world::World, salvage: &Salvage) -> ! {
    await_cause(error, world);
    salvage.end(world, code, &format!("{error:#}"))
}
