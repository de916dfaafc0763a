//! Completion queues.

use std::ffi::{c_char, c_int, c_void};

use super::inlines;
use crate::{FI_ADDR_NOTAVAIL, fi_addr_t, fi_cq_err_entry, fid_cq};

inlines! {
    /// Reads up to `count` entries; moves data where progress is manual.
    fn fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize = (*cq).ops, read(cq, buf, count);

    /// Reads entries and the addresses of their senders.
    fn fi_cq_readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t) -> isize
        = (*cq).ops, readfrom(cq, buf, count, src_addr);

    /// Waits for entries.
    fn fi_cq_sread(cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int) -> isize
        = (*cq).ops, sread(cq, buf, count, cond, timeout);

    /// Waits for entries and the addresses of their senders.
    fn fi_cq_sreadfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void, timeout: c_int) -> isize
        = (*cq).ops, sreadfrom(cq, buf, count, src_addr, cond, timeout);

    /// Wakes a thread that waits in `fi_cq_sread`.
    fn fi_cq_signal(cq: *mut fid_cq) -> c_int = (*cq).ops, signal(cq);

    /// The text of a provider's error number.
    fn fi_cq_strerror(cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize) -> *const c_char
        = (*cq).ops, strerror(cq, prov_errno, err_data, buf, len);
}

/// Reads the error that made a read answer `-FI_EAVAIL`. `buf` must be a [`crate::Padded`] one.
///
/// # Safety
/// As in C: see this crate's list of inline functions.
#[inline]
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize {
    // SAFETY: the caller vouches for both; providers older than 1.20 do not write `src_addr`, so it is set first.
    unsafe {
        if !buf.is_null() {
            (*buf).src_addr = FI_ADDR_NOTAVAIL;
        }
        let table = (*cq).ops;
        if table.is_null() {
            return <isize as super::Absent>::ABSENT;
        }
        match (*table).readerr {
            Some(function) => function(cq, buf, flags),
            None => <isize as super::Absent>::ABSENT,
        }
    }
}
