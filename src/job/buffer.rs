//! Buffers of a group's operations, and the backends that serve them.

#[cfg(feature = "nccl")]
use cudarc::driver::CudaSlice;

#[cfg(feature = "nccl")]
use super::device_memory::DeviceMemory;
#[cfg(feature = "nccl")]
use super::gpu::GpuGroup;
#[cfg(feature = "fabric")]
use super::host::HostGroup;
#[cfg(feature = "fabric")]
use super::host_buffer::HostBuffer as _;
#[cfg(feature = "fabric")]
use super::host_memory::HostMemory;
use super::work::Work;
#[cfg(all(feature = "fabric", feature = "nccl"))]
use crate::Error;
#[cfg(feature = "nccl")]
use crate::nccl::DeviceBuffer;
use crate::{Element, ReduceOp};

/// A rank's connection to the others of its group.
#[derive(Clone)]
pub struct Connection(pub(crate) Backing);

/// The backend of a connection.
#[derive(Clone)]
pub(crate) enum Backing {
    #[cfg(feature = "fabric")]
    Host(HostGroup),
    #[cfg(feature = "nccl")]
    Gpu(GpuGroup),
}

/// Memory that a [`Group`](super::Group)'s operations own while they run: `Vec<T>` or `HostMemory<T>` on
/// hosts, and cudarc's `CudaSlice<T>` or `DeviceMemory<T>` on GPUs, of any [`Element`]. Other types cannot
/// implement it.
pub trait Buffer: operations::Operations + Send + 'static {
    /// Type of the elements.
    type Element: Element;

    /// Number of elements.
    fn len(&self) -> usize;

    /// True if there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(feature = "fabric")]
impl<T: Element> Buffer for Vec<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "nccl")]
impl<T: Element> Buffer for CudaSlice<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "fabric")]
impl<T: Element> Buffer for HostMemory<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.elements().len()
    }
}

#[cfg(feature = "nccl")]
impl<T: Element> Buffer for DeviceMemory<T> {
    type Element = T;

    fn len(&self) -> usize {
        DeviceBuffer::len(self)
    }
}

pub(crate) mod operations {
    use super::{Connection, ReduceOp, Work};

    /// Operations of the backend to which the buffers belong.
    pub trait Operations: Sized {
        fn all_reduce(connection: &Connection, data: Self, op: ReduceOp) -> Work<Self>;
        fn broadcast(connection: &Connection, data: Self, root: usize) -> Work<Self>;
        fn all_gather(connection: &Connection, part: Self, whole: Self) -> Work<(Self, Self)>;
        fn reduce_scatter(
            connection: &Connection,
            whole: Self,
            part: Self,
            op: ReduceOp,
        ) -> Work<(Self, Self)>;
        fn all_reduce_list(connection: &Connection, data: Vec<Self>, op: ReduceOp) -> Work<Vec<Self>>;
    }
}

/// Implements the operations of a kind of memory by those of its backend.
macro_rules! operations_of {
    ($on:ident) => {
        fn all_reduce(connection: &Connection, data: Self, op: ReduceOp) -> Work<Self> {
            $on(connection, "all_reduce", data, |group, data| group.all_reduce(data, op))
        }

        fn broadcast(connection: &Connection, data: Self, root: usize) -> Work<Self> {
            $on(connection, "broadcast", data, |group, data| group.broadcast(data, root))
        }

        fn all_gather(connection: &Connection, part: Self, whole: Self) -> Work<(Self, Self)> {
            $on(connection, "all_gather", (part, whole), |group, (part, whole)| group.all_gather(part, whole))
        }

        fn reduce_scatter(
            connection: &Connection,
            whole: Self,
            part: Self,
            op: ReduceOp,
        ) -> Work<(Self, Self)> {
            $on(connection, "reduce_scatter", (whole, part), |group, (whole, part)| {
                group.reduce_scatter(whole, part, op)
            })
        }

        fn all_reduce_list(connection: &Connection, data: Vec<Self>, op: ReduceOp) -> Work<Vec<Self>> {
            $on(connection, "all_reduce_list", data, |group, data| group.all_reduce_list(data, op))
        }
    };
}

#[cfg(feature = "fabric")]
impl<T: Element> operations::Operations for Vec<T> {
    operations_of!(on_host);
}

#[cfg(feature = "fabric")]
impl<T: Element> operations::Operations for HostMemory<T> {
    operations_of!(on_host);
}

#[cfg(feature = "nccl")]
impl<T: Element> operations::Operations for CudaSlice<T> {
    operations_of!(on_gpu);
}

#[cfg(feature = "nccl")]
impl<T: Element> operations::Operations for DeviceMemory<T> {
    operations_of!(on_gpu);
}

#[cfg(feature = "fabric")]
#[cfg_attr(not(feature = "nccl"), allow(unused_variables, reason = "there is no other memory"))]
fn on_host<B>(
    connection: &Connection,
    operation: &str,
    buffers: B,
    start: impl FnOnce(&HostGroup, B) -> Work<B>,
) -> Work<B> {
    match &connection.0 {
        Backing::Host(host) => start(host, buffers),
        #[cfg(feature = "nccl")]
        Backing::Gpu(_) => {
            let error = other_backend(operation, "host memory", "GPUs", "a CudaSlice", "Host");
            Work::not_begun(error, Some(buffers))
        }
    }
}

#[cfg(feature = "nccl")]
#[cfg_attr(not(feature = "fabric"), allow(unused_variables, reason = "there is no other memory"))]
fn on_gpu<B>(
    connection: &Connection,
    operation: &str,
    buffers: B,
    start: impl FnOnce(&GpuGroup, B) -> Work<B>,
) -> Work<B> {
    match &connection.0 {
        Backing::Gpu(gpu) => start(gpu, buffers),
        #[cfg(feature = "fabric")]
        Backing::Host(_) => {
            let error = other_backend(operation, "memory of a GPU", "hosts", "a Vec", "Gpu");
            Work::not_begun(error, Some(buffers))
        }
    }
}

#[cfg(all(feature = "fabric", feature = "nccl"))]
fn other_backend(operation: &str, memory: &str, place: &str, instead: &str, backend: &str) -> Error {
    Error::Buffer(format!(
        "{operation}: the buffer is {memory}, but this group is one of {place}: pass {instead}, or make the \
         group with Backend::{backend}"
    ))
}
