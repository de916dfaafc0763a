//! Time limit of a process that has not joined a world yet.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use collectives::world;

use crate::supervision::TIMED_OUT;

/// Time after which a waiting process reports what it waits for.
const REPORT_AFTER: Duration = Duration::from_secs(20);

/// Time limit of a process that has not joined a world yet. The limit ends when this is dropped.
#[derive(Debug)]
pub struct TimeLimit {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TimeLimit {
    /// Limits the time of `step`, such as `starting MPI`. After `limit` the process prints a message and ends with exit
    /// code 4, upon which its launcher ends the others. Before that, the first two ranks report what they wait for.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(limit: Duration, step: &'static str) -> io::Result<Self> {
        let (ended, receiver) = mpsc::channel::<()>();
        let thread =
            thread::Builder::new().name("limit".to_owned()).spawn(move || enforce(limit, step, &receiver))?;
        Ok(Self { ended: Some(ended), thread: Some(thread) })
    }
}

fn enforce(limit: Duration, step: &str, ended: &mpsc::Receiver<()>) {
    let rank = world::Started::detect().rank;
    let name = rank.map_or_else(|| "this process".to_owned(), |rank| format!("rank {rank}"));
    let host = world::host().name;
    let report_after = limit.min(REPORT_AFTER);
    if ended.recv_timeout(report_after) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    if report_after < limit && rank.is_none_or(|rank| rank < 2) {
        eprintln!(
            "nccl-bench: {name} on {host} is still {step}, for {} s now; it waits for all processes of the launcher \
             to do the same, and gives up after {} s (-T, NCCL_BENCH_TIMEOUT)",
            report_after.as_secs(),
            limit.as_secs()
        );
    }
    if ended.recv_timeout(limit - report_after) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    eprintln!("nccl-bench: {name} on {host} did not finish {step} within {} s", limit.as_secs_f64());
    // SAFETY: ends the process without the exit handlers of libraries, one of which hangs.
    unsafe { libc::_exit(i32::from(TIMED_OUT)) }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        drop(self.ended.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread only ends the limit.
            let _ = thread.join();
        }
    }
}
