//! The message on standard error while one side of a `--listen`/`--connect` pair waits for the other.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use engine::supervision::print_message;

/// Time until the message is printed.
const DELAY: Duration = Duration::from_secs(2);

/// The last reason why the world has not reached the other side.
static REASON: Mutex<String> = Mutex::new(String::new());

/// Prints a message on standard error, once, unless it is dropped within two seconds.
pub(super) struct WaitNotice(Option<(Sender<()>, JoinHandle<()>)>);

impl WaitNotice {
    /// Starts the wait. The message is `what`, the reason, and the time left of `limit`.
    pub(super) fn start_wait(what: String, limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        let (joined, until_joined) = mpsc::channel();
        let thread = thread::Builder::new().name("waiting".to_owned()).spawn(move || {
            if until_joined.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
                let left = deadline.saturating_duration_since(Instant::now());
                let why = REASON.lock().unwrap_or_else(PoisonError::into_inner).clone();
                print_message(notice_line(&what, &why, left));
            }
        });
        // If no thread can be started, nothing is printed.
        Self(thread.ok().map(|thread| (joined, thread)))
    }

    /// Records why the other side has not been reached yet.
    pub(super) fn set_reason(why: &str) {
        why.clone_into(&mut REASON.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for WaitNotice {
    fn drop(&mut self) {
        if let Some((joined, thread)) = self.0.take() {
            drop(joined);
            // A panic of the thread does not matter.
            let _ = thread.join();
        }
    }
}

fn notice_line(what: &str, why: &str, left: Duration) -> String {
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    format!("nccl-bench: {what}{why}; giving up in {} s (-T)", left.as_secs_f64().round())
}
