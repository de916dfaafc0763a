//! Ending this process from any thread, while others may be blocked in a driver or a library.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Exit code of a Rust program after a panic.
pub(crate) const PANICKED: i32 = 101;

static CLAIMED: AtomicBool = AtomicBool::new(false);
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Returns for the first thread only; other threads sleep until the process has ended. So one reason is
/// printed and one exit code returned.
pub(crate) fn claim_end() {
    while CLAIMED.swap(true, Ordering::SeqCst) {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Prints a line on standard error, in a single write. Later calls print nothing.
pub(crate) fn report_once(line: &str) {
    if !REPORTED.swap(true, Ordering::SeqCst) {
        let line = format!("{}\n", line.trim_end());
        // Ignored if standard error is closed.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Makes [`report_once`] print nothing, after a panic already printed.
pub(crate) fn suppress_report() {
    REPORTED.store(true, Ordering::SeqCst);
}

/// Ends the process without exit handlers: handlers of a GPU driver or an MPI library can wait forever for a
/// blocked thread.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` ends the process; it needs no state of this process to be consistent.
    unsafe { libc::_exit(code) }
}
