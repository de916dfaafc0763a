//! Worlds: the ranks of a job and their bootstrap communication.
//!
//! A [`World`] is one rank's view of a job: its rank, the number of ranks, and slow but reliable operations
//! to exchange addresses, synchronise and end together. It needs no fast network and no GPU.
//!
//! [`from_environment`] joins the world of this process's launcher: without a launcher ([`single`]), by
//! torchrun, Slurm or Kubernetes ([`tcp`]), or by `mpirun` (`mpi`, feature `mpi`). [`threads`] makes several
//! ranks of each process.
//!
//! A failed world stays failed. The remaining ranks can continue in a new one: [`Recovery`].
//!
//! # Time limits
//!
//! Three conditions can keep ranks waiting, and each has its limit:
//!
//! - A rank that never starts: [`Options::timeout`].
//! - A dead or suspended rank: [`Options::dead_after`].
//! - A rank that is alive but does not reach a collective call: [`World::set_limit`]. The program must set
//!   it, since the duration of its steps is not known here; without it, the other ranks wait forever.
//!
//! ```no_run
//! use collectives::world::{self, World};
//! use std::time::Duration;
//!
//! let world = world::from_environment(&world::Options::default())?;
//! world.set_limit(Some(Duration::from_secs(300)));
//! world.note("loading the data");
//! // After five minutes, an error that names the missing ranks and their notes.
//! world.barrier()?;
//! # Ok::<(), world::Error>(())
//! ```

mod call;
mod cause;
#[cfg(any(feature = "fabric", feature = "nccl"))]
mod checked;
mod host;
mod launcher;
mod limits;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(test)]
mod on_ranks;
mod options;
#[cfg(any(feature = "fabric", feature = "nccl"))]
mod part;
pub(crate) mod process_exit;
mod reason;
mod recovery;
mod rendezvous_config;
mod single;
pub(crate) mod sync;
mod tcp;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[doc(hidden)]
pub use call::{Awaited, Wait};
pub use call::{Mismatch, Timeout};
pub use cause::cause;
pub use host::{Host, addresses, host, machine};
pub use launcher::{Launcher, Started};
#[cfg(feature = "mpi")]
pub use mpi::mpi;
#[doc(hidden)]
pub use options::Rejoin;
pub use options::{Join, Kind, OnFailure, OnWait, Options};
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub use part::Part;
pub use reason::Reason;
pub use recovery::Recovery;
pub use rendezvous_config::RendezvousConfig;
pub use single::single;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use tcp::fuzz;
pub use tcp::tcp;
pub use threads::threads;

#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) use call::LEFT;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) use cause::time_out;
#[cfg(feature = "fabric")]
pub(crate) use checked::check_world;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) use checked::guard_world;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) use limits::COMPARE_AFTER;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) use limits::MAX_MESSAGE;
#[cfg(test)]
pub(crate) use on_ranks::on_ranks;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) use part::{Members, PartExchange};

use options::YEAR;

/// One rank's view of a job. All ranks call the collective methods in the same order.
///
/// Methods may be called from any thread, but by one thread at a time per rank.
///
/// Dropping the last handle leaves the job: without a failure, or as a failure if the thread is panicking. A
/// process that ends in another way is a failure of this rank.
///
/// A program's own world should also implement [`World::check`] and [`World::fail`] if it can report
/// failures. Their defaults report none. A panic of one of its methods is a failure of this rank: jobs,
/// communicators and endpoints get errors from then on.
pub trait World: Send + Sync {
    /// This rank's position in the job and on its host.
    fn position(&self) -> Position;

    /// This rank, `0..size`: [`Position::rank`].
    fn rank(&self) -> usize {
        self.position().rank
    }

    /// Number of ranks: [`Position::size`].
    fn size(&self) -> usize {
        self.position().size
    }

    /// This rank's number among the ranks of its host, in rank order: [`Position::local_rank`].
    fn local_rank(&self) -> usize {
        self.position().local_rank
    }

    /// Number of ranks on this host: [`Position::local_size`].
    fn local_size(&self) -> usize {
        self.position().local_size
    }

    /// Describes the transport in one line: `one process`, `Open MPI 4.1.6`,
    /// `TCP rendezvous at 10.0.0.1:29500`.
    fn describe(&self) -> String;

    /// Returns once every rank has called it. Ranks return as close in time as the transport allows.
    ///
    /// # Errors
    /// If another rank has failed or has left, or the ranks do not call the same collectives.
    fn barrier(&self) -> Result<(), Error>;

    /// Gathers a message of every rank, in rank order. Lengths may differ between ranks and may be 0.
    ///
    /// # Errors
    /// If another rank has failed or has left, the ranks do not call the same collectives, or a message is
    /// longer than the transport supports (16 MiB over TCP).
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Returns another world that reports failures, notes and calls for this one. Default methods call the
    /// monitor's; if there is none, they have no effect.
    #[doc(hidden)]
    fn monitor(&self) -> Option<&dyn World> {
        None
    }

    /// Returns an error if another rank is known to have failed. Cheap enough for polling loops.
    ///
    /// # Errors
    /// Names the failed rank, its host and the reason.
    fn check(&self) -> Result<(), Error> {
        self.monitor().map_or(Ok(()), World::check)
    }

    /// Reports a failure of this rank, for `reason`, while its process lives on:
    /// `world.fail("the loss is NaN".into())`. The methods of all other ranks return [`Error::RankFailed`]
    /// with this rank and the reason, or their processes exit ([`OnFailure::Exit`]). This cannot be undone,
    /// and this rank's methods fail as well. Returns immediately; only the first failure of a job counts. The
    /// report also reaches the other ranks if this rank, or the forwarding rank 0, leaves right afterwards,
    /// but not once rank 0's process has ended.
    ///
    /// With an MPI launcher, it has no effect if the ranks do not monitor each other (see `mpi`).
    ///
    /// Groups call it from any of their threads, and from several at the same time: an implementation may
    /// look at operations of a group of this world, but must neither call operations of the group nor wait
    /// for them, nor drop its last handle.
    fn fail(&self, reason: Reason) {
        if let Some(monitor) = self.monitor() {
            monitor.fail(reason);
        }
    }

    /// Sets a time limit for [`World::barrier`] and [`World::all_gather`]: they fail with
    /// [`Error::RankFailed`] if not all ranks have called them within `limit` of the first. The error names
    /// the late ranks and their notes ([`World::note`]). At most a year; `None`, the default, waits forever.
    /// All ranks must set the same limit.
    ///
    /// Has no effect inside MPI (see `mpi`): an `MPI_Barrier` cannot be cancelled.
    fn set_limit(&self, limit: Option<Duration>) {
        let _ = limit;
    }

    /// Reports the activity of this process to rank 0, one line per rank, up to 16 KiB. Errors about this
    /// process contain it. Replaces the previous note. Returns immediately; may be called by any thread at
    /// any time, also during a collective call. Returns `true` if the transport delivers notes: over TCP, and
    /// with MPI if the ranks monitor each other.
    fn note(&self, text: &str) -> bool {
        self.note_with(text, &[])
    }

    /// Like [`World::note`], with data for the program in rank 0's process: at most 4 MiB; longer data is not
    /// sent.
    #[doc(hidden)]
    fn note_with(&self, text: &str, data: &[u8]) -> bool {
        self.monitor().is_some_and(|monitor| monitor.note_with(text, data))
    }

    /// Latest notes of the other processes, each with the time since it came. Empty except in rank 0's
    /// process, and if the transport delivers no notes.
    fn notes(&self) -> Vec<(String, Duration)> {
        self.monitor().map(World::notes).unwrap_or_default()
    }

    /// The data of the notes of [`World::notes`], in the same order.
    #[doc(hidden)]
    fn note_data(&self) -> Vec<(Vec<u8>, Duration)> {
        self.monitor().map(World::note_data).unwrap_or_default()
    }

    /// Reports calls of a rank, to find differences between ranks that wait for each other. `topic`
    /// identifies the communicator and is the same on all ranks. If two ranks report different calls with the
    /// same place and number, the operations of all ranks fail with [`Error::CallMismatch`] and the
    /// description of both. `rank` is [`World::rank`]; a wrapper of another world passes its own ranks.
    ///
    /// With an MPI launcher, it has no effect if the ranks do not monitor each other (see `mpi`).
    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        if let Some(monitor) = self.monitor() {
            monitor.compare(rank, topic, calls);
        }
    }

    /// Ends the job soon because an operation of a rank has waited for too long: [`World::check`] then
    /// returns an error on all ranks. It names the awaited ranks that have not reported their calls
    /// meanwhile. This rank has reported its own. Returns `false`, and does nothing, if the transport does
    /// not support it.
    #[doc(hidden)]
    fn time_out(&self, wait: &Wait) -> bool {
        self.monitor().is_some_and(|monitor| monitor.time_out(wait))
    }

    /// True once a rank has called [`World::time_out`]: waiting ranks report their calls at once
    /// ([`World::compare`]).
    #[doc(hidden)]
    fn wants_calls(&self) -> bool {
        self.monitor().is_some_and(World::wants_calls)
    }

    /// While `holds` is true, silence of another process is not a failure: this process is about to end the
    /// job because of an earlier limit. The silence counts again afterwards.
    #[doc(hidden)]
    fn hold_silence(&self, holds: bool) {
        if let Some(monitor) = self.monitor() {
            monitor.hold_silence(holds);
        }
    }

    /// Begins the end of this process for a reason of its own. A call of [`World::abort`] must follow: until
    /// then, failures found here by the transport are neither recorded nor sent to the other processes, since
    /// each process must end for one reason. Rank 0 may still send a failure that it has found first. Sends
    /// nothing itself.
    ///
    /// # Errors
    /// If this process already ends because of another process: that failure, with its exit code.
    #[doc(hidden)]
    fn begin_end(&self) -> Result<(), (Error, i32)> {
        self.monitor().map_or(Ok(()), World::begin_end)
    }

    /// Sends a message to the process of rank 0, or from there to every other process
    /// ([`World::take_posted`]). It also arrives after a failure of the job, as long as both processes are
    /// connected. At most 1 GiB may wait to be taken: more is a failure of the sender. Returns immediately;
    /// may be called by any thread at any time. Returns `false` if the transport does not support messages,
    /// or the message is too long.
    #[doc(hidden)]
    fn post(&self, message: Vec<u8>) -> bool {
        self.monitor().is_some_and(|monitor| monitor.post(message))
    }

    /// Takes the messages received so far ([`World::post`]), each with the number of the sending process.
    #[doc(hidden)]
    fn take_posted(&self) -> Vec<(usize, Vec<u8>)> {
        self.monitor().map(World::take_posted).unwrap_or_default()
    }

    /// True while messages can arrive at another process, and from it. Once it is false, messages already
    /// received from the process can be taken, and no more will arrive.
    #[doc(hidden)]
    fn is_connected_to(&self, process: usize) -> bool {
        self.monitor().is_some_and(|monitor| monitor.is_connected_to(process))
    }

    /// Sets a hook to run before [`OnFailure::Exit`] ends this process. It runs on a thread of its own, for
    /// ten seconds at most. A later hook replaces it; it is called at most once. It must not own a handle of
    /// this world: the world would then never be dropped. Capture a `Weak`.
    fn before_exit(&self, hook: ExitHook) {
        if let Some(monitor) = self.monitor() {
            monitor.before_exit(hook);
        }
    }

    /// Ends this process with exit code `code`, and all other processes as soon as the transport can inform
    /// them. This rank prints `message` on standard error, once; the others name this rank. If another rank
    /// is known to have failed before, this process exits because of its failure, and prints the failure
    /// instead.
    ///
    /// Drops nothing and runs no exit handlers, so a thread blocked in a driver cannot delay it.
    fn abort(&self, code: i32, message: &str) -> !;

    /// Makes errors and messages name ranks instead of processes, with `per_process` ranks in each
    /// ([`threads`]). Returns `true` if the transport supports this.
    #[doc(hidden)]
    fn name_ranks(&self, per_process: usize) -> bool {
        let _ = per_process;
        false
    }

    /// Returns the means of this process to join a new world of the remaining ranks after a failure
    /// ([`Recovery`]).
    ///
    /// # Errors
    /// If it cannot live longer than this world.
    #[doc(hidden)]
    fn rejoin(&self) -> Result<Rejoin, Error> {
        self.monitor().map_or_else(|| Ok(Rejoin::default()), World::rejoin)
    }

    /// Like [`World::fail`], for rank `rank` of this process ([`threads`]).
    #[doc(hidden)]
    fn fail_as(&self, rank: usize, reason: Reason) {
        self.fail(reason.of_rank(rank));
    }

    /// Like [`World::abort`], for rank `rank` of this process ([`threads`]).
    #[doc(hidden)]
    fn abort_as(&self, rank: usize, code: i32, message: &str) -> ! {
        self.abort(code, &format!("rank {rank}: {message}"))
    }
}

/// A rank's position in a job and on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The rank, `0..size`.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// The rank's number among the ranks of its host, in rank order.
    pub local_rank: usize,
    /// Number of ranks on this host.
    pub local_size: usize,
}

/// A hook of [`World::before_exit`]. Its arguments are the error with the failed rank, and the exit code of
/// this process.
pub type ExitHook = Box<dyn FnOnce(&Error, i32) + Send>;

/// A call of a rank; see [`World::compare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The call's sequence.
    pub place: u64,
    /// Its number in the sequence.
    pub number: u64,
    /// Description of the call: `all_reduce of 100 float, sum`. At most 16 KiB.
    pub what: String,
}

impl fmt::Debug for dyn World {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.describe())
    }
}

/// A shared handle to a world, held by the threads and communicators of a rank.
pub type Handle = Arc<dyn World>;

/// Failure to join a world, or of a world.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank has failed.
    #[error("rank {rank} on host {host} {reason}")]
    RankFailed {
        /// The failed rank.
        rank: usize,
        /// Name of its host.
        host: String,
        /// The reason, displayed as a verb phrase: `died: its connection closed`.
        reason: Reason,
    },
    /// Two ranks called different operations ([`World::compare`]).
    #[error("{0}")]
    CallMismatch(Mismatch),
    /// The launcher's variables are missing or contradict each other.
    #[error("{0}")]
    Environment(String),
    /// The rendezvous has failed.
    #[error("{0}")]
    Rendezvous(String),
    /// Ranks are missing after [`Options::timeout`]. Names the missing ranks, or the attempted addresses on a
    /// rank that has not found rank 0.
    #[error("{0}")]
    TimedOut(String),
    /// The launcher does not support this way of joining a world.
    #[error("{0}")]
    Launcher(String),
    /// The ranks cannot join a world of the kind of [`Options::kind`], or it is not known whether they can.
    #[error("{problem}, or {}", instead.advice(instead.option_text()))]
    UnsuitableKind {
        /// The problem, and its solution.
        problem: String,
        /// A possible kind instead.
        instead: Kind,
    },
    /// The other ranks continue without this one ([`Recovery::shrink`]).
    #[error("{0}")]
    LeftOut(String),
    /// The ranks differ in their collectives, sizes or numbers of threads.
    #[error("{0}")]
    Mismatch(String),
}

/// Reads an environment variable. An empty one counts as unset.
fn process_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Joins the world of this process's launcher.
///
/// - No launcher: [`single`].
/// - torchrun, Slurm, an indexed Job of Kubernetes, or `NCCL_BENCH_RANK`, `_SIZE` and `_ADDR`: [`tcp`] (see
///   [`RendezvousConfig`]).
/// - Open MPI's or MPICH's `mpirun`, Slurm with PMIx or PMI-2: [`Options::join_mpi`]. Without it: [`tcp`],
///   with rank 0's address if `mpirun` has started ranks on several hosts.
///
/// # Errors
/// If variables of the launcher are missing or contradict each other; variables of another launcher or
/// scheduler show several processes; one of MPI's launchers is an ancestor of this process and none of its
/// variables is set; ranks are missing at the rendezvous (the error names them); or the launcher does not fit
/// this program's MPI library.
pub fn from_environment(options: &Options) -> Result<Handle, Error> {
    let started = launcher::Started::detect();
    if let Some(refusal) = started.find_refusal(options.kind) {
        return Err(refusal.into());
    }
    match options.kind {
        Kind::Single => Ok(single()),
        Kind::Mpi => join_mpi(options, started),
        Kind::Auto if started.is_single_process() => Ok(single()),
        Kind::Auto if started.mpi && options.join_mpi.is_some() => join_mpi(options, started),
        Kind::Auto | Kind::Tcp => tcp(RendezvousConfig::from_environment()?, options),
    }
}

fn join_mpi(options: &Options, started: Started) -> Result<Handle, Error> {
    let join = options.join_mpi.ok_or_else(|| {
        let by = if started.mpi { format!(" that {} started", started.launcher) } else { String::new() };
        let problem = format!(
            "this program cannot join the ranks{by} through MPI: build it with the feature `mpi` and \
             `Options::join_mpi = Some(world::mpi)`"
        );
        Error::UnsuitableKind { problem, instead: Kind::Tcp }
    })?;
    join(options)
}
