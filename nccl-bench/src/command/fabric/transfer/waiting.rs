//! The message on standard error while one side of a `--listen`/`--connect` pair waits for the other.

use std::io::{self, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Wait before the message is printed.
const QUIET: Duration = Duration::from_secs(2);

/// The last reason that the world gave for not having reached the other side.
static WHY: Mutex<String> = Mutex::new(String::new());

/// Prints a message on standard error, once, if the wait is long. Dropped when the wait is over.
pub(super) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

impl Waiting {
    /// Prints `what` after two seconds, with the time left of `limit`, unless the value is dropped before.
    pub(super) fn tell(what: String, limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        let (met, until_met) = mpsc::channel();
        let teller = thread::Builder::new().name("waiting".to_owned()).spawn(move || {
            if until_met.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                let left = deadline.saturating_duration_since(Instant::now());
                let why = WHY.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // Nobody may be reading standard error any more.
                let _ = writeln!(io::stderr(), "{}", line(&what, &why, left));
            }
        });
        // If no thread can be started, nothing is printed.
        Self(teller.ok().map(|teller| (met, teller)))
    }

    /// Records why the other side has not been reached yet.
    pub(super) fn because(why: &str) {
        why.clone_into(&mut WHY.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((met, teller)) = self.0.take() {
            drop(met);
            // A panic of the thread does not matter.
            let _ = teller.join();
        }
    }
}

fn line(what: &str, why: &str, left: Duration) -> String {
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    format!("nccl-bench: {what}{why}; giving up in {} s (-T)", left.as_secs_f64().round())
}
