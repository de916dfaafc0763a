//! Code of the program on a group's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls code of the program on a thread of a group, which a panic must not end: operations would never return.
pub(super) fn guarded(subject: &str, call: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
        tracing::warn!("{subject} has panicked");
        // Its drop may panic, too.
        std::mem::forget(panic);
    }
}
