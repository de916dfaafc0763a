//! Joins the world of `nccl-bench`. This program is not linked to MPI.
//!
//! Under an MPI launcher the process becomes `nccl-bench-mpi` from the same folder, with the same arguments
//! and environment. `exec` keeps the process ID, and launchers know their processes by it.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use collectives::world::{self, Kind, Launcher, OnFailure, Options, Started};

use engine::request::{BackendChoice, Request, Versus};
use engine::supervision::Stop;

use crate::limits;

/// The program linked to MPI.
const SIBLING: &str = "nccl-bench-mpi";

/// A command's request to join the world.
#[derive(Clone, Copy, Debug)]
pub struct JoinRequest {
    /// The value of `--world`.
    pub world: Kind,
    /// The flag for moving the data through MPI.
    pub for_mpi: Option<&'static str>,
    /// Limit on the rendezvous and on the start of MPI.
    pub timeout: Option<Duration>,
    /// Advice for a rendezvous without MPI, if possible.
    pub instead: Option<&'static str>,
}

impl From<&Request> for JoinRequest {
    /// The limit on each step of the run (`-T`) also applies to the rendezvous.
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

/// Returns the world's options for both programs. A failed rank ends all others, because these may wait for a
/// GPU forever. The variable with the limit takes precedence over the request.
///
/// # Errors
/// When a variable is not a number of seconds, or when MPI is to move the data of ranks not started by it.
pub fn world_options(request: &JoinRequest) -> Result<Options, Stop> {
    let mut options = Options::default();
    options.kind = choose_kind(request, &Started::detect())?;
    options.on_failure = OnFailure::Exit;
    options.timeout = request.timeout.unwrap_or(options.timeout);
    options.or_environment().map_err(error_to_stop)
}

/// Returns the kind of world: as requested, but MPI if MPI moves the data.
fn choose_kind(request: &JoinRequest, started: &Started) -> Result<Kind, Stop> {
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
                "{flag} needs the ranks of an MPI launcher, and {who}; start it as mpirun -np 2 nccl-bench \
                 ..., under Slurm as srun --mpi=pmix"
            )))
        }
        other => Err(Stop::Refused(format!(
            "{flag} needs ranks that meet through MPI, and --world {other} lets them meet without it: remove \
             --world"
        ))),
    }
}

/// Replaces this process by `nccl-bench-mpi` under an MPI launcher. Returns if MPI is not needed.
///
/// # Errors
/// When `nccl-bench-mpi` is needed and missing, when MPI is to move the data of ranks not started by it, or
/// when this process may use too little memory for ranks.
pub fn hand_over(request: &JoinRequest) -> Result<(), Stop> {
    limits::check_address_space()?;
    let started = Started::detect();
    let several = started.mpi && started.size != Some(1);
    match (choose_kind(request, &started)?, started.launcher) {
        (Kind::Mpi, _) => Err(become_sibling(request, &started)),
        (Kind::Auto, Launcher::OpenMpi | Launcher::Mpich) if several => {
            Err(become_sibling(request, &started))
        }
        // Without the sibling, Slurm's variables suffice for a rendezvous over TCP.
        (Kind::Auto, Launcher::Slurm) if several && sibling_path().is_ok_and(|path| path.exists()) => {
            Err(become_sibling(request, &started))
        }
        _ => Ok(()),
    }
}

/// Joins the world without MPI.
///
/// # Errors
/// When the world cannot be joined.
pub fn join_world(request: &JoinRequest) -> Result<world::Handle, Stop> {
    world::from_environment(&world_options(request)?).map_err(error_to_stop)
}

/// Converts an error of joining. The result names this program's flags in place of the library's options.
#[must_use]
pub fn error_to_stop(error: world::Error) -> Stop {
    match error {
        world::Error::Environment(message) | world::Error::Launcher(message) => Stop::Refused(message),
        world::Error::UnsuitableKind { problem, instead } => {
            let advice = instead.advice(&format!("--world {instead}"));
            Stop::Refused(format!("{problem}, or {advice}"))
        }
        other => other.into(),
    }
}

fn sibling_path() -> io::Result<PathBuf> {
    // The program itself, also after a start through a link.
    Ok(env::current_exe()?.with_file_name(SIBLING))
}

/// Replaces this process by its sibling. Returns the reason if that is impossible.
fn become_sibling(request: &JoinRequest, started: &Started) -> Stop {
    let path = match sibling_path() {
        Ok(path) => path,
        Err(error) => {
            return Stop::Refused(refusal_text(started, Path::new(SIBLING), &error, request.instead));
        }
    };
    let mut arguments = env::args_os();
    let mut command = Command::new(&path);
    // A name of nccl-tests selects nccl-tests' defaults.
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    Stop::Refused(refusal_text(started, &path, &error, request.instead))
}

/// Returns the text of the refusal. `instead` is the advice for a rendezvous without MPI.
fn refusal_text(started: &Started, path: &Path, error: &io::Error, instead: Option<&str>) -> String {
    let who = match (started.mpi, started.size) {
        (true, Some(size)) => format!("{} started {size} processes", started.launcher),
        (true, None) => format!("{} started this process", started.launcher),
        (false, _) => "MPI was requested".to_owned(),
    };
    let what = if error.kind() == io::ErrorKind::NotFound {
        format!("which was not found at {}", path.display())
    } else {
        format!("which cannot be started at {}: {error}", path.display())
    };
    format!(
        "{who}. MPI needs {SIBLING}, {what}. Build it against this machine's MPI and install it next to \
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
            refusal_text(&Started::detect(), Path::new("/opt/bin/nccl-bench-mpi"), &missing, instead)
        };
        let with = text(Some("go on foot"));
        for part in ["/opt/bin/nccl-bench-mpi", "--features mpi", ", or go on foot"] {
            assert!(with.contains(part), "{with}");
        }
        assert!(text(None).ends_with("--features mpi)"), "{}", text(None));
    }
}
