//! Id for the ranks of a new communicator to find each other.

use std::{ffi::c_char, fmt};

use nccl_sys::{NCCL_UNIQUE_ID_BYTES, ncclUniqueId};

use super::{error::Error, library::Library};

/// Id of a new communicator. One rank creates it and sends its bytes to all others. For one communicator
/// only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; UniqueId::BYTES]);

impl UniqueId {
    /// Size of the id in bytes.
    pub const BYTES: usize = NCCL_UNIQUE_ID_BYTES as usize;

    /// Creates an id. The calling process serves the bootstrap of the ranks from now on (`ncclGetUniqueId`).
    ///
    /// # Errors
    /// [`Error::Nccl`], for example if NCCL finds no network interface.
    pub fn new(library: Library) -> Result<Self, Error> {
        let mut id = ncclUniqueId { internal: [0; Self::BYTES] };
        // SAFETY: writes one id.
        let code = unsafe { library.raw().ncclGetUniqueId(&mut id) };
        library.check_code("ncclGetUniqueId", code)?;
        Ok(Self::from_raw(&id))
    }

    pub(crate) fn from_raw(id: &ncclUniqueId) -> Self {
        // `c_char` is signed on x86-64 and unsigned on aarch64; this conversion exists for both.
        Self(id.internal.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// Makes an id from the bytes sent by another rank.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Bytes to send to the other ranks.
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    pub(crate) fn raw_id(&self) -> ncclUniqueId {
        ncclUniqueId { internal: self.0.map(|byte| c_char::from_ne_bytes([byte])) }
    }
}

impl fmt::Debug for UniqueId {
    /// Shows the magic number only, the id's first 8 bytes: enough to compare two ranks.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magic = self.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        write!(formatter, "UniqueId({magic:016x}..)")
    }
}
