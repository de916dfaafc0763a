//! The library's log.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Logs a warning, and continues if the program's subscriber panics: many warnings are given between the
/// decision to leak memory and the leak, or before other ranks are told of a failure. The library logs
/// nowhere else but here and in [`debug`].
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    ignore_panic(|| tracing::warn!("{text}"));
}

/// Logs a step of an agreement, as [`warn`] does: other ranks wait for its end.
pub(crate) fn debug(text: fmt::Arguments<'_>) {
    ignore_panic(|| tracing::debug!("{text}"));
}

/// Calls code of the program, and returns false after a panic, which ends here.
pub(crate) fn ignore_panic(call: impl FnOnce()) -> bool {
    // The drop of what it panicked with may panic, too.
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).is_ok()
}
