//! The group's CUDA stream and the streams of frameworks.

use std::sync::Arc;

use collectives::cudarc::driver::CudaStream;
use collectives::cudarc::driver::sys::CUstreamCaptureStatus;
use collectives::job::{DeviceMemory, Group};
use collectives::{Element, Error};

use crate::tensor::Tensor;

/// Number of the group's CUDA device, if it has one.
pub(crate) fn number(group: &Group) -> Option<usize> {
    group.context().map(|context| context.ordinal())
}

/// CUDA's handle of the per-thread default stream.
const PER_THREAD: usize = 2;

fn no_device() -> Error {
    Error::Buffer("the group's ranks use no GPU: make a group with job.group('gpu')".to_owned())
}

/// A framework's stream, for the use and release of its tensors, and the group's stream, for their use in
/// operations. The framework's stream exists until the operation is done or has been waited for (README.md).
pub(crate) struct Streams {
    pub(crate) framework: Arc<CudaStream>,
    group: Arc<CudaStream>,
}

impl Streams {
    /// Lets the group's stream wait for the work queued on a framework's stream.
    pub(crate) fn join(group: &Group, framework: usize) -> Result<Self, Error> {
        if framework == PER_THREAD {
            return Err(Error::Buffer(
                "the per-thread default stream is a different stream on every thread: use a stream of your \
                 own"
                .to_owned(),
            ));
        }
        let group = Arc::clone(group.stream().ok_or_else(no_device)?);
        // SAFETY: the framework names a stream of the device's primary context, live as long as its tensors
        // are used on it.
        let framework = unsafe { group.context().wrap_borrowed_stream(framework as _) };
        let streams = Self { framework, group };
        streams.refuse_captured()?;
        streams.group.join(&streams.framework)?;
        Ok(streams)
    }

    /// Refuses a framework's stream during its capture: a CUDA graph would run the operation on this rank
    /// alone.
    pub(crate) fn refuse_captured(&self) -> Result<(), Error> {
        match self.framework.capture_status()? {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(Error::Buffer(
                "the current CUDA stream is being captured for a graph: call collectives outside of the \
                 capture"
                    .to_owned(),
            )),
        }
    }

    /// Releases tensors of a failed group. Its operations may still use them, so the framework's stream waits
    /// for the group's first. If it cannot, the tensors are never released.
    pub(crate) fn release(&self, tensors: Vec<Tensor>) {
        if self.refuse_captured().is_err() || self.framework.join(&self.group).is_err() {
            std::mem::forget(tensors);
        }
    }
}

/// Returns the memory of a tensor as a buffer of the group. The group's stream waits for the tensor's
/// ([`Streams::join`]).
pub(crate) fn memory<T: Element>(group: &Group, tensor: &Tensor) -> Result<DeviceMemory<T>, Error> {
    let stream = Arc::clone(group.stream().ok_or_else(no_device)?);
    // SAFETY: DLPack describes so many elements of this type in the device's primary context, aligned
    // (`Tensor` checks it). They stay allocated until `Pending` drops the tensor: after the operation, or
    // once the framework's stream (the tensor is freed in its order) waits for the operation or for the
    // failed group. The program leaves them alone until then (README.md).
    Ok(unsafe { DeviceMemory::from_raw(tensor.address as u64, tensor.len, stream, ()) })
}
