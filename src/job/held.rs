//! Buffers of an operation while the library holds them.

#[cfg(feature = "nccl")]
use std::sync::Arc;

#[cfg(feature = "nccl")]
use cudarc::driver::CudaContext;

#[cfg(feature = "nccl")]
use crate::nccl::cuda;

/// Buffers that are returned, or dropped with this: those of GPUs after their uses on other streams.
pub(crate) struct HeldBuffers<W> {
    /// `None` once they are returned.
    buffers: Option<W>,
    /// The context objects of their memory.
    #[cfg(feature = "nccl")]
    contexts: Vec<Arc<CudaContext>>,
}

impl<W> HeldBuffers<W> {
    /// Holds buffers with memory of these contexts.
    #[cfg(feature = "nccl")]
    pub(crate) fn in_contexts(buffers: W, contexts: Vec<Arc<CudaContext>>) -> Self {
        Self { buffers: Some(buffers), contexts }
    }

    /// Returns the buffers, once.
    pub(crate) fn take(&mut self) -> Option<W> {
        self.buffers.take()
    }
}

/// Holds buffers of host memory.
impl<W> From<W> for HeldBuffers<W> {
    fn from(buffers: W) -> Self {
        Self {
            buffers: Some(buffers),
            #[cfg(feature = "nccl")]
            contexts: Vec::new(),
        }
    }
}

#[cfg(feature = "nccl")]
impl<W> Drop for HeldBuffers<W> {
    fn drop(&mut self) {
        if let Some(buffers) = self.take() {
            cuda::drop_in_order(&self.contexts, buffers);
        }
    }
}
