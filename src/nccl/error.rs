//! What can go wrong, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use nccl_sys::{LoadError, MissingSymbol, Version, ncclResult_t};

/// A result code of NCCL. Newer libraries may return codes that this build does not know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultCode(pub u32);

impl ResultCode {
    /// NCCL's name for the code, if this build knows it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Some(match ncclResult_t(self.0) {
            ncclResult_t::ncclSuccess => "ncclSuccess",
            ncclResult_t::ncclUnhandledCudaError => "ncclUnhandledCudaError",
            ncclResult_t::ncclSystemError => "ncclSystemError",
            ncclResult_t::ncclInternalError => "ncclInternalError",
            ncclResult_t::ncclInvalidArgument => "ncclInvalidArgument",
            ncclResult_t::ncclInvalidUsage => "ncclInvalidUsage",
            ncclResult_t::ncclRemoteError => "ncclRemoteError",
            ncclResult_t::ncclInProgress => "ncclInProgress",
            ncclResult_t::ncclTimeout => "ncclTimeout",
            _ => return None,
        })
    }

    /// What a user can do about it.
    fn advice(self) -> &'static str {
        match ncclResult_t(self.0) {
            ncclResult_t::ncclUnhandledCudaError => {
                "a CUDA call failed: check nvidia-smi and the device's free memory"
            }
            ncclResult_t::ncclSystemError => {
                "a system call failed: check shared memory, limits and the network"
            }
            ncclResult_t::ncclInvalidArgument | ncclResult_t::ncclInvalidUsage => {
                "the call is not allowed like this"
            }
            ncclResult_t::ncclRemoteError => "another rank or the network failed: look at the other ranks",
            ncclResult_t::ncclTimeout => "another rank did not answer in time: look at the other ranks",
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
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libnccl could not be loaded.
    #[error(transparent)]
    Library(&'static LoadError),
    /// The loaded libnccl is too old for a function.
    #[error(transparent)]
    MissingSymbol(#[from] MissingSymbol),
    /// The machine has no usable CUDA driver.
    #[error("no CUDA driver: {reason}; install the NVIDIA driver, or inside a container pass the GPUs in")]
    NoDriver {
        /// What was found instead.
        reason: String,
    },
    /// The CUDA driver is there, but shows this process no device.
    #[error(
        "no CUDA device: the driver is there, but shows this process no GPU; CUDA_VISIBLE_DEVICES is {}: it must \
         name GPUs that there are, and a container must have been given them",
        visible_text(visible.as_deref())
    )]
    NoDevice {
        /// `CUDA_VISIBLE_DEVICES`, if it is set.
        visible: Option<PathBuf>,
    },
    /// A call of the CUDA driver failed.
    #[error("{operation} failed: {error}; {}", cuda_advice(*error))]
    Cuda {
        /// The driver's function.
        operation: &'static str,
        /// The driver's error.
        error: DriverError,
    },
    /// A call of NCCL failed.
    #[error("{operation} failed with {code}: {meaning}{}; {}", detail_text(detail), code.advice())]
    Nccl {
        /// NCCL's function.
        operation: &'static str,
        /// NCCL's result.
        code: ResultCode,
        /// NCCL's words for the result.
        meaning: String,
        /// NCCL's last warning in this process, which may be another thread's. Empty where there is none.
        detail: String,
    },
    /// The loaded libnccl is too old for a setting or an element type: it would be ignored or misread.
    #[error("{what} needs NCCL {since}; loaded {loaded} from {}", path.display())]
    TooOld {
        /// `Config::traffic_class`, `f8e4m3`, ...
        what: &'static str,
        /// The version that introduced it.
        since: Version,
        /// The version that is loaded.
        loaded: Version,
        /// The file that is loaded.
        path: PathBuf,
    },
    /// A text for NCCL contains a NUL byte.
    #[error("{what} must not contain a NUL byte")]
    Text {
        /// `Config::name`, ...
        what: &'static str,
    },
    /// No such rank.
    #[error(
        "rank {rank} of {size}: a rank is at least 0 and below the size, which is between 1 and 2147483647"
    )]
    Rank {
        /// The rank that was asked for.
        rank: usize,
        /// The size that was asked for.
        size: usize,
    },
    /// The number of ids does not do.
    #[error(
        "{count} unique ids for {size} ranks: there must be at least one, at most one for each rank, and one alone for \
         a communicator that grows"
    )]
    Ids {
        /// Ids that were given.
        count: usize,
        /// Ranks.
        size: usize,
    },
    /// A color that is negative.
    #[error("color {color}: colors are 0 to 2147483647; ranks that do not take part have none")]
    Color {
        /// The color.
        color: i32,
    },
    /// Ranks that cannot be excluded.
    #[error("cannot exclude {ranks:?} of {size}: {reason}")]
    Exclude {
        /// The ranks that were to be excluded.
        ranks: Vec<usize>,
        /// The size of the communicator.
        size: usize,
        /// Why not.
        reason: &'static str,
    },
    /// A rank that needs a buffer for this operation has passed none.
    #[error("{operation}: rank {rank} is the root and needs a {buffer}")]
    MissingBuffer {
        /// NCCL's function.
        operation: &'static str,
        /// Which buffer: `receive buffer`.
        buffer: &'static str,
        /// The root.
        rank: usize,
    },
    /// The parts of a buffer, one for each rank, do not fit.
    #[error("{operation}: the parts of the {buffer}: {reason}")]
    Parts {
        /// NCCL's function.
        operation: &'static str,
        /// Which buffer: `receive buffer`.
        buffer: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// More signals than NCCL counts.
    #[error("ncclWaitSignal: {count} signals to wait for; between 1 and 2147483647 are possible")]
    SignalCount {
        /// Signals that were asked for.
        count: usize,
    },
    /// A place in a symmetric window with which the loaded NCCL gives wrong results.
    #[error(
        "{operation}: NCCL {loaded} gives wrong results with places in symmetric windows that are no multiple of 4 \
         bytes, of the buffer or of a rank's part; use a multiple, WindowKind::Plain, or NCCL 2.30"
    )]
    Misaligned {
        /// NCCL's function.
        operation: &'static str,
        /// The loaded version.
        loaded: Version,
    },
    /// A group inside the group or capture failed or panicked, and the closure went on.
    #[error("{operation}: cancelled, because a group in it failed or panicked")]
    Cancelled {
        /// NCCL's function.
        operation: &'static str,
    },
    /// An operation that NCCL cannot simulate.
    #[error("{operation} cannot be simulated: NCCL would take ranks for connected that are not")]
    NotSimulated {
        /// NCCL's function.
        operation: &'static str,
    },
    /// A call that takes no settings of its own.
    #[error("{operation} takes no CallConfig: only collectives that are one function of NCCL do")]
    NoCallConfig {
        /// NCCL's function.
        operation: &'static str,
    },
    /// A buffer has the wrong length.
    #[error("{operation}: the {buffer} has {found} elements and needs {needed}")]
    Length {
        /// NCCL's function.
        operation: &'static str,
        /// Which buffer: `receive buffer`.
        buffer: &'static str,
        /// Elements needed.
        needed: Needed,
        /// Elements that it has.
        found: usize,
    },
    /// A view would reach past the end of its memory.
    #[error("a view of elements {start}..{end}: the memory has {len}")]
    View {
        /// First element.
        start: usize,
        /// The element after the last.
        end: usize,
        /// Elements of this type that the memory has room for.
        len: usize,
    },
    /// A buffer that cannot be kept for a registration, a window or a graph.
    #[error(
        "{operation}: the buffer has no owner that keeps it allocated: use a Memory (Memory::try_from adopts a \
         CudaSlice), or RawBuffer::owned_by"
    )]
    NotOwned {
        /// NCCL's function.
        operation: &'static str,
    },
    /// Operations of one group, which run at the same time, use memory that one of them writes.
    #[error("{operation}: another operation of the group writes what this one uses, or uses what it writes")]
    Overlap {
        /// NCCL's function.
        operation: &'static str,
    },
    /// Memory that begins in the middle of an element.
    #[error("memory at address {address:#x} cannot be adopted: it must begin at a multiple of 8 bytes")]
    Unaligned {
        /// Its address on the device.
        address: u64,
    },
    /// Ranks of one communicator ask for different things in one group or graph.
    #[error("{operation}: the ranks of a communicator do not ask for the same: {reason}")]
    Disagreement {
        /// NCCL's function.
        operation: &'static str,
        /// The difference.
        reason: String,
    },
    /// A buffer lies on another device than the communicator.
    #[error(
        "{operation}: the {buffer} is in a context of device {found}, the communicator in the primary context of \
         device {expected}"
    )]
    WrongDevice {
        /// NCCL's function.
        operation: &'static str,
        /// Which buffer: `receive buffer`.
        buffer: &'static str,
        /// The communicator's device.
        expected: usize,
        /// The buffer's device.
        found: usize,
    },
    /// A stream that NCCL cannot work on.
    #[error("{operation}: {reason}")]
    Stream {
        /// NCCL's function.
        operation: &'static str,
        /// Why not, and what to use instead.
        reason: &'static str,
    },
    /// Not allowed while this thread is inside a [`group`](super::group()).
    #[error("{operation} inside a group: use the group's own methods, or call it after the group")]
    InsideGroup {
        /// NCCL's function.
        operation: &'static str,
    },
    /// An operator, a window or a registration of another communicator.
    #[error("{operation}: the {object} was made with another communicator")]
    WrongCommunicator {
        /// NCCL's function.
        operation: &'static str,
        /// `scaled sum`, `window`, ...
        object: &'static str,
    },
    /// Another library than the communicator's.
    #[error("{operation}: the communicator was made with another libnccl than the others")]
    WrongLibrary {
        /// NCCL's function.
        operation: &'static str,
    },
    /// The communicator is in a state that does not allow it.
    #[error("{operation}: the communicator cannot be used: {reason}")]
    Unusable {
        /// NCCL's function.
        operation: &'static str,
        /// Its state, and what to do.
        reason: &'static str,
    },
    /// The communicator has been aborted.
    #[error("{operation}: the communicator has been aborted; make a new one")]
    Aborted {
        /// NCCL's function.
        operation: &'static str,
    },
    /// The operation did not finish in time. The communicator has been aborted.
    #[error(
        "{operation} did not finish within {limit:?}; the communicator has been aborted: look at the other ranks"
    )]
    Deadline {
        /// NCCL's function.
        operation: &'static str,
        /// The time that it had.
        limit: Duration,
    },
    /// A thread stayed inside NCCL with this communicator, so that it cannot be aborted.
    #[error(
        "{operation}: a thread is inside a blocking NCCL call with this communicator since {waited:?}; \
         NCCL can only abort it once that call returns. Non-blocking communicators (Config::blocking) can be \
         aborted at any time"
    )]
    Busy {
        /// NCCL's function.
        operation: &'static str,
        /// How long the abort waited.
        waited: Duration,
    },
}

/// How many elements a buffer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needed {
    /// So many.
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
        CUresult::CUDA_ERROR_INVALID_DEVICE => "see device_count for the devices that there are",
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
    pub(crate) fn cuda(operation: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Cuda { operation, error }
    }
}

/// Calls it for each of them, whatever it answers for the others; the first error.
pub(crate) fn each<T>(
    items: impl IntoIterator<Item = T>,
    mut call: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut result = Ok(());
    for item in items {
        let answer = call(item);
        result = result.and(answer);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_operation_code_detail_and_advice() {
        let error = Error::Nccl {
            operation: "ncclAllReduce",
            code: ResultCode(6),
            meaning: "remote process exited or there was a network error".into(),
            detail: "connection closed by peer".into(),
        };
        assert_eq!(
            error.to_string(),
            "ncclAllReduce failed with ncclRemoteError (6): remote process exited or there was a network error \
             (NCCL's last warning: connection closed by peer); another rank or the network failed: look at the \
             other ranks"
        );
    }

    #[test]
    fn unknown_codes_keep_their_number() {
        assert_eq!(ResultCode(4711).to_string(), "code 4711, unknown to this build");
        assert_eq!(ResultCode(8).to_string(), "ncclTimeout (8)");
    }
}
