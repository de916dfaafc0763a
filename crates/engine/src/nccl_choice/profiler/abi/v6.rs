//! Version 6: NCCL 2.29 and later.

use std::ffi::{c_char, c_int, c_void};

use super::v4::{Collective, SendOrReceive};
use super::v5::{Init, init};
use super::{Descriptor, Plugin, ProfiledOperation};

#[used]
#[unsafe(export_name = "ncclProfiler_v6")]
pub(in super::super) static PLUGIN: Plugin<Init, Descriptor<u64, Collective, SendOrReceive>> =
    Plugin::new(init);

/// Details of a collective that copy engines carry out.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Copies {
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
}

impl From<Copies> for ProfiledOperation {
    fn from(Copies { function, count, data_type, .. }: Copies) -> Self {
        Self::Copies { function, count, data_type }
    }
}
