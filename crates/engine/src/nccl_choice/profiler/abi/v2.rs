//! Version 2: NCCL 2.24 and 2.25.

use std::ffi::{c_char, c_int, c_void};

use super::{Descriptor, Plugin, ProfiledOperation};

#[used]
#[unsafe(export_name = "ncclProfiler_v2")]
pub(in super::super) static PLUGIN: Plugin<InitV2, Descriptor<u8, CollectiveV2, SendOrReceiveV2>> =
    Plugin::new(init);

/// Details of a collective.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in super::super) struct CollectiveV2 {
    communicator: *const c_char,
    hash: u64,
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
    traffic: usize,
    most_channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}

impl From<CollectiveV2> for ProfiledOperation {
    fn from(CollectiveV2 { function, count, data_type, algorithm, protocol, .. }: CollectiveV2) -> Self {
        // `most_channels` is only an upper bound.
        Self::Collective { function, count, data_type, algorithm, protocol, channels: 0 }
    }
}

/// Details of a send or a receive.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in super::super) struct SendOrReceiveV2 {
    communicator: *const c_char,
    hash: u64,
    function: *const c_char,
    buffer: *mut c_void,
    data_type: *const c_char,
    count: usize,
    peer: c_int,
}

impl From<SendOrReceiveV2> for ProfiledOperation {
    fn from(SendOrReceiveV2 { peer, count, .. }: SendOrReceiveV2) -> Self {
        Self::SendOrReceive { peer, count, channels: 0 }
    }
}

pub(in super::super) type InitV2 = unsafe extern "C" fn(context: *mut *mut c_void, mask: *mut c_int) -> c_int;

pub(super) unsafe extern "C" fn init(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: NCCL's contract of this function.
    unsafe { super::init(context, mask) }
}
