//! The launcher that started this process.

mod ancestors;
mod nodelist;
mod rendezvous;

use std::fmt;
use std::path::Path;

use super::{Error, process_variable};

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
    /// An indexed Job of Kubernetes, with one process per pod. Kubernetes sets the index of a pod; the pod template must set
    /// `NCCL_BENCH_SIZE` and `NCCL_BENCH_ADDR`.
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
    /// True if an MPI library can find the other ranks: always with the launchers of Open MPI and MPICH, with Slurm if
    /// its PMIx or PMI-2 plugin is used.
    pub mpi: bool,
}

/// A variable, with its value, that contradicts another one, or is not a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction {
    one: (&'static str, String),
    other: Option<(&'static str, String)>,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value) = &self.one;
        match &self.other {
            Some((other, size)) => write!(
                formatter,
                "{name} is {value}, and {other} is {size}: they cannot both be of this job; unset those that are left from another one"
            ),
            None => write!(
                formatter,
                "{name} is `{value}`, which is not a valid rank or size: unset it, or start this process with its launcher"
            ),
        }
    }
}

/// A launcher, its variables with rank and size, and the variables of which one must be set.
type Signature = (Launcher, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// Known launchers, innermost first: torchrun runs under srun, mpirun inside a Slurm job, and all of them in pods. A Slurm
/// batch script has a rank and a size too, but only a step of `srun` has a step's number of tasks or identifier.
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

/// Launchers' variables with the number of ranks on this host.
const LOCAL_SIZES: [(Launcher, &str); 3] = [
    (Launcher::OpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"),
    (Launcher::Mpich, "MPI_LOCALNRANKS"),
    (Launcher::Torchrun, "LOCAL_WORLD_SIZE"),
];

pub(crate) const COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";

/// Variables of a pod template that give the number of pods.
pub(crate) const POD_SIZES: &[&str] = &["NCCL_BENCH_SIZE", "WORLD_SIZE"];

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

    /// A rank variable without its size variable or vice versa, as `(set, missing)`. The process is one of several and must
    /// not run alone. `WORLD_SIZE` and `NCCL_BENCH_SIZE` of 1 need no rank.
    pub(crate) fn incomplete_variables(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<(&'static str, &'static str)> {
        let set = |name: &str| variable(name).is_some();
        let several = |name: &str| variable(name).is_some_and(|size| size.trim() != "1");
        let unknown = self.launcher == Launcher::None;
        let pod = self.launcher == Launcher::Kubernetes;
        let halves = [
            // This library's own variables are set on purpose.
            ("NCCL_BENCH_RANK", "NCCL_BENCH_SIZE", set("NCCL_BENCH_RANK")),
            ("NCCL_BENCH_SIZE", "NCCL_BENCH_RANK", unknown && several("NCCL_BENCH_SIZE")),
            (
                "NCCL_BENCH_ADDR",
                "NCCL_BENCH_RANK",
                unknown && !set("NCCL_BENCH_SIZE") && set("NCCL_BENCH_ADDR"),
            ),
            ("NCCL_BENCH_ADDR", "NCCL_BENCH_SIZE", pod && !set("WORLD_SIZE") && set("NCCL_BENCH_ADDR")),
            ("RANK", "WORLD_SIZE", unknown && set("RANK")),
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", unknown && set("OMPI_COMM_WORLD_SIZE")),
            ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", unknown && set("MV2_COMM_WORLD_RANK")),
            ("WORLD_SIZE", "RANK", unknown && several("WORLD_SIZE")),
        ];
        halves
            .into_iter()
            .find(|&(_, missing, means)| means && !set(missing))
            .map(|(set, missing, _)| (set, missing))
    }

    /// A variable of another launcher, and its value, that shows that there are several ranks, or that only PMIx knows how
    /// many, where this process would be alone. A rank of 0 does not: batch scripts have it too.
    pub(crate) fn find_other_launcher(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<(&'static str, String)> {
        let unknown = self.launcher == Launcher::None;
        if !unknown && (self.launcher.starts_ranks() || self.size != Some(1)) {
            return None;
        }
        let ranks = [
            COMPLETION_INDEX,
            "PMI_RANK",
            "PMIX_RANK",
            "SLURM_PROCID",
            "LOCAL_RANK",
            "MPI_LOCALRANKID",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "HOROVOD_RANK",
            "ALPS_APP_PE",
            "SLURM_LOCALID",
            "MVP_COMM_WORLD_RANK",
            "FLUX_TASK_RANK",
            "PALS_RANKID",
            "JSM_NAMESPACE_RANK",
            "AWS_BATCH_JOB_NODE_INDEX",
            "GROUP_RANK",
            "ROLE_RANK",
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "PMI_ID",
        ];
        let sizes = [
            "PMI_SIZE",
            "MV2_COMM_WORLD_SIZE",
            "MVP_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "HOROVOD_SIZE",
            "MPI_LOCALNRANKS",
            "LOCAL_WORLD_SIZE",
            "FLUX_JOB_SIZE",
            "JSM_NAMESPACE_SIZE",
            "AWS_BATCH_JOB_NUM_NODES",
            "GROUP_WORLD_SIZE",
            "ROLE_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_SIZE",
        ];
        let names = ranks.map(|name| (name, 0)).into_iter().chain(sizes.map(|name| (name, 1)));
        let larger = names.filter_map(|(name, most)| {
            let value = variable(name)?;
            value.trim().parse::<usize>().is_ok_and(|number| number > most).then_some((name, value))
        });
        let namespace = variable("PMIX_NAMESPACE").map(|value| ("PMIX_NAMESPACE", value));
        // A batch script has its job's identifier; a container may get no more of a step than these two.
        let is_part_of_step = variable("SLURM_PROCID").is_some() && variable("SLURM_JOB_ID").is_none();
        let tasks = variable("SLURM_NTASKS").filter(|tasks| is_part_of_step && tasks.trim() != "1");
        let tasks = tasks.map(|value| ("SLURM_NTASKS", value));
        // A PMIX_NAMESPACE beside a known launcher shows nothing: `mpirun -np 1` sets it.
        larger.chain(namespace.filter(|_| unknown)).chain(tasks).next()
    }

    /// Finds two variables of the launcher that cannot both be right: a rank, or a number of local ranks, that does not fit the
    /// number of ranks; or a value that is not a number, alone.
    pub(crate) fn find_contradiction(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Contradiction> {
        let named = |names: &[&'static str]| names.iter().find_map(|&name| Some((name, variable(name)?)));
        let number = |(_, value): &(&str, String)| value.trim().parse::<usize>().ok();
        let &(_, ranks, sizes, _) = SIGNATURES.iter().find(|(launcher, ..)| *launcher == self.launcher)?;
        let (rank, size) = (named(ranks), named(sizes)?);
        let malformed =
            [&rank, &Some(size.clone())].into_iter().flatten().find(|it| number(it).is_none()).cloned();
        if let Some(one) = malformed {
            return self.launcher.starts_ranks().then_some(Contradiction { one, other: None });
        }
        // The rendezvous refuses all others.
        let most = number(&size).filter(|&most| most == 1 || self.launcher.starts_ranks())?;
        let rank = rank.filter(|rank| number(rank).is_some_and(|rank| rank >= most));
        let local = LOCAL_SIZES.iter().filter(|(launcher, _)| *launcher == self.launcher);
        let local = local.filter_map(|&(_, name)| named(&[name])).find(|local| number(local) > Some(most));
        Some(Contradiction { one: rank.or(local)?, other: Some(size) })
    }

    /// Finds a size of 1 where another launcher has started several processes. Returns the variable with the size of 1, that
    /// launcher, and the variable with its size. The size of 1 can be left from an earlier job. Launchers that start the
    /// processes themselves are right: `mpirun -np 1` in a step of Slurm.
    pub(crate) fn contradicted_size(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<(&'static str, Launcher, &'static str)> {
        let named =
            |names: &'static [&'static str]| names.iter().copied().find(|name| variable(name).is_some());
        let size = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let alone = SIGNATURES
            .iter()
            .filter(|(launcher, ..)| {
                *launcher == self.launcher && !launcher.starts_ranks() && self.size == Some(1)
            })
            .find_map(|&(_, _, sizes, _)| named(sizes))?;
        SIGNATURES.iter().find_map(|&(launcher, _, sizes, marks)| {
            let name = named(sizes)?;
            (launcher.starts_ranks() && named(marks).is_some() && size(name) > Some(1))
                .then_some((alone, launcher, name))
        })
    }

    /// The name of an MPI launcher that has started this process, though no variable of it is set.
    pub(crate) fn find_silent_launcher(&self) -> Option<String> {
        if self.launcher == Launcher::None { ancestors::find_launcher(Path::new("/proc")) } else { None }
    }

    /// True if there is no other rank.
    pub(crate) fn is_single_process(&self) -> bool {
        self.launcher == Launcher::None || self.size == Some(1)
    }

    /// Compares the size that the MPI library reports with that of the launcher. With an MPI library that does not support
    /// the launcher, every process is rank 0 of 1.
    ///
    /// # Errors
    /// If they differ. The error names the launcher, the library (`described`, such as `Open MPI 4.1.4`), and solutions.
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
        let left_over = match self.launcher {
            Launcher::OpenMpi => {
                "; if no mpirun started this process, unset OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"
            }
            Launcher::Mpich => "; if no mpiexec started this process, unset PMI_RANK and PMI_SIZE",
            _ => "",
        };
        Err(Error::Launcher(format!(
            "{} started {expected} processes, but this program was built with {described}, so {seen}; \
             {advice}{}, build it with the MPI of this launcher, or let the ranks meet over TCP \
             (`Options::kind = Kind::Tcp`){left_over}",
            self.launcher,
            if self.launcher == Launcher::Slurm { String::new() } else { format!(" ({family})") },
        )))
    }
}

#[cfg(test)]
mod tests;
