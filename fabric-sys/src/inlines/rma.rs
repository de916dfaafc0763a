//! Remote memory access.

use std::ffi::c_void;

use libc::iovec;

use super::inlines;
use crate::{fi_addr_t, fi_msg_rma, fid_ep};

inlines! {
    /// Reads from a peer's region.
    fn fi_read(ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize
        = (*ep).rma, read(ep, buf, len, desc, src_addr, addr, key, context);

    /// Reads from a peer's region into several buffers.
    fn fi_readv(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize
        = (*ep).rma, readv(ep, iov, desc, count, src_addr, addr, key, context);

    /// Reads with flags.
    fn fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize = (*ep).rma, readmsg(ep, msg, flags);

    /// Writes into a peer's region.
    fn fi_write(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize
        = (*ep).rma, write(ep, buf, len, desc, dest_addr, addr, key, context);

    /// Writes several buffers into a peer's region.
    fn fi_writev(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize
        = (*ep).rma, writev(ep, iov, desc, count, dest_addr, addr, key, context);

    /// Writes with flags.
    fn fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize
        = (*ep).rma, writemsg(ep, msg, flags);

    /// Writes a short buffer, which may be reused after the call.
    fn fi_inject_write(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64) -> isize
        = (*ep).rma, inject(ep, buf, len, dest_addr, addr, key);

    /// Writes with data for the peer's completion queue.
    fn fi_writedata(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize
        = (*ep).rma, writedata(ep, buf, len, desc, data, dest_addr, addr, key, context);

    /// Writes a short buffer with data for the peer's completion queue.
    fn fi_inject_writedata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64, key: u64) -> isize
        = (*ep).rma, injectdata(ep, buf, len, data, dest_addr, addr, key);
}
