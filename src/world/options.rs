//! Options for joining a world.

use super::{Error, Handle, process_variable};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Way for ranks to find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Depends on the launcher.
    #[default]
    Auto,
    /// One process, without regard to the launcher.
    Single,
    /// TCP rendezvous, also with `mpirun`.
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

impl Kind {
    /// Advice to choose this kind, as a phrase after "or". `option` is the way to do so: `--world tcp`.
    #[must_use]
    pub fn advice(self, option: &str) -> String {
        match self {
            Self::Auto => format!("let the launcher decide ({option})"),
            Self::Single => format!("choose {option} if each process is a job of its own"),
            Self::Tcp => format!("let the ranks meet over TCP ({option})"),
            Self::Mpi => format!("let the ranks meet through MPI ({option})"),
        }
    }

    /// The way to choose this kind in a program.
    pub(crate) fn option_text(self) -> &'static str {
        match self {
            Self::Auto => "`Options::kind = Kind::Auto`",
            Self::Single => "`Options::kind = Kind::Single`",
            Self::Tcp => "`Options::kind = Kind::Tcp`",
            Self::Mpi => "feature `mpi`, and `Options::join_mpi = Some(world::mpi)`",
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

/// Reaction of this process to a failure or abort of another rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// All operations of the world return [`Error::RankFailed`].
    #[default]
    Report,
    /// Like `Report`; in addition, a line on standard error names the rank, and the process exits one second
    /// later, once the hook of [`World::before_exit`](super::World::before_exit) is done. The exit code is 1,
    /// or the one given to [`World::abort`](super::World::abort). For processes that can be blocked in a GPU
    /// or network operation, never completed by the failed rank.
    ///
    /// A rank that has already left without a failure does not exit.
    Exit,
}

/// A function that joins a world.
pub type Join = fn(&Options) -> Result<Handle, Error>;

/// A callback with the reason why rank 0 has not been found yet:
/// `localhost:7000: Connection refused (os error 111)`.
pub type OnWait = fn(&str);

/// Options for joining a world.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Way for ranks to find each other.
    pub kind: Kind,
    /// Time limit of the rendezvous, at most a year. Default: 60 s.
    pub timeout: Duration,
    /// Interval between heartbeats, at most a year. Default: 1 s.
    pub heartbeat: Duration,
    /// Silence after which a rank with an open connection counts as dead, such as a suspended rank, or a rank
    /// after a power failure of its host. Default: 8 s; `None` disables the check, for debugging.
    pub dead_after: Option<Duration>,
    /// Reaction of this process to a failure of another rank.
    pub on_failure: OnFailure,
    /// Function that joins the ranks of an MPI launcher: `Some(world::mpi)` in a program built with the
    /// feature `mpi`. If `None`, they use a TCP rendezvous. A program that does not name the function does
    /// not link the MPI library.
    pub join_mpi: Option<Join>,
    /// Called on the joining thread after each failed attempt to reach rank 0 over TCP.
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

/// The means of a process to join a new world of the remaining ranks: see
/// [`World::rejoin`](super::World::rejoin).
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct Rejoin {
    /// Options of the new world.
    pub options: Options,
    /// Address of this host at which other ranks have reached it, if known.
    pub address: Option<IpAddr>,
}

/// Maximum of all time limits, against an overflow of deadlines.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Options {
    pub(crate) fn bounded(&self) -> Self {
        Self { timeout: self.timeout.min(YEAR), heartbeat: self.heartbeat.min(YEAR), ..self.clone() }
    }

    /// The defaults with [`Options::or_environment`].
    ///
    /// # Errors
    /// If a variable is not a number of seconds.
    pub fn from_environment() -> Result<Self, Error> {
        Self::default().or_environment()
    }

    /// Overrides `timeout` and `dead_after` with the environment variables `NCCL_BENCH_TIMEOUT` and
    /// `NCCL_BENCH_DEAD_AFTER`, in seconds. The second may be 0: this disables the check.
    ///
    /// # Errors
    /// If a variable is not a number of seconds.
    pub fn or_environment(mut self) -> Result<Self, Error> {
        if let Some(timeout) = read_seconds("NCCL_BENCH_TIMEOUT")? {
            self.timeout = timeout;
        }
        if let Some(dead_after) = read_seconds("NCCL_BENCH_DEAD_AFTER")? {
            self.dead_after = (!dead_after.is_zero()).then_some(dead_after);
        }
        Ok(self)
    }
}

fn read_seconds(variable: &str) -> Result<Option<Duration>, Error> {
    let Some(value) = process_variable(variable) else { return Ok(None) };
    let seconds =
        value.trim().parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map(Some).ok_or_else(|| {
        Error::Environment(format!("{variable} is `{value}`, not a number of seconds such as 60"))
    })
}
