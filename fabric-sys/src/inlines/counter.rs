//! Counters.

use std::ffi::c_int;

use super::inlines;
use crate::fid_cntr;

inlines! {
    /// Number of completed operations.
    fn fi_cntr_read(cntr: *mut fid_cntr) -> u64 = (*cntr).ops, read(cntr);

    /// Number of failed operations.
    fn fi_cntr_readerr(cntr: *mut fid_cntr) -> u64 = (*cntr).ops, readerr(cntr);

    /// Adds to the count.
    fn fi_cntr_add(cntr: *mut fid_cntr, value: u64) -> c_int = (*cntr).ops, add(cntr, value);

    /// Sets the count.
    fn fi_cntr_set(cntr: *mut fid_cntr, value: u64) -> c_int = (*cntr).ops, set(cntr, value);

    /// Adds to the count of failures.
    fn fi_cntr_adderr(cntr: *mut fid_cntr, value: u64) -> c_int
        = (*cntr).ops, adderr(cntr, value), late in fi_ops_cntr;

    /// Sets the count of failures.
    fn fi_cntr_seterr(cntr: *mut fid_cntr, value: u64) -> c_int
        = (*cntr).ops, seterr(cntr, value), late in fi_ops_cntr;

    /// Waits until the count reaches `threshold`; `timeout` in milliseconds, negative for none.
    fn fi_cntr_wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int
        = (*cntr).ops, wait(cntr, threshold, timeout);
}
