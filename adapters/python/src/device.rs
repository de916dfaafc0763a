//! The group's CUDA stream and those of frameworks.

use std::sync::Arc;

use collectives::cudarc::driver::CudaStream;
use collectives::job::{Foreign, Group};
use collectives::{Element, Error};

/// Number of the group's CUDA device, if it has one.
pub(crate) fn number(group: &Group) -> Option<usize> {
    group.context().map(|context| context.ordinal())
}

fn no_device() -> Error {
    Error::Buffer("the group's ranks use no GPU: make a group with job.group('gpu')".to_owned())
}

/// Lets the group's stream wait for the work that is queued on a framework's stream, and returns that stream.
pub(crate) fn wait_for(group: &Group, stream: usize) -> Result<Arc<CudaStream>, Error> {
    let own = group.stream().ok_or_else(no_device)?;
    // SAFETY: the framework names a stream of the device's primary context, which lives as long as its tensors are used on it.
    let stream = unsafe { own.context().wrap_borrowed_stream(stream as _) };
    own.join(&stream)?;
    Ok(stream)
}

/// A buffer of device memory.
///
/// # Safety
/// That of [`Foreign::device`].
pub(crate) unsafe fn buffer<T: Element>(group: &Group, address: usize, len: usize) -> Result<Foreign<T>, Error> {
    let stream = Arc::clone(group.stream().ok_or_else(no_device)?);
    // SAFETY: the caller's.
    Ok(unsafe { Foreign::device(address as u64, len, stream, ()) })
}
