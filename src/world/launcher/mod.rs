//! The launcher of this process.

mod ancestors;
mod nodelist;
mod refusal;
mod rendezvous;

use std::fmt;
use std::path::Path;

use super::{Error, Kind, process_variable};
use refusal::LauncherVariables;
pub(crate) use refusal::Refusal;

/// A program that starts the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher.
    None,
    /// A launcher that sets `NCCL_BENCH_RANK` and `NCCL_BENCH_SIZE`.
    Explicit,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec` (Hydra), also in Intel MPI and MVAPICH.
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// torchrun, or another launcher that sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// An indexed Job of Kubernetes, with one process per pod. Kubernetes sets the index of a pod; the pod
    /// template must set the number of pods and the address of pod 0
    /// ([`RendezvousConfig::from_environment`](super::RendezvousConfig::from_environment)).
    Kubernetes,
}

impl Launcher {
    /// True for launchers that start the ranks themselves, whatever else is set.
    fn starts_ranks(self) -> bool {
        matches!(self, Self::OpenMpi | Self::Mpich | Self::Slurm)
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::None => "no launcher",
            Self::Explicit => "NCCL_BENCH_RANK and NCCL_BENCH_SIZE",
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Mpich => "MPICH's mpiexec",
            Self::Slurm => "Slurm's srun",
            Self::Torchrun => "torchrun",
            Self::Kubernetes => "Kubernetes",
        })
    }
}

/// Launcher, rank and size of this process, from its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// The launcher.
    pub launcher: Launcher,
    /// Its rank, if the launcher gives a valid one.
    pub rank: Option<usize>,
    /// Number of processes, if the launcher gives a valid one.
    pub size: Option<usize>,
    /// True if an MPI library can find the other ranks: always with the launchers of Open MPI and MPICH, with
    /// Slurm if its PMIx or PMI-2 plugin is used.
    pub mpi: bool,
}

/// A launcher, its variables with rank and size, and a set of variables, at least one of them set.
type Signature = (Launcher, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// Known launchers, innermost first: torchrun runs under srun, mpirun inside a Slurm job, and all of them in
/// pods. A Slurm batch script has a rank and a size too, but only a step of `srun` has a step's number of
/// tasks or identifier.
const SIGNATURES: &[Signature] = &[
    (Launcher::Explicit, &["NCCL_BENCH_RANK"], &["NCCL_BENCH_SIZE"], &["NCCL_BENCH_RANK"]),
    (Launcher::Torchrun, &["RANK"], &["WORLD_SIZE"], &["TORCHELASTIC_RUN_ID"]),
    (Launcher::OpenMpi, &["OMPI_COMM_WORLD_RANK"], &["OMPI_COMM_WORLD_SIZE"], &["OMPI_COMM_WORLD_RANK"]),
    (
        Launcher::Mpich,
        &["PMI_RANK"],
        &["PMI_SIZE"],
        &["PMI_FD", "PMI_PORT", "HYDI_CONTROL_FD", "MPI_LOCALNRANKS"],
    ),
    (Launcher::Torchrun, &["RANK"], &["WORLD_SIZE"], &["RANK"]),
    (
        Launcher::Slurm,
        &["SLURM_PROCID"],
        &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        &["SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID"],
    ),
    (Launcher::Kubernetes, &[COMPLETION_INDEX], POD_SIZES, &[COMPLETION_INDEX]),
];

pub(crate) const COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";

/// Variables of a pod template with the number of pods.
pub(crate) const POD_SIZES: &[&str] = &["NCCL_BENCH_SIZE", "WORLD_SIZE", "PET_NNODES"];

impl Started {
    /// Detects the launcher from the environment.
    pub fn detect() -> Self {
        Self::from_variables(&process_variable)
    }

    pub(crate) fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |names: &[&str]| {
            names.iter().find_map(|name| variable(name)).and_then(|value| value.trim().parse::<usize>().ok())
        };
        for &(launcher, rank, size, marks) in SIGNATURES {
            let set = |names: &[&str]| names.iter().any(|name| variable(name).is_some());
            // A pod belongs to a Job even if its template gives no size.
            if set(marks) && (set(size) || launcher == Launcher::Kubernetes) {
                let mpi = match launcher {
                    Launcher::OpenMpi | Launcher::Mpich => true,
                    Launcher::Slurm => set(&["PMIX_RANK", "PMI_RANK"]),
                    Launcher::None | Launcher::Explicit | Launcher::Torchrun | Launcher::Kubernetes => false,
                };
                return Self { launcher, rank: number(rank), size: number(size), mpi };
            }
        }
        Self { launcher: Launcher::None, rank: None, size: None, mpi: false }
    }

    /// Finds a reason against joining a world of a kind: this process may be one of several although it would
    /// run alone, or its rank is not known.
    pub(crate) fn find_refusal(&self, kind: Kind) -> Option<Refusal> {
        let find_ancestor = || ancestors::find_launcher(Path::new("/proc"));
        LauncherVariables { started: self, variable: &process_variable, find_ancestor: &find_ancestor }
            .find_refusal(kind)
    }

    /// True if there is no other rank.
    pub(crate) fn is_single_process(&self) -> bool {
        self.launcher == Launcher::None || self.size == Some(1)
    }

    /// Compares the MPI library's size with the launcher's. If the MPI library does not support the launcher,
    /// every process is rank 0 of 1.
    ///
    /// # Errors
    /// If they differ. The error names the launcher, the library (`described`, such as `Open MPI 4.1.4`), and
    /// solutions.
    pub fn agrees_with_mpi(&self, described: &str, rank: usize, size: usize) -> Result<(), Error> {
        // Left-over variables of another launcher say nothing, unless each process would be alone.
        let counts = |&expected: &usize| self.mpi || (size == 1 && expected > 1);
        let Some(expected) = self.size.filter(counts) else { return Ok(()) };
        if expected == size {
            return Ok(());
        }
        let family = described.split_whitespace().take_while(|word| !word.starts_with(char::is_numeric));
        let family = family.collect::<Vec<_>>().join(" ");
        let seen = if size == 1 {
            "every process believes that it is rank 0 of 1".to_owned()
        } else {
            format!("this process believes that it is rank {rank} of {size}")
        };
        let advice = match self.launcher {
            Launcher::Slurm => {
                "start it with a PMI that this MPI library speaks (srun --mpi=list shows them)"
            }
            _ => "start it with the mpirun of that MPI",
        };
        let left_over = match self.launcher {
            Launcher::OpenMpi => {
                "if no mpirun started this process, unset OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE; \
                 otherwise "
            }
            Launcher::Mpich => "if no mpiexec started this process, unset PMI_RANK and PMI_SIZE; otherwise ",
            _ => "",
        };
        let family = if self.launcher == Launcher::Slurm { String::new() } else { format!(" ({family})") };
        let problem = format!(
            "{} started {expected} processes, but this program was built with {described}, so {seen}; \
             {left_over}{advice}{family}, build it with the MPI of this launcher",
            self.launcher,
        );
        Err(Error::UnsuitableKind { problem, instead: Kind::Tcp })
    }
}

#[cfg(test)]
mod tests;
