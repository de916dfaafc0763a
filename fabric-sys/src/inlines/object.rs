//! Operations of every object.

use std::ffi::{c_char, c_int, c_void};

use super::inlines;
use crate::fid;

inlines! {
    /// Closes an object. Children go first: endpoints before the objects bound to them, those before their domain, the
    /// domain before its fabric.
    fn fi_close(fid: *mut fid) -> c_int = (*fid).ops, close(fid);

    /// Sends a control command.
    fn fi_control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int
        = (*fid).ops, control(fid, command, argument);

    /// Opens a provider's own table of functions.
    fn fi_open_ops(fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void) -> c_int
        = (*fid).ops, ops_open(fid, name, flags, ops, context);

    /// Gives a provider a table of the application's functions.
    fn fi_set_ops(fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void) -> c_int
        = (*fid).ops, ops_set(fid, name, flags, ops, context), late in fi_ops;
}
