//! The processes of a job.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use collectives::world::{self};

pub(crate) use crate::port::reserve_port;

/// A sweep that does not end by itself while a test runs: a million sizes.
pub(crate) const LONG_SWEEP: &str = "allreduce --backend fabric -b 8 -e 8M -i 8 -n 1";
/// A measurement that does not end either: hours of operations.
pub(crate) const LONG_MEASUREMENT: &str = "allreduce --backend fabric -b 8 -e 8 -n 4000000000";
/// A limit for each phase, in seconds, which three ranks keep on two busy cores: emulated, they are slow.
pub(crate) const WATCHDOG_S: u32 = if cfg!(target_arch = "x86_64") { 10 } else { 30 };
/// The line that rank 0 prints when the ranks are connected, just before it measures.
pub(crate) const CONNECTED: &str = "#        (B)";

/// A process of a test, killed at the end of the test.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) stdout: Option<BufReader<ChildStdout>>,
    pub(crate) stderr: Option<thread::JoinHandle<String>>,
    pub(crate) seen: String,
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A program in an environment without a launcher's variables, with signals as they are on a terminal.
pub(crate) fn command(program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    for (name, _) in env::vars() {
        let torch = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&name.as_str());
        let foreign = [
            "NCCL_BENCH_",
            "OMPI_",
            "PMI",
            "SLURM_",
            "TORCHELASTIC_",
            "MASTER_",
            "JOB_COMPLETION_",
            "NCCL_HOSTID",
        ];
        if torch || foreign.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    // SAFETY: `signal` may be called between `fork` and `exec`.
    unsafe {
        command.pre_exec(|| {
            for signal in
                [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGXCPU]
            {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    command
}

pub(crate) fn bench(arguments: &str) -> Command {
    command(env!("CARGO_BIN_EXE_nccl-bench"), arguments)
}

pub(crate) fn start(command: Command) -> Process {
    start_writing_to(command, Stdio::piped())
}

/// Starts a process with this standard output.
pub(crate) fn start_writing_to(mut command: Command, output: Stdio) -> Process {
    let mut child = command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().map(BufReader::new);
    let mut errors = child.stderr.take().unwrap();
    let stderr = thread::spawn(move || {
        let mut text = Vec::new();
        errors.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    Process { child, stdout, stderr: Some(stderr), seen: String::new() }
}

/// Starts `size` ranks that meet over TCP.
pub(crate) fn start_job(size: usize, of: impl Fn() -> Command, variables: &[(&str, &str)]) -> Vec<Process> {
    let port = reserve_port();
    let ranks = (0..size).map(|rank| {
        let mut command = of();
        command.env("NCCL_BENCH_RANK", rank.to_string());
        command.env("NCCL_BENCH_SIZE", size.to_string());
        command.env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"));
        start({
            command.envs(variables.iter().copied());
            command
        })
    });
    ranks.collect()
}

impl Process {
    pub(crate) fn signal(&self, signal: libc::c_int) {
        send(self.child.id(), signal);
    }

    /// Reads standard output up to a line that starts so.
    pub(crate) fn read_to(&mut self, start: &str) {
        let output = self.stdout.as_mut().unwrap();
        loop {
            let mut line = String::new();
            if output.read_line(&mut line).unwrap() == 0 {
                let stderr = self.stderr.take().unwrap().join().unwrap();
                panic!("it ended before `{start}`: {}{stderr}", self.seen);
            }
            self.seen += &line;
            if line.starts_with(start) {
                return;
            }
        }
    }

    /// Waits for the end. A job that does not hang ends within a minute.
    pub(crate) fn ended(&mut self) -> Ended {
        let by = Instant::now() + Duration::from_secs(60);
        let rest = self.stdout.take().map(|mut output| {
            thread::spawn(move || {
                let mut text = Vec::new();
                output.read_to_end(&mut text).unwrap();
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() >= by {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                break None;
            }
            thread::sleep(Duration::from_millis(10));
        };
        let rest = rest.map(|rest| rest.join().unwrap()).unwrap_or_default();
        let stdout = std::mem::take(&mut self.seen) + &rest;
        let stderr = self.stderr.take().unwrap().join().unwrap();
        let Some(status) = status else { panic!("it hangs: {stdout}{stderr}") };
        Ended { code: status.code(), stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(process: u32, signal: libc::c_int) {
    // SAFETY: `kill` touches no memory; the process has not been waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(process as libc::pid_t, signal) }, 0);
}

pub(crate) fn host() -> String {
    world::host().name
}
