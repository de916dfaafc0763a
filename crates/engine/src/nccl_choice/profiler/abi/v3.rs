//! Version 3: NCCL 2.26.

use std::ffi::{c_char, c_int, c_void};

use super::v2::{InitV2, SendOrReceiveV2, init};
use super::{Descriptor, Plugin, ProfiledOperation};

#[used]
#[unsafe(export_name = "ncclProfiler_v3")]
pub(in super::super) static PLUGIN: Plugin<InitV2, Descriptor<u8, CollectiveV3, SendOrReceiveV2>> =
    Plugin::new(init);

/// Details of a collective.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in super::super) struct CollectiveV3 {
    communicator: *const c_char,
    hash: u64,
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
    most_channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}

impl From<CollectiveV3> for ProfiledOperation {
    fn from(CollectiveV3 { function, count, data_type, algorithm, protocol, .. }: CollectiveV3) -> Self {
        // `most_channels` is only an upper bound.
        Self::Collective { function, count, data_type, algorithm, protocol, channels: 0 }
    }
}
