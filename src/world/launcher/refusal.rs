//! Reasons to refuse a process, perhaps not the only one of its job.

use std::fmt;

use super::{COMPLETION_INDEX, Launcher, SIGNATURES, Started};
use crate::world::{Error, Kind};

/// A variable, with its value.
type Assignment = (&'static str, String);

/// Reason to refuse a process: it may be one of several though it would run alone, or its rank is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// One variable of a pair is set.
    IncompletePair { set: &'static str, missing: &'static str },
    /// A rank or a size is not a number.
    Malformed(Assignment),
    /// Two contradictory variables of one launcher.
    Contradiction(Assignment, Assignment),
    /// A variable of another launcher. `alone` is the variable with a size of 1, if there is one.
    OtherLauncher { found: Assignment, alone: Option<&'static str> },
    /// The name of an MPI launcher among the ancestors of this process, without any of its variables.
    VariablesRemoved(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IncompletePair { set, missing } => write!(
                formatter,
                "{set} is set but {missing} is not, so this process cannot determine its rank: set \
                 {missing}, or unset {set} if this process is the only one"
            ),
            Self::Malformed((name, value)) => write!(
                formatter,
                "{name} is `{value}`, not a valid rank or size: unset it, or start this process with its \
                 launcher"
            ),
            Self::Contradiction((one, value), (other, size)) => write!(
                formatter,
                "{one} is {value}, but {other} is {size}: one of them belongs to another job; unset the \
                 variables of the other job"
            ),
            Self::OtherLauncher { found: (name, value), alone: None } => write!(
                formatter,
                "{name} is {value}: another launcher or a scheduler of nodes has started this process, as \
                 one of several or alone; set NCCL_BENCH_RANK, NCCL_BENCH_SIZE and NCCL_BENCH_ADDR for each \
                 process, or unset {name} if this process is the only one"
            ),
            Self::OtherLauncher { found: (name, value), alone: Some(alone) } => write!(
                formatter,
                "{alone} is 1, but {name} is {value}: another launcher or a scheduler of nodes has started \
                 several processes, and each process would be alone; unset the variable that is left from \
                 another job"
            ),
            Self::VariablesRemoved(launcher) => write!(
                formatter,
                "{launcher} has started this process, but its variables are not set (env -i, sudo and su \
                 remove them), so each process would be alone: pass them on (sudo -E, or mpirun directly \
                 before this program)"
            ),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let problem = refusal.to_string();
        match refusal {
            Refusal::OtherLauncher { alone: Some(_), .. } | Refusal::VariablesRemoved(_) => {
                Self::UnsuitableKind { problem, instead: Kind::Single }
            }
            _ => Self::Environment(problem),
        }
    }
}

/// Origin of a variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetBy {
    /// A launcher, for each of its processes.
    Launcher,
    /// `srun`, for each task of a step.
    Step,
    /// A scheduler or a script, for each node or pod. A launcher may start ranks there.
    Node,
}

/// Variables that prove several ranks if they are above the number: 0 for ranks, 1 for sizes and for ranks
/// counted from 1.
const VARIABLES: &[(&str, usize, SetBy)] = &[
    (COMPLETION_INDEX, 0, SetBy::Node),
    ("PMI_RANK", 0, SetBy::Launcher),
    ("PMIX_RANK", 0, SetBy::Launcher),
    ("PMI_ID", 0, SetBy::Launcher),
    ("RANK", 0, SetBy::Launcher),
    ("LOCAL_RANK", 0, SetBy::Launcher),
    ("GROUP_RANK", 0, SetBy::Launcher),
    ("ROLE_RANK", 0, SetBy::Launcher),
    ("MPI_LOCALRANKID", 0, SetBy::Launcher),
    ("MPIRUN_RANK", 0, SetBy::Launcher),
    ("OMPI_COMM_WORLD_RANK", 0, SetBy::Launcher),
    ("OMPI_COMM_WORLD_LOCAL_RANK", 0, SetBy::Launcher),
    ("OMPI_COMM_WORLD_NODE_RANK", 0, SetBy::Launcher),
    ("MV2_COMM_WORLD_RANK", 0, SetBy::Launcher),
    ("MV2_COMM_WORLD_LOCAL_RANK", 0, SetBy::Launcher),
    ("MVP_COMM_WORLD_RANK", 0, SetBy::Launcher),
    ("HOROVOD_RANK", 0, SetBy::Launcher),
    ("ALPS_APP_PE", 0, SetBy::Launcher),
    ("PALS_RANKID", 0, SetBy::Launcher),
    ("FLUX_TASK_RANK", 0, SetBy::Launcher),
    ("JSM_NAMESPACE_RANK", 0, SetBy::Launcher),
    ("SLURM_PROCID", 0, SetBy::Step),
    ("SLURM_LOCALID", 0, SetBy::Step),
    ("SLURM_NODEID", 0, SetBy::Step),
    ("AWS_BATCH_JOB_NODE_INDEX", 0, SetBy::Node),
    ("NODE_RANK", 0, SetBy::Node),
    ("PET_NODE_RANK", 0, SetBy::Node),
    ("SKYPILOT_NODE_RANK", 0, SetBy::Node),
    ("LEPTON_JOB_WORKER_INDEX", 0, SetBy::Node),
    ("LWS_WORKER_INDEX", 0, SetBy::Node),
    ("VC_TASK_INDEX", 0, SetBy::Node),
    ("DSTACK_NODE_RANK", 0, SetBy::Node),
    ("MF_PARALLEL_NODE_INDEX", 0, SetBy::Node),
    ("_CONDOR_PROCNO", 0, SetBy::Node),
    ("PBS_NODENUM", 0, SetBy::Node),
    ("PADDLE_TRAINER_ID", 0, SetBy::Node),
    ("LSF_PM_TASKID", 1, SetBy::Node),
    ("PMI_SIZE", 1, SetBy::Launcher),
    ("LOCAL_WORLD_SIZE", 1, SetBy::Launcher),
    ("GROUP_WORLD_SIZE", 1, SetBy::Launcher),
    ("ROLE_WORLD_SIZE", 1, SetBy::Launcher),
    ("MPI_LOCALNRANKS", 1, SetBy::Launcher),
    ("MPIRUN_NPROCS", 1, SetBy::Launcher),
    ("OMPI_COMM_WORLD_SIZE", 1, SetBy::Launcher),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", 1, SetBy::Launcher),
    ("MV2_COMM_WORLD_SIZE", 1, SetBy::Launcher),
    ("MV2_COMM_WORLD_LOCAL_SIZE", 1, SetBy::Launcher),
    ("MVP_COMM_WORLD_SIZE", 1, SetBy::Launcher),
    ("HOROVOD_SIZE", 1, SetBy::Launcher),
    ("FLUX_JOB_SIZE", 1, SetBy::Launcher),
    ("JSM_NAMESPACE_SIZE", 1, SetBy::Launcher),
    ("SLURM_STEP_NUM_TASKS", 1, SetBy::Step),
    ("AWS_BATCH_JOB_NUM_NODES", 1, SetBy::Node),
    ("NNODES", 1, SetBy::Node),
    ("NUM_NODES", 1, SetBy::Node),
    ("PET_NNODES", 1, SetBy::Node),
    ("SKYPILOT_NUM_NODES", 1, SetBy::Node),
    ("LEPTON_JOB_TOTAL_WORKERS", 1, SetBy::Node),
    ("LWS_GROUP_SIZE", 1, SetBy::Node),
    ("DSTACK_NODES_NUM", 1, SetBy::Node),
    ("MF_PARALLEL_NUM_NODES", 1, SetBy::Node),
    ("_CONDOR_NPROCS", 1, SetBy::Node),
    ("PADDLE_TRAINERS_NUM", 1, SetBy::Node),
    (HOSTS_OF_SAGEMAKER, 1, SetBy::Node),
];

/// A list of hosts, as JSON; counts as its length.
const HOSTS_OF_SAGEMAKER: &str = "SM_HOSTS";

/// Rank variables of launchers only, and the variable with their number of ranks. Such a rank without a size
/// is one of several, even if it is 0. `SLURM_PROCID` and `SLURM_LOCALID` are not among them: a batch script
/// has them too.
const RANKS_WITH_SIZES: &[(&str, Option<&str>)] = &[
    ("PMI_RANK", Some("PMI_SIZE")),
    ("PMI_ID", Some("PMI_SIZE")),
    ("PALS_RANKID", Some("PMI_SIZE")),
    ("MPIRUN_RANK", Some("MPIRUN_NPROCS")),
    ("MV2_COMM_WORLD_RANK", Some("MV2_COMM_WORLD_SIZE")),
    ("MVP_COMM_WORLD_RANK", Some("MVP_COMM_WORLD_SIZE")),
    ("HOROVOD_RANK", Some("HOROVOD_SIZE")),
    ("FLUX_TASK_RANK", Some("FLUX_JOB_SIZE")),
    ("JSM_NAMESPACE_RANK", Some("JSM_NAMESPACE_SIZE")),
    ("PMIX_NAMESPACE", None),
    ("PMIX_RANK", None),
    ("ALPS_APP_PE", None),
];

/// Launchers' variables with the number of ranks on this host.
const LOCAL_SIZES: [(Launcher, &str); 3] = [
    (Launcher::OpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"),
    (Launcher::Mpich, "MPI_LOCALNRANKS"),
    (Launcher::Torchrun, "LOCAL_WORLD_SIZE"),
];

fn parse_number(value: &str) -> Option<usize> {
    value.trim().parse().ok()
}

/// The variables of a process, and their launcher.
pub(super) struct LauncherVariables<'a> {
    pub started: &'a Started,
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Finds the name of the nearest ancestor of this process that is a launcher of MPI.
    pub find_ancestor: &'a dyn Fn() -> Option<String>,
}

impl LauncherVariables<'_> {
    /// Finds a reason to refuse to join the world of a kind.
    pub(super) fn find_refusal(&self, kind: Kind) -> Option<Refusal> {
        if matches!(kind, Kind::Single | Kind::Mpi) {
            return None;
        }
        let is_known = self.started.launcher != Launcher::None;
        let refusal = self.find_incomplete_pair().or_else(|| self.find_contradiction());
        // A rendezvous over TCP needs a known rank: it refuses a process without one itself.
        refusal
            .or_else(|| (is_known || kind == Kind::Auto).then(|| self.find_other_launcher()).flatten())
            .or_else(|| {
                let silent = !is_known && kind == Kind::Auto;
                silent.then(self.find_ancestor).flatten().map(Refusal::VariablesRemoved)
            })
    }

    fn is_set(&self, name: &str) -> bool {
        (self.variable)(name).is_some()
    }

    /// Returns the first of these variables that is set.
    fn first_set(&self, names: &[&'static str]) -> Option<Assignment> {
        names.iter().find_map(|&name| Some((name, (self.variable)(name)?)))
    }

    /// Names of the launcher's variables with rank and size.
    fn own_names(&self) -> Option<(&'static [&'static str], &'static [&'static str])> {
        let signature = SIGNATURES.iter().find(|(launcher, ..)| *launcher == self.started.launcher)?;
        Some((signature.1, signature.2))
    }

    /// Finds a rank variable without its size variable or vice versa. `WORLD_SIZE` and `NCCL_BENCH_SIZE` of 1
    /// need no rank.
    fn find_incomplete_pair(&self) -> Option<Refusal> {
        let Started { launcher, size, .. } = *self.started;
        let set = |name: &str| self.is_set(name);
        let several = |name: &str| (self.variable)(name).is_some_and(|size| size.trim() != "1");
        let unknown = launcher == Launcher::None;
        let pod = launcher == Launcher::Kubernetes;
        // `NCCL_BENCH_SIZE` is not meant for a launcher with one process.
        let one = size == Some(1) && !pod;
        let halves = [
            // This library's own variables are set on purpose.
            ("NCCL_BENCH_RANK", "NCCL_BENCH_SIZE", set("NCCL_BENCH_RANK")),
            ("NCCL_BENCH_SIZE", "NCCL_BENCH_RANK", (unknown || one) && several("NCCL_BENCH_SIZE")),
            (
                "NCCL_BENCH_ADDR",
                "NCCL_BENCH_RANK",
                unknown && !set("NCCL_BENCH_SIZE") && set("NCCL_BENCH_ADDR"),
            ),
            ("NCCL_BENCH_ADDR", "NCCL_BENCH_SIZE", pod && size.is_none() && set("NCCL_BENCH_ADDR")),
            ("RANK", "WORLD_SIZE", unknown && set("RANK")),
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", unknown && set("OMPI_COMM_WORLD_SIZE")),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", unknown && set("OMPI_COMM_WORLD_RANK")),
            ("WORLD_SIZE", "RANK", unknown && several("WORLD_SIZE")),
        ];
        let half = halves.into_iter().find(|&(_, missing, means)| means && !set(missing));
        half.map(|(set, missing, _)| Refusal::IncompletePair { set, missing })
    }

    /// Finds a contradiction between two variables of the launcher: a rank, or a number of local ranks, too
    /// large for the number of ranks; or finds a value that is not a number.
    fn find_contradiction(&self) -> Option<Refusal> {
        let (ranks, sizes) = self.own_names()?;
        let (rank, size) = (self.first_set(ranks), self.first_set(sizes)?);
        // The rendezvous refuses malformed values of the remaining launchers.
        let is_checked = self.started.launcher.starts_ranks() || self.started.size == Some(1);
        let of_launcher = rank.iter().chain([&size]);
        let malformed = of_launcher.filter(|_| is_checked).find(|(_, value)| parse_number(value).is_none());
        if let Some(malformed) = malformed {
            return Some(Refusal::Malformed(malformed.clone()));
        }
        let most = parse_number(&size.1).filter(|_| is_checked)?;
        let rank = rank.filter(|(_, value)| parse_number(value).is_some_and(|rank| rank >= most));
        let local = LOCAL_SIZES.iter().filter(|(launcher, _)| *launcher == self.started.launcher);
        let local = local
            .filter_map(|&(_, name)| self.first_set(&[name]))
            .find(|(_, value)| parse_number(value) > Some(most));
        Some(Refusal::Contradiction(rank.or(local)?, size))
    }

    /// Finds a variable of another launcher with several ranks, or with a rank of unknown size, if this
    /// process would be alone.
    fn find_other_launcher(&self) -> Option<Refusal> {
        let launcher = self.started.launcher;
        let (found, alone) = if launcher == Launcher::None {
            (self.find_value_above_one().or_else(|| self.find_rank_without_size())?, None)
        } else if self.started.size == Some(1) {
            let (_, sizes) = self.own_names()?;
            (self.find_value_above_one()?, Some(self.first_set(sizes)?.0))
        } else {
            return None;
        };
        Some(Refusal::OtherLauncher { found, alone })
    }

    /// Finds a rank above 0, or a size above 1, without an explanation by the launcher.
    fn find_value_above_one(&self) -> Option<Assignment> {
        let launcher = self.started.launcher;
        let mut larger = VARIABLES.iter().filter_map(|&(name, most, origin)| {
            let value = (self.variable)(name)?;
            let found = match name {
                HOSTS_OF_SAGEMAKER => Some(value.split(',').count()),
                _ => parse_number(&value),
            };
            (found > Some(most)).then_some(((name, value), origin))
        });
        let found = larger.find(|&(_, origin)| match origin {
            SetBy::Launcher => true,
            SetBy::Step => !self.is_inside_step(),
            // The launcher started one rank inside a node or pod.
            SetBy::Node => !launcher.starts_ranks(),
        });
        found.map(|(found, _)| found).or_else(|| self.find_size_of_script_above_one())
    }

    /// Finds a size above 1 in a variable that scripts set as well, if other variables prove that it is this
    /// process's.
    fn find_size_of_script_above_one(&self) -> Option<Assignment> {
        // A batch script has its job's identifier; a container may get no more of a step than rank and size.
        let is_task =
            self.is_set("SLURM_STEP_ID") || self.is_set("SLURM_STEPID") || !self.is_set("SLURM_JOB_ID");
        let is_task = is_task && self.is_set("SLURM_PROCID") && !self.is_inside_step();
        let is_rank = self.is_set("RANK") || !self.started.launcher.starts_ranks();
        [("SLURM_NTASKS", is_task), ("WORLD_SIZE", is_rank)]
            .into_iter()
            .filter(|&(_, is_own)| is_own)
            .find_map(|(name, _)| self.first_set(&[name]).filter(|(_, value)| parse_number(value) > Some(1)))
    }

    /// True for the task of a step, and for a single rank of an MPI launcher inside a step.
    fn is_inside_step(&self) -> bool {
        match self.started.launcher {
            Launcher::Slurm => true,
            Launcher::OpenMpi | Launcher::Mpich => (self.find_ancestor)().is_some(),
            _ => false,
        }
    }

    fn find_rank_without_size(&self) -> Option<Assignment> {
        let lone = RANKS_WITH_SIZES.iter().filter(|(_, size)| !size.is_some_and(|size| self.is_set(size)));
        lone.copied().find_map(|(rank, _)| self.first_set(&[rank]))
    }
}
