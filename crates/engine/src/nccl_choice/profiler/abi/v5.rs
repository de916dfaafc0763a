//! Version 5: NCCL 2.28.

use std::ffi::{c_char, c_int, c_void};

use super::v4::{CollectiveV4, SendOrReceiveV4};
use super::{Descriptor, Plugin};

#[used]
#[unsafe(export_name = "ncclProfiler_v5")]
pub(in super::super) static PLUGIN: Plugin<InitV5, Descriptor<u64, CollectiveV4, SendOrReceiveV4>> =
    Plugin::new(init);

pub(in super::super) type InitV5 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    log: *const c_void,
) -> c_int;

pub(super) unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _id: u64,
    mask: *mut c_int,
    _name: *const c_char,
    _hosts: c_int,
    _ranks: c_int,
    _rank: c_int,
    _log: *const c_void,
) -> c_int {
    // SAFETY: NCCL's contract of this function.
    unsafe { super::init(context, mask) }
}
