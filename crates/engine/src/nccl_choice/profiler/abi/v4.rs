//! Version 4: NCCL 2.27.

use std::ffi::{c_char, c_int, c_void};

use super::{Descriptor, Plugin, ProfiledOperation};

#[used]
#[unsafe(export_name = "ncclProfiler_v4")]
pub(in super::super) static PLUGIN: Plugin<InitV4, Descriptor<u8, CollectiveV4, SendOrReceiveV4>> =
    Plugin::new(init);

/// Details of a collective.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in super::super) struct CollectiveV4 {
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
    channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}

impl From<CollectiveV4> for ProfiledOperation {
    fn from(details: CollectiveV4) -> Self {
        let CollectiveV4 { function, count, data_type, algorithm, protocol, channels, .. } = details;
        Self::Collective { function, count, data_type, algorithm, protocol, channels }
    }
}

/// Details of a send or a receive.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in super::super) struct SendOrReceiveV4 {
    function: *const c_char,
    buffer: *mut c_void,
    data_type: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
}

impl From<SendOrReceiveV4> for ProfiledOperation {
    fn from(SendOrReceiveV4 { peer, count, channels, .. }: SendOrReceiveV4) -> Self {
        Self::SendOrReceive { peer, count, channels }
    }
}

type InitV4 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    log: *const c_void,
) -> c_int;

unsafe extern "C" fn init(
    context: *mut *mut c_void,
    mask: *mut c_int,
    _name: *const c_char,
    _hash: u64,
    _hosts: c_int,
    _ranks: c_int,
    _rank: c_int,
    _log: *const c_void,
) -> c_int {
    // SAFETY: NCCL's contract of this function.
    unsafe { super::init(context, mask) }
}
