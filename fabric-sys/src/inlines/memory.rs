//! Memory regions.

use std::ffi::{c_int, c_void};

use libc::iovec;

use super::inlines;
use crate::{FI_ENABLE, fi_mr_attr, fid, fid_domain, fid_mr};

inlines! {
    /// Registers a buffer.
    fn fi_mr_reg(domain: *mut fid_domain, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void) -> c_int
        = (*domain).mr, reg(&raw mut (*domain).fid, buf, len, access, offset, requested_key, flags, mr, context);

    /// Registers several buffers as one region.
    fn fi_mr_regv(domain: *mut fid_domain, iov: *const iovec, count: usize, access: u64, offset: u64, requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void) -> c_int
        = (*domain).mr, regv(&raw mut (*domain).fid, iov, count, access, offset, requested_key, flags, mr, context);

    /// Registers by attributes: device memory, dmabuf. `attr` must be a [`crate::Padded`] one.
    fn fi_mr_regattr(domain: *mut fid_domain, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int
        = (*domain).mr, regattr(&raw mut (*domain).fid, attr, flags, mr);

    /// Binds a region to an endpoint or counter.
    fn fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int
        = (*mr).fid.ops, bind(&raw mut (*mr).fid, bfid, flags);

    /// Makes a region that was bound ready for use.
    fn fi_mr_enable(mr: *mut fid_mr) -> c_int
        = (*mr).fid.ops, control(&raw mut (*mr).fid, FI_ENABLE as c_int, std::ptr::null_mut());
}

/// The descriptor to pass with local operations on the region.
///
/// # Safety
/// The region must be live.
#[inline]
#[must_use]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the caller vouches that the region is live.
    unsafe { (*mr).mem_desc }
}

/// The key that peers pass to reach the region.
///
/// # Safety
/// The region must be live.
#[inline]
#[must_use]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: the caller vouches that the region is live.
    unsafe { (*mr).key }
}
