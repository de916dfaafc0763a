//! A profiler plugin for NCCL inside this program. NCCL reports its choice to the plugin when an operation
//! starts.
//!
//! With `NCCL_PROFILER_PLUGIN=STATIC_PLUGIN` NCCL looks for the plugin among the symbols of the program
//! itself, from `ncclProfiler_v6` to `ncclProfiler_v1`, and takes the newest one known to it. So programs
//! with this plugin export the tables of `abi` (`nccl-bench/build.rs`). Only the fields in use are declared
//! there, after `src/include/plugin/profiler/` of NCCL's source, where no published version of the interface
//! has changed:
//!
//! | interface | NCCL | reported of an operation |
//! |---|---|---|
//! | v2 | 2.24, 2.25 | function, count, type, algorithm, protocol; an upper bound of the channels |
//! | v3 | 2.26 | the same |
//! | v4 | 2.27 | its channels, also of sends and receives |
//! | v5 | 2.28 | the same |
//! | v6 | 2.29, 2.30 | also copies by copy engines |
//!
//! NCCL 2.23 knows only v1, with numbers instead of names. It is not supported.
//!
//! Each operation reads a mask of events, an `int` of NCCL's. NCCL calls nothing while it is zero. It is set
//! only while choices are recorded ([`set_enabled`]), and never while operations are timed.
//!
//! # Other profilers
//! If `NCCL_PROFILER_PLUGIN` has any value, even `none`, or one of NCCL's configuration files sets it, this
//! plugin is not used. It is not used either if a `libnccl-profiler.so` exists, which NCCL would load by
//! default. It only displaces a profiler inside a network plugin's library, which NCCL tries last (from 2.27
//! on). To use such a profiler, set `NCCL_PROFILER_PLUGIN` to the name of its library.

mod abi;

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Choice, count_choice, settings};
use abi::{COLLECTIVE, COPIES, SEND_OR_RECEIVE};

const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";
/// Value for the program itself.
const THIS_PROGRAM: &str = "STATIC_PLUGIN";
/// Library loaded by NCCL by default.
const DEFAULT_PLUGIN: &CStr = c"libnccl-profiler.so";

/// The requested events. NCCL also reports the enclosing groups and calls.
const EVENTS: c_int = COLLECTIVE | SEND_OR_RECEIVE | COPIES;

/// Maximum number of different choices kept: more than one operation has.
const MOST_CHOICES: usize = 256;

/// Address of NCCL's mask of events; null before NCCL has passed it.
static MASK: AtomicPtr<c_int> = AtomicPtr::new(ptr::null_mut());
static ENABLED: AtomicBool = AtomicBool::new(false);
/// The recorded choices with their numbers of operations, in the order of the last operation.
static CHOICES: Mutex<Vec<(Choice, u64)>> = Mutex::new(Vec::new());

fn lock_choices() -> MutexGuard<'static, Vec<(Choice, u64)>> {
    CHOICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes NCCL load this plugin, by setting `NCCL_PROFILER_PLUGIN`, unless it will load another one. Returns
/// true when a sufficiently new NCCL will load this one.
///
/// Call it in `main`, before NCCL is loaded and before any thread starts. The plugin does not survive an
/// `exec`, so the variable must not survive it either: see [`own_variables`](super::own_variables).
pub fn request_plugin() -> bool {
    let user = settings::of_nccl(&settings::read_variable)(VARIABLE).filter(|name| !name.is_empty());
    match user {
        Some(name) => name.eq_ignore_ascii_case(THIS_PROGRAM),
        None => {
            !has_default_plugin()
                && settings::set_variables(vec![(VARIABLE, THIS_PROGRAM.to_owned())]).is_ok()
        }
    }
}

/// Returns true when NCCL would find a plugin by default. The plugin is then loaded, and stays loaded for
/// NCCL.
fn has_default_plugin() -> bool {
    // SAFETY: the name is a C string. The library's initialisers would run for NCCL as well.
    let library = unsafe { libc::dlopen(DEFAULT_PLUGIN.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    !library.is_null()
}

/// Starts or stops the recording of NCCL's choices. Stop it before anything is timed.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
    set_mask(enabled);
}

/// Removes the choices recorded so far.
pub fn clear_choices() {
    lock_choices().clear();
}

/// Returns the choices recorded since [`clear_choices`], with their numbers of operations, in the order of
/// the last operation.
pub fn recorded_choices() -> Vec<(Choice, u64)> {
    lock_choices().clone()
}

fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

fn set_mask_address(mask: *mut c_int) {
    MASK.store(mask, Ordering::Release);
    set_mask(is_enabled());
}

fn set_mask(enabled: bool) {
    let mask = MASK.load(Ordering::Acquire);
    if mask.is_null() {
        return;
    }
    // SAFETY: NCCL gave the address of a static `int` of its own, and libnccl is never unloaded
    // (`nccl_sys::Nccl`). NCCL reads it atomically.
    let mask = unsafe { AtomicI32::from_ptr(mask) };
    mask.store(if enabled { EVENTS } else { 0 }, Ordering::Relaxed);
}

fn record_choice(choice: Choice) {
    let mut recorded = lock_choices();
    if recorded.len() < MOST_CHOICES || recorded.iter().any(|(known, _)| *known == choice) {
        count_choice(&mut recorded, choice);
    }
}

#[cfg(test)]
pub(super) mod tests;
