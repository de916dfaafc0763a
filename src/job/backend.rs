//! Where the collectives of a group run.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// Where the collectives of a group run, and the memory of their buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// GPUs if every rank has one of its own and can load NCCL, otherwise hosts: the same on all ranks.
    /// [`Group::describe`](super::Group::describe) has the reason.
    #[default]
    Auto,
    /// Host memory, over libfabric and shared memory.
    Host,
    /// GPUs, over NCCL.
    Gpu,
}

/// The backend that a new group asks for.
#[derive(Clone)]
pub(super) struct Choice {
    pub(super) backend: Backend,
    /// This rank's device, if the program has chosen it.
    pub(super) device: Option<GroupDevice>,
}

/// A rank's device, and its NCCL.
#[cfg(feature = "nccl")]
#[derive(Clone)]
pub(crate) struct GroupDevice {
    pub(crate) library: crate::nccl::Library,
    pub(crate) context: std::sync::Arc<cudarc::driver::CudaContext>,
}

/// Without NCCL there is no device.
#[cfg(not(feature = "nccl"))]
#[derive(Clone)]
pub(crate) enum GroupDevice {}

impl Backend {
    /// Name: `auto`, `host`, `gpu`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Gpu => "gpu",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        [Self::Auto, Self::Host, Self::Gpu]
            .into_iter()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| Error::Job(format!("`{name}` is not a backend; use one of auto, host, gpu")))
    }
}
