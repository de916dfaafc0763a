//! The program's reactions to signals: libraries of providers replace them.

use std::ffi::{CStr, c_int};
use std::ptr;

/// Libraries that install signal handlers when they are loaded. The handlers print a backtrace and call
/// `exit`. They are the library below PSM (libfabric is linked to it in Debian and Ubuntu) and PSM2.
const LIBRARIES: [&str; 2] = ["libinfinipath.so", "libpsm2.so"];

/// The signals with such handlers.
const SIGNALS: [c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL];

/// The reactions to [`SIGNALS`] before a library is loaded.
pub(crate) struct Reactions([Option<libc::sigaction>; SIGNALS.len()]);

impl Reactions {
    pub(crate) fn current() -> Self {
        Self(SIGNALS.map(current))
    }

    /// Restores the reactions replaced by the libraries. Handlers installed by another thread meanwhile stay.
    pub(crate) fn restore(&self) {
        for (signal, before) in SIGNALS.into_iter().zip(&self.0) {
            let (Some(before), Some(now)) = (before, current(signal)) else { continue };
            if before.sa_sigaction != now.sa_sigaction && is_of_libraries(now.sa_sigaction) {
                // SAFETY: `before` was the reaction to this signal, and its handler is still loaded.
                unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
            }
        }
    }
}

fn current(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: a structure of numbers: zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing, and writes to `action`.
    let result = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    (result == 0).then_some(action)
}

fn is_of_libraries(handler: libc::sighandler_t) -> bool {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: any address may be asked about; `info` is writable.
    if unsafe { libc::dladdr(handler as *const _, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return false;
    }
    // SAFETY: on success the name is a text of a loaded library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy();
    LIBRARIES.iter().any(|library| name.contains(library))
}
