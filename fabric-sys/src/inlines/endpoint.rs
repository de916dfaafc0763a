//! Setting endpoints up.

use std::ffi::{c_int, c_void};

use super::inlines;
use crate::{FI_ENABLE, fid, fid_ep, fid_t};

inlines! {
    /// Binds a queue, counter or address vector to an endpoint.
    fn fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int
        = (*ep).fid.ops, bind(&raw mut (*ep).fid, bfid, flags);

    /// Makes an endpoint ready for transfers.
    fn fi_enable(ep: *mut fid_ep) -> c_int
        = (*ep).fid.ops, control(&raw mut (*ep).fid, FI_ENABLE as c_int, std::ptr::null_mut());

    /// Cancels the operation with this context.
    fn fi_cancel(fid: fid_t, context: *mut c_void) -> isize
        = (*fid.cast::<fid_ep>()).ops, cancel(fid, context);

    /// Sets an endpoint's option.
    fn fi_setopt(fid: fid_t, level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int
        = (*fid.cast::<fid_ep>()).ops, setopt(fid, level, optname, optval, optlen);

    /// Reads an endpoint's option.
    fn fi_getopt(fid: fid_t, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize) -> c_int
        = (*fid.cast::<fid_ep>()).ops, getopt(fid, level, optname, optval, optlen);

    /// Chooses an endpoint's own address, before it is enabled.
    fn fi_setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int
        = (*fid.cast::<fid_ep>()).cm, setname(fid, addr, addrlen);

    /// Reads an endpoint's own address.
    fn fi_getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int
        = (*fid.cast::<fid_ep>()).cm, getname(fid, addr, addrlen);

    /// Reads the address of a connected endpoint's peer.
    fn fi_getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int
        = (*ep).cm, getpeer(ep, addr, addrlen);

    /// Ends a connection.
    fn fi_shutdown(ep: *mut fid_ep, flags: u64) -> c_int = (*ep).cm, shutdown(ep, flags);
}
