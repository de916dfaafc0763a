//! The group's CUDA stream and those of frameworks.

use std::sync::Arc;

use collectives::cudarc::driver::CudaStream;
use collectives::job::{DeviceMemory, Group};
use collectives::{Element, Error};

use crate::tensor::Tensor;

/// Number of the group's CUDA device, if it has one.
pub(crate) fn number(group: &Group) -> Option<usize> {
    group.context().map(|context| context.ordinal())
}

fn no_device() -> Error {
    Error::Buffer("the group's ranks use no GPU: make a group with job.group('gpu')".to_owned())
}

/// The stream in whose order a framework uses and frees its tensors, and the group's, on which operations use them.
pub(crate) struct Streams {
    pub(crate) framework: Arc<CudaStream>,
    group: Arc<CudaStream>,
}

impl Streams {
    /// Lets the group's stream wait for the work that is queued on a framework's stream.
    pub(crate) fn join(group: &Group, framework: usize) -> Result<Self, Error> {
        let group = Arc::clone(group.stream().ok_or_else(no_device)?);
        // SAFETY: the framework names a stream of the device's primary context, which lives as long as its tensors are used on it.
        let framework = unsafe { group.context().wrap_borrowed_stream(framework as _) };
        group.join(&framework)?;
        Ok(Self { framework, group })
    }

    /// Releases tensors that operations may still use: the framework's stream waits for the group's first. If it cannot, the tensors
    /// are never released.
    pub(crate) fn release(&self, tensors: Vec<Tensor>) {
        if self.framework.join(&self.group).is_err() {
            std::mem::forget(tensors);
        }
    }
}

/// The memory of a tensor as a buffer of the group, whose stream waits for the tensor's ([`Streams::join`]).
pub(crate) fn memory<T: Element>(group: &Group, tensor: &Tensor) -> Result<DeviceMemory<T>, Error> {
    let stream = Arc::clone(group.stream().ok_or_else(no_device)?);
    // SAFETY: DLPack describes so many elements of this type in the device's primary context, aligned (`Tensor` checks it). They
    // stay allocated until `Pending` drops the tensor: after the operation, or after the tensor's stream waits for it (also where it
    // fails), in whose order its framework frees it. The program leaves them alone until then (README.md).
    Ok(unsafe { DeviceMemory::from_raw(tensor.address as u64, tensor.len, stream, ()) })
}
