//! Code of the program on a group's thread.

use crate::log;
use std::cell::Cell;

/// Calls code of the program on a thread of a group, which a panic must not end: operations would never
/// return.
pub(super) fn call_guarded(subject: &str, call: impl FnOnce()) {
    if !log::ignore_panic(call) {
        log::warn(format_args!("{subject} has panicked"));
    }
}

thread_local! {
    static IS_OF_GROUP: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one of a group.
pub(super) fn enter_group_thread() {
    IS_OF_GROUP.set(true);
}

/// True on a thread of any group. It must not wait for the end of another group's thread, which may wait for
/// the end of this one.
pub(super) fn is_group_thread() -> bool {
    IS_OF_GROUP.get()
}
