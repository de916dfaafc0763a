//! Tagged messages.

use std::ffi::c_void;

use libc::iovec;

use super::inlines;
use crate::{fi_addr_t, fi_msg_tagged, fid_ep};

inlines! {
    /// Posts a receive of a message whose tag equals `tag` in the bits that are not set in `ignore`.
    fn fi_trecv(ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void) -> isize
        = (*ep).tagged, recv(ep, buf, len, desc, src_addr, tag, ignore, context);

    /// Posts a receive into several buffers.
    fn fi_trecvv(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void) -> isize
        = (*ep).tagged, recvv(ep, iov, desc, count, src_addr, tag, ignore, context);

    /// Posts a receive with flags.
    fn fi_trecvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize
        = (*ep).tagged, recvmsg(ep, msg, flags);

    /// Posts a send.
    fn fi_tsend(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, tag: u64, context: *mut c_void) -> isize
        = (*ep).tagged, send(ep, buf, len, desc, dest_addr, tag, context);

    /// Posts a send of several buffers.
    fn fi_tsendv(ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, tag: u64, context: *mut c_void) -> isize
        = (*ep).tagged, sendv(ep, iov, desc, count, dest_addr, tag, context);

    /// Posts a send with flags.
    fn fi_tsendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize
        = (*ep).tagged, sendmsg(ep, msg, flags);

    /// Sends a short message, whose buffer may be reused after the call.
    fn fi_tinject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64) -> isize
        = (*ep).tagged, inject(ep, buf, len, dest_addr, tag);

    /// Posts a send with data for the receiver's completion.
    fn fi_tsenddata(ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t, tag: u64, context: *mut c_void) -> isize
        = (*ep).tagged, senddata(ep, buf, len, desc, data, dest_addr, tag, context);

    /// Sends a short message with data for the receiver's completion.
    fn fi_tinjectdata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, tag: u64) -> isize
        = (*ep).tagged, injectdata(ep, buf, len, data, dest_addr, tag);
}
