//! A profiler plugin for NCCL that lies in this program: NCCL calls it when an operation starts, with what it chose.
//!
//! With `NCCL_PROFILER_PLUGIN=STATIC_PLUGIN` NCCL looks for the plugin among the symbols of the program itself: the newest
//! of `ncclProfiler_v6` to `ncclProfiler_v1` that it knows. So both binaries export the tables of this module
//! (`nccl-bench/build.rs`). What is described here is only what is used, after `src/include/plugin/profiler/` of NCCL's
//! source, which did not change for any version of the interface since it came out:
//!
//! | interface | NCCL | what it tells of an operation |
//! |---|---|---|
//! | v2 | 2.24, 2.25 | function, count, type, algorithm, protocol; the most channels that it could have |
//! | v3 | 2.26 | the same |
//! | v4 | 2.27 | the channels that it has, also of sends and receives |
//! | v5 | 2.28 | the same |
//! | v6 | 2.29, 2.30 | also copies by copy engines |
//!
//! NCCL 2.23 knows only v1, which has numbers instead of names, and is not supported.
//!
//! Each operation reads a mask of events, an `int` of NCCL's. Where it is zero, NCCL calls nothing: so it is zero but for
//! the operations that are listened to ([`set_enabled`]), and never while operations are timed.
//!
//! # Another profiler
//! Where `NCCL_PROFILER_PLUGIN` is set, also in one of NCCL's configuration files, this plugin stays away: that is for
//! `none`, too. So it does where there is a `libnccl-profiler.so`, which NCCL would load by itself. Only a profiler inside
//! of a network plugin's library, which NCCL tries last (from 2.27 on), is displaced: to have that one, set
//! `NCCL_PROFILER_PLUGIN` to the name of that library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Bytes, Choice, copies, settings};
use record::Algorithm;

/// The variable that names NCCL's profiler.
const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";
/// What NCCL takes for the program itself.
const THIS_PROGRAM: &str = "STATIC_PLUGIN";
/// What NCCL loads by itself.
const DEFAULT_PLUGIN: &CStr = c"libnccl-profiler.so";

/// Events, from NCCL's `nccl_profiler.h`.
const GROUP: c_int = 1 << 0;
const COLLECTIVE: c_int = 1 << 1;
const SEND_OR_RECEIVE: c_int = 1 << 2;
const COPIES: c_int = 1 << 12;
/// What is asked for. NCCL also tells of what these are in: groups, and calls.
const EVENTS: c_int = COLLECTIVE | SEND_OR_RECEIVE | COPIES;

/// `ncclSuccess`.
const SUCCESS: c_int = 0;
/// More different choices than one operation has.
const MOST_CHOICES: usize = 256;

/// NCCL's mask of events, once it has recorded where that is.
static MASK: AtomicPtr<c_int> = AtomicPtr::new(ptr::null_mut());
/// Whether what NCCL tells is wanted.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// What it recorded, each with how often, in the order of the last time.
static CHOICES: Mutex<Vec<(Choice, u64)>> = Mutex::new(Vec::new());

fn recorded() -> MutexGuard<'static, Vec<(Choice, u64)>> {
    CHOICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has NCCL load this plugin, by setting `NCCL_PROFILER_PLUGIN`, unless it will load another one; says whether it will
/// load this one, if it is new enough.
///
/// To be called in `main`, before NCCL is loaded and before any thread starts. The plugin does not survive an `exec`, so
/// the variable must not either: see [`own_variables`](super::own_variables).
pub fn start() -> bool {
    let user = settings::of_nccl(&settings::variable)(VARIABLE).filter(|name| !name.is_empty());
    match user {
        Some(name) => name.eq_ignore_ascii_case(THIS_PROGRAM),
        None => !has_default_plugin() && settings::set(vec![(VARIABLE, THIS_PROGRAM.to_owned())]).is_ok(),
    }
}

/// Whether NCCL would find a plugin by itself. It is loaded then, as NCCL would do, and stays for it.
fn has_default_plugin() -> bool {
    // SAFETY: the name is a C string. What the library's initialisers do, they would do for NCCL, too.
    let library = unsafe { libc::dlopen(DEFAULT_PLUGIN.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    !library.is_null()
}

/// Whether NCCL shall tell what it chooses from now on. To be turned off before anything is timed.
pub fn set_enabled(on: bool) {
    ENABLED.store(on, Ordering::Relaxed);
    set_mask(on);
}

/// What NCCL recorded so far does not count.
pub fn clear() {
    recorded().clear();
}

/// What NCCL recorded since then, each with how often, in the order of the last time.
#[must_use]
pub fn choices() -> Vec<(Choice, u64)> {
    recorded().clone()
}

/// Writes NCCL's mask, where that is known.
fn set_mask(on: bool) {
    let mask = MASK.load(Ordering::Acquire);
    if mask.is_null() {
        return;
    }
    // SAFETY: NCCL gave the address of a static `int` of its own, and libnccl is never unloaded (`nccl_sys::Nccl`). NCCL
    // reads it atomically.
    let mask = unsafe { AtomicI32::from_ptr(mask) };
    mask.store(if on { EVENTS } else { 0 }, Ordering::Relaxed);
}

fn note(choice: Choice) {
    let mut recorded = recorded();
    let known = recorded.iter().position(|(other, _)| *other == choice);
    let times = match known {
        Some(place) => recorded.remove(place).1,
        None if recorded.len() == MOST_CHOICES => return,
        None => 0,
    };
    recorded.push((choice, times + 1));
}

/// An event, in words that all versions of the interface share.
enum Event {
    Collective {
        function: *const c_char,
        count: usize,
        data_type: *const c_char,
        algorithm: *const c_char,
        protocol: *const c_char,
        /// 0: not known.
        channels: u8,
    },
    /// A send or a receive.
    Part {
        peer: c_int,
        count: usize,
        /// 0: not known.
        channels: u8,
    },
    Copies {
        function: *const c_char,
        count: usize,
        data_type: *const c_char,
    },
}

impl Event {
    /// # Safety
    /// The texts are C strings, or null.
    unsafe fn choice(self) -> Option<Choice> {
        match self {
            Self::Collective { function, count, data_type, algorithm, protocol, channels } => {
                // SAFETY: the caller's promise.
                let (function, data_type, algorithm, protocol) =
                    unsafe { (name(function)?, name(data_type)?, name(algorithm)?, name(protocol)) };
                Some(Choice {
                    collective: Some(function),
                    bytes: Bytes::Count(bytes(count, &data_type)?),
                    algorithm: Algorithm { algorithm, protocol, channels: known(channels) },
                })
            }
            // A rank's own part is a copy, and nothing is no part at all.
            Self::Part { peer: 0, .. } | Self::Part { count: 0, .. } => None,
            Self::Part { channels, .. } => Some(Choice {
                collective: None,
                bytes: Bytes::Part,
                algorithm: Algorithm {
                    algorithm: "p2p".to_owned(),
                    protocol: None,
                    channels: known(channels),
                },
            }),
            Self::Copies { function, count, data_type } => {
                // SAFETY: the caller's promise.
                let (function, data_type) = unsafe { (name(function)?, name(data_type)?) };
                Some(Choice {
                    collective: Some(function),
                    bytes: Bytes::Count(bytes(count, &data_type)?),
                    algorithm: copies("copy_engine"),
                })
            }
        }
    }
}

fn known(channels: u8) -> Option<u32> {
    (channels > 0).then(|| channels.into())
}

/// One of NCCL's names in lower case, but for the one that it has for what has none.
///
/// # Safety
/// A C string, or null.
unsafe fn name(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().to_ascii_lowercase()).filter(|name| name != "unknown")
}

/// The bytes of `count` elements: the bits of one are in the name of its type, `ncclfloat32` or `ncclfloat8e4m3`.
fn bytes(count: usize, data_type: &str) -> Option<u64> {
    let digits = data_type.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    let bits: u64 = digits[..end].parse().ok()?;
    (count as u64).checked_mul(bits / 8)
}

// What NCCL hands over: the beginning of its structs, up to the last field that is read.

/// What is recorded of a collective, by interface v2.
#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveV2 {
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

/// What is recorded of a collective, by interface v3.
#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveV3 {
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

/// What is recorded of a collective, by interfaces v4 to v6.
#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveV4 {
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

/// What is recorded of a send or a receive, by interfaces v2 and v3.
#[derive(Clone, Copy)]
#[repr(C)]
struct PartV2 {
    communicator: *const c_char,
    hash: u64,
    function: *const c_char,
    buffer: *mut c_void,
    data_type: *const c_char,
    count: usize,
    peer: c_int,
}

/// What is recorded of a send or a receive, by interfaces v4 to v6.
#[derive(Clone, Copy)]
#[repr(C)]
struct PartV4 {
    function: *const c_char,
    buffer: *mut c_void,
    data_type: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
}

/// What is recorded of a collective of copy engines, by interface v6.
#[derive(Clone, Copy)]
#[repr(C)]
struct CopiesV6 {
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
}

macro_rules! collective {
    ($type:ty: $channels:expr) => {
        impl From<$type> for Event {
            fn from(recorded: $type) -> Self {
                Self::Collective {
                    function: recorded.function,
                    count: recorded.count,
                    data_type: recorded.data_type,
                    algorithm: recorded.algorithm,
                    protocol: recorded.protocol,
                    channels: $channels(recorded),
                }
            }
        }
    };
}

// The most channels that there can be are not those that there are.
collective!(CollectiveV2: |_| 0);
collective!(CollectiveV3: |_| 0);
collective!(CollectiveV4: |recorded: CollectiveV4| recorded.channels);

impl From<PartV2> for Event {
    fn from(PartV2 { peer, count, .. }: PartV2) -> Self {
        Self::Part { peer, count, channels: 0 }
    }
}

impl From<PartV4> for Event {
    fn from(PartV4 { peer, count, channels, .. }: PartV4) -> Self {
        Self::Part { peer, count, channels }
    }
}

impl From<CopiesV6> for Event {
    fn from(CopiesV6 { function, count, data_type, .. }: CopiesV6) -> Self {
        Self::Copies { function, count, data_type }
    }
}

/// An event as NCCL tells it: its kind (a byte up to v4, where what is beside it means nothing, then eight), and what
/// belongs to that.
#[repr(C)]
struct Descriptor<K, C: Copy, P: Copy> {
    kind: K,
    parent: *mut c_void,
    rank: c_int,
    what: What<C, P>,
}

#[repr(C)]
union What<C: Copy, P: Copy> {
    collective: C,
    part: P,
    copies: CopiesV6,
}

type DescriptorV2 = Descriptor<u8, CollectiveV2, PartV2>;
type DescriptorV3 = Descriptor<u8, CollectiveV3, PartV2>;
type DescriptorV4 = Descriptor<u8, CollectiveV4, PartV4>;
type DescriptorV5 = Descriptor<u64, CollectiveV4, PartV4>;

/// What NCCL finds: a version of the interface, with its `init` and its descriptor of events.
#[repr(C)]
struct Plugin<I, D> {
    name: *const c_char,
    init: I,
    start_event: StartEvent<D>,
    stop_event: unsafe extern "C" fn(event: *mut c_void) -> c_int,
    record_event_state:
        unsafe extern "C" fn(event: *mut c_void, state: c_int, arguments: *mut c_void) -> c_int,
    finalize: unsafe extern "C" fn(context: *mut c_void) -> c_int,
}

// SAFETY: it is only read, and so is what its one pointer points to, which is static.
unsafe impl<I: Sync, D> Sync for Plugin<I, D> {}

type StartEvent<D> =
    unsafe extern "C" fn(context: *mut c_void, event: *mut *mut c_void, descriptor: *const D) -> c_int;

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

impl<I, K, C, P> Plugin<I, Descriptor<K, C, P>>
where
    K: Copy + Into<u64>,
    C: Copy + Into<Event>,
    P: Copy + Into<Event>,
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

/// NCCL 2.24 and 2.25.
#[used]
#[unsafe(export_name = "ncclProfiler_v2")]
static V2: Plugin<InitV2, DescriptorV2> = Plugin::new(init_v2);

/// NCCL 2.26.
#[used]
#[unsafe(export_name = "ncclProfiler_v3")]
static V3: Plugin<InitV2, DescriptorV3> = Plugin::new(init_v2);

/// NCCL 2.27.
#[used]
#[unsafe(export_name = "ncclProfiler_v4")]
static V4: Plugin<InitV4, DescriptorV4> = Plugin::new(init_v4);

/// NCCL 2.28.
#[used]
#[unsafe(export_name = "ncclProfiler_v5")]
static V5: Plugin<InitV5, DescriptorV5> = Plugin::new(init_v5);

/// NCCL 2.29 and later.
#[used]
#[unsafe(export_name = "ncclProfiler_v6")]
static V6: Plugin<InitV5, DescriptorV5> = Plugin::new(init_v5);

/// Something that is not null, which NCCL takes for a context or an event, and hands back. It is never read.
fn something() -> *mut c_void {
    NonNull::dangling().as_ptr()
}

/// A communicator begins.
///
/// # Safety
/// Both are NCCL's: a place for the context, and a static mask.
unsafe fn init(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { *context = something() };
    MASK.store(mask, Ordering::Release);
    set_mask(ENABLED.load(Ordering::Relaxed));
    SUCCESS
}

unsafe extern "C" fn init_v2(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: NCCL's, as they must be.
    unsafe { init(context, mask) }
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    _name: *const c_char,
    _hash: u64,
    _hosts: c_int,
    _ranks: c_int,
    _rank: c_int,
    _log: *const c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { init(context, mask) }
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    _id: u64,
    mask: *mut c_int,
    _name: *const c_char,
    _hosts: c_int,
    _ranks: c_int,
    _rank: c_int,
    _log: *const c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { init(context, mask) }
}

/// An event begins, on any thread of NCCL's.
unsafe extern "C" fn start_event<K, C, P>(
    _context: *mut c_void,
    event: *mut *mut c_void,
    descriptor: *const Descriptor<K, C, P>,
) -> c_int
where
    K: Copy + Into<u64>,
    C: Copy + Into<Event>,
    P: Copy + Into<Event>,
{
    // SAFETY: NCCL hands over a descriptor of this version, of which this is the beginning.
    let Descriptor { kind, rank, what, .. } = unsafe { &*descriptor };
    let kind = (*kind).into();
    // Up to 2.27 NCCL tells only of what is in a group that has got something.
    let got = if kind == GROUP as u64 { something() } else { ptr::null_mut() };
    // SAFETY: NCCL hands over a place for it.
    unsafe { *event = got };
    // What rank 0 does is what NCCL logs, too. A graph that was captured while this was listening tells later, as well.
    if *rank != 0 || !ENABLED.load(Ordering::Relaxed) {
        return SUCCESS;
    }
    // SAFETY: the kind says which of them it is.
    let event: Event = unsafe {
        match i32::try_from(kind) {
            Ok(COLLECTIVE) => what.collective.into(),
            Ok(SEND_OR_RECEIVE) => what.part.into(),
            Ok(COPIES) => what.copies.into(),
            _ => return SUCCESS,
        }
    };
    // SAFETY: NCCL's names are C strings.
    if let Some(choice) = unsafe { event.choice() } {
        note(choice);
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

#[cfg(test)]
pub(super) mod tests;
