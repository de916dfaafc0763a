//! Errors and advice.

use std::path::{Path, PathBuf};
use std::{fmt, time::Duration};

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use nccl_sys::{LoadError, MissingSymbol, Version, ncclResult_t as Code};

/// Result code of NCCL. Newer libraries may return codes unknown to this build.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultCode(pub u32);

impl ResultCode {
    /// NCCL's name of the code, if known to this build.
    pub fn name(self) -> Option<&'static str> {
        Some(match Code(self.0) {
            Code::ncclSuccess => "ncclSuccess",
            Code::ncclUnhandledCudaError => "ncclUnhandledCudaError",
            Code::ncclSystemError => "ncclSystemError",
            Code::ncclInternalError => "ncclInternalError",
            Code::ncclInvalidArgument => "ncclInvalidArgument",
            Code::ncclInvalidUsage => "ncclInvalidUsage",
            Code::ncclRemoteError => "ncclRemoteError",
            Code::ncclInProgress => "ncclInProgress",
            Code::ncclTimeout => "ncclTimeout",
            _ => return None,
        })
    }

    /// Advice for the user.
    fn code_advice(self) -> &'static str {
        match Code(self.0) {
            Code::ncclUnhandledCudaError => {
                "a CUDA call failed: check nvidia-smi and the device's free memory"
            }
            Code::ncclSystemError => "a system call failed: check shared memory, limits and the network",
            Code::ncclInvalidArgument | Code::ncclInvalidUsage => {
                "check the arguments, and that all ranks make the same call; NCCL_DEBUG=WARN shows the reason"
            }
            Code::ncclRemoteError => "another rank or the network failed: look at the other ranks",
            Code::ncclTimeout => "another rank did not answer in time: look at the other ranks",
            _ => "set NCCL_DEBUG=WARN to see NCCL's own report",
        }
    }
}

impl fmt::Display for ResultCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(formatter, "{name} ({})", self.0),
            None => write!(formatter, "code {}, unknown to this build", self.0),
        }
    }
}

impl fmt::Debug for ResultCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// An error of the NCCL layer. Its text names the operation, says what happened and what to do.
///
/// `operation` is the function of NCCL or the driver that failed or was not called, `buffer` one of its
/// buffers.
// The largest variants have no `String`: the compiler would mark `Ok` in its capacity, and that is slower to
// test than a byte.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names and the messages explain the fields")]
pub enum Error {
    /// libnccl could not be loaded.
    #[error(transparent)]
    Library(&'static LoadError),
    /// The loaded libnccl is too old for a function.
    #[error(transparent)]
    MissingSymbol(#[from] MissingSymbol),
    /// The machine has no usable CUDA driver.
    #[error("no CUDA driver: {reason}; install the NVIDIA driver, or inside a container pass the GPUs in")]
    NoDriver { reason: String },
    /// The CUDA driver shows this process no device. `visible` is `CUDA_VISIBLE_DEVICES`, if it is set.
    #[error(
        "no CUDA device: the driver is installed, but shows this process no GPU; CUDA_VISIBLE_DEVICES is \
         {}: it must name existing GPUs, and a container must have access to them",
        visible_text(visible.as_deref())
    )]
    NoDevice { visible: Option<PathBuf> },
    /// A CUDA driver call has failed.
    #[error("{operation} failed: {error}; {}", cuda_advice(*error))]
    Cuda { operation: &'static str, error: DriverError },
    /// An NCCL call has failed. `meaning` is NCCL's text for the code; `detail` its last warning, if any, of
    /// any thread.
    #[error("{operation} failed with {code}: {meaning}{}; {}", detail_text(detail), code.code_advice())]
    Nccl { operation: &'static str, code: ResultCode, meaning: Box<str>, detail: Box<str> },
    /// The loaded libnccl would ignore or misread a setting or an element type: `Config::traffic_class`,
    /// `f8e4m3`, ...
    #[error("{what} needs NCCL {since}; loaded {loaded} from {}", path.display())]
    TooOld { what: &'static str, since: Version, loaded: Version, path: &'static Path },
    /// An invalid call, in any state of the communicator.
    #[error("{operation}: {reason}")]
    Argument { operation: &'static str, reason: String },
    /// An invalid rank.
    #[error(
        "rank {rank} of {size}: a rank is at least 0 and below the size, and the size is between 1 and \
         2147483647"
    )]
    Rank { rank: usize, size: usize },
    /// An offset in a symmetric window at which the loaded NCCL gives wrong results.
    #[error(
        "{operation}: NCCL {loaded} gives wrong results if the offset of a buffer or of a rank's part in a \
         symmetric window is not a multiple of 4 bytes; use a multiple of 4, WindowKind::Plain, or NCCL 2.30"
    )]
    Misaligned { operation: &'static str, loaded: Version },
    /// A buffer has the wrong length, in elements.
    #[error("{operation}: the {buffer} has {found} elements and needs {needed}")]
    Length { operation: &'static str, buffer: &'static str, needed: Needed, found: usize },
    /// A view would reach past the end of its memory. There is room for `len` elements of this type.
    #[error("a view of elements {start}..{end}: the memory has {len}")]
    View { start: usize, end: usize, len: usize },
    /// A buffer without an owner; a registration, window, graph or prepared operation needs one.
    #[error(
        "{operation}: the buffer has no owner that keeps it allocated: use a Memory (Memory::try_from adopts \
         a CudaSlice, Memory::from_raw any memory)"
    )]
    NotOwned { operation: &'static str },
    /// Ranks of one communicator call different operations in a group or graph.
    #[error("{operation}: the ranks of a communicator do not agree: {reason}")]
    Disagreement { operation: &'static str, reason: String },
    /// A buffer is on another device than the communicator.
    #[error(
        "{operation}: the {buffer} is in a context of device {found}, the communicator in the primary \
         context of device {expected}"
    )]
    WrongDevice { operation: &'static str, buffer: &'static str, expected: usize, found: usize },
    /// A stream not supported by NCCL. `reason` names an alternative.
    #[error("{operation}: {reason}")]
    Stream { operation: &'static str, reason: &'static str },
    /// Not allowed while this thread is inside a [`group`](super::group()).
    #[error("{operation} inside a group: use the group's own methods, or call it after the group")]
    InsideGroup { operation: &'static str },
    /// An operator, a window or a list of prepared operations (`object`) of another communicator.
    #[error("{operation}: the {object} was made with another communicator")]
    WrongCommunicator { operation: &'static str, object: &'static str },
    /// Another library than the communicator's.
    #[error("{operation}: the communicator was made with a different libnccl than the other communicators")]
    WrongLibrary { operation: &'static str },
    /// The state of the communicator does not allow the operation. `reason` gives a solution.
    #[error("{operation}: the communicator cannot be used: {reason}")]
    Unusable { operation: &'static str, reason: &'static str },
    /// The communicator has been aborted.
    #[error("{operation}: the communicator has been aborted; make a new one")]
    Aborted { operation: &'static str },
    /// The operation did not finish in time. The communicator has been aborted.
    #[error(
        "{operation} did not finish within {limit:?}; the communicator has been aborted: look at the other \
         ranks"
    )]
    Deadline { operation: &'static str, limit: Duration },
    /// A thread stays inside NCCL with this communicator: it cannot be aborted.
    #[error(
        "{operation}: a thread has been inside a blocking NCCL call with this communicator for {waited:?}; \
         NCCL can only abort it once that call returns. Non-blocking communicators (Config::blocking) can \
         be aborted at any time"
    )]
    Busy { operation: &'static str, waited: Duration },
}

/// Required number of elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needed {
    /// This number.
    Exactly(usize),
    /// Any multiple of this number.
    MultipleOf(usize),
}

impl fmt::Display for Needed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(formatter, "exactly {count}"),
            Self::MultipleOf(count) => write!(formatter, "a multiple of {count}, one part for each rank"),
        }
    }
}

fn cuda_advice(error: DriverError) -> &'static str {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "the device has too little free memory: see nvidia-smi",
        CUresult::CUDA_ERROR_INVALID_DEVICE => "see device_count for the number of devices",
        _ => "nvidia-smi and the kernel's log (dmesg) show the state of the device",
    }
}

fn detail_text(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" (NCCL's last warning: {detail})") }
}

fn visible_text(visible: Option<&Path>) -> String {
    visible.map_or_else(|| "not set".to_owned(), |value| format!("{value:?}"))
}

impl Error {
    pub(crate) fn of_cuda(operation: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Cuda { operation, error }
    }

    #[cold]
    pub(crate) fn bad_argument(operation: &'static str, reason: impl Into<String>) -> Self {
        Self::Argument { operation, reason: reason.into() }
    }

    /// Error for a text with a NUL byte.
    pub(crate) fn nul_in_text(operation: &'static str) -> Self {
        Self::bad_argument(operation, "the text must not contain a NUL byte")
    }
}

/// Calls it for each item, in spite of errors, and returns the first error.
pub(crate) fn each_first_error<T>(
    items: impl IntoIterator<Item = T>,
    mut call: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut result = Ok(());
    for item in items {
        result = result.and(call(item));
    }
    result
}
