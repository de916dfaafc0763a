//! The library's log.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Logs a warning, and continues if the program's subscriber panics. Many warnings are given between the
/// decision to leak memory and the leak, or before a failure is reported to other ranks. The library logs
/// only here and in [`debug`].
#[cfg(any(feature = "fabric", feature = "mpi", feature = "nccl"))]
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    ignore_panic(|| tracing::warn!("{text}"));
}

/// Logs a step of an agreement, like [`warn`]: other ranks wait for its end.
pub(crate) fn debug(text: fmt::Arguments<'_>) {
    ignore_panic(|| tracing::debug!("{text}"));
}

/// Calls code of the program. Returns false after a panic, without propagating it.
pub(crate) fn ignore_panic(call: impl FnOnce()) -> bool {
    // The drop of the panic's payload may also panic.
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).is_ok()
}
