//! NCCL's group of a thread, and the refusal of operations while a group is recorded.

use std::{cell::Cell, marker::PhantomData, ptr};

use nccl_sys::{Nccl, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::{error::Error, library::Library};

pub(crate) const START: &str = "ncclGroupStart";
pub(crate) const END: &str = "ncclGroupEnd";

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Refuses an operation that cannot be part of a group, while this thread records one.
#[inline]
pub(crate) fn forbid_group(operation: &'static str) -> Result<(), Error> {
    if INSIDE.get() { Err(Error::InsideGroup { operation }) } else { Ok(()) }
}

/// Guard: this thread records a group while it lives.
pub(crate) struct Scope(PhantomData<*const ()>);

impl Scope {
    pub(crate) fn enter_group(operation: &'static str) -> Result<Self, Error> {
        forbid_group(operation)?;
        INSIDE.set(true);
        Ok(Self(PhantomData))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Runs NCCL calls, and no code of the program, in an NCCL group. The group is cancelled if they fail.
/// Returns ncclSuccess or ncclInProgress, and the value. `operation` names the end of the group in errors.
pub(crate) fn run_calls<T>(
    library: Library,
    operation: &'static str,
    calls: impl FnOnce() -> Result<T, Error>,
) -> Result<(ncclResult_t, T), Error> {
    // SAFETY: no arguments; closes NCCL's group of this thread.
    run_until(library, calls, operation, |raw| unsafe { raw.ncclGroupEnd() })
}

/// Like [`run_calls`], with another function than `ncclGroupEnd` at the end.
pub(crate) fn run_until<T>(
    library: Library,
    calls: impl FnOnce() -> Result<T, Error>,
    operation: &'static str,
    end: impl FnOnce(&Nccl) -> ncclResult_t,
) -> Result<(ncclResult_t, T), Error> {
    // SAFETY: no arguments.
    library.check_code(START, unsafe { library.raw().ncclGroupStart() })?;
    let value = calls().inspect_err(|_| cancel_group(library))?;
    Ok((library.accept_code(operation, end(library.raw()))?, value))
}

/// Cancels NCCL's group of this thread. NCCL has no function for this, but launches nothing if a call in the
/// group has failed, so this makes an invalid call.
fn cancel_group(library: Library) {
    let (raw, none) = (library.raw(), ptr::null_mut());
    let (data_type, op) = (ncclDataType_t::ncclInt8, ncclRedOp_t::ncclSum);
    // SAFETY: every NCCL checks for a null communicator first. Closes this thread's group.
    unsafe {
        let _refused = raw.ncclAllReduce(none, none, 0, data_type, op, none.cast(), none.cast());
        let _cancelled = raw.ncclGroupEnd();
    }
}
