//! What started this process.

mod nodelist;
mod rendezvous;

use super::{Error, process_variable};
use std::fmt;

pub use nodelist::expand as expand_nodelist;

/// A program that starts the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// None: the process was started by hand.
    None,
    /// Whoever set `NCCL_BENCH_RANK` and `NCCL_BENCH_SIZE`.
    Explicit,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec` (hydra), also that of Intel MPI and MVAPICH.
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// torchrun, or anything that sets `RANK` and `WORLD_SIZE` as it does.
    Torchrun,
    /// An indexed Job of Kubernetes, each of whose pods is a process. It tells a pod its number, but not how many there
    /// are, nor where rank 0 is: the pod template does, with `NCCL_BENCH_SIZE` and `NCCL_BENCH_ADDR`.
    Kubernetes,
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

/// What a launcher told this process about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// What started it.
    pub launcher: Launcher,
    /// Its rank, where the launcher gave a readable one.
    pub rank: Option<usize>,
    /// How many processes were started, where the launcher gave a readable number.
    pub size: Option<usize>,
    /// Whether an MPI library would find the other ranks: always under Open MPI's and MPICH's launchers, under
    /// Slurm with its PMIx or PMI-2 plugin.
    pub mpi: bool,
}

/// A launcher, the variables with rank and size, and what else has to be set for it to be this one.
type Signature = (Launcher, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// The innermost launcher comes first: torchrun runs under srun, mpirun runs inside a Slurm job. A Slurm batch
/// script has a rank and a size too, but only the steps of `srun` have a step's number of tasks or identifier. All of
/// them run inside pods.
const SIGNATURES: &[Signature] = &[
    (Launcher::Explicit, &["NCCL_BENCH_RANK"], &["NCCL_BENCH_SIZE"], &["NCCL_BENCH_RANK"]),
    (Launcher::Torchrun, &["RANK"], &["WORLD_SIZE"], &["TORCHELASTIC_RUN_ID"]),
    (Launcher::OpenMpi, &["OMPI_COMM_WORLD_RANK"], &["OMPI_COMM_WORLD_SIZE"], &["OMPI_COMM_WORLD_SIZE"]),
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
    (Launcher::Kubernetes, &[COMPLETION_INDEX], SIZES_IN_PODS, &[COMPLETION_INDEX]),
];

/// What Kubernetes tells a pod of an indexed Job: its number.
pub(crate) const COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";

/// What a pod template can say of the number of pods.
pub(crate) const SIZES_IN_PODS: &[&str] = &["NCCL_BENCH_SIZE", "WORLD_SIZE"];

impl Started {
    /// What started this process, from its environment.
    pub fn detect() -> Self {
        Self::from_variables(&process_variable)
    }

    pub(crate) fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |names: &[&str]| {
            names.iter().find_map(|name| variable(name)).and_then(|value| value.trim().parse::<usize>().ok())
        };
        for &(launcher, rank, size, marks) in SIGNATURES {
            let set = |names: &[&str]| names.iter().any(|name| variable(name).is_some());
            // A pod that does not know how many there are is one of a Job all the same.
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

    /// A rank without a number of ranks, or the other way round: `(set, missing)`. Such a process is one of several, and
    /// must not take itself for the only one. `WORLD_SIZE` and `NCCL_BENCH_SIZE` of 1 need no rank.
    pub(crate) fn half_a_set(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<(&'static str, &'static str)> {
        let set = |name: &str| variable(name).is_some();
        let several = |name: &str| variable(name).is_some_and(|size| size.trim() != "1");
        let unknown = self.launcher == Launcher::None;
        let pod = self.launcher == Launcher::Kubernetes;
        let halves = [
            // These are this library's own: whoever sets them means them.
            ("NCCL_BENCH_RANK", "NCCL_BENCH_SIZE", set("NCCL_BENCH_RANK")),
            ("NCCL_BENCH_SIZE", "NCCL_BENCH_RANK", unknown && several("NCCL_BENCH_SIZE")),
            (
                "NCCL_BENCH_ADDR",
                "NCCL_BENCH_RANK",
                unknown && !set("NCCL_BENCH_SIZE") && set("NCCL_BENCH_ADDR"),
            ),
            ("NCCL_BENCH_ADDR", "NCCL_BENCH_SIZE", pod && !set("WORLD_SIZE") && set("NCCL_BENCH_ADDR")),
            ("RANK", "WORLD_SIZE", unknown && set("RANK")),
            ("WORLD_SIZE", "RANK", unknown && several("WORLD_SIZE")),
        ];
        halves
            .into_iter()
            .find(|&(_, missing, means)| means && !set(missing))
            .map(|(set, missing, _)| (set, missing))
    }

    /// A variable of an unknown launcher that says that there are several ranks, with its value. A rank of 0 says nothing:
    /// batch scripts have it, too.
    pub(crate) fn one_of_several(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<(&'static str, String)> {
        let unknown = self.launcher == Launcher::None;
        let ranks = [
            "PMI_RANK",
            "PMIX_RANK",
            "SLURM_PROCID",
            "LOCAL_RANK",
            "MPI_LOCALRANKID",
            "OMPI_COMM_WORLD_RANK",
        ];
        let names = ranks.map(|name| (name, 0)).into_iter().chain([("PMI_SIZE", 1)]);
        let mut larger = names.filter_map(|(name, most)| {
            let value = variable(name)?;
            value.trim().parse::<usize>().is_ok_and(|number| number > most).then_some((name, value))
        });
        if unknown { larger.next() } else { None }
    }

    /// Whether it is known that there is no other rank. The pod of a Job that was told its number alone is taken for the
    /// only one when it is the first; any other cannot be.
    pub(crate) fn alone(&self) -> bool {
        match (self.launcher, self.size) {
            (Launcher::None, _) | (_, Some(1)) => true,
            (Launcher::Kubernetes, None) => self.rank == Some(0),
            _ => false,
        }
    }

    /// Whether rank and size as the MPI library sees them are what the launcher started. An MPI library that was
    /// not made for the launcher takes every process for rank 0 of 1: a job that would measure nothing.
    ///
    /// # Errors
    /// Says who started what, what the library (`described`, such as `Open MPI 4.1.4`) makes of it, and what to do.
    pub fn agrees_with_mpi(&self, described: &str, rank: usize, size: usize) -> Result<(), Error> {
        let Some(expected) = self.size.filter(|_| self.mpi) else { return Ok(()) };
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
        Err(Error::Launcher(format!(
            "{} started {expected} processes, but this program was built with {described}, so {seen}; \
             {advice}{}, build it with the MPI of this launcher, or let the ranks meet over TCP \
             (`Options::kind = Kind::Tcp`)",
            self.launcher,
            if self.launcher == Launcher::Slurm { String::new() } else { format!(" ({family})") },
        )))
    }
}

#[cfg(test)]
mod tests;
