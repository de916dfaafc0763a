//! Which rank this process is and where it meets the others, as launchers tell it in variables.

use super::launcher::{COMPLETION_INDEX, Launcher, SIZES_IN_PODS, Started};
use super::wire::{MAX_NAME, MAX_RANKS};
use super::{Error, process_variable, slurm};
use std::os::unix::process::parent_id;

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A rank and where it meets the others: what [`tcp`](super::tcp) needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank, `0..size`.
    pub rank: usize,
    /// How many ranks there are, at most 262144.
    pub size: usize,
    /// Names or addresses of rank 0's host. The others try each in turn until rank 0 of this job answers.
    pub hosts: Vec<String>,
    /// The ports on which rank 0 may listen: it takes the first that is free.
    pub ports: Vec<u16>,
    /// What tells this job's ranks from those of others that meet at the same address. Not a secret. At most 255
    /// bytes, without control characters.
    pub key: String,
    /// This rank's number on its host and how many its host has, where the launcher says so. Without it, or where
    /// two ranks of a host claim the same number, ranks are counted by host.
    pub local: Option<(usize, usize)>,
}

/// The port of torchrun's and PyTorch's default.
const MASTER_PORT: u16 = 29500;

/// How many ports are tried where the port is derived and another program may have taken it.
const CANDIDATES: u16 = 8;

impl Place {
    /// Rank `rank` of `size`, meeting at `address`, which is `host:port` or `[IPv6]:port` of rank 0.
    ///
    /// # Errors
    /// When the address has no port, `rank` is not below `size`, or `size` is more than a rendezvous holds.
    pub fn new(rank: usize, size: usize, address: &str) -> Result<Self, Error> {
        let (host, port) = host_and_port(address).ok_or_else(|| {
            Error::Environment(format!(
                "`{address}` is not an address such as node1:29500 or [fd00::1]:29500"
            ))
        })?;
        let place =
            Self { rank, size, hosts: vec![host], ports: vec![port], key: String::new(), local: None };
        place.checked()
    }

    /// From the variables of this process, by whoever started it (the first that fits):
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

    pub(super) fn from_variables(variable: Variable<'_>) -> Result<Self, Error> {
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

    /// # Errors
    /// When the place cannot be one.
    pub(super) fn checked(self) -> Result<Self, Error> {
        let Self { rank, size, .. } = self;
        let wrong = |message: String| Err(Error::Environment(message));
        if rank >= size {
            return wrong(format!(
                "rank {rank} of {size} is impossible: ranks count from 0 to the size less one"
            ));
        }
        if size > MAX_RANKS {
            return wrong(format!(
                "{size} ranks are more than the {MAX_RANKS} of a rendezvous: check the number that says how many there \
                 are, such as NCCL_BENCH_SIZE or WORLD_SIZE"
            ));
        }
        if self.key.len() > MAX_NAME {
            return wrong(format!("the job's key has {} bytes, more than {MAX_NAME}", self.key.len()));
        }
        if let Some(control) = self.key.chars().find(|character| character.is_control()) {
            return wrong(format!(
                "the job's key has the control character {control:?}, which no rank takes from another: set \
                 NCCL_BENCH_KEY to one line of text, the same on all ranks"
            ));
        }
        if size > 1 && (self.hosts.is_empty() || self.ports.is_empty()) {
            return wrong(
                "a rendezvous needs rank 0's host and port; set NCCL_BENCH_ADDR to host:port".to_owned(),
            );
        }
        Ok(self)
    }
}

fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bracketed {
        Some(host) => host,
        // Without brackets nobody can tell where an IPv6 address ends and the port begins.
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|&port| port != 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
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
            let listed = slurm::expand(&list).ok_or_else(|| {
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
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Place, Error> {
        Place::from_variables(&|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn message(variables: &[(&str, &str)]) -> String {
        place(variables).unwrap_err().to_string()
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        let at = |address| Place::new(0, 2, address).map(|place| (place.hosts[0].clone(), place.ports[0]));
        assert_eq!(at("node1:80").unwrap(), ("node1".to_owned(), 80));
        assert_eq!(at("[fd00::1]:29500").unwrap(), ("fd00::1".to_owned(), 29500));
        for wrong in ["node1", "node1:", ":80", "node1:0", "node1:65536", "fd00::1:80", "[]:80"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
        assert!(Place::new(2, 2, "a:1").unwrap_err().to_string().contains("rank 2 of 2"));
    }

    #[test]
    fn more_ranks_than_a_job_can_have_are_refused() {
        assert!(Place::new(0, MAX_RANKS, "a:1").is_ok());
        for size in [MAX_RANKS + 1, 4_000_000_000, usize::MAX] {
            let text = Place::new(0, size, "a:1").unwrap_err().to_string();
            assert!(text.starts_with(&format!("{size} ranks are more than the 262144 of")), "{text}");
            assert!(text.contains("NCCL_BENCH_SIZE"), "{text}");
        }
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "4000000000"), ("MASTER_ADDR", "a")];
        assert!(message(&torchrun).starts_with("4000000000 ranks are more"));
    }

    #[test]
    fn torchrun_leaves_its_own_port_alone() {
        let common = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29400"),
        ];
        let plain = place(&common).unwrap();
        assert_eq!((plain.rank, plain.size, plain.local), (3, 4, Some((1, 2))));
        assert_eq!((plain.hosts, plain.ports), (vec!["node1".to_owned()], vec![29400]));
        let elastic = place(&[&common[..], &[("TORCHELASTIC_RUN_ID", "abc")]].concat()).unwrap();
        assert_eq!(elastic.ports, (29401..=29408).collect::<Vec<u16>>());
        assert_ne!(elastic.key, plain.key);
    }

    #[test]
    fn slurm_names_the_first_host_and_a_port_of_its_own() {
        let step = |id| {
            place(&[
                ("SLURM_PROCID", "5"),
                ("SLURM_NTASKS", "8"),
                ("SLURM_JOB_ID", "4711"),
                ("SLURM_STEP_ID", id),
                ("SLURM_JOB_NODELIST", "gpu[03-04,7]"),
                ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"),
            ])
            .unwrap()
        };
        let (first, second) = (step("0"), step("1"));
        assert_eq!((first.rank, first.size), (5, 8));
        assert_eq!(first.hosts, ["gpu03", "10.0.0.9"]);
        assert_eq!(first.ports.len(), usize::from(CANDIDATES));
        assert!(first.ports.iter().all(|port| (20_000..30_000).contains(port)));
        assert_ne!((first.key, first.ports), (second.key, second.ports));
    }

    #[test]
    fn an_mpi_launcher_on_one_host_needs_no_address() {
        let common = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("PMIX_NAMESPACE", "12345"),
        ];
        let one = place(&[&common[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat()).unwrap();
        assert_eq!((one.hosts, one.local), (vec!["127.0.0.1".to_owned()], Some((1, 2))));
        let several = [&common[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]].concat();
        let told = message(&several);
        for part in [
            "mpirun does not say that all 2 ranks are on this host",
            "mpirun -x NCCL_BENCH_ADDR=node1:29500",
            "join_mpi",
        ] {
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn pods_meet_at_pod_zero() {
        let pod = [("JOB_COMPLETION_INDEX", "1"), ("NCCL_BENCH_SIZE", "2")];
        let told = |more: &[(&str, &str)]| place(&[&pod[..], more].concat()).unwrap();
        let given = told(&[("NCCL_BENCH_ADDR", "bench-0.bench:29500")]);
        assert_eq!((given.rank, given.size, given.local), (1, 2, None));
        assert_eq!((given.hosts, given.ports), (vec!["bench-0.bench".to_owned()], vec![29500]));
        let master = told(&[("MASTER_ADDR", "bench-0.bench"), ("MASTER_PORT", "7")]);
        assert_eq!((master.hosts, master.ports), (vec!["bench-0.bench".to_owned()], vec![7]));
        assert_eq!(told(&[("MASTER_ADDR", "bench-0.bench")]).ports, [MASTER_PORT]);
        // A Job of one needs no address.
        let one = [("JOB_COMPLETION_INDEX", "0"), ("WORLD_SIZE", "1")];
        assert_eq!(place(&one).unwrap().size, 1);
    }

    #[test]
    fn what_a_pod_template_lacks_is_told_with_an_example() {
        let pod =
            |index, more: &[(&str, &str)]| message(&[&[("JOB_COMPLETION_INDEX", index)], more].concat());
        for part in [
            "pod 3 of an indexed Job",
            "{name: NCCL_BENCH_SIZE, value: \"2\"}",
            "`Options::kind = Kind::Single`",
        ] {
            assert!(pod("3", &[]).contains(part), "{}", pod("3", &[]));
        }
        let address = pod("0", &[("NCCL_BENCH_SIZE", "2")]);
        assert!(address.contains("value: \"JOB-0.SERVICE:29500\""), "{address}");
        assert!(pod("x", &[]).contains("JOB_COMPLETION_INDEX is `x`"));
        assert!(pod("1", &[("WORLD_SIZE", "x")]).contains("WORLD_SIZE is `x`"));
        let beyond = [("NCCL_BENCH_SIZE", "2"), ("NCCL_BENCH_ADDR", "a:1")];
        assert!(pod("2", &beyond).contains("rank 2 of 2"));
    }

    #[test]
    fn mpich_ranks_of_several_hosts_have_one_key() {
        let place = place(&[
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            ("PMI_FD", "3"),
            ("MPI_LOCALRANKID", "0"),
            ("MPI_LOCALNRANKS", "1"),
            ("NCCL_BENCH_ADDR", "a:1"),
        ])
        .unwrap();
        assert_eq!((place.key.as_str(), place.hosts, place.ports), ("", vec!["a".to_owned()], vec![1]));
    }

    #[test]
    fn an_explicit_address_and_key_override_others() {
        let given = place(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("TORCHELASTIC_RUN_ID", "x"),
            ("NCCL_BENCH_ADDR", "h:7"),
            ("NCCL_BENCH_KEY", "k"),
        ])
        .unwrap();
        assert_eq!((given.hosts, given.ports, given.key), (vec!["h".to_owned()], vec![7], "k".to_owned()));
    }

    #[test]
    fn a_key_is_what_can_be_told_to_other_ranks() {
        let keyed = |key| {
            let common = [("NCCL_BENCH_RANK", "0"), ("NCCL_BENCH_SIZE", "2"), ("NCCL_BENCH_ADDR", "h:7")];
            place(&[&common[..], &[("NCCL_BENCH_KEY", key)]].concat())
        };
        // As it comes out of a file, and as if it were not set.
        assert_eq!(keyed(" our job\r\n").unwrap().key, "our job");
        assert_eq!(keyed("\n").unwrap().key, "");
        let text = keyed("our\njob").unwrap_err().to_string();
        assert!(text.contains("control character '\\n'") && text.contains("NCCL_BENCH_KEY"), "{text}");
        // Launchers' identifiers become keys, too.
        let torchrun =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("TORCHELASTIC_RUN_ID", "a\x1bb")];
        assert!(message(&torchrun).contains("control character '\\u{1b}'"));
        let overridden = [&torchrun[..], &[("NCCL_BENCH_KEY", "k")]].concat();
        assert_eq!(place(&overridden).unwrap().key, "k");
    }

    #[test]
    fn wrong_variables_are_named() {
        assert!(message(&[]).contains("NCCL_BENCH_RANK"));
        assert!(message(&[("RANK", "x"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")]).contains("RANK is `x`"));
        assert!(message(&[("RANK", "0"), ("WORLD_SIZE", "2")]).contains("MASTER_ADDR"));
        assert!(message(&[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")]).contains("rank 2 of 2"));
        let port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
        assert!(message(&port).contains("MASTER_PORT is `70000`"));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_NODELIST", "a[")];
        assert!(message(&slurm).contains("SLURM_JOB_NODELIST is `a[`"));
        assert!(message(&slurm).contains("set MASTER_ADDR"));
        assert!(message(&[("NCCL_BENCH_RANK", "0"), ("NCCL_BENCH_SIZE", "2")]).contains("NCCL_BENCH_ADDR"));
    }
}
