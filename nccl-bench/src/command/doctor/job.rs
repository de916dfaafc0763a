//! `nccl-bench doctor job`: a running job.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use diagnosis::examination::{Examination, Health};
use diagnosis::input;
use diagnosis::job::client::{Client, ClientLimits, DEFAULT_ADDRESS};
use diagnosis::job::json::parse_hexadecimal;
use diagnosis::job::watch::{Selection, watch_job};
use diagnosis::job::{judge, recorder};

use super::output::{self, Output};
use crate::command::Context;
use crate::exit::ExitError;

const EXAMPLES: &str = "\
Examples:
  nccl-bench doctor job                        ask the job on this host, twice, 5 s apart
  nccl-bench doctor job --pid 4242             the job of this process, if several jobs run
  nccl-bench doctor job --interval 60          if steps or checkpoints take long
  nccl-bench doctor job --address node7:28028  a job started with NCCL_RAS_ADDR=0.0.0.0:28028
  kubectl exec POD -- nccl-bench doctor job    a job in a pod
  nccl-bench doctor job --flight-recorder /tmp/nccl_trace_rank_*

NCCL 2.24 and later answer at localhost:28028 unless NCCL_RAS_ENABLE=0. The questions do not change the job.
Exit code: 0 all ranks launch operations, 1 degraded, 2 a rank is missing or has not arrived, 3 cannot tell.";

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorJobArguments {
    /// Address of NCCL's RAS, an IPv6 address in brackets [default: NCCL_RAS_ADDR, or localhost:28028]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,

    /// Time in seconds that the processes of the job wait for each other's answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,

    /// Time between the two questions
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub interval: u32,

    /// Ask the job of this process
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// Ask the job with this communicator, the commId of NCCL's log
    #[arg(long, value_name = "HASH", value_parser = hash)]
    pub communicator: Option<u64>,

    /// Read dumps of PyTorch's flight recorder, one file per rank, or their directory, instead of asking
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["pid", "communicator"])]
    pub flight_recorder: Vec<PathBuf>,

    /// The reports to write.
    #[command(flatten)]
    pub output: Output,
}

/// Runs the command, and returns the health as exit code.
pub fn run_job_doctor(arguments: &DoctorJobArguments, _context: &Context<'_>) -> Result<u8, ExitError> {
    if output::is_left_to_rank_0() {
        return Ok(Health::Healthy.exit_code());
    }
    let examination = if arguments.flight_recorder.is_empty() {
        ask_job(arguments)?
    } else {
        recorder::examine_dumps(&find_dumps(&arguments.flight_recorder)?)
    };
    output::write_reports(&arguments.output, &[examination])
}

fn ask_job(arguments: &DoctorJobArguments) -> Result<Examination, ExitError> {
    // One process may take `timeout`, and the whole job 10 s more.
    let total = Duration::from_secs(60 + 2 * u64::from(arguments.timeout));
    let limits = ClientLimits { timeout_s: arguments.timeout, total, ..ClientLimits::default() };
    let client = Client { address: ras_address(arguments), limits };
    let selection = Selection { pid: arguments.pid.map(i64::from), communicator: arguments.communicator };
    let interval = Duration::from_secs(u64::from(arguments.interval));
    match watch_job(&client, &selection, interval, &mut wait_with_countdown) {
        Ok(watch) => Ok(judge::examine_job(&watch)),
        Err(unanswered) => match arguments.pid {
            // A process in another namespace of process numbers may answer.
            Some(pid) if !Path::new(&format!("/proc/{pid}")).exists() => Err(ExitError::refused(format!(
                "no job with the process {pid} answers, and this host has no such process: list them \
                     with `pgrep -af python`"
            ))),
            _ => Ok(judge::examine_unanswered(&client.address, &selection, &unanswered)),
        },
    }
}

/// Returns the given address, otherwise NCCL's: `NCCL_RAS_ADDR`, or the default.
fn ras_address(arguments: &DoctorJobArguments) -> String {
    let set = || std::env::var("NCCL_RAS_ADDR").ok().filter(|address| !address.is_empty());
    arguments.address.clone().or_else(set).unwrap_or_else(|| DEFAULT_ADDRESS.to_owned())
}

/// Waits, with a countdown on a terminal.
fn wait_with_countdown(time: Duration) {
    if !io::stderr().is_terminal() {
        return thread::sleep(time);
    }
    for left in (1..=time.as_secs()).rev() {
        // An unwritable terminal is not a reason to stop.
        let line = format!("\rThe job answered; asking again in {left} s \x1b[K");
        let _ = io::stderr().write_all(line.as_bytes());
        thread::sleep(Duration::from_secs(1));
    }
    let _ = io::stderr().write_all(b"\r\x1b[K");
}

/// Reads the hash of a communicator.
fn hash(text: &str) -> Result<u64, String> {
    parse_hexadecimal(text)
        .ok_or_else(|| "a hash has up to 16 hexadecimal digits: `0xb67645b31b895d33`".to_owned())
}

/// Returns the files, and the dumps in the directories.
fn find_dumps(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ExitError> {
    let refuse =
        |path: &Path, reason: String| Err(ExitError::refused(format!("`{}` {reason}", path.display())));
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            match input::open_regular_file(path, recorder::dump::LARGEST_FILE) {
                Ok(_) => files.push(path.clone()),
                Err(error) => return refuse(path, format!("cannot be read: {error}")),
            }
            continue;
        }
        match list_dumps(path) {
            Ok(listed) if listed.is_empty() => {
                return refuse(
                    path,
                    "has no dumps: files with a rank in their names, as nccl_trace_rank_3".to_owned(),
                );
            }
            Ok(listed) => files.extend(listed),
            Err(error) => return refuse(path, format!("cannot be listed: {error}")),
        }
    }
    Ok(files)
}

/// Returns the dumps in a directory, in order of their names.
fn list_dumps(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in directory.read_dir()? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.is_file() && !is_hidden && recorder::dump::rank_of(&path).is_some() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
