//! Rendezvous configuration from each launcher's environment variables.

use super::{COMPLETION_INDEX, Launcher, POD_SIZES, Started, nodelist};
use crate::hash::fnv1a_hash;
use crate::world::{Error, Kind, RendezvousConfig, process_variable};
use std::os::unix::process::parent_id;

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Default port of torchrun and PyTorch.
const MASTER_PORT: u16 = 29500;

/// Number of candidates for a derived port: another program may use it.
const CANDIDATES: u16 = 8;

impl RendezvousConfig {
    /// Reads the configuration from the launcher's environment variables. The first applicable entry is used:
    ///
    /// - No launcher. Rank and size: `NCCL_BENCH_RANK`, `NCCL_BENCH_SIZE`. Rank 0's host and port:
    ///   `NCCL_BENCH_ADDR`, as `host:port`.
    /// - torchrun. Rank and size: `RANK`, `WORLD_SIZE`. Host: `MASTER_ADDR`. Port: the first available of
    ///   `MASTER_PORT` + 1 to + 8, since torchrun itself listens on `MASTER_PORT`.
    /// - Another launcher with torchrun's variables. The same, but port `MASTER_PORT`, or 29500.
    /// - Slurm. Rank and size: `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`. Host: `MASTER_ADDR`,
    ///   or the first of `SLURM_STEP_NODELIST` or `SLURM_JOB_NODELIST`, or `SLURM_LAUNCH_NODE_IPADDR`. Port:
    ///   `MASTER_PORT`, or one derived from the identifiers of job and step.
    /// - Kubernetes. Rank: `JOB_COMPLETION_INDEX`. Size: `NCCL_BENCH_SIZE`, `WORLD_SIZE` or `PET_NNODES`.
    ///   Host: `NCCL_BENCH_ADDR`, as `host:port`, or `MASTER_ADDR`. Port: `MASTER_PORT`, or 29500.
    /// - Open MPI, MPICH. Rank and size: their own variables. Host: `MASTER_ADDR`, or this host if all ranks
    ///   are on it. Port: `MASTER_PORT`, or one derived from the job: Open MPI's namespace, MPICH's parent
    ///   process.
    ///
    /// `NCCL_BENCH_ADDR` overrides host and port, and `NCCL_BENCH_KEY`, without surrounding white space, the
    /// job's key.
    ///
    /// # Errors
    /// If a variable is missing or malformed (the error names it), or the configuration is invalid.
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_variables(&process_variable)
    }

    pub(crate) fn from_variables(variable: Variable<'_>) -> Result<Self, Error> {
        let launcher = match Started::from_variables(variable).launcher {
            // A rendezvous is requested, so the variables to distinguish a step from a batch script are not
            // needed.
            Launcher::None if variable("SLURM_PROCID").is_some() => Launcher::Slurm,
            launcher => launcher,
        };
        let mut config = match launcher {
            Launcher::Explicit => from_own_variables(variable),
            Launcher::Torchrun => from_torchrun(variable),
            Launcher::Slurm => from_slurm(variable),
            Launcher::Kubernetes => from_kubernetes(variable),
            Launcher::OpenMpi => open_mpi(variable),
            Launcher::Mpich => from_mpich(variable),
            Launcher::None => Err(Error::Environment(
                "a TCP rendezvous needs to know its rank: start with torchrun or srun, or set \
                 NCCL_BENCH_RANK, NCCL_BENCH_SIZE and NCCL_BENCH_ADDR (host:port of rank 0) for every process"
                    .to_owned(),
            )),
        }?;
        if let Some(address) = variable("NCCL_BENCH_ADDR") {
            let given = Self::new(0, 1, &address)
                .map_err(|error| Error::Environment(format!("NCCL_BENCH_ADDR: {error}")))?;
            (config.hosts, config.ports) = (given.hosts, given.ports);
        }
        // A value from a file ends with a line break; other ranks may lack it.
        if let Some(key) = variable("NCCL_BENCH_KEY").as_deref().map(str::trim).filter(|key| !key.is_empty())
        {
            key.clone_into(&mut config.key);
        }
        config.check_config()
    }
}

fn read_number(variable: Variable<'_>, name: &str) -> Result<usize, Error> {
    let value = variable(name).ok_or_else(|| Error::Environment(format!("{name} is not set")))?;
    value.trim().parse().map_err(|_| Error::Environment(format!("{name} is `{value}`, not a number")))
}

fn read_port(variable: Variable<'_>) -> Result<Option<u16>, Error> {
    let Some(value) = variable("MASTER_PORT") else { return Ok(None) };
    let port = value.trim().parse().ok().filter(|&port| port != 0);
    port.map(Some)
        .ok_or_else(|| Error::Environment(format!("MASTER_PORT is `{value}`, not a port from 1 to 65535")))
}

/// Local rank and local size, if both are set and consistent.
fn local_position(variable: Variable<'_>, rank: &str, size: &str) -> Option<(usize, usize)> {
    let (rank, size) = (read_number(variable, rank).ok()?, read_number(variable, size).ok()?);
    (rank < size).then_some((rank, size))
}

fn master_host(variable: Variable<'_>) -> Option<String> {
    variable("MASTER_ADDR").map(|host| host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

fn from_own_variables(variable: Variable<'_>) -> Result<RendezvousConfig, Error> {
    let (rank, size) = (read_number(variable, "NCCL_BENCH_RANK")?, read_number(variable, "NCCL_BENCH_SIZE")?);
    if size > 1 && variable("NCCL_BENCH_ADDR").is_none() {
        return Err(Error::Environment(
            "NCCL_BENCH_RANK is set but NCCL_BENCH_ADDR is not: set it to host:port of rank 0".to_owned(),
        ));
    }
    Ok(RendezvousConfig { rank, size, ..RendezvousConfig::default() })
}

fn from_torchrun(variable: Variable<'_>) -> Result<RendezvousConfig, Error> {
    let (rank, size) = (read_number(variable, "RANK")?, read_number(variable, "WORLD_SIZE")?);
    let host = master_host(variable);
    if host.is_none() && variable("NCCL_BENCH_ADDR").is_none() {
        return Err(Error::Environment(
            "RANK and WORLD_SIZE are set but MASTER_ADDR is not: set it to the name of rank 0's host"
                .to_owned(),
        ));
    }
    let port = read_port(variable)?.unwrap_or(MASTER_PORT);
    let run = variable("TORCHELASTIC_RUN_ID");
    // torchrun's own store listens on MASTER_PORT.
    let ports = match run {
        Some(_) => (1..=CANDIDATES).filter_map(|offset| port.checked_add(offset)).collect(),
        None => vec![port],
    };
    Ok(RendezvousConfig {
        rank,
        size,
        hosts: host.into_iter().collect(),
        ports,
        key: run.map(|run| format!("torchrun {run} {port}")).unwrap_or_default(),
        local: local_position(variable, "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    })
}

fn from_slurm(variable: Variable<'_>) -> Result<RendezvousConfig, Error> {
    let size = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"]
        .into_iter()
        .find(|name| variable(name).is_some())
        .unwrap_or("SLURM_NTASKS");
    let mut hosts = Vec::new();
    if let Some(master) = master_host(variable) {
        hosts.push(master);
    } else {
        for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
            let Some(list) = variable(name) else { continue };
            let host = nodelist::first_host(&list).ok_or_else(|| {
                Error::Environment(format!(
                    "{name} is `{list}` and does not begin with the name of a host, such as node[01-04]: \
                     set MASTER_ADDR to the name of rank 0's host"
                ))
            })?;
            hosts.push(host);
            break;
        }
        // The host of srun: rank 0's if srun runs inside a batch script.
        hosts.extend(variable("SLURM_LAUNCH_NODE_IPADDR"));
    }
    let job = variable("SLURM_JOB_ID").or_else(|| variable("SLURM_JOBID")).unwrap_or_default();
    let step = variable("SLURM_STEP_ID").or_else(|| variable("SLURM_STEPID")).unwrap_or_default();
    let key = format!("slurm {job}.{step}");
    Ok(RendezvousConfig {
        rank: read_number(variable, "SLURM_PROCID")?,
        size: read_number(variable, size)?,
        hosts,
        ports: read_port(variable)?.map_or_else(|| derived_ports(&key), |port| vec![port]),
        key,
        // Slurm gives the number of tasks per host in a compressed form only, so ranks are counted by host.
        local: None,
    })
}

/// A pod of an indexed Job. Kubernetes gives its index only; the pod template must give the rest.
fn from_kubernetes(variable: Variable<'_>) -> Result<RendezvousConfig, Error> {
    let rank = read_number(variable, COMPLETION_INDEX)?;
    let missing = |what: &str, example: &str| {
        let problem = format!(
            "this is pod {rank} of an indexed Job ({COMPLETION_INDEX}), but {what} is not set: add \
             {example} to the container's env in the pod template"
        );
        Error::UnsuitableKind { problem, instead: Kind::Single }
    };
    let size = POD_SIZES.iter().find(|name| variable(name).is_some()).ok_or_else(|| {
        missing("the number of pods", "{name: NCCL_BENCH_SIZE, value: \"2\"}, the Job's completions,")
    })?;
    let size = read_number(variable, size)?;
    let host = master_host(variable);
    if size > 1 && host.is_none() && variable("NCCL_BENCH_ADDR").is_none() {
        return Err(missing(
            "the address of pod 0",
            "{name: NCCL_BENCH_ADDR, value: \"JOB-0.SERVICE:29500\"}, with the names of the Job and of its \
             headless Service (the pods' subdomain),",
        ));
    }
    Ok(RendezvousConfig {
        rank,
        size,
        hosts: host.into_iter().collect(),
        ports: vec![read_port(variable)?.unwrap_or(MASTER_PORT)],
        // Pods of one node have host names of their own, as for NCCL: they have no local rank.
        ..RendezvousConfig::default()
    })
}

fn open_mpi(variable: Variable<'_>) -> Result<RendezvousConfig, Error> {
    let local = local_position(variable, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    let job = variable("PMIX_NAMESPACE").or_else(|| variable("OMPI_MCA_ess_base_jobid"));
    let example = "mpirun -x NCCL_BENCH_ADDR=node1:29500 ...";
    mpi_launcher(variable, ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], local, job, example)
}

fn from_mpich(variable: Variable<'_>) -> Result<RendezvousConfig, Error> {
    let local = local_position(variable, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    // No variable identifies the job, but its processes on a host have the same parent.
    let here = local.is_some_and(|(_, here)| Some(here) == read_number(variable, "PMI_SIZE").ok());
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
) -> Result<RendezvousConfig, Error> {
    let (rank, size) = (read_number(variable, rank)?, read_number(variable, size)?);
    let here = local.is_some_and(|(_, here)| here == size);
    if size > 1 && !here && master_host(variable).is_none() && variable("NCCL_BENCH_ADDR").is_none() {
        let problem = format!(
            "mpirun reports neither the host of rank 0, nor that all {size} ranks are on this host: name \
             the host of rank 0 and a free port of it, as {example}"
        );
        return Err(Error::UnsuitableKind { problem, instead: Kind::Mpi });
    }
    let here = here.then(|| "127.0.0.1".to_owned());
    let key = job.as_ref().map(|job| format!("mpirun {job}")).unwrap_or_default();
    let ports = match (read_port(variable)?, &job) {
        (Some(port), _) => vec![port],
        (None, Some(_)) => derived_ports(&key),
        (None, None) => Vec::new(),
    };
    Ok(RendezvousConfig {
        rank,
        size,
        hosts: master_host(variable).or(here).into_iter().collect(),
        ports,
        key,
        local,
    })
}

/// Candidate ports for a job, below the ephemeral ports (32768 and above).
fn derived_ports(key: &str) -> Vec<u16> {
    let hash = fnv1a_hash(key.bytes());
    let slot = u16::try_from((hash ^ (hash >> 32)) % 1250).unwrap_or(0);
    let first = 20_000 + slot * CANDIDATES;
    (first..first + CANDIDATES).collect()
}

#[cfg(test)]
mod tests;
