//! The loaded libnccl.

use std::ffi::c_char;
use std::ops::RangeInclusive;
use std::path::Path;
use std::ptr;

use nccl_sys::{Nccl, Version, ncclResult_t};

use super::error::{Error, ResultCode};

/// The versions whose symmetric kernels do not wait for a kernel before them that triggers programmatic launch early: see
/// `docs/limits.md`.
pub const SYMMETRIC_RACE: RangeInclusive<Version> = Version::new(2, 28, 3)..=Version::new(2, 30, 6);

/// libnccl, loaded for the life of the process. A handle: cheap to copy and to pass on.
#[derive(Clone, Copy, Debug)]
pub struct Library(&'static Nccl);

impl Library {
    /// Finds and loads libnccl once per process: see [`Nccl::load`] for where it looks.
    ///
    /// # Errors
    /// [`Error::Library`], which lists every place that was tried and how to install NCCL.
    pub fn load() -> Result<Self, Error> {
        Nccl::load().map(Self).map_err(Error::Library)
    }

    /// A library that was loaded through `nccl_sys`.
    #[must_use]
    pub fn from_raw(nccl: &'static Nccl) -> Self {
        Self(nccl)
    }

    /// The raw functions.
    #[must_use]
    pub fn raw(self) -> &'static Nccl {
        self.0
    }

    /// The version of the loaded library (`ncclGetVersion`).
    #[must_use]
    pub fn version(self) -> Version {
        self.0.version()
    }

    /// The file that was really loaded.
    #[must_use]
    pub fn path(self) -> &'static Path {
        self.0.path()
    }

    /// Refuses what the loaded library is too old for.
    pub(crate) fn require(self, what: &'static str, since: Version) -> Result<(), Error> {
        let loaded = self.version();
        if loaded >= since {
            return Ok(());
        }
        Err(Error::TooOld { what, since, loaded, path: self.path().to_owned() })
    }

    /// `Ok` for ncclSuccess, else the error with NCCL's last message.
    pub(crate) fn check(self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(self.failure(operation, code)) }
    }

    #[cold]
    pub(crate) fn failure(self, operation: &'static str, code: ncclResult_t) -> Error {
        // SAFETY: takes any number and returns a string that lives as long as the library.
        let meaning = unsafe { text(self.0.ncclGetErrorString(code)) };
        // SAFETY: NCCL ignores the communicator here and returns its buffer of the last message.
        let detail = unsafe { text(self.0.ncclGetLastError(ptr::null_mut())) };
        Error::Nccl { operation, code: ResultCode(code.0), meaning, detail: detail.trim().to_owned() }
    }
}

/// Copies one of NCCL's strings.
///
/// # Safety
/// `string` is null or NUL-terminated. Another thread may be writing to NCCL's buffer of the last message meanwhile:
/// each byte is read once, and never past the size of that buffer.
unsafe fn text(string: *const c_char) -> String {
    /// The size of NCCL's buffer of the last message.
    const LIMIT: usize = 1024;
    if string.is_null() {
        return String::new();
    }
    let mut bytes = Vec::new();
    while bytes.len() < LIMIT {
        // SAFETY: no NUL before this byte, so it is within the string.
        let byte = unsafe { ptr::read_volatile(string.add(bytes.len())) };
        if byte == 0 {
            break;
        }
        bytes.extend(byte.to_ne_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::text;

    fn of(string: &CStr) -> String {
        // SAFETY: a C string ends with NUL.
        unsafe { text(string.as_ptr()) }
    }

    #[test]
    fn text_stops_at_the_end_at_null_and_at_the_limit() {
        assert_eq!(of(c"unhandled cuda error"), "unhandled cuda error");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { text(std::ptr::null()) }, "");
        let long = std::ffi::CString::new(vec![b'x'; 3000]).unwrap();
        assert_eq!(of(&long).len(), 1024);
    }
}
