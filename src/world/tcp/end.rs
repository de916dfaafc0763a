//! The end of this process: for a reason of its own, or because another one has failed.

use super::state::TcpState;
use crate::lock::lock;
use crate::world::{Error, OnFailure, Reason, process_exit};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const ABORT_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for an aborting thread's wait for the service thread: it ends the process if another process
/// has failed first. Longer than the service thread takes.
const SERVICE_EXIT_TIMEOUT: Duration = Duration::from_secs(15);

impl TcpState {
    /// Begins the end of this process for a reason of its own: see
    /// [`World::begin_end`](crate::world::World::begin_end).
    pub(crate) fn begin_end(&self) -> Result<(), (Error, i32)> {
        let _stopping = lock(&self.stopping);
        match self.failure.get().filter(|failure| !failure.own) {
            Some(failure) => Err((failure.error.clone(), failure.code)),
            None => {
                self.ending.store(true, Ordering::SeqCst);
                Ok(())
            }
        }
    }

    /// True while silence of another process is not a failure.
    pub(crate) fn ignores_silence(&self) -> bool {
        self.holds_silence.load(Ordering::SeqCst) || self.ending.load(Ordering::SeqCst)
    }

    pub(crate) fn exit_message(&self, error: &Error) -> String {
        format!("{error}; {} with it", self.numbering.ends_text(self.rank))
    }

    /// Reports here and to all others that this process ends the job. If another process is known to have
    /// failed, ends this process for its failure instead.
    pub(crate) fn announce_end(&self, code: i32, rank: Option<usize>, message: &str) {
        self.exit_if_peer_failed();
        process_exit::claim_end();
        self.report_exit(rank, message);
        self.flush_abort(code, rank, Reason::Aborted { code, message: message.to_owned() });
    }

    fn exit_if_peer_failed(&self) {
        let Err((error, code)) = self.begin_end() else { return };
        if self.options.on_failure == OnFailure::Exit {
            thread::sleep(SERVICE_EXIT_TIMEOUT);
        }
        process_exit::claim_end();
        process_exit::report_once(&self.exit_message(&error));
        process_exit::exit_now(code);
    }

    fn report_exit(&self, rank: Option<usize>, message: &str) {
        let line = match self.failure.get() {
            // The failure of one of its ranks is more specific.
            Some(failure) if rank.is_none() && self.numbering.rank_count() > 1 => failure.error.to_string(),
            _ => {
                let (rank, ranks) = self.numbering.name_rank(self.rank, rank);
                format!("rank {rank} on host {}: {message}{ranks}", self.host_name(self.rank))
            }
        };
        process_exit::report_once(&line);
    }

    /// Reports to all others that this rank aborts the job, and waits up to a second until the frames are
    /// sent.
    pub(crate) fn flush_abort(&self, code: i32, rank: Option<usize>, reason: Reason) {
        self.broadcast_frame(&self.own_frame(code, rank, reason));
        let deadline = Instant::now() + ABORT_FLUSH_TIMEOUT;
        while self.connections.iter().flatten().any(|connection| !connection.flush_queue())
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
