//! A read-only client of RAS.
//!
//! All processes of a host listen at the same address (`SO_REUSEPORT`), also those of other jobs. The system
//! picks one for each connection, even a stopped one. So further connections join an unanswered one, and the
//! first answered connection gets the question. After an answer about another job, the client asks again.

mod address;
mod failure;
mod limits;
mod protocol;

use std::io;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

pub use address::DEFAULT_ADDRESS;
pub use failure::ClientFailure;
pub use limits::ClientLimits;
pub use protocol::Request;

use super::answer;
use super::status::Status;
use protocol::Introduction;

/// Polling interval of open connections.
const LOOK: Duration = Duration::from_millis(5);

/// A client of RAS.
#[derive(Clone, Debug)]
pub struct Client {
    /// The address to ask, `host:port`.
    pub address: String,
    /// The limits.
    pub limits: ClientLimits,
}

/// An answer with the circumstances.
#[derive(Clone, Debug)]
pub struct Poll {
    /// The answer.
    pub status: Status,
    /// Time of the answer.
    pub at: Instant,
    /// Earlier connections.
    pub tries: Tries,
}

/// Connections without a useful answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Accepted connections without an answer.
    pub silent: u32,
    /// Answers about other jobs.
    pub others: u32,
}

/// A question without an answer.
#[derive(Debug)]
pub struct Unanswered {
    /// The last reason.
    pub failure: ClientFailure,
    /// The connections.
    pub tries: Tries,
}

impl Client {
    /// Asks for the state of the accepted job.
    ///
    /// # Errors
    /// [`Unanswered`] if nothing listens, no answer can be read, or all answers are about other jobs.
    pub fn poll_job(&self, accept: &dyn Fn(&Status) -> bool) -> Result<Poll, Unanswered> {
        let begin = Instant::now();
        let mut tries = Tries::default();
        let mut others: Vec<String> = Vec::new();
        loop {
            let introduced = match self.introduce_client(&mut tries) {
                Ok(introduced) => introduced,
                Err(failure) => {
                    return Err(Unanswered { failure: failure_to_report(failure, others), tries });
                }
            };
            let failure = match self.ask_process(introduced) {
                Ok(status) if accept(&status) => return Ok(Poll { status, at: Instant::now(), tries }),
                Ok(status) => {
                    tries.others += 1;
                    let other = describe_job(&status);
                    if !others.contains(&other) {
                        others.push(other);
                    }
                    None
                }
                Err(failure) if failure.may_pass() => {
                    tries.silent += 1;
                    Some(failure)
                }
                Err(failure) => return Err(Unanswered { failure, tries }),
            };
            let is_late = begin.elapsed() >= self.limits.total;
            if is_late || tries.silent >= self.limits.silent || tries.others >= self.limits.others {
                let failure = match failure {
                    Some(failure) => failure_to_report(failure, others),
                    None => ClientFailure::OtherJobs(others),
                };
                return Err(Unanswered { failure, tries });
            }
        }
    }

    /// Opens connections until a process answers the introduction. Closes the other connections, and counts
    /// the unanswered ones.
    fn introduce_client(&self, tries: &mut Tries) -> Result<TcpStream, ClientFailure> {
        let mut open: Vec<Introduction> = Vec::new();
        let mut failure = ClientFailure::Silent(self.limits.reply);
        let mut unopened = self.limits.silent;
        let mut next = Instant::now();
        loop {
            if unopened > 0 && (open.is_empty() || Instant::now() >= next) {
                match self
                    .connect_to_address()
                    .and_then(|stream| Introduction::start_introduction(stream, &self.limits))
                {
                    Ok(introduction) => open.push(introduction),
                    // The open ones may be answered.
                    Err(_) if !open.is_empty() => {}
                    Err(closed) if closed.may_pass() => {
                        tries.silent += 1;
                        failure = closed;
                    }
                    Err(refused) => return Err(refused),
                }
                unopened -= 1;
                next = Instant::now() + self.limits.join;
            }
            let mut index = 0;
            while let Some(introduction) = open.get(index) {
                match introduction.has_answer() {
                    Ok(true) => {
                        // The earlier ones have had more time.
                        tries.silent = tries.silent.saturating_add(u32::try_from(index).unwrap_or(u32::MAX));
                        return open.swap_remove(index).into_connection();
                    }
                    Ok(false) => index += 1,
                    Err(reason) => {
                        tries.silent += 1;
                        failure = reason;
                        open.remove(index);
                    }
                }
            }
            if open.is_empty() && unopened == 0 {
                return Err(failure);
            }
            if !open.is_empty() {
                thread::sleep(LOOK);
            }
        }
    }

    /// Asks one process.
    fn ask_process(&self, introduced: TcpStream) -> Result<Status, ClientFailure> {
        let (bytes, format) = protocol::ask_status(introduced, &self.limits)?;
        answer::parse_answer(&bytes, format).map_err(ClientFailure::Malformed)
    }

    fn connect_to_address(&self) -> Result<TcpStream, ClientFailure> {
        let addresses = address::resolve_address(&self.address).map_err(ClientFailure::Unresolved)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, self.limits.connect) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(ClientFailure::NotListening(last))
    }
}

/// Returns the reason for the report: other jobs with answers, or the last failure.
fn failure_to_report(failure: ClientFailure, others: Vec<String>) -> ClientFailure {
    if others.is_empty() { failure } else { ClientFailure::OtherJobs(others) }
}

/// Describes a job in a few words.
pub fn describe_job(status: &Status) -> String {
    let pids: Vec<String> = status.process_ids().into_iter().take(4).map(|pid| pid.to_string()).collect();
    let communicators: Vec<String> =
        status.communicators.iter().take(2).map(|each| each.identity.to_string()).collect();
    match (pids.is_empty(), communicators.is_empty()) {
        (true, true) => format!("a job without named processes (NCCL {})", status.nccl_version),
        (true, false) => format!("communicator {}", communicators.join(", ")),
        (false, true) => format!("processes {}", pids.join(", ")),
        (false, false) => {
            format!("communicator {} with processes {}", communicators.join(", "), pids.join(", "))
        }
    }
}

#[cfg(test)]
mod tests;
