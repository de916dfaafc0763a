//! A fabric and its domain, and the closing of libfabric's objects.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fabric_sys::{Fabric, fid, fid_domain, fid_fabric};

use crate::fabric::error::{Error, Failure};
use crate::fabric::libfabric::provider::{self, InfoEntry};
use crate::fabric::shared_memory::shm;
use crate::log;

/// A fabric and its domain, each null until it is open. For one endpoint, or for several.
pub(crate) struct Domain {
    pub(super) fabric: *mut fid_fabric,
    pub(super) domain: *mut fid_domain,
    /// Key of the next region, for providers that do not choose keys themselves.
    pub(super) next_key: AtomicU64,
}

// SAFETY: the library's objects are bound to no thread; where endpoints of several threads share a domain, it
// was asked for with FI_THREAD_SAFE, and otherwise one endpoint has it.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn open_domain(library: &'static Fabric, info: InfoEntry<'_>) -> Result<Arc<Self>, Error> {
        let provider = info.provider_name();
        let check = error_checker(library, &provider);
        if provider == "shm" {
            shm::remove_leftovers();
        }
        let mut opened =
            Self { fabric: ptr::null_mut(), domain: ptr::null_mut(), next_key: AtomicU64::new(1) };
        let result = {
            let _setup = provider::setup_lock();
            let (info, none) = (info.as_ptr(), ptr::null_mut());
            // SAFETY: the entry is live; both are kept until this type is dropped.
            unsafe {
                let result = library.fi_fabric((*info).fabric_attr, &raw mut opened.fabric, none);
                check("fi_fabric", result).and_then(|()| {
                    check(
                        "fi_domain",
                        fabric_sys::fi_domain(opened.fabric, info, &raw mut opened.domain, none),
                    )
                })
            }
        };
        // On failure the open objects are closed here, without the lock: closing takes it.
        result.map(|()| Arc::new(opened))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let setup = provider::setup_lock();
        // SAFETY: each pointer is null or an open object, closed once, after its children: each of them holds
        // an `Arc` of this.
        let closed = unsafe {
            close_objects([
                (!self.domain.is_null()).then(|| &raw mut (*self.domain).fid),
                (!self.fabric.is_null()).then(|| &raw mut (*self.fabric).fid),
            ])
        };
        drop(setup);
        warn_of_open_object(closed);
    }
}

/// Closes objects in this order, up to the first failure.
///
/// # Safety
/// They must be open, and unused afterwards.
pub(super) unsafe fn close_objects(objects: impl IntoIterator<Item = Option<*mut fid>>) -> Result<(), c_int> {
    for fid in objects.into_iter().flatten() {
        // SAFETY: the caller guarantees it.
        let result = unsafe { fabric_sys::fi_close(fid) };
        if result != 0 {
            return Err(result);
        }
    }
    Ok(())
}

/// Logs a failure to close an object. Not to be called with the setup lock: a subscriber of the log is the
/// program's code, and may use libfabric.
pub(super) fn warn_of_open_object(closed: Result<(), c_int>) {
    if let Err(result) = closed {
        log::warn(format_args!("fi_close failed with {result}; the object is left open"));
    }
}

/// Converts the library's return values into results.
pub(super) fn error_checker<'a>(
    library: &'static Fabric,
    provider: &'a str,
) -> impl Fn(&'static str, c_int) -> Result<(), Error> + 'a {
    move |operation, result| match result {
        0 => Ok(()),
        code => Err(Failure::of_call(library, provider, operation, None, -code, None)),
    }
}
