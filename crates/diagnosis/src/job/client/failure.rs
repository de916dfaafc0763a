//! Reasons why RAS gave no answer.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::job::malformed::Malformed;

/// Reason why a connection gave no answer.
#[derive(Debug)]
pub enum ClientFailure {
    /// The name of the host has no address.
    Unresolved(io::Error),
    /// No connection was accepted.
    NotListening(io::Error),
    /// A connection was accepted, without any reply in this time.
    Silent(Duration),
    /// The answer stopped after so many bytes.
    Stalled(usize),
    /// The connection was closed before the answer, after so many bytes.
    Closed(usize),
    /// The answer is longer than so many bytes.
    TooLong(usize),
    /// A reply of a service other than RAS.
    Unexpected(String),
    /// The answer cannot be read.
    Malformed(Malformed),
    /// All answers were about other jobs. Contains their descriptions.
    OtherJobs(Vec<String>),
}

impl ClientFailure {
    /// Returns true if another process at the same address may answer.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Stalled(_) | Self::Closed(_))
    }

    /// Returns the remedy.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Unresolved(_) => "Give `--address HOST:PORT`, an IPv6 address in brackets: `[::1]:28028`.",
            Self::NotListening(_) => {
                "No NCCL job runs on this host, or its NCCL is older than 2.24, or it was started with \
                 NCCL_RAS_ENABLE=0, or NCCL_RAS_ADDR sets another address, or it runs in a container with \
                 its own network. List listeners with `ss -ltnp | grep 28028`; ask inside the pod with \
                 `kubectl exec POD -- nccl-bench doctor job`."
            }
            Self::Silent(_) | Self::Stalled(_) => {
                "A process that listens there is stopped (SIGSTOP, debugger, frozen container) or hangs. \
                 List the listeners with `ss -ltnp | grep 28028`, and see whether their state is T or D with \
                 `ps -o pid,stat,wchan:32,cmd -p PID`."
            }
            Self::Closed(_) => "The process may have ended while it was asked. Ask again.",
            Self::TooLong(_) => "This is not an answer of RAS, or the job is larger than this program reads.",
            Self::Unexpected(_) => {
                "Another program listens there. List it with `ss -ltnp | grep 28028`; give the address of \
                 RAS with `--address HOST:PORT` (NCCL_RAS_ADDR of the job)."
            }
            Self::Malformed(_) => {
                "This version of NCCL may write a form that this program does not know. Report the answer of \
                 `printf 'CLIENT PROTOCOL 2\\nVERBOSE STATUS\\n' | nc localhost 28028`."
            }
            Self::OtherJobs(_) => {
                "Give a process or a communicator of the job that you mean: `--pid`, `--communicator`."
            }
        }
    }
}

impl fmt::Display for ClientFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresolved(error) => write!(formatter, "the address cannot be found: {error}"),
            Self::NotListening(error) => write!(formatter, "nothing listens there: {error}"),
            Self::Silent(time) => {
                write!(
                    formatter,
                    "the connection was accepted, but not answered in {:.1} s",
                    time.as_secs_f64()
                )
            }
            Self::Stalled(bytes) => write!(formatter, "the answer stopped after {bytes} bytes"),
            Self::Closed(bytes) => write!(formatter, "the connection was closed after {bytes} bytes"),
            Self::TooLong(limit) => write!(formatter, "the answer is longer than {limit} bytes"),
            Self::Unexpected(reply) => {
                write!(formatter, "the reply is not from RAS: `{}`", shown_text(reply))
            }
            Self::Malformed(fault) => write!(formatter, "the answer cannot be read: {fault}"),
            Self::OtherJobs(jobs) => {
                write!(formatter, "only other jobs answer: {}", jobs.join("; "))
            }
        }
    }
}

impl std::error::Error for ClientFailure {}

/// Returns the beginning of a text, without control characters of a terminal.
fn shown_text(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}
