//! `nccl-bench doctor env`: variables of NCCL, its plugins and libfabric.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use collectives::world;
use collectives::{fabric, nccl};
use diagnosis::environment::{
    self, Answer, Collection, Network, Platform, Process, Situation, Snapshot, Version, parse_version,
};
use diagnosis::examination::{Examination, Health};
use diagnosis::input;
use engine::request::BackendChoice;
use engine::supervision::Stop;
use serde::{Deserialize, Serialize};

use super::output::{self, Output};
use super::{gather_values, join_processes};
use crate::command::Context;
use crate::exit::ExitError;

const EXAMPLES: &str = "\
Examples:
  nccl-bench doctor env                          this shell's variables, and the variables in NCCL's files
  nccl-bench doctor env --pid 4711               a running process, as it was started
  nccl-bench doctor env --file job.yaml --nccl 2.28.9 --platform p5.48xlarge
                                                 a job before it is submitted: Kubernetes manifest, shell
                                                 script, mpirun -x, sbatch --export, Dockerfile, JSON
  ssh node7 env | nccl-bench doctor env --file - the output of env
  mpirun -np 16 nccl-bench doctor env            all ranks compared: the odd one out is named

Each variable is needed, useful, redundant, without effect, harmful, questionable (harmful in some jobs), \
for debugging only, misspelt, unknown, or known to another version. This depends on the machine and on the \
versions of NCCL, aws-ofi-nccl and libfabric. If a version is neither found nor given, the newest known \
version is assumed, and the report says so.

Only variables of NCCL, its plugins, libfabric, CUDA and PyTorch's communication are read. The values of \
keys are never kept.

Exit codes: 0 healthy, with proof; 1 degraded; 2 broken, or bad arguments; 3 cannot tell.";

/// Size of the largest file of variables, in bytes.
const LARGEST_FILE: u64 = 4 << 20;

/// Mark before the answer of the process that loads NCCL. NCCL may print lines of its own.
const MARK: &str = "nccl-bench-answer ";

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorEnvArguments {
    /// Judge the environment of this process
    #[arg(long, value_name = "PID", conflicts_with = "file")]
    pub pid: Option<u32>,

    /// Judge the variables in this file (- for standard input)
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Version of NCCL, instead of the installed version
    #[arg(long, value_name = "VERSION", value_parser = parse_nccl)]
    pub nccl: Option<Version>,

    /// Version of aws-ofi-nccl
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    pub plugin: Option<Version>,

    /// Version of libfabric, instead of the installed version
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    pub libfabric: Option<Version>,

    /// Machine to assume: an EC2 instance type such as p5.48xlarge, or spark
    #[arg(long, value_name = "NAME", value_parser = Platform::parse)]
    pub platform: Option<Platform>,

    /// Number of nodes of the job
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,

    /// World of the ranks: auto, mpi, tcp, single
    #[arg(long, value_name = "WORLD", default_value = "auto")]
    pub world: world::Kind,

    /// Seconds in which all processes of a launcher have to join
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,

    /// Print the answer of the libraries, for the process that started this one
    #[arg(long, hide = true)]
    pub ask: bool,

    /// The reports to write.
    #[command(flatten)]
    pub output: Output,
}

/// The answer of the libraries, from a process that loaded them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Libraries {
    nccl: Option<Version>,
    nccl_path: String,
    parameters: Option<Vec<(String, String)>>,
    libfabric: Option<Version>,
    problems: Vec<String>,
}

impl Default for DoctorEnvArguments {
    fn default() -> Self {
        Self {
            pid: None,
            file: None,
            nccl: None,
            plugin: None,
            libfabric: None,
            platform: None,
            nodes: None,
            world: world::Kind::Auto,
            timeout: 120,
            ask: false,
            output: Output::default(),
        }
    }
}

/// Runs the command, and returns the health as exit code.
pub fn run_env_doctor(arguments: &DoctorEnvArguments, context: &Context<'_>) -> Result<u8, ExitError> {
    if arguments.ask {
        println!("{MARK}{}", serde_json::to_string(&Libraries::load_libraries()).map_err(anyhow_stop)?);
        return Ok(Health::Healthy.exit_code());
    }
    if let Some(file) = &arguments.file {
        let (text, name) = read_text(file)?;
        let situation = find_situation(arguments, None, None);
        let collection = Collection::of_text(&text, &name);
        return output::write_reports(
            &arguments.output,
            &[environment::examine_variables(&collection, &situation, None, None)],
        );
    }
    if let Some(pid) = arguments.pid {
        let process = Process::other_process(pid).map_err(|error| ExitError::refused(error.to_string()))?;
        let network = Network::read(Path::new(&format!("/proc/{pid}")), process.root());
        let situation = find_situation(arguments, None, network.as_ref());
        let collection = Collection::of_process(&process, &situation.nccl_version());
        let examination = environment::examine_variables(&collection, &situation, network.as_ref(), None);
        return output::write_reports(&arguments.output, &[examination]);
    }
    let Some(world) = join_processes(context, arguments.world, arguments.timeout)? else {
        let libraries = Libraries::ask_process();
        let (_, examination) =
            examine_process(arguments, &Process::this_process(), &libraries, arguments.nodes, None);
        return output::write_reports(&arguments.output, &[examination]);
    };
    let examination = of_job(arguments, &Process::this_process(), &world, None)?;
    match world.rank() {
        0 => output::write_reports(&arguments.output, &[examination]),
        _ => Ok(Health::Healthy.exit_code()),
    }
}

/// Examines the environment of this process: only variables of the backend's software.
fn examine_process(
    arguments: &DoctorEnvArguments,
    process: &Process,
    libraries: &Libraries,
    nodes: Option<u32>,
    measured_by: Option<BackendChoice>,
) -> (Collection, Examination) {
    let network = Network::read(Path::new("/proc/self"), Path::new("/"));
    let mut situation = find_situation(arguments, Some(libraries), network.as_ref());
    situation.nodes = nodes;
    let mut collection = Collection::of_process(process, &situation.nccl_version());
    let mut answer = libraries.nccl_answer();
    collection.is_measured = measured_by.is_some();
    if measured_by == Some(BackendChoice::Fabric) {
        collection.keep_host_variables();
        answer = None;
    }
    let mut examination =
        environment::examine_variables(&collection, &situation, network.as_ref(), answer.as_ref());
    if arguments.nccl.is_none() && !collection.is_host_only {
        examination.unseen.extend(libraries.problems.iter().cloned());
    }
    (collection, examination)
}

/// Examines and compares the environments of all ranks; complete on rank 0. `measured_by` is the backend of
/// the job's measurement, if any. Collective.
pub(super) fn of_job(
    arguments: &DoctorEnvArguments,
    process: &Process,
    world: &world::Handle,
    measured_by: Option<BackendChoice>,
) -> Result<Examination, Stop> {
    let host = world::host();
    let asked = (world.rank() == 0).then(Libraries::ask_process);
    let first = gather_values(&**world, &(host.id, asked))?;
    let ids: std::collections::BTreeSet<&str> = first.iter().map(|(id, _)| id.as_str()).collect();
    let nodes = arguments.nodes.or_else(|| u32::try_from(ids.len()).ok());
    let libraries = first.iter().find_map(|(_, libraries)| libraries.clone()).unwrap_or_default();
    let (collection, mut examination) = examine_process(arguments, process, &libraries, nodes, measured_by);
    let rank = u32::try_from(world.rank()).unwrap_or(u32::MAX);
    let snapshot = Snapshot::new(rank, host.name, collection.settings, &examination);
    let all = gather_values(&**world, &snapshot)?;
    environment::compare_ranks(&mut examination, &all);
    // Ranks leave together: an early exit would look like a death.
    world.barrier()?;
    Ok(examination)
}

/// Returns the versions and the machine: the given values, else those found on this host. For a text meant
/// for another machine, only the given values count.
fn find_situation(
    arguments: &DoctorEnvArguments,
    libraries: Option<&Libraries>,
    network: Option<&Network>,
) -> Situation {
    let is_here = arguments.file.is_none();
    let detected = is_here.then(|| Platform::detect_platform(Path::new("/"))).flatten();
    Situation {
        nccl: arguments.nccl.clone().or_else(|| libraries?.nccl.clone()),
        plugin: arguments.plugin.clone(),
        libfabric: arguments.libfabric.clone().or_else(|| libraries?.libfabric.clone()),
        platform: arguments.platform.clone().or(detected),
        nodes: arguments.nodes,
        rdma: network.map(|network| !network.devices.is_empty()),
    }
}

impl Libraries {
    /// Loads the libraries in this process.
    fn load_libraries() -> Self {
        let mut all = Self::default();
        match nccl::Library::load() {
            Ok(library) => {
                all.nccl = parse_version(&library.version().to_string()).ok();
                all.nccl_path = library.path().display().to_string();
                match library.parameters() {
                    Ok(parameters) => all.parameters = Some(parameters),
                    Err(nccl::Error::MissingSymbol(_)) => {}
                    Err(error) => all.problems.push(format!("NCCL did not report its parameters: {error}")),
                }
            }
            Err(error) => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default().trim_end_matches('.');
                all.problems
                    .push(format!("NCCL was not loaded, so the table of variables was used: {first}"));
            }
        }
        all.libfabric = fabric::Library::load()
            .ok()
            .and_then(|library| parse_version(&library.version().to_string()).ok());
        all
    }

    /// Loads the libraries in another process. Their output then does not reach the report, and a crash of a
    /// library does not end this process.
    fn ask_process() -> Self {
        let asked = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .args(["doctor", "env", "--ask"])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output()
        });
        let problem = |text: String| Self { problems: vec![text], ..Self::default() };
        let output = match asked {
            Ok(output) => output,
            Err(error) => return problem(format!("the libraries were not asked: {error}")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let answer = text.lines().find_map(|line| line.split_once(MARK));
        answer.and_then(|(_, json)| serde_json::from_str(json).ok()).unwrap_or_else(|| {
            problem(format!("the process that loaded NCCL gave no answer ({})", output.status))
        })
    }

    /// Returns the parameters of NCCL, if it provides them.
    fn nccl_answer(&self) -> Option<Answer> {
        let version = self.nccl.as_ref()?;
        let parameters = self.parameters.clone()?;
        Some(Answer { library: format!("NCCL {version} from {}", self.nccl_path), parameters })
    }
}

/// Reads the version of NCCL. Its third number is required.
fn parse_nccl(text: &str) -> Result<Version, String> {
    if text.split('.').count() < 3 {
        return Err(format!("{text:?} is not a full version of NCCL: write it as 2.28.9"));
    }
    parse_version(text)
}

/// Reads a file, or standard input.
fn read_text(file: &Path) -> Result<(String, String), ExitError> {
    let (bytes, name) = if file == Path::new("-") {
        (input::read_stream(io::stdin().lock(), LARGEST_FILE), "standard input".to_owned())
    } else {
        (input::read_regular_file(file, LARGEST_FILE), file.display().to_string())
    };
    let bytes = bytes.map_err(|error| ExitError::refused(format!("reading {name}: {error}")))?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), name))
}

fn anyhow_stop(error: serde_json::Error) -> ExitError {
    ExitError::Stopped(Stop::Failed(error.into()))
}
