//! Messages without tags.

use std::ffi::c_void;

use libc::iovec;

use super::inlines;
use crate::{fi_addr_t, fi_msg, fid_ep};

inlines! {
    /// Posts a receive.
    fn fi_recv(ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, context: *mut c_void) -> isize
        = (*ep).msg, recv(ep, buf, len, desc, src_addr, context);

    /// Posts a receive into several buffers.
    fn fi_recvv(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, context: *mut c_void) -> isize
        = (*ep).msg, recvv(ep, iov, desc, count, src_addr, context);

    /// Posts a receive with flags.
    fn fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize = (*ep).msg, recvmsg(ep, msg, flags);

    /// Posts a send.
    fn fi_send(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, context: *mut c_void) -> isize
        = (*ep).msg, send(ep, buf, len, desc, dest_addr, context);

    /// Posts a send of several buffers.
    fn fi_sendv(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, context: *mut c_void) -> isize
        = (*ep).msg, sendv(ep, iov, desc, count, dest_addr, context);

    /// Posts a send with flags.
    fn fi_sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize = (*ep).msg, sendmsg(ep, msg, flags);

    /// Sends a short message, whose buffer may be reused after the call.
    fn fi_inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize
        = (*ep).msg, inject(ep, buf, len, dest_addr);

    /// Posts a send with data for the receiver's completion.
    fn fi_senddata(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t, context: *mut c_void) -> isize
        = (*ep).msg, senddata(ep, buf, len, desc, data, dest_addr, context);

    /// Sends a short message with data for the receiver's completion.
    fn fi_injectdata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t) -> isize
        = (*ep).msg, injectdata(ep, buf, len, data, dest_addr);
}
