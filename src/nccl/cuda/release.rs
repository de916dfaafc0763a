//! Release of cudarc's objects after the uses of their memory.

use std::fmt::Display;
use std::mem;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut as _, DriverError};

use super::{
    bind_context, call_relaxed, own_result, refuse_captured, second_object, wait_for_stream, without_noted,
};
use crate::log;
use crate::nccl::error::Error;

const RELEASE: &str = "a release of memory";

/// Calls cudarc for a slice of `stream` like [`own_result`]. A slice with an error is released.
pub(crate) fn make_slice<T>(
    stream: &Arc<CudaStream>,
    make: impl FnOnce(&Arc<CudaStream>) -> Result<CudaSlice<T>, DriverError>,
) -> Result<CudaSlice<T>, DriverError> {
    let context = stream.context();
    without_noted(context, || {
        let made = make(stream);
        match (made, context.check_err()) {
            (Ok(slice), Err(noted)) => {
                release_slice(slice);
                Err(noted)
            }
            (made, _) => made,
        }
    })
}

/// Drops a slice after the events of its uses: cudarc's drop skips its waits while an error is noted, also
/// that of its own first wait, and for a context object whose streams it does not count. Leaks the slice with
/// a warning if its stream is captured or cannot wait.
pub(crate) fn release_slice<T>(mut slice: CudaSlice<T>) {
    let stream = Arc::clone(slice.stream());
    match order_release(&mut slice, &stream) {
        Ok(()) => without_noted(stream.context(), || drop(slice)),
        Err(error) => leak_memory(slice, error),
    }
}

fn order_release<T>(slice: &mut CudaSlice<T>, stream: &Arc<CudaStream>) -> Result<(), Error> {
    bind_context(stream.context())?;
    refuse_captured(RELEASE, stream)?;
    let _counted = count_stream(stream.context())?;
    wait_for_uses(RELEASE, slice, stream)?;
    if !stream.context().has_async_alloc() {
        // Without memory pools, cudarc frees the memory at once, and skips its wait while an error is noted.
        wait_for_stream(stream)?;
    }
    Ok(())
}

/// Makes the stream of a slice, which is not captured, wait for the events of its uses, which cudarc respects
/// only while it counts a stream of the slice's context object. Returns the slice's address.
///
/// # Errors
/// Those of the first wait that fails; [`Error::Stream`] if a use was captured, and the stream is now part of
/// this capture.
pub(crate) fn wait_for_uses<T>(
    operation: &'static str,
    slice: &mut CudaSlice<T>,
    stream: &CudaStream,
) -> Result<CUdeviceptr, Error> {
    // SAFETY: used only here, and the caller holds the stream.
    let second = unsafe { second_object(stream) }.map_err(Error::of_cuda("cuDevicePrimaryCtxRetain"))?;
    let (address, used) = slice.device_ptr_mut(&second);
    // Nothing is queued that it could record.
    mem::forget(used);
    second.context().check_err().map_err(Error::of_cuda("cuStreamWaitEvent"))?;
    refuse_captured(operation, stream)?;
    Ok(address)
}

/// Drops objects of cudarc with memory of a context while no error is noted there and cudarc counts a stream.
/// An error that one of the drops or another thread notes meanwhile hides the waits that follow: slices
/// themselves have [`release_slice`].
pub(crate) fn drop_in_order<T>(context: &Arc<CudaContext>, objects: T) {
    without_noted(context, || match count_stream(context) {
        Ok(_counted) => drop(objects),
        Err(error) => leak_memory(objects, error),
    });
}

/// Leaks memory of a GPU with a warning.
pub(crate) fn leak_memory<T>(memory: T, reason: impl Display) {
    mem::forget(memory);
    log::warn(format_args!(
        "memory of a GPU is leaked, since its release cannot be ordered after its uses: {reason}"
    ));
}

/// Makes a stream for which cudarc respects the context object's events as long as the result lives; none if
/// the program has disabled events. Unlike [`track_events`](super::track_events), it does not wait for work
/// that uses other memory: it may wait for ranks that this call keeps waiting.
fn count_stream(context: &Arc<CudaContext>) -> Result<Option<Arc<CudaStream>>, Error> {
    if !context.is_event_tracking() {
        return Ok(None);
    }
    let make_stream = || {
        if context.is_in_multi_stream_mode() {
            context.new_stream()
        } else {
            // `new_stream` would wait for all work of the context.
            context.default_stream().fork()
        }
    };
    call_relaxed(|| own_result(context, make_stream).map_err(Error::of_cuda("cuStreamCreate"))).map(Some)
}
