//! Buffers of a group's operations.

use super::held::HeldBuffers;
use crate::Element;

/// Memory that a [`Group`](super::Group)'s operations own while they run: `Vec<T>` or `HostMemory<T>` on
/// hosts, and cudarc's `CudaSlice<T>` or `DeviceMemory<T>` on GPUs, of any [`Element`]. Other types cannot
/// implement it.
pub trait Buffer: memory::GroupMemory + Send + 'static {
    /// Type of the elements.
    type Element: Element;

    /// Number of elements.
    fn len(&self) -> usize;

    /// True if there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

pub(crate) mod memory {
    #[cfg(feature = "nccl")]
    use std::sync::Arc;

    #[cfg(feature = "nccl")]
    use cudarc::driver::CudaContext;

    use crate::job::group_backend::Operations;

    /// Memory of one of the backends.
    pub trait GroupMemory: Sized {
        /// The backend's rank of a group.
        type Group: Operations<Self> + 'static;

        /// The object in which cudarc notes errors of the memory's events; `None` for memory without events.
        #[cfg(feature = "nccl")]
        fn context(&self) -> Option<Arc<CudaContext>> {
            None
        }

        /// Drops the memory, on GPUs after its uses.
        fn release(self) {
            drop(self);
        }
    }
}

/// Returns two memories, or releases the first one with the error of the second.
pub(crate) fn pair_memory<M: memory::GroupMemory, T, E>(first: M, second: Result<T, E>) -> Result<(M, T), E> {
    match second {
        Ok(second) => Ok((first, second)),
        Err(error) => {
            first.release();
            Err(error)
        }
    }
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

/// Holds buffers of any memory.
pub(crate) fn hold_buffers<B: memory::GroupMemory, W: BufferSet<B>>(buffers: W) -> HeldBuffers<W> {
    HeldBuffers::new(buffers, |buffers| buffers.into_list().into_iter().for_each(B::release))
}
