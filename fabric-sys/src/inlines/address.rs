//! Address vectors.

use std::ffi::{c_char, c_int, c_void};

use super::inlines;
use crate::{fi_addr_t, fid_av};

inlines! {
    /// Inserts `count` addresses; returns how many went in.
    fn fi_av_insert(av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void) -> c_int
        = (*av).ops, insert(av, addr, count, fi_addr, flags, context);

    /// Resolves a host and service and inserts the address.
    fn fi_av_insertsvc(av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void) -> c_int
        = (*av).ops, insertsvc(av, node, service, fi_addr, flags, context);

    /// Removes addresses.
    fn fi_av_remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int
        = (*av).ops, remove(av, fi_addr, count, flags);

    /// Reads the address behind a `fi_addr_t`.
    fn fi_av_lookup(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int
        = (*av).ops, lookup(av, fi_addr, addr, addrlen);

    /// Writes an address for people to read.
    fn fi_av_straddr(av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char
        = (*av).ops, straddr(av, addr, buf, len);
}
