//! Rendezvous of each launcher.

use super::{COMPLETION_INDEX, Launcher, SIZES_IN_PODS, Started, nodelist};
use crate::world::limits::MAX_RANKS;
use crate::world::{Error, Place, process_variable};
use std::os::unix::process::parent_id;

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The port of torchrun's and PyTorch's default.
const MASTER_PORT: u16 = 29500;

/// How many ports are tried where the port is derived and another program may have taken it.
const CANDIDATES: u16 = 8;

impl Place {
    ///
    /// | started by | rank and size | rank 0's host | port |
    /// |---|---|---|---|
    /// | by hand | `NCCL_BENCH_RANK`, `NCCL_BENCH_SIZE` | `NCCL_BENCH_ADDR`, as `host:port` | |
    /// | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR` | the first free of `MASTER_PORT` + 1 to + 8, since torchrun itself listens on `MASTER_PORT` |
    /// | as torchrun does | `RANK`, `WORLD_SIZE` | `MASTER_ADDR` | `MASTER_PORT`, or 29500 |
    /// | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `MASTER_ADDR`, or the first of `SLURM_STEP_NODELIST` or `SLURM_JOB_NODELIST`, or `SLURM_LAUNCH_NODE_IPADDR` | `MASTER_PORT`, or one made from the job's and the step's identifier |
    /// | Kubernetes | `JOB_COMPLETION_INDEX`, `NCCL_BENCH_SIZE` or `WORLD_SIZE` | `NCCL_BENCH_ADDR`, as `host:port`, or `MASTER_ADDR` | `MASTER_PORT`, or 29500 |
    /// | Open MPI, MPICH | theirs | `MASTER_ADDR`, or this host when all ranks are on it | `MASTER_PORT`, or one made from what names the job: Open MPI's namespace, MPICH's parent process |
    ///
    /// `NCCL_BENCH_ADDR` overrides host and port of each, and `NCCL_BENCH_KEY`, without white space around it, the job's
    /// key.
    ///
    /// # Errors
    ///
    /// | started by | rank and size | rank 0's host | port |
    /// |---|---|---|---|
    /// | by hand | `NCCL_BENCH_RANK`, `NCCL_BENCH_SIZE` | `NCCL_BENCH_ADDR`, as `host:port` | |
    /// | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR` | the first free of `MASTER_PORT` + 1 to + 8, since torchrun itself listens on `MASTER_PORT` |
    /// | as torchrun does | `RANK`, `WORLD_SIZE` | `MASTER_ADDR` | `MASTER_PORT`, or 29500 |
    /// | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `MASTER_ADDR`, or the first of `SLURM_STEP_NODELIST` or `SLURM_JOB_NODELIST`, or `SLURM_LAUNCH_NODE_IPADDR` | `MASTER_PORT`, or one made from the job's and the step's identifier |
    /// | Kubernetes | `JOB_COMPLETION_INDEX`, `NCCL_BENCH_SIZE` or `WORLD_SIZE` | `NCCL_BENCH_ADDR`, as `host:port`, or `MASTER_ADDR` | `MASTER_PORT`, or 29500 |
    /// | Open MPI, MPICH | theirs | `MASTER_ADDR`, or this host when all ranks are on it | `MASTER_PORT`, or one made from what names the job: Open MPI's namespace, MPICH's parent process |
    ///
    /// `NCCL_BENCH_ADDR` overrides host and port of each, and `NCCL_BENCH_KEY`, without white space around it, the job's
    /// key.
    ///
    /// # Errors
    /// When a variable is missing or is no number: the error names it. When what they say cannot be.
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_variables(&process_variable)
    }

    pub(crate) fn from_variables(variable: Variable<'_>) -> Result<Self, Error> {
        let launcher = match Started::from_variables(variable).launcher {
            // Asked for a rendezvous, a task of Slurm is one also without the variables that mark a step.
            Launcher::None if variable("SLURM_PROCID").is_some() => Launcher::Slurm,
            launcher => launcher,
        };
        let mut place = match launcher {
            Launcher::Explicit => explicit(variable),
            Launcher::Torchrun => torchrun(variable),
            Launcher::Slurm => slurm_step(variable),
            Launcher::Kubernetes => pod(variable),
            Launcher::OpenMpi => open_mpi(variable),
            Launcher::Mpich => mpich(variable),
            Launcher::None => Err(Error::Environment(
                "a TCP rendezvous needs to know its rank: start with torchrun or srun, or set NCCL_BENCH_RANK, \
                 NCCL_BENCH_SIZE and NCCL_BENCH_ADDR (host:port of rank 0) for every process"
                    .to_owned(),
            )),
        }?;
        if let Some(address) = variable("NCCL_BENCH_ADDR") {
            let given = Self::new(0, 1, &address)
                .map_err(|error| Error::Environment(format!("NCCL_BENCH_ADDR: {error}")))?;
            (place.hosts, place.ports) = (given.hosts, given.ports);
        }
        // What was read from a file ends its line; other ranks may have been told the same without.
        if let Some(key) = variable("NCCL_BENCH_KEY").as_deref().map(str::trim).filter(|key| !key.is_empty())
        {
            key.clone_into(&mut place.key);
        }
        place.checked()
    }
}

fn number(variable: Variable<'_>, name: &str) -> Result<usize, Error> {
    let value = variable(name).ok_or_else(|| Error::Environment(format!("{name} is not set")))?;
    value
        .trim()
        .parse()
        .map_err(|_| Error::Environment(format!("{name} is `{value}`, which is not a number")))
}

fn port(variable: Variable<'_>) -> Result<Option<u16>, Error> {
    let Some(value) = variable("MASTER_PORT") else { return Ok(None) };
    let port = value.trim().parse().ok().filter(|&port| port != 0);
    port.map(Some).ok_or_else(|| {
        Error::Environment(format!("MASTER_PORT is `{value}`, which is not a port from 1 to 65535"))
    })
}

/// Number and count on this host, when both are readable and fit together.
fn local(variable: Variable<'_>, rank: &str, size: &str) -> Option<(usize, usize)> {
    let (rank, size) = (number(variable, rank).ok()?, number(variable, size).ok()?);
    (rank < size).then_some((rank, size))
}

fn master(variable: Variable<'_>) -> Option<String> {
    variable("MASTER_ADDR").map(|host| host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

fn explicit(variable: Variable<'_>) -> Result<Place, Error> {
    let (rank, size) = (number(variable, "NCCL_BENCH_RANK")?, number(variable, "NCCL_BENCH_SIZE")?);
    if size > 1 && variable("NCCL_BENCH_ADDR").is_none() {
        return Err(Error::Environment(
            "NCCL_BENCH_RANK is set but NCCL_BENCH_ADDR is not: set it to host:port of rank 0".to_owned(),
        ));
    }
    Ok(Place { rank, size, hosts: Vec::new(), ports: Vec::new(), key: String::new(), local: None })
}

fn torchrun(variable: Variable<'_>) -> Result<Place, Error> {
    let host = match (master(variable), variable("NCCL_BENCH_ADDR")) {
        (None, None) => {
            return Err(Error::Environment(
                "RANK and WORLD_SIZE are set but MASTER_ADDR is not: set it to the name of rank 0's host"
                    .to_owned(),
            ));
        }
        (host, _) => host,
    };
    let port = port(variable)?.unwrap_or(MASTER_PORT);
    let run = variable("TORCHELASTIC_RUN_ID");
    // torchrun's own store listens on MASTER_PORT.
    let ports = match run {
        Some(_) => (1..=CANDIDATES).filter_map(|offset| port.checked_add(offset)).collect(),
        None => vec![port],
    };
    Ok(Place {
        rank: number(variable, "RANK")?,
        size: number(variable, "WORLD_SIZE")?,
        hosts: host.into_iter().collect(),
        ports,
        key: run.map(|run| format!("torchrun {run} {port}")).unwrap_or_default(),
        local: local(variable, "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    })
}

fn slurm_step(variable: Variable<'_>) -> Result<Place, Error> {
    let size = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"]
        .into_iter()
        .find(|name| variable(name).is_some())
        .unwrap_or("SLURM_NTASKS");
    let mut hosts = Vec::new();
    if let Some(master) = master(variable) {
        hosts.push(master);
    } else {
        for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
            let Some(list) = variable(name) else { continue };
            let listed = nodelist::expand(&list).ok_or_else(|| {
                Error::Environment(format!(
                    "{name} is `{list}`, which is not a list of at most {MAX_RANKS} hosts such as node[01-04]: set \
                     MASTER_ADDR to the name of rank 0's host"
                ))
            })?;
            hosts.extend(listed.into_iter().next());
            break;
        }
        // srun's own host: rank 0's when srun runs inside a batch script.
        hosts.extend(variable("SLURM_LAUNCH_NODE_IPADDR"));
    }
    let job = variable("SLURM_JOB_ID").or_else(|| variable("SLURM_JOBID")).unwrap_or_default();
    let step = variable("SLURM_STEP_ID").or_else(|| variable("SLURM_STEPID")).unwrap_or_default();
    let key = format!("slurm {job}.{step}");
    Ok(Place {
        rank: number(variable, "SLURM_PROCID")?,
        size: number(variable, size)?,
        hosts,
        ports: port(variable)?.map_or_else(|| derived_ports(&key), |port| vec![port]),
        key,
        // Slurm gives no plain count of this host's tasks, so ranks are counted by host.
        local: None,
    })
}

/// A pod of an indexed Job. What Kubernetes does not tell it must stand in the pod template.
fn pod(variable: Variable<'_>) -> Result<Place, Error> {
    let rank = number(variable, COMPLETION_INDEX)?;
    let missing = |what: &str, example: &str| {
        Error::Environment(format!(
            "this is pod {rank} of an indexed Job ({COMPLETION_INDEX}), but nothing says {what}: add {example} to the \
             container's env in the pod template, or choose `Options::kind = Kind::Single` where each pod is a job of its \
             own"
        ))
    };
    let size = SIZES_IN_PODS.iter().find(|name| variable(name).is_some()).ok_or_else(|| {
        missing("how many pods there are", "{name: NCCL_BENCH_SIZE, value: \"2\"}, the Job's completions,")
    })?;
    let size = number(variable, size)?;
    let host = master(variable);
    if size > 1 && host.is_none() && variable("NCCL_BENCH_ADDR").is_none() {
        return Err(missing(
            "where pod 0 is",
            "{name: NCCL_BENCH_ADDR, value: \"JOB-0.SERVICE:29500\"}, with the names of the Job and of the headless \
             Service that is the pods' subdomain,",
        ));
    }
    Ok(Place {
        rank,
        size,
        hosts: host.into_iter().collect(),
        ports: vec![port(variable)?.unwrap_or(MASTER_PORT)],
        key: String::new(),
        // Pods of one node look like hosts of their own, to NCCL as well.
        local: None,
    })
}

fn open_mpi(variable: Variable<'_>) -> Result<Place, Error> {
    let local = local(variable, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    let job = variable("PMIX_NAMESPACE").or_else(|| variable("OMPI_MCA_ess_base_jobid"));
    let example = "mpirun -x NCCL_BENCH_ADDR=node1:29500 ...";
    mpi_launcher(variable, ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], local, job, example)
}

fn mpich(variable: Variable<'_>) -> Result<Place, Error> {
    let local = local(variable, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    // No variable names the job, but all its processes on a host have one parent.
    let here = local.is_some_and(|(_, here)| Some(here) == number(variable, "PMI_SIZE").ok());
    let job = here.then(|| format!("under process {}", parent_id()));
    let example = "mpiexec -genv NCCL_BENCH_ADDR node1:29500 ...";
    mpi_launcher(variable, ["PMI_RANK", "PMI_SIZE"], local, job, example)
}

fn mpi_launcher(
    variable: Variable<'_>,
    [rank, size]: [&str; 2],
    local: Option<(usize, usize)>,
    job: Option<String>,
    example: &str,
) -> Result<Place, Error> {
    let (rank, size) = (number(variable, rank)?, number(variable, size)?);
    let here = local.is_some_and(|(_, here)| here == size);
    if size > 1 && !here && master(variable).is_none() && variable("NCCL_BENCH_ADDR").is_none() {
        return Err(Error::Environment(format!(
            "mpirun does not say that all {size} ranks are on this host, nor where rank 0 is: name its host and a \
             free port of it, as {example}, or let the ranks meet through MPI (feature `mpi`, and \
             `Options::join_mpi = Some(world::mpi)`)"
        )));
    }
    let here = here.then(|| "127.0.0.1".to_owned());
    let key = job.as_ref().map(|job| format!("mpirun {job}")).unwrap_or_default();
    let ports = match (port(variable)?, &job) {
        (Some(port), _) => vec![port],
        (None, Some(_)) => derived_ports(&key),
        (None, None) => Vec::new(),
    };
    Ok(Place { rank, size, hosts: master(variable).or(here).into_iter().collect(), ports, key, local })
}

/// Ports for a job, below those that systems hand out by themselves (32768 and more).
fn derived_ports(key: &str) -> Vec<u16> {
    // FNV-1a: the same on every host, whatever version of this program or of the compiler.
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let slot = u16::try_from((hash ^ (hash >> 32)) % 1250).unwrap_or(0);
    let first = 20_000 + slot * CANDIDATES;
    (first..first + CANDIDATES).collect()
}

#[cfg(test)]
mod tests;
