//! What a person at one side is told while the other side is not there.

use std::io::{self, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// No word is said before.
const QUIET: Duration = Duration::from_secs(2);

/// Why the other side has not been reached, as the world said last.
static WHY: Mutex<String> = Mutex::new(String::new());

/// Says on standard error what is waited for, once.
pub(super) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

impl Waiting {
    /// Says `what` after two seconds, with what is left of `limit`, unless this has been dropped.
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
        // Without a thread there is a silent wait.
        Self(teller.ok().map(|teller| (met, teller)))
    }

    /// Notes why it goes on.
    pub(super) fn because(why: &str) {
        why.clone_into(&mut WHY.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((met, teller)) = self.0.take() {
            drop(met);
            // It has nothing to report.
            let _ = teller.join();
        }
    }
}

fn line(what: &str, why: &str, left: Duration) -> String {
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    format!("nccl-bench: {what}{why}; giving up in {} s (-T)", left.as_secs_f64().round())
}
