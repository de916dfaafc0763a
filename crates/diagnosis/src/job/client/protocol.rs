//! The protocol of RAS: lines of text over TCP, then an answer up to the end of the connection.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::failure::ClientFailure;
use super::limits::ClientLimits;
use crate::job::status::Format;

/// Requests of the client. None of them changes the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Introduces the client.
    Protocol,
    /// Sets the time limit in seconds of a process of the job for another process.
    Timeout(u32),
    /// Asks for JSON.
    Json,
    /// Asks for the state of the job.
    Status,
    /// Asks for the state of the job, with all differing ranks.
    VerboseStatus,
}

impl Request {
    /// Returns the line of the request.
    pub fn request_line(self) -> String {
        match self {
            Self::Protocol => "CLIENT PROTOCOL 2\n".to_owned(),
            Self::Timeout(seconds) => format!("TIMEOUT {seconds}\n"),
            Self::Json => "SET FORMAT json\n".to_owned(),
            Self::Status => "STATUS\n".to_owned(),
            Self::VerboseStatus => "VERBOSE STATUS\n".to_owned(),
        }
    }
}

/// A connection after the client's introduction.
pub(super) struct Introduction {
    stream: TcpStream,
    start: Instant,
    limit: Duration,
}

impl Introduction {
    /// Introduces the client.
    pub(super) fn start_introduction(
        mut stream: TcpStream,
        limits: &ClientLimits,
    ) -> Result<Self, ClientFailure> {
        let closed = |_| ClientFailure::Closed(0);
        // The line fits into the system's memory.
        stream.set_nonblocking(true).map_err(closed)?;
        stream.write_all(Request::Protocol.request_line().as_bytes()).map_err(closed)?;
        Ok(Self { stream, start: Instant::now(), limit: limits.reply })
    }

    /// Returns true, without waiting, if an answer is there.
    pub(super) fn has_answer(&self) -> Result<bool, ClientFailure> {
        match self.stream.peek(&mut [0]) {
            Ok(0) => Err(ClientFailure::Closed(0)),
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                if self.start.elapsed() < self.limit {
                    Ok(false)
                } else {
                    Err(ClientFailure::Silent(self.limit))
                }
            }
            Err(_) => Err(ClientFailure::Closed(0)),
        }
    }

    /// Returns the connection, with the answer still unread.
    pub(super) fn into_connection(self) -> Result<TcpStream, ClientFailure> {
        self.stream.set_nonblocking(false).map_err(|_| ClientFailure::Closed(0))?;
        Ok(self.stream)
    }
}

/// Asks for the state of the job on a connection after the introduction, in JSON if the library has it, and
/// returns the bytes of the answer.
pub(super) fn ask_status(
    stream: TcpStream,
    limits: &ClientLimits,
) -> Result<(Vec<u8>, Format), ClientFailure> {
    let mut connection =
        RasConnection { stream, received: Vec::new(), deadline: Instant::now() + limits.reply };
    let introduction = connection.read_line()?;
    if !introduction.starts_with("SERVER PROTOCOL ") {
        return Err(ClientFailure::Unexpected(introduction));
    }
    let timeout = connection.send_and_read(Request::Timeout(limits.timeout_s), limits)?;
    if timeout != "OK" {
        return Err(ClientFailure::Unexpected(timeout));
    }
    let format = match connection.send_and_read(Request::Json, limits)?.as_str() {
        "OK" => Format::Json,
        reply if reply.starts_with("ERROR:") => Format::Text,
        reply => return Err(ClientFailure::Unexpected(reply.to_owned())),
    };
    // JSON contains all ranks in any case. Only the text is shorter without VERBOSE.
    let status = if format == Format::Json { Request::Status } else { Request::VerboseStatus };
    connection.deadline = Instant::now() + limits.time_for_answer();
    connection.send_request(status)?;
    Ok((connection.read_rest(limits.bytes)?, format))
}

struct RasConnection {
    stream: TcpStream,
    received: Vec<u8>,
    deadline: Instant,
}

impl RasConnection {
    fn send_and_read(&mut self, request: Request, limits: &ClientLimits) -> Result<String, ClientFailure> {
        self.send_request(request)?;
        self.read_line().map_err(|failure| match failure {
            ClientFailure::Stalled(0) => ClientFailure::Silent(limits.reply),
            other => other,
        })
    }

    fn send_request(&mut self, request: Request) -> Result<(), ClientFailure> {
        let sent = self.stream.set_write_timeout(Some(self.remaining_time()));
        sent.and_then(|()| self.stream.write_all(request.request_line().as_bytes()))
            .map_err(|error| self.failure_of(&error))
    }

    /// Reads a line of at most 4096 bytes, without its end.
    fn read_line(&mut self) -> Result<String, ClientFailure> {
        const LONGEST: usize = 4096;
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.received.len() > LONGEST {
                return Err(ClientFailure::Unexpected(String::from_utf8_lossy(&self.received).into_owned()));
            }
            if self.receive_bytes()? == 0 {
                return Err(ClientFailure::Closed(self.received.len()));
            }
        }
    }

    /// Reads to the end of the connection.
    fn read_rest(mut self, most: usize) -> Result<Vec<u8>, ClientFailure> {
        while self.receive_bytes()? > 0 {
            if self.received.len() > most {
                return Err(ClientFailure::TooLong(most));
            }
        }
        if self.received.is_empty() {
            return Err(ClientFailure::Closed(0));
        }
        Ok(self.received)
    }

    /// Receives some bytes, or none at the end of the connection.
    fn receive_bytes(&mut self) -> Result<usize, ClientFailure> {
        let mut buffer = [0; 16 << 10];
        loop {
            if Instant::now() >= self.deadline {
                return Err(ClientFailure::Stalled(self.received.len()));
            }
            let prepared = self.stream.set_read_timeout(Some(self.remaining_time()));
            match prepared.and_then(|()| self.stream.read(&mut buffer)) {
                Ok(bytes) => {
                    self.received.extend_from_slice(&buffer[..bytes]);
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure_of(&error)),
            }
        }
    }

    /// Returns the time up to the deadline, at least 1 ms: the system would take zero for no limit.
    fn remaining_time(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn failure_of(&self, error: &io::Error) -> ClientFailure {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientFailure::Stalled(self.received.len())
            }
            _ => ClientFailure::Closed(self.received.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_changes_the_job() {
        let all =
            [Request::Protocol, Request::Timeout(5), Request::Json, Request::Status, Request::VerboseStatus];
        let lines: Vec<String> = all.into_iter().map(Request::request_line).collect();
        assert_eq!(
            lines,
            ["CLIENT PROTOCOL 2\n", "TIMEOUT 5\n", "SET FORMAT json\n", "STATUS\n", "VERBOSE STATUS\n"]
        );
    }
}
