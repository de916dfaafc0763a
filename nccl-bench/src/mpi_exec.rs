//! Joining the world that `nccl-bench` was started into, without a line of MPI in it.
//!
//! Under an MPI launcher the process becomes `nccl-bench-mpi`, its sibling in the same folder, with the same
//! arguments and environment: launchers know their processes by number, which `exec` keeps.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use collectives::world::{self, Kind, Launcher, OnFailure, Options, Started};

use engine::request::{BackendChoice, Request, Versus};
use engine::supervision::Stop;

/// The program that MPI launchers' ranks become.
const SIBLING: &str = "nccl-bench-mpi";

/// How a command's ranks are to meet.
#[derive(Clone, Copy, Debug)]
pub struct JoinRequest {
    /// As `--world` says.
    pub world: Kind,
    /// The flag that has MPI carry the data.
    pub for_mpi: Option<&'static str>,
    /// What limits the meeting, and starting MPI, if anything does.
    pub timeout: Option<Duration>,
    /// How to meet without MPI, if that can be.
    pub instead: Option<&'static str>,
}

impl From<&Request> for JoinRequest {
    /// What limits each step of the run (`-T`) limits the meeting too: ranks may start at quite different times.
    fn from(request: &Request) -> Self {
        let for_mpi = match request {
            Request { backend: BackendChoice::Mpi, .. } => Some("--backend mpi"),
            Request { versus: Some(Versus::Mpi), .. } => Some("--vs mpi"),
            _ => None,
        };
        let instead = for_mpi.is_none().then_some("let the ranks meet over TCP (--world tcp)");
        Self { world: request.world, for_mpi, timeout: request.timeout, instead }
    }
}

/// How both programs join a world: a rank that fails ends all others, since they can be stuck in a GPU's work. A limit's own
/// variable goes before the meeting's.
///
/// # Errors
/// When a variable of the environment is not a number of seconds, or MPI is to carry the data of ranks that are not its
/// own.
pub fn options(request: &JoinRequest) -> Result<Options, Stop> {
    let mut options = Options::default();
    options.kind = kind(request, &Started::detect())?;
    options.on_failure = OnFailure::Exit;
    options.timeout = request.timeout.unwrap_or(options.timeout);
    options.or_environment().map_err(stop)
}

/// How the ranks meet: as is asked for, but through MPI where MPI carries the data.
fn kind(request: &JoinRequest, started: &Started) -> Result<Kind, Stop> {
    let Some(flag) = request.for_mpi else { return Ok(request.world) };
    match request.world {
        Kind::Mpi => Ok(Kind::Mpi),
        Kind::Auto if started.mpi => Ok(Kind::Mpi),
        Kind::Auto => {
            let who = match started.launcher {
                Launcher::None => "this process was started without one".to_owned(),
                other => format!("{other} started this process"),
            };
            Err(Stop::Refused(format!(
                "{flag} needs the ranks of an MPI launcher, and {who}; start it as mpirun -np 2 nccl-bench ..., \
                 under Slurm as srun --mpi=pmix"
            )))
        }
        other => Err(Stop::Refused(format!(
            "{flag} needs ranks that meet through MPI, and --world {other} lets them meet without it: leave --world \
             out"
        ))),
    }
}

/// Becomes the sibling under an MPI launcher, and does not return then.
///
/// # Errors
/// When the sibling is needed and missing, or MPI is to carry the data of ranks that are not its own.
pub fn hand_over(request: &JoinRequest) -> Result<(), Stop> {
    let started = Started::detect();
    let several = started.mpi && started.size != Some(1);
    match (kind(request, &started)?, started.launcher) {
        (Kind::Mpi, _) => Err(become_sibling(request, &started)),
        (Kind::Auto, Launcher::OpenMpi | Launcher::Mpich) if several => {
            Err(become_sibling(request, &started))
        }
        // Without the sibling Slurm's own variables are enough to meet over TCP.
        (Kind::Auto, Launcher::Slurm) if several && sibling().is_ok_and(|path| path.exists()) => {
            Err(become_sibling(request, &started))
        }
        _ => Ok(()),
    }
}

/// Joins the world without MPI.
///
/// # Errors
/// When the world cannot be joined.
pub fn join(request: &JoinRequest) -> Result<world::Handle, Stop> {
    world::from_environment(&options(request)?).map_err(stop)
}

/// An error of joining a world as the end of a run, with this program's flags for what the library names of its options.
#[must_use]
pub fn stop(error: world::Error) -> Stop {
    match error {
        world::Error::Environment(message) | world::Error::Launcher(message) => {
            let message = message.replace("`Options::kind = Kind::Tcp`", "--world tcp");
            let message = message
                .replace("(feature `mpi`, and `Options::join_mpi = Some(world::mpi)`)", "(--world mpi)");
            Stop::Refused(message.replace("`Options::kind = Kind::Single`", "--world single"))
        }
        other => other.into(),
    }
}

fn sibling() -> io::Result<PathBuf> {
    // The program itself, also when it was started through a link.
    Ok(env::current_exe()?.with_file_name(SIBLING))
}

/// Replaces this process by its sibling; returns only when that is impossible, and says why.
fn become_sibling(request: &JoinRequest, started: &Started) -> Stop {
    let path = match sibling() {
        Ok(path) => path,
        Err(error) => return Stop::Refused(refusal(started, Path::new(SIBLING), &error, request.instead)),
    };
    let mut arguments = env::args_os();
    let mut command = Command::new(&path);
    // The name counts: started by a name of nccl-tests, the defaults are those of nccl-tests.
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    Stop::Refused(refusal(started, &path, &error, request.instead))
}

/// `instead` says how the ranks can meet without MPI.
fn refusal(started: &Started, path: &Path, error: &io::Error, instead: Option<&str>) -> String {
    let who = match (started.mpi, started.size) {
        (true, Some(size)) => format!("{} started {size} processes", started.launcher),
        (true, None) => format!("{} started this process", started.launcher),
        (false, _) => "MPI was asked for".to_owned(),
    };
    let what = if error.kind() == io::ErrorKind::NotFound {
        format!("which is not there: {}", path.display())
    } else {
        format!("which cannot be started: {}: {error}", path.display())
    };
    format!(
        "{who}, and MPI is the work of {SIBLING}, {what}; build it against this machine's MPI and put it beside \
         nccl-bench (cargo build --release --package nccl-bench --features mpi){}",
        instead.map(|instead| format!(", or {instead}")).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_sibling_is_told_with_its_place_and_two_ways_out() {
        let text = |instead| {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            refusal(&Started::detect(), Path::new("/opt/bin/nccl-bench-mpi"), &missing, instead)
        };
        let with = text(Some("go on foot"));
        for part in ["/opt/bin/nccl-bench-mpi", "--features mpi", ", or go on foot"] {
            assert!(with.contains(part), "{with}");
        }
        assert!(text(None).ends_with("--features mpi)"), "{}", text(None));
    }
}
