//! NCCL's group of a thread, and the operations that are refused while a program describes one.

use std::cell::Cell;
use std::marker::PhantomData;
use std::{mem, ptr};

use nccl_sys::{Nccl, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::error::Error;
use super::library::Library;

pub(crate) const START: &str = "ncclGroupStart";
pub(crate) const END: &str = "ncclGroupEnd";

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Refuses an operation that would not be part of the group that this thread describes.
#[inline]
pub(crate) fn forbid(operation: &'static str) -> Result<(), Error> {
    if INSIDE.get() { Err(Error::InsideGroup { operation }) } else { Ok(()) }
}

/// While it lives, this thread describes a group.
pub(crate) struct Inside(PhantomData<*const ()>);

impl Inside {
    /// # Errors
    /// [`Error::InsideGroup`] in another group.
    pub(crate) fn enter(operation: &'static str) -> Result<Self, Error> {
        forbid(operation)?;
        INSIDE.set(true);
        Ok(Self(PhantomData))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Runs calls of NCCL's in a group of NCCL's, which is cancelled when they fail. No code of the program's runs in it. NCCL's
/// answer with the value: ncclSuccess, or ncclInProgress.
pub(crate) fn grouped<T>(
    library: Library,
    calls: impl FnOnce() -> Result<T, Error>,
) -> Result<(ncclResult_t, T), Error> {
    // SAFETY: no arguments; closes NCCL's group of this thread.
    grouped_until(library, calls, END, |raw| unsafe { raw.ncclGroupEnd() })
}

/// Like [`grouped`], with another end of the group than `ncclGroupEnd`.
pub(crate) fn grouped_until<T>(
    library: Library,
    calls: impl FnOnce() -> Result<T, Error>,
    operation: &'static str,
    end: impl FnOnce(&Nccl) -> ncclResult_t,
) -> Result<(ncclResult_t, T), Error> {
    // SAFETY: no arguments.
    library.check(START, unsafe { library.raw().ncclGroupStart() })?;
    let cancel = CancelOnDrop(library);
    let value = calls()?;
    mem::forget(cancel);
    Ok((library.accept(operation, end(library.raw()))?, value))
}

/// Cancels NCCL's group of this thread.
struct CancelOnDrop(Library);

impl Drop for CancelOnDrop {
    /// NCCL has no call to cancel a group, but launches nothing when an operation in it was wrong: so one is made wrong.
    fn drop(&mut self) {
        let raw = self.0.raw();
        let (data_type, op) = (ncclDataType_t::ncclInt8, ncclRedOp_t::ncclSum);
        let (comm, stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: every NCCL refuses a null communicator before it looks at anything else. Closes the group
        // that was opened on this thread.
        let code = unsafe {
            let _refused = raw.ncclAllReduce(ptr::null(), ptr::null_mut(), 0, data_type, op, comm, stream);
            raw.ncclGroupEnd()
        };
        if code == ncclResult_t::ncclSuccess {
            tracing::error!("NCCL {} launched a cancelled group", self.0.version());
        }
    }
}
