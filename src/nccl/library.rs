//! The loaded libnccl.

use std::{ffi::c_char, ops::RangeInclusive, path::Path, ptr};

use nccl_sys::{MissingSymbol, Nccl, Version, ncclResult_t};

use super::error::{Error, ResultCode};

/// Versions whose symmetric kernels do not wait for a kernel that triggers programmatic launch early: see
/// `docs/limits.md`.
pub const SYMMETRIC_RACE: RangeInclusive<Version> = Version::new(2, 28, 3)..=Version::new(2, 30, 6);

/// Result of an NCCL function missing in some versions.
pub(crate) type CallResult = Result<ncclResult_t, MissingSymbol>;

/// libnccl, loaded for the life of the process. A handle: cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Library(&'static Nccl);

impl Library {
    /// Finds and loads libnccl once per process; see [`Nccl::load`] for the search order.
    ///
    /// # Errors
    /// [`Error::Library`]: lists all attempted places and how to install NCCL.
    pub fn load() -> Result<Self, Error> {
        Nccl::load().map(Self).map_err(Error::Library)
    }

    /// Wraps a library loaded through `nccl_sys`.
    #[must_use]
    pub fn from_raw(nccl: &'static Nccl) -> Self {
        Self(nccl)
    }

    /// Raw functions.
    pub fn raw(self) -> &'static Nccl {
        self.0
    }

    /// Version of the loaded library (`ncclGetVersion`).
    pub fn version(self) -> Version {
        self.0.version()
    }

    /// Path of the loaded file.
    pub fn path(self) -> &'static Path {
        self.0.path()
    }

    pub(crate) fn require(self, what: &'static str, since: Version) -> Result<(), Error> {
        let loaded = self.version();
        if loaded >= since {
            return Ok(());
        }
        Err(Error::TooOld { what, since, loaded, path: self.path() })
    }

    /// Returns `Ok` for ncclSuccess, otherwise an error with NCCL's last message.
    pub(crate) fn check_code(self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(self.code_error(operation, code)) }
    }

    /// Returns the code for ncclSuccess, and for ncclInProgress, if NCCL continues on a thread of its own.
    pub(crate) fn accept_code(
        self,
        operation: &'static str,
        code: ncclResult_t,
    ) -> Result<ncclResult_t, Error> {
        match code {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(code),
            code => Err(self.code_error(operation, code)),
        }
    }

    #[cold]
    pub(crate) fn code_error(self, operation: &'static str, code: ncclResult_t) -> Error {
        // SAFETY: takes any number and returns a string with the lifetime of the library.
        let meaning = unsafe { copy_text(self.0.ncclGetErrorString(code), MESSAGE) };
        // SAFETY: NCCL ignores the communicator here and returns its buffer of the last message.
        let detail = unsafe { copy_text(self.0.ncclGetLastError(ptr::null_mut()), MESSAGE) };
        let (code, meaning, detail) = (ResultCode(code.0), meaning.into(), detail.trim().into());
        Error::Nccl { operation, code, meaning, detail }
    }
}

/// Size of NCCL's buffer for the last message.
const MESSAGE: usize = 1024;

/// Copies one of NCCL's strings, at most `limit` bytes of it.
///
/// # Safety
/// `string` is null, or has a NUL or `limit` bytes. Another thread may write to it concurrently: each byte is
/// read once.
pub(super) unsafe fn copy_text(string: *const c_char, limit: usize) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: no NUL before this byte, so it is within the string.
    let bytes = (0..limit).map(|index| unsafe { ptr::read_volatile(string.add(index)) }.to_ne_bytes()[0]);
    String::from_utf8_lossy(&bytes.take_while(|&byte| byte != 0).collect::<Vec<_>>()).into_owned()
}

#[cfg(test)]
mod tests {
    /// The fake's messages are shorter.
    #[test]
    fn text_stops_at_the_limit() {
        // SAFETY: the array has this number of bytes.
        assert_eq!(unsafe { super::copy_text([b'x' as _; 8].as_ptr(), 8) }, "xxxxxxxx");
    }
}
