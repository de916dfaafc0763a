//! A rank's connection to the others of its group.

use std::any::Any;

use super::dispatch::with_backend;

/// A rank's connection to the others of its group, by one of the backends.
#[derive(Clone)]
pub(super) enum GroupConnection {
    #[cfg(feature = "fabric")]
    Host(super::host::HostGroup),
    #[cfg(feature = "nccl")]
    Gpu(super::gpu::GpuGroup),
}

impl GroupConnection {
    /// The rank of the backend `G`, if it is this connection's.
    pub(super) fn as_backend<G: 'static>(&self) -> Option<&G> {
        let backend: &dyn Any = with_backend!(GroupConnection, self, backend => backend);
        backend.downcast_ref()
    }
}
