//! Ending a process from any thread, while others may be stuck inside a driver or a library.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

static CLAIMED: AtomicBool = AtomicBool::new(false);

/// Returns for the first thread that ends the process; any other sleeps until the process has ended, so that one
/// reason is printed and one exit code returned.
pub(super) fn claim() {
    while CLAIMED.swap(true, Ordering::SeqCst) {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Prints one line on standard error, whole, also when several processes share it.
pub(super) fn say(line: &str) {
    let line = format!("{}\n", line.trim_end());
    // Nobody is left to be told that standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Ends the process at once: no exit handlers, since those of a GPU driver or an MPI library can wait for ever
/// for a thread that is stuck.
pub(super) fn exit(code: i32) -> ! {
    // SAFETY: `_exit` ends the process; it needs no state of this process to be consistent.
    unsafe { libc::_exit(code) }
}
