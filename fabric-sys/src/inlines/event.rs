//! Event queues.

use std::ffi::{c_char, c_int, c_void};

use super::inlines;
use crate::{fi_eq_err_entry, fid_eq};

inlines! {
    /// Reads one event.
    fn fi_eq_read(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize
        = (*eq).ops, read(eq, event, buf, len, flags);

    /// Reads the error that made a read answer `-FI_EAVAIL`.
    fn fi_eq_readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize
        = (*eq).ops, readerr(eq, buf, flags);

    /// Waits for one event.
    fn fi_eq_sread(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64) -> isize
        = (*eq).ops, sread(eq, event, buf, len, timeout, flags);

    /// The text of a provider's error number.
    fn fi_eq_strerror(eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize) -> *const c_char
        = (*eq).ops, strerror(eq, prov_errno, err_data, buf, len);
}
