//! Version 6: NCCL 2.29 and later.

use std::ffi::{c_char, c_int, c_void};

use super::v4::{CollectiveV4, SendOrReceiveV4};
use super::v5::{InitV5, init};
use super::{Descriptor, Plugin, ProfiledOperation};

#[used]
#[unsafe(export_name = "ncclProfiler_v6")]
pub(in super::super) static PLUGIN: Plugin<InitV5, Descriptor<u64, CollectiveV4, SendOrReceiveV4>> =
    Plugin::new(init);

/// Details of a collective that copy engines carry out.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CopiesV6 {
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
}

impl From<CopiesV6> for ProfiledOperation {
    fn from(CopiesV6 { function, count, data_type, .. }: CopiesV6) -> Self {
        Self::Copies { function, count, data_type }
    }
}
