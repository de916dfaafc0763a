//! Buffers of an operation while the library holds them.

use super::buffer::memory::GroupMemory;
#[cfg(feature = "nccl")]
use crate::nccl::cuda;

/// Buffers that are returned, or released with this: those of GPUs after their uses on other streams.
pub(crate) struct HeldBuffers<W> {
    /// `None` once they are returned.
    buffers: Option<W>,
    release: fn(W),
}

/// The buffers `B` of one operation.
pub(crate) trait BufferSet<B> {
    /// Lists them.
    fn into_list(self) -> Vec<B>;
}

impl<B> BufferSet<B> for B {
    fn into_list(self) -> Vec<B> {
        vec![self]
    }
}

impl<B> BufferSet<B> for (B, B) {
    fn into_list(self) -> Vec<B> {
        vec![self.0, self.1]
    }
}

impl<B> BufferSet<B> for Vec<B> {
    fn into_list(self) -> Vec<B> {
        self
    }
}

impl<W> HeldBuffers<W> {
    /// Holds buffers `B` of any memory.
    pub(crate) fn new<B: GroupMemory>(buffers: W) -> Self
    where
        W: BufferSet<B>,
    {
        let release = |buffers: W| buffers.into_list().into_iter().for_each(B::release);
        Self { buffers: Some(buffers), release }
    }

    /// Holds buffers of GPUs whose uses may have no events: nothing can order their release.
    #[cfg(feature = "nccl")]
    pub(crate) fn without_events(buffers: W) -> Self {
        let release = |buffers| cuda::leak_memory(buffers, "an earlier call of cudarc has failed");
        Self { buffers: Some(buffers), release }
    }

    /// Returns the buffers, once.
    pub(crate) fn take(&mut self) -> Option<W> {
        self.buffers.take()
    }
}

/// Holds buffers of host memory.
impl<W> From<W> for HeldBuffers<W> {
    fn from(buffers: W) -> Self {
        Self { buffers: Some(buffers), release: drop }
    }
}

impl<W> Drop for HeldBuffers<W> {
    fn drop(&mut self) {
        if let Some(buffers) = self.take() {
            (self.release)(buffers);
        }
    }
}
