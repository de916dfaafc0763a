//! Buffers of an operation while the library holds them.

/// Buffers that an operation holds. Dropping this value releases them, GPU buffers after their uses on other
/// streams.
pub(crate) struct HeldBuffers<W> {
    /// `None` once they are returned.
    buffers: Option<W>,
    release: fn(W),
}

impl<W> HeldBuffers<W> {
    /// Holds buffers that `release` drops.
    pub(crate) fn new(buffers: W, release: fn(W)) -> Self {
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
        Self::new(buffers, drop)
    }
}

impl<W> Drop for HeldBuffers<W> {
    fn drop(&mut self) {
        if let Some(buffers) = self.take() {
            (self.release)(buffers);
        }
    }
}
