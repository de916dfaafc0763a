//! Ranks as processes, and their exits.

#[path = "../port/mod.rs"]
mod port;

pub(crate) use port::reserve_port;

use std::env;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A process that a test has started; killed when the test is over.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Variables that its command set: the rank, and what it plays.
    variables: String,
    output: Option<thread::JoinHandle<String>>,
    errors: Option<thread::JoinHandle<String>>,
}

/// Exit of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Variables of launchers, removed from the environment of a test's ranks.
const FOREIGN: [&str; 8] =
    ["NCCL_BENCH_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_", "JOB_COMPLETION_", "NCCL_HOSTID"];

/// A command that runs a program in an environment without a launcher's variables.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars() {
        let torch = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&name.as_str());
        if torch || FOREIGN.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// This program as a rank with the given steps.
pub(crate) fn rank(steps: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = command(env::current_exe().unwrap().to_str().unwrap());
    command.env("WORLD_STEPS", steps).envs(variables.iter().copied());
    command
}

pub(crate) fn start(mut command: Command) -> Process {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={:?}", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let variables = variables.collect::<Vec<_>>().join(" ");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (output, errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    Process { child, variables, output: Some(collect(output)), errors: Some(collect(errors)) }
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Process {
    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: `kill` touches no memory, and the child has not been waited for, so the number is still its
        // own.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the exit; panics if it does not exit in time.
    pub(crate) fn ended(&mut self, by: Instant) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= by {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                let texts = self.texts();
                panic!("a process has not ended in time: {} {texts:?}", self.variables);
            }
            thread::sleep(Duration::from_millis(10));
        };
        let (stdout, stderr) = self.texts();
        Ended { code: status.code(), stdout, stderr }
    }

    fn texts(&mut self) -> (String, String) {
        (self.output.take().unwrap().join().unwrap(), self.errors.take().unwrap().join().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if the process has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Time limit for jobs that end by themselves.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Starts rank `rank` of `size`, with a rendezvous at `port` of this host.
pub(crate) fn start_rank(rank_: usize, size: usize, port: u16, steps: &str) -> Process {
    start(tcp_rank(rank_, size, port, steps))
}

pub(crate) fn tcp_rank(rank_: usize, size: usize, port: u16, steps: &str) -> Command {
    rank(
        steps,
        &[
            ("NCCL_BENCH_RANK", &rank_.to_string()),
            ("NCCL_BENCH_SIZE", &size.to_string()),
            ("NCCL_BENCH_ADDR", &format!("127.0.0.1:{port}")),
            ("NCCL_BENCH_TIMEOUT", "30"),
        ],
    )
}

/// Starts all ranks of a job over TCP.
pub(crate) fn start_job(size: usize, steps: &str) -> Vec<Process> {
    let port = reserve_port();
    (0..size).map(|rank| start_rank(rank, size, port, steps)).collect()
}

/// Waits until every rank of a job has printed its line of the step `say`.
pub(crate) fn all_ended(job: &mut [Process], by: Instant) -> Vec<Ended> {
    job.iter_mut().map(|process| process.ended(by)).collect()
}

/// Panics unless every process has exited with code 0 and an empty standard error.
pub(crate) fn assert_all_well(job: &[Ended]) {
    for (rank, ended) in job.iter().enumerate() {
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "rank {rank}: {ended:?}");
    }
}

/// Panics unless in every barrier the last rank had entered before the first left. Takes the outputs of all
/// ranks after the step `barriers`.
pub(crate) fn assert_barriers_hold(outputs: &[&str], count: usize) {
    let mut last_entered = vec![0_u128; count];
    let mut first_left = vec![u128::MAX; count];
    let mut seen = vec![0; count];
    for line in outputs.iter().flat_map(|output| output.lines()) {
        let Some(numbers) = line.strip_prefix("barrier ") else { continue };
        let numbers: Vec<u128> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let index = numbers[0] as usize;
        last_entered[index] = last_entered[index].max(numbers[1]);
        first_left[index] = first_left[index].min(numbers[2]);
        seen[index] += 1;
    }
    assert!(seen.iter().all(|&ranks| ranks == seen[0] && ranks > 0), "{seen:?}");
    for index in 0..count {
        assert!(last_entered[index] <= first_left[index], "barrier {index}: a rank left before all had come");
    }
}
