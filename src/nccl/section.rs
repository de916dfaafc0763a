//! NCCL's group of a thread, and what is refused while a program describes one.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

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

/// As long as it lives, this thread describes a group.
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
    let section = Section::start(library)?;
    let value = calls()?;
    // SAFETY: no arguments; closes NCCL's group of this thread.
    let code = section.end(END, |raw| unsafe { raw.ncclGroupEnd() })?;
    Ok((code, value))
}

/// The time between ncclGroupStart and ncclGroupEnd. Dropping it cancels what is queued.
pub(crate) struct Section {
    library: Library,
    open: bool,
    /// NCCL's groups belong to a thread.
    thread: PhantomData<*const ()>,
}

impl Section {
    pub(crate) fn start(library: Library) -> Result<Self, Error> {
        // SAFETY: no arguments.
        let code = unsafe { library.raw().ncclGroupStart() };
        library.check(START, code)?;
        Ok(Self { library, open: true, thread: PhantomData })
    }

    /// Ends NCCL's group; ncclSuccess or ncclInProgress.
    pub(crate) fn end(
        mut self,
        operation: &'static str,
        end: impl FnOnce(&Nccl) -> ncclResult_t,
    ) -> Result<ncclResult_t, Error> {
        self.open = false;
        match end(self.library.raw()) {
            code @ (ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => Ok(code),
            code => Err(self.library.failure(operation, code)),
        }
    }
}

impl Drop for Section {
    /// NCCL has no call to cancel a group, but launches nothing when an operation in it was wrong: so one is made wrong.
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let raw = self.library.raw();
        let (data_type, op) = (ncclDataType_t::ncclInt8, ncclRedOp_t::ncclSum);
        let (comm, stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: every NCCL refuses a null communicator before it looks at anything else. Closes the group that `start`
        // opened on this thread.
        let code = unsafe {
            let _refused = raw.ncclAllReduce(ptr::null(), ptr::null_mut(), 0, data_type, op, comm, stream);
            raw.ncclGroupEnd()
        };
        if code == ncclResult_t::ncclSuccess {
            tracing::error!("NCCL {} launched a cancelled group", self.library.version());
        }
    }
}
