//! Who the ranks are, and how they meet before any fast path exists.
//!
//! A [`World`] is one rank's view of all ranks of a job: its own number, how many there are, and slow but
//! dependable operations to exchange addresses, wait for each other, and end together.
//!
//! [`from_environment`] joins the world that this process was started into: by hand ([`single`]), by torchrun, Slurm or
//! Kubernetes ([`tcp`]), or by `mpirun` (`mpi`, feature `mpi`). [`threads`] makes several ranks of each process.
//!
//! # What ends a wait
//!
//! Three things can keep ranks waiting, and each has its limit. A rank that never starts: [`Options::timeout`]. One that
//! has died or was stopped: [`Options::dead_after`]. One that lives and is stuck elsewhere is heard of as before, and
//! only the program knows how long its steps may take: [`World::set_limit`], without which the others wait for ever.
//!
//! ```no_run
//! use collectives::world::{self, World};
//! use std::time::Duration;
//!
//! let world = world::from_environment(&world::Options::default())?;
//! world.set_limit(Some(Duration::from_secs(300)));
//! world.note("loading the data");
//! // After five minutes an error that names the ranks that have not come, and that they are loading the data.
//! world.barrier()?;
//! # Ok::<(), world::Error>(())
//! ```

mod call;
mod cause;
mod host;
mod launcher;
mod limits;
#[cfg(feature = "mpi")]
mod mpi;
mod process_exit;
mod rendezvous_config;
mod single;
mod sync;
mod tcp;
mod threads;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub use cause::cause;
pub use host::{Host, host};
pub use launcher::{Launcher, Started, expand_nodelist};
#[cfg(feature = "mpi")]
pub use mpi::mpi;
pub use rendezvous_config::Place;
pub use single::single;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use tcp::fuzz;
pub use tcp::tcp;
pub use threads::threads;

/// One rank's view of the job. All ranks call the collective methods in the same order.
///
/// Methods may be called from any thread, by one thread at a time per rank.
///
/// Dropping the last handle leaves the job: in good order, or as a failure when the thread is panicking. Ending
/// the process without either is a failure of this rank.
pub trait World: Send + Sync {
    /// This rank, `0..size`.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// This rank's number among the ranks of its host, in rank order.
    fn local_rank(&self) -> usize;

    /// How many ranks this host has.
    fn local_size(&self) -> usize;

    /// One line for a report's header: `one process`, `Open MPI 4.1.6`, `TCP rendezvous at 10.0.0.1:29500`.
    fn describe(&self) -> String;

    /// Returns when every rank has called it. Ranks leave as close in time as the transport allows.
    ///
    /// # Errors
    /// When another rank has failed or has left, or when the ranks do not call the same collectives.
    fn barrier(&self) -> Result<(), Error>;

    /// Gathers one message of every rank, in rank order. Lengths, in bytes, may differ; 0 is a length.
    ///
    /// # Errors
    /// When another rank has failed or has left, when the ranks do not call the same collectives, or when a
    /// message is longer than the transport takes (16 MiB over TCP).
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Whether every other rank is, as far as known, alive. Cheap: for polling loops.
    ///
    /// # Errors
    /// Names the rank that has failed, with its host and the reason.
    fn check(&self) -> Result<(), Error>;

    /// Says that this rank has failed, for `reason`, and lives on: from then on the other ranks' methods return
    /// [`Error::RankFailed`] with this rank and the reason, or their processes end ([`OnFailure::Exit`]). There is no
    /// way back, for this rank neither. Returns at once; only the first failure of a job counts. It reaches the others
    /// also when this rank, or rank 0, which passes it on, leaves right afterwards; once rank 0's process has ended,
    /// nobody hears of it.
    ///
    /// Among the ranks of an MPI launcher nobody hears of it where they do not watch each other (see `mpi`).
    fn fail(&self, reason: &str);

    /// From now on [`World::barrier`] and [`World::all_gather`] fail with [`Error::RankFailed`] when not all ranks have
    /// come within `limit` of the first; the error names all that are late and what they last noted ([`World::note`]).
    /// At most a year; `None`, as it is at first, waits for ever. All ranks set the same.
    ///
    /// Inside MPI (see `mpi`) nothing limits a wait, and here nothing happens: a `MPI_Barrier` cannot be left.
    fn set_limit(&self, limit: Option<Duration>) {
        let _ = limit;
    }

    /// Tells rank 0 what this process is doing, a line per rank, up to 16 KiB: for messages about this process when
    /// others wait for it in vain. Replaces what it said before. Returns at once; may be called by any thread at any
    /// time, also during a collective call. Whether rank 0 hears it: it does over TCP, and beside MPI where the ranks
    /// watch each other.
    fn note(&self, text: &str) -> bool {
        let _ = text;
        false
    }

    /// What each process has last noted, in the order of processes. Empty but at rank 0's process, and where nobody
    /// hears notes.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Says what a rank has called: under which places and numbers of a `topic`, which is the same on all ranks, what. When
    /// two ranks have called different things under one, all ranks' operations fail with [`Error::Mismatch`], which says
    /// both. For ranks that wait for others in vain. `rank` is [`World::rank`]; a world that is made of others' passes
    /// its own ranks on.
    ///
    /// Among the ranks of an MPI launcher nothing is compared where they do not watch each other (see `mpi`).
    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        let _ = (rank, topic, calls);
    }

    /// What this process does when another rank has failed and [`OnFailure::Exit`] is about to end it: it has ten
    /// seconds on a thread of its own. Only the last one that is set counts, and it is called at most once.
    fn before_exit(&self, act: LastAct) {
        let _ = act;
    }

    /// Ends this process and, as soon as the transport can tell them, all others, with this exit code.
    /// `message` is printed once on standard error by this rank; the others name this rank. When another rank is known to
    /// have failed before, this process ends because of that, and says so instead.
    ///
    /// Nothing is dropped and no exit handler runs, so that a thread stuck in a driver cannot hold it up.
    fn abort(&self, code: i32, message: &str) -> !;

    /// From now on errors and messages name ranks where they would name processes, of which each has so many ranks
    /// ([`threads`]); whether they do.
    #[doc(hidden)]
    fn name_ranks(&self, per_process: usize) -> bool {
        let _ = per_process;
        false
    }

    /// As [`World::fail`], of one of the ranks of this process ([`threads`]).
    #[doc(hidden)]
    fn fail_as(&self, rank: usize, reason: &str) {
        self.fail(&format!("rank {rank}: {reason}"));
    }

    /// As [`World::abort`], of one of the ranks of this process ([`threads`]).
    #[doc(hidden)]
    fn abort_as(&self, rank: usize, code: i32, message: &str) -> ! {
        self.abort(code, &format!("rank {rank}: {message}"))
    }
}

/// See [`World::before_exit`]; it gets the error that names the failed rank.
pub type LastAct = Box<dyn FnOnce(&Error) + Send>;

/// What a rank has called; see [`World::compare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Which of the things that are numbered.
    pub place: u64,
    /// Its number.
    pub number: u64,
    /// What was called: `all_reduce of 100 float, sum`. At most 16 KiB.
    pub what: String,
}

/// A shared handle to a world: a rank's threads and communicators all hold one.
pub type Handle = Arc<dyn World>;

/// Why a world could not be joined or has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank has failed.
    #[error("rank {rank} on host {host} {reason}")]
    RankFailed {
        /// The rank that failed.
        rank: usize,
        /// Its host's name.
        host: String,
        /// What happened, as a verb phrase: `died: its connection closed`.
        reason: String,
    },
    /// The variables that say who this rank is are missing or contradict each other.
    #[error("{0}")]
    Environment(String),
    /// The ranks did not find each other.
    #[error("{0}")]
    Rendezvous(String),
    /// Not all ranks have come to the rendezvous in time ([`Options::timeout`]): says which are missing, or, at a rank
    /// that did not find rank 0, what was tried.
    #[error("{0}")]
    TimedOut(String),
    /// The launcher that started this process and the way the world was joined do not fit together.
    #[error("{0}")]
    Launcher(String),
    /// The ranks do not do the same: different collectives, sizes or numbers of threads.
    #[error("{0}")]
    Mismatch(String),
}

/// How ranks find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// As the launcher says that started this process.
    #[default]
    Auto,
    /// One process, whatever started it.
    Single,
    /// A TCP rendezvous, also under `mpirun`.
    Tcp,
    /// MPI. Needs [`Options::join_mpi`].
    Mpi,
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "auto" => Ok(Self::Auto),
            "single" => Ok(Self::Single),
            "tcp" => Ok(Self::Tcp),
            "mpi" => Ok(Self::Mpi),
            _ => Err(Error::Environment(format!(
                "`{name}` is not a kind of world; use one of auto, single, tcp, mpi"
            ))),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Auto => "auto",
            Self::Single => "single",
            Self::Tcp => "tcp",
            Self::Mpi => "mpi",
        })
    }
}

/// What happens in this process when another rank has failed or aborts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Every operation of the world returns [`Error::RankFailed`]; nothing else.
    #[default]
    Report,
    /// As `Report`; one line on standard error names the rank, and one second later, or when what was set by
    /// [`World::before_exit`] is done, the process ends, with exit code 1 or the code given to [`World::abort`]. For a
    /// process that can be stuck in a call to a GPU or a network that the failed rank will never answer.
    ///
    /// A rank that has left in good order meanwhile does not end with the others.
    Exit,
}

/// A way to join a world.
pub type Join = fn(&Options) -> Result<Handle, Error>;

/// Is told why rank 0 has not been found yet: `localhost:7000: Connection refused (os error 111)`.
pub type OnWait = fn(&str);

/// How to join a world.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How ranks find each other.
    pub kind: Kind,
    /// How long to wait for all ranks at the rendezvous, at most a year. 60 s.
    pub timeout: Duration,
    /// How often ranks tell each other that they live, at least once a year. 1 s.
    pub heartbeat: Duration,
    /// After what silence a rank counts as dead although its connection stands, as one does that was stopped or
    /// whose host lost power. 8 s; `None` is never, for work under a debugger.
    pub dead_after: Option<Duration>,
    /// What happens in this process when another rank has failed.
    pub on_failure: OnFailure,
    /// Function that joins the ranks of an MPI launcher: `Some(world::mpi)` in a program built with the feature `mpi`. Without
    /// it they meet over TCP. A program that does not name that function does not link the MPI library, whatever its
    /// features.
    pub join_mpi: Option<Join>,
    /// Called after each attempt to reach rank 0 over TCP that failed, on the thread that joins.
    pub on_wait: Option<OnWait>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: Kind::Auto,
            timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(1),
            dead_after: Some(Duration::from_secs(8)),
            on_failure: OnFailure::Report,
            join_mpi: None,
            on_wait: None,
        }
    }
}

/// No limit of time is longer, so that the clock can be read that far ahead.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Options {
    /// With no limit longer than a year.
    fn bounded(&self) -> Self {
        Self { timeout: self.timeout.min(YEAR), heartbeat: self.heartbeat.min(YEAR), ..self.clone() }
    }

    /// The defaults, changed by the environment as [`Options::or_environment`] says.
    ///
    /// # Errors
    /// When a variable is not a number of seconds.
    pub fn from_environment() -> Result<Self, Error> {
        Self::default().or_environment()
    }

    /// These options, but `timeout` and `dead_after` as `NCCL_BENCH_TIMEOUT` and `NCCL_BENCH_DEAD_AFTER` say where they
    /// are set, both in seconds; the second may be 0 for never.
    ///
    /// # Errors
    /// When a variable is not a number of seconds.
    pub fn or_environment(mut self) -> Result<Self, Error> {
        if let Some(timeout) = seconds("NCCL_BENCH_TIMEOUT")? {
            self.timeout = timeout;
        }
        if let Some(dead_after) = seconds("NCCL_BENCH_DEAD_AFTER")? {
            self.dead_after = (!dead_after.is_zero()).then_some(dead_after);
        }
        Ok(self)
    }
}

fn seconds(variable: &str) -> Result<Option<Duration>, Error> {
    let Some(value) = process_variable(variable) else { return Ok(None) };
    let seconds =
        value.trim().parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map(Some).ok_or_else(|| {
        Error::Environment(format!("{variable} is `{value}`, which is not a number of seconds such as 60"))
    })
}

/// A variable of this process' environment; one that is empty counts as not set.
fn process_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Joins the world that this process was started into.
///
/// | started by | world |
/// |---|---|
/// | nothing | [`single`] |
/// | torchrun, Slurm, an indexed Job of Kubernetes, or `NCCL_BENCH_RANK`, `_SIZE` and `_ADDR` | [`tcp`] (see [`Place`]) |
/// | Open MPI's or MPICH's `mpirun`, Slurm with PMIx or PMI-2 | [`Options::join_mpi`]; [`tcp`] without it, which needs rank 0's address when `mpirun` started ranks on several hosts |
///
/// # Errors
/// When variables of the launcher are missing or contradict each other, when ranks are missing at the rendezvous (they are
/// named), or when the launcher does not fit the MPI library that this program was built with.
pub fn from_environment(options: &Options) -> Result<Handle, Error> {
    let started = launcher::Started::detect();
    if !matches!(options.kind, Kind::Single | Kind::Mpi)
        && let Some((set, missing)) = started.half_a_set(&process_variable)
    {
        return Err(Error::Environment(format!(
            "{set} is set but {missing} is not, so this process cannot know its place among the ranks: set {missing}, \
             or unset {set} where this process is the only one"
        )));
    }
    if options.kind == Kind::Auto
        && let Some((name, value)) = started.one_of_several(&process_variable)
    {
        return Err(Error::Environment(format!(
            "{name} is {value}, so this process is one of several, but its launcher is not known: set NCCL_BENCH_RANK, \
             NCCL_BENCH_SIZE and NCCL_BENCH_ADDR for each process, or unset {name} where this process is the only one"
        )));
    }
    match options.kind {
        Kind::Single => Ok(single()),
        Kind::Tcp => tcp(Place::from_environment()?, options),
        Kind::Mpi => join_mpi(options, started),
        Kind::Auto if started.alone() => Ok(single()),
        Kind::Auto => match started.launcher {
            _ if started.mpi && options.join_mpi.is_some() => join_mpi(options, started),
            _ => tcp(Place::from_environment()?, options),
        },
    }
}

/// Joins the ranks of an MPI launcher as [`Options::join_mpi`] says.
fn join_mpi(options: &Options, started: Started) -> Result<Handle, Error> {
    let join = options.join_mpi.ok_or_else(|| {
        let by = if started.mpi { format!(" that {} started", started.launcher) } else { String::new() };
        Error::Launcher(format!(
            "this program cannot join the ranks{by} through MPI: build it with the feature `mpi` and \
             `Options::join_mpi = Some(world::mpi)`, or let the ranks meet over TCP (`Options::kind = Kind::Tcp`)"
        ))
    })?;
    join(options)
}
