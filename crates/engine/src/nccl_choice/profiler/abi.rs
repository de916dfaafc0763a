//! The tables that NCCL finds in this program, one for each version of its profiler interface.
//!
//! Structs have NCCL's layout up to the last field that is read.

pub(super) mod v2;
pub(super) mod v3;
pub(super) mod v4;
pub(super) mod v5;
pub(super) mod v6;

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use super::operation::ProfiledOperation;

/// Types of events, from NCCL's `nccl_profiler.h`.
pub(super) const GROUP: c_int = 1 << 0;
pub(super) const COLLECTIVE: c_int = 1 << 1;
pub(super) const SEND_OR_RECEIVE: c_int = 1 << 2;
pub(super) const COPIES: c_int = 1 << 12;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;

/// The description of an event: its type (one byte up to v4, whose neighbours are undefined, then eight), and the
/// details of that type.
#[repr(C)]
pub(super) struct Descriptor<K, C: Copy, P: Copy> {
    kind: K,
    parent: *mut c_void,
    rank: c_int,
    details: Details<C, P>,
}

#[repr(C)]
union Details<C: Copy, P: Copy> {
    collective: C,
    send_or_receive: P,
    copies: v6::CopiesV6,
}

/// The table of one version: `ncclProfiler_v<n>_t`.
#[repr(C)]
pub(super) struct Plugin<I, D> {
    pub(super) name: *const c_char,
    pub(super) init: I,
    pub(super) start_event: StartEvent<D>,
    pub(super) stop_event: unsafe extern "C" fn(event: *mut c_void) -> c_int,
    pub(super) record_event_state:
        unsafe extern "C" fn(event: *mut c_void, state: c_int, arguments: *mut c_void) -> c_int,
    pub(super) finalize: unsafe extern "C" fn(context: *mut c_void) -> c_int,
}

// SAFETY: the table and the static that its one pointer names are only read.
unsafe impl<I: Sync, D> Sync for Plugin<I, D> {}

type StartEvent<D> =
    unsafe extern "C" fn(context: *mut c_void, event: *mut *mut c_void, descriptor: *const D) -> c_int;

impl<I, K, C, P> Plugin<I, Descriptor<K, C, P>>
where
    K: Copy + Into<u64>,
    C: Copy + Into<ProfiledOperation>,
    P: Copy + Into<ProfiledOperation>,
{
    const fn new(init: I) -> Self {
        Self {
            name: c"nccl-bench".as_ptr(),
            init,
            start_event: start_event::<K, C, P>,
            stop_event,
            record_event_state,
            finalize,
        }
    }
}

/// A handle that is not null. NCCL takes it for a context or an event, and it is never read.
pub(super) fn handle() -> *mut c_void {
    NonNull::dangling().as_ptr()
}

/// Called when a communicator is initialised.
///
/// # Safety
/// `context` must be valid for writes, and `mask` the address of NCCL's static mask.
unsafe fn init(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { *context = handle() };
    super::set_mask_address(mask);
    SUCCESS
}

/// Called when an event begins, on any thread of NCCL.
unsafe extern "C" fn start_event<K, C, P>(
    _context: *mut c_void,
    event: *mut *mut c_void,
    descriptor: *const Descriptor<K, C, P>,
) -> c_int
where
    K: Copy + Into<u64>,
    C: Copy + Into<ProfiledOperation>,
    P: Copy + Into<ProfiledOperation>,
{
    // SAFETY: NCCL passes a descriptor of this version, of which this is the beginning.
    let Descriptor { kind, rank, details, .. } = unsafe { &*descriptor };
    let kind = (*kind).into();
    // Up to 2.27 NCCL reports the operations of a group only when the group has a handle.
    let group = if kind == GROUP as u64 { handle() } else { ptr::null_mut() };
    // SAFETY: NCCL passes an address that is valid for writes.
    unsafe { *event = group };
    // Other ranks are left out, as in NCCL's log. A graph that was captured while choices were recorded reports later.
    if *rank != 0 || !super::is_enabled() {
        return SUCCESS;
    }
    // SAFETY: the type says which of the details it is.
    let operation: ProfiledOperation = unsafe {
        match i32::try_from(kind) {
            Ok(COLLECTIVE) => details.collective.into(),
            Ok(SEND_OR_RECEIVE) => details.send_or_receive.into(),
            Ok(COPIES) => details.copies.into(),
            _ => return SUCCESS,
        }
    };
    // SAFETY: NCCL's names are C strings.
    if let Some(choice) = unsafe { operation.choice() } {
        super::record(choice);
    }
    SUCCESS
}

unsafe extern "C" fn stop_event(_event: *mut c_void) -> c_int {
    SUCCESS
}

unsafe extern "C" fn record_event_state(
    _event: *mut c_void,
    _state: c_int,
    _arguments: *mut c_void,
) -> c_int {
    SUCCESS
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> c_int {
    SUCCESS
}
