//! `nccl-bench doctor host`: facts of this host, or of all hosts of a job.

use std::path::PathBuf;
use std::time::Duration;

use collectives::world;
use diagnosis::examination::{Examination, Health};
use diagnosis::host::{self, Expected, Facts, Source};
use diagnosis::knowledge::rules::Rules;
use engine::request::BackendChoice;
use engine::supervision::Stop;

use super::output::{self, Output};
use super::{gather_values, join_processes};
use crate::command::Context;
use crate::exit::ExitError;

const EXAMPLES: &str = "\
Examples:
  nccl-bench doctor host                                  this host
  nccl-bench doctor host --expect-gpus 8 --expect-nics 8  broken when a GPU or a network device is missing
  nccl-bench doctor host --interval 60                    growing errors of NVLinks and network devices
  mpirun -np 4 --map-by ppr:1:node nccl-bench doctor host all hosts of a job: the odd one out is named
  srun --ntasks-per-node=1 nccl-bench doctor host --json  the same as JSON

It reads NVML, /proc, /sys, the kernel's messages and the files of libraries, and changes nothing. It needs \
no GPU, no network device and no root; the report lists everything that is not visible. Root sees more: the \
kernel's messages, PCI access control (ACS), and the files in /dev/shm that processes of other users use.

Under a launcher, the first process of each host examines the host, and rank 0 prints.

Exit codes: 0 healthy, with proof; 1 degraded; 2 broken, or bad arguments; 3 cannot tell: no GPU and no \
network device is visible, or there is an error that no rule explains.";

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorHostArguments {
    /// Seconds between the two readings of error counters; 0 for one reading
    #[arg(long, value_name = "SECONDS", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub interval: u64,

    /// Number of GPUs that each host must have
    #[arg(long, value_name = "COUNT")]
    pub expect_gpus: Option<usize>,

    /// Number of RDMA devices that must be up on each host: InfiniBand, RoCE, EFA
    #[arg(long, value_name = "COUNT")]
    pub expect_nics: Option<usize>,

    /// Read the files below this folder as those of a machine, without NVML
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub root: Option<PathBuf>,

    /// World of the ranks: auto, mpi, tcp, single
    #[arg(long, value_name = "WORLD", default_value = "auto")]
    pub world: world::Kind,

    /// Seconds in which all processes of a launcher have to join
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,

    /// The reports to write.
    #[command(flatten)]
    pub output: Output,
}

/// Runs the command, and returns the health as exit code.
pub fn run_host_doctor(arguments: &DoctorHostArguments, context: &Context<'_>) -> Result<u8, ExitError> {
    let rules = Rules::built_in();
    let expected = Expected { gpus: arguments.expect_gpus, nics: arguments.expect_nics };
    let hosts = if let Some(world) = join_processes(context, arguments.world, arguments.timeout)? {
        // The other ranks wait for the slowest host, and for its interval.
        world.set_limit(Some(Duration::from_secs(arguments.timeout + arguments.interval)));
        let hosts = gather_hosts(|| read_facts(arguments, &rules), &world)?;
        if world.rank() > 0 {
            return Ok(Health::Healthy.exit_code());
        }
        hosts
    } else {
        vec![read_facts(arguments, &rules)]
    };
    output::write_reports(&arguments.output, &[host::examine_hosts(&hosts, expected, &rules)])
}

fn read_facts(arguments: &DoctorHostArguments, rules: &Rules) -> Facts {
    let source = match &arguments.root {
        Some(root) => Source::files_below(root),
        None => Source::this_host(Duration::from_secs(arguments.interval)),
    };
    Facts::read(&source, rules)
}

/// Examines all hosts of a job of this backend, with a second between two readings of counters; `None` except
/// on rank 0. Collective.
pub(super) fn examine_job(
    world: &world::Handle,
    backend: BackendChoice,
) -> Result<Option<Examination>, Stop> {
    let rules = Rules::built_in();
    let hosts = gather_hosts(|| Facts::read(&Source::this_host(Duration::from_secs(1)), &rules), world)?;
    let examine = || match backend {
        BackendChoice::Fabric => host::examine_for_host_memory(&hosts, &rules),
        _ => host::examine_hosts(&hosts, Expected::default(), &rules),
    };
    Ok((world.rank() == 0).then(examine))
}

/// Returns the facts of all hosts, each read by its first rank. Collective.
fn gather_hosts(read: impl FnOnce() -> Facts, world: &world::Handle) -> Result<Vec<Facts>, Stop> {
    let hosts = gather_values(&**world, &(world.local_rank() == 0).then(read))?;
    // Ranks leave together: an early exit would look like a death.
    world.barrier()?;
    Ok(hosts.into_iter().flatten().collect())
}
