//! The tables found by NCCL in this program, one for each version of its profiler interface.
//!
//! Structs have NCCL's layout up to the last field in use.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use crate::nccl_choice::{Bytes, Choice, copy_engine_algorithm};
use record::Algorithm;

type DescriptorV2 = Descriptor<u8, 2, 1, 0>;
type DescriptorV3 = Descriptor<u8, 2, 0, 0>;
type DescriptorV4 = Descriptor<u8, 0, 0, 1>;
/// Version 5 and later.
type DescriptorV5 = Descriptor<u64, 0, 0, 1>;

/// NCCL 2.24 and 2.25.
#[used]
#[unsafe(export_name = "ncclProfiler_v2")]
pub(super) static V2: Plugin<InitV2, DescriptorV2> = Plugin::new(init_v2);

/// NCCL 2.26.
#[used]
#[unsafe(export_name = "ncclProfiler_v3")]
pub(super) static V3: Plugin<InitV2, DescriptorV3> = Plugin::new(init_v2);

/// NCCL 2.27.
#[used]
#[unsafe(export_name = "ncclProfiler_v4")]
pub(super) static V4: Plugin<InitV4, DescriptorV4> = Plugin::new(init_v4);

/// NCCL 2.28.
#[used]
#[unsafe(export_name = "ncclProfiler_v5")]
pub(super) static V5: Plugin<InitV5, DescriptorV5> = Plugin::new(init_v5);

/// NCCL 2.29 and later.
#[used]
#[unsafe(export_name = "ncclProfiler_v6")]
pub(super) static V6: Plugin<InitV5, DescriptorV5> = Plugin::new(init_v5);

/// Types of events, from NCCL's `nccl_profiler.h`.
pub(super) const GROUP: c_int = 1 << 0;
pub(super) const COLLECTIVE: c_int = 1 << 1;
pub(super) const SEND_OR_RECEIVE: c_int = 1 << 2;
pub(super) const COPIES: c_int = 1 << 12;

pub(super) const SUCCESS: c_int = 0;

/// The table of one version: `ncclProfiler_v<n>_t`.
#[repr(C)]
pub(super) struct Plugin<I, D> {
    pub(super) name: *const c_char,
    pub(super) init: I,
    pub(super) start_event:
        unsafe extern "C" fn(context: *mut c_void, event: *mut *mut c_void, descriptor: *const D) -> c_int,
    pub(super) stop_event: unsafe extern "C" fn(event: *mut c_void) -> c_int,
    pub(super) record_event_state:
        unsafe extern "C" fn(event: *mut c_void, state: c_int, arguments: *mut c_void) -> c_int,
    pub(super) finalize: unsafe extern "C" fn(context: *mut c_void) -> c_int,
}

// SAFETY: the table, and the static behind its one pointer, are only read.
unsafe impl<I: Sync, D> Sync for Plugin<I, D> {}

/// Description of an event: its type, and the details of that type.
///
/// Versions differ in the type's width (up to v4 one byte, followed by undefined ones; then eight), and in
/// optional fields. These are arrays, without elements in versions that lack the field: `NAMES` (2 or 0: the
/// communicator's name and hash), `TRAFFIC` and `CHANNELS` (1 or 0). Without `CHANNELS`, sends and receives
/// have no channels, and the channels of a collective are an upper bound.
#[repr(C)]
pub(super) struct Descriptor<K, const NAMES: usize, const TRAFFIC: usize, const CHANNELS: usize> {
    kind: K,
    parent: *mut c_void,
    rank: c_int,
    details: Details<NAMES, TRAFFIC, CHANNELS>,
}

/// `CallDetails::names` holds a pointer to the name and the 8 bytes of the hash.
const _: () = assert!(size_of::<*const c_char>() == size_of::<u64>());

#[repr(C)]
union Details<const NAMES: usize, const TRAFFIC: usize, const CHANNELS: usize> {
    collective: CollectiveDetails<NAMES, TRAFFIC>,
    send_or_receive: SendOrReceive<NAMES, CHANNELS>,
    /// Copies by copy engines, from v6 on.
    copies: CallDetails<NAMES>,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CallDetails<const NAMES: usize> {
    names: [u64; NAMES],
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveDetails<const NAMES: usize, const TRAFFIC: usize> {
    call: CallDetails<NAMES>,
    traffic: [usize; TRAFFIC],
    channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SendOrReceive<const NAMES: usize, const CHANNELS: usize> {
    names: [u64; NAMES],
    function: *const c_char,
    buffer: *mut c_void,
    data_type: *const c_char,
    count: usize,
    peer: c_int,
    channels: [u8; CHANNELS],
}

impl<I, K: Copy + Into<u64>, const NAMES: usize, const TRAFFIC: usize, const CHANNELS: usize>
    Plugin<I, Descriptor<K, NAMES, TRAFFIC, CHANNELS>>
{
    const fn new(init: I) -> Self {
        Self {
            name: c"nccl-bench".as_ptr(),
            init,
            start_event: start_event::<K, NAMES, TRAFFIC, CHANNELS>,
            stop_event,
            record_event_state,
            finalize: finalize_plugin,
        }
    }
}

impl<const NAMES: usize, const TRAFFIC: usize, const CHANNELS: usize> Details<NAMES, TRAFFIC, CHANNELS> {
    /// Returns NCCL's choice for the operation; `None` for an event of another kind, or an operation without
    /// a choice.
    ///
    /// # Safety
    /// The details must be of this kind, and their texts C strings or null.
    unsafe fn operation_choice(&self, kind: u64) -> Option<Choice> {
        let kind = c_int::try_from(kind).ok()?;
        // SAFETY: the caller's promise.
        unsafe {
            match kind {
                COLLECTIVE => {
                    let CollectiveDetails { call, channels, algorithm, protocol, .. } = self.collective;
                    let channels = if CHANNELS == 0 { 0 } else { channels };
                    call.call_choice(Algorithm {
                        algorithm: lowercase_name(algorithm)?,
                        protocol: lowercase_name(protocol),
                        channels: known_channels(channels),
                    })
                }
                SEND_OR_RECEIVE => self.send_or_receive.transfer_choice(),
                COPIES => self.copies.call_choice(copy_engine_algorithm("copy_engine")),
                _ => None,
            }
        }
    }
}

impl<const NAMES: usize> CallDetails<NAMES> {
    /// # Safety
    /// The texts must be C strings, or null.
    unsafe fn call_choice(self, algorithm: Algorithm) -> Option<Choice> {
        // SAFETY: the caller's promise.
        let (function, data_type) =
            unsafe { (lowercase_name(self.function)?, lowercase_name(self.data_type)?) };
        let bytes = Bytes::Count(element_bytes(self.count, &data_type)?);
        Some(Choice { collective: Some(function), bytes, algorithm })
    }
}

impl<const NAMES: usize, const CHANNELS: usize> SendOrReceive<NAMES, CHANNELS> {
    fn transfer_choice(self) -> Option<Choice> {
        // A rank's own part is copied, and an empty part is not sent.
        if self.peer == 0 || self.count == 0 {
            return None;
        }
        let channels = self.channels.first().copied().and_then(known_channels);
        let algorithm = Algorithm { algorithm: "p2p".to_owned(), protocol: None, channels };
        Some(Choice { collective: None, bytes: Bytes::Part, algorithm })
    }
}

/// Returns a number of channels; `None` for 0, which means unknown.
fn known_channels(channels: u8) -> Option<u32> {
    (channels > 0).then(|| channels.into())
}

/// Returns one of NCCL's names in lower case; `None` for null and for `Unknown`.
///
/// # Safety
/// The text must be a C string, or null.
unsafe fn lowercase_name(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().to_ascii_lowercase()).filter(|name| name != "unknown")
}

/// Returns the number of bytes of `count` elements. The name of the type contains the bits of one element:
/// `ncclfloat32`, `ncclfloat8e4m3`.
pub(super) fn element_bytes(count: usize, data_type: &str) -> Option<u64> {
    let digits = data_type.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    let bits: u64 = digits[..end].parse().ok()?;
    (count as u64).checked_mul(bits / 8)
}

/// Returns a non-null handle. NCCL takes it for a context or an event, and it is never read.
pub(super) fn event_handle() -> *mut c_void {
    NonNull::dangling().as_ptr()
}

type InitV2 = unsafe extern "C" fn(context: *mut *mut c_void, mask: *mut c_int) -> c_int;

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

type InitV5 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    log: *const c_void,
) -> c_int;

/// Called when a communicator is initialised, with an address for the context, and the address of NCCL's
/// static mask.
unsafe extern "C" fn init_v2(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: NCCL passes an address that is valid for writes.
    unsafe { *context = event_handle() };
    super::set_mask_address(mask);
    SUCCESS
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    _: *const c_char,
    _: u64,
    _: c_int,
    _: c_int,
    _: c_int,
    _: *const c_void,
) -> c_int {
    // SAFETY: as in `init_v2`.
    unsafe { init_v2(context, mask) }
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    _: u64,
    mask: *mut c_int,
    _: *const c_char,
    _: c_int,
    _: c_int,
    _: c_int,
    _: *const c_void,
) -> c_int {
    // SAFETY: as in `init_v2`.
    unsafe { init_v2(context, mask) }
}

/// Called when an event begins, on any thread of NCCL.
unsafe extern "C" fn start_event<
    K: Copy + Into<u64>,
    const NAMES: usize,
    const TRAFFIC: usize,
    const CHANNELS: usize,
>(
    _context: *mut c_void,
    event: *mut *mut c_void,
    descriptor: *const Descriptor<K, NAMES, TRAFFIC, CHANNELS>,
) -> c_int {
    // SAFETY: NCCL passes a descriptor of this version, and this struct is its beginning.
    let Descriptor { kind, rank, details, .. } = unsafe { &*descriptor };
    let kind = (*kind).into();
    // Up to 2.27 NCCL reports the operations of a group only when the group has a handle.
    let group = if kind == GROUP as u64 { event_handle() } else { ptr::null_mut() };
    // SAFETY: NCCL passes an address that is valid for writes.
    unsafe { *event = group };
    // Other ranks are skipped, as in NCCL's log. A graph captured during recording reports later.
    if *rank == 0
        && super::is_enabled()
        // SAFETY: the type selects the valid details. NCCL's names are C strings.
        && let Some(choice) = unsafe { details.operation_choice(kind) }
    {
        super::record_choice(choice);
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

unsafe extern "C" fn finalize_plugin(_context: *mut c_void) -> c_int {
    SUCCESS
}
