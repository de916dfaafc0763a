//! Ending a process from any thread, while others may be stuck inside a driver or a library.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

static CLAIMED: AtomicBool = AtomicBool::new(false);
static EXPLAINED: AtomicBool = AtomicBool::new(false);

/// Returns for the first thread that ends the process; any other sleeps until the process has ended, so that one
/// reason is printed and one exit code returned.
pub(crate) fn claim() {
    while CLAIMED.swap(true, Ordering::SeqCst) {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Prints why the process ends, unless a reason has been printed already: what follows from it is not told again.
pub(crate) fn explain(line: &str) {
    if !EXPLAINED.swap(true, Ordering::SeqCst) {
        say(line);
    }
}

/// Says that somebody else has printed why the process ends, as a panic does.
pub(crate) fn explained() {
    EXPLAINED.store(true, Ordering::SeqCst);
}

/// Prints one line on standard error, whole, also when several processes share it.
fn say(line: &str) {
    let line = format!("{}\n", line.trim_end());
    // Nobody is left to be told that standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Ends the process at once: no exit handlers, since those of a GPU driver or an MPI library can wait for ever
/// for a thread that is stuck.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: `_exit` ends the process; it needs no state of this process to be consistent.
    unsafe { libc::_exit(code) }
}
