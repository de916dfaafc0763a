//! An operation as NCCL describes it to a profiler, independent of the version of the interface.

use std::ffi::{CStr, c_char, c_int};

use crate::nccl_choice::{Bytes, Choice, copies};
use record::Algorithm;

/// An operation that NCCL has started.
pub(super) enum ProfiledOperation {
    Collective {
        function: *const c_char,
        count: usize,
        data_type: *const c_char,
        algorithm: *const c_char,
        protocol: *const c_char,
        /// Number of channels; 0 when it is not known.
        channels: u8,
    },
    SendOrReceive {
        peer: c_int,
        count: usize,
        /// Number of channels; 0 when it is not known.
        channels: u8,
    },
    Copies {
        function: *const c_char,
        count: usize,
        data_type: *const c_char,
    },
}

impl ProfiledOperation {
    /// NCCL's choice for the operation; `None` for an operation that has none.
    ///
    /// # Safety
    /// The texts must be C strings, or null.
    pub(super) unsafe fn choice(self) -> Option<Choice> {
        match self {
            Self::Collective { function, count, data_type, algorithm, protocol, channels } => {
                // SAFETY: the caller's promise.
                let (function, data_type, algorithm, protocol) =
                    unsafe { (name(function)?, name(data_type)?, name(algorithm)?, name(protocol)) };
                Some(Choice {
                    collective: Some(function),
                    bytes: Bytes::Count(bytes(count, &data_type)?),
                    algorithm: Algorithm { algorithm, protocol, channels: known(channels) },
                })
            }
            // A rank's own part is copied, and an empty part is not sent.
            Self::SendOrReceive { peer: 0, .. } | Self::SendOrReceive { count: 0, .. } => None,
            Self::SendOrReceive { channels, .. } => Some(Choice {
                collective: None,
                bytes: Bytes::Part,
                algorithm: Algorithm {
                    algorithm: "p2p".to_owned(),
                    protocol: None,
                    channels: known(channels),
                },
            }),
            Self::Copies { function, count, data_type } => {
                // SAFETY: the caller's promise.
                let (function, data_type) = unsafe { (name(function)?, name(data_type)?) };
                Some(Choice {
                    collective: Some(function),
                    bytes: Bytes::Count(bytes(count, &data_type)?),
                    algorithm: copies("copy_engine"),
                })
            }
        }
    }
}

fn known(channels: u8) -> Option<u32> {
    (channels > 0).then(|| channels.into())
}

/// One of NCCL's names in lower case; `None` for null and for `Unknown`.
///
/// # Safety
/// The text must be a C string, or null.
unsafe fn name(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().to_ascii_lowercase()).filter(|name| name != "unknown")
}

/// Bytes of `count` elements. The name of the type has the bits of one: `ncclfloat32`, `ncclfloat8e4m3`.
pub(super) fn bytes(count: usize, data_type: &str) -> Option<u64> {
    let digits = data_type.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    let bits: u64 = digits[..end].parse().ok()?;
    (count as u64).checked_mul(bits / 8)
}
