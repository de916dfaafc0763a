//! Limits of time and size.

use std::time::Duration;

/// Limits of the questions to RAS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Time limit of a process of the job for another process, in seconds.
    pub timeout_s: u32,
    /// Time for a connection to be accepted.
    pub connect: Duration,
    /// Time for the replies before the answer.
    pub reply: Duration,
    /// Time for the answer beyond `timeout_s`: RAS adds 5 s for the whole job.
    pub slack: Duration,
    /// Size of an answer in bytes.
    pub bytes: usize,
    /// Time until another connection joins an unanswered one.
    pub join: Duration,
    /// Largest number of unanswered connections, and of open connections at a time.
    pub silent: u32,
    /// Number of answers about other jobs.
    pub others: u32,
    /// Time for all connections of a question.
    pub total: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            timeout_s: 5,
            connect: Duration::from_secs(3),
            reply: Duration::from_secs(3),
            slack: Duration::from_secs(10),
            bytes: 256 << 20,
            join: Duration::from_millis(50),
            silent: 16,
            others: 32,
            total: Duration::from_secs(60),
        }
    }
}

impl ClientLimits {
    /// Returns the time for the answer.
    pub(super) fn time_for_answer(&self) -> Duration {
        self.slack.saturating_add(Duration::from_secs(u64::from(self.timeout_s)))
    }
}
