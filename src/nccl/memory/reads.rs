//! Order of reads of cudarc's buffers.
//!
//! cudarc keeps one event for all reads of a slice, and each read records it again: a read on another stream is then forgotten, and
//! the slice can be freed or written while that read goes on. So the stream of a read waits for the event before it records it.

use std::mem;
use std::sync::Mutex;

use cudarc::driver::{CudaStream, DevicePtr, DriverError, SyncOnDrop};

use crate::lock::lock;

/// Held from the wait until the record: between them, another thread's record would be lost.
static RECORDING: Mutex<()> = Mutex::new(());

/// Records a read that has been queued, in addition to earlier ones. A failure is noted as by cudarc, and nothing is recorded then.
#[cold]
pub(super) fn record(queued: SyncOnDrop<'_>) {
    let _recording = lock(&RECORDING);
    if let Err((stream, error)) = include_earlier(&queued) {
        stream.context().record_err::<()>(Err(error));
        mem::forget(queued);
    }
}

/// Calls cudarc for work on `stream` that reads a buffer, and records that in addition to earlier reads.
pub(crate) fn queue_read<T, R>(
    buffer: &impl DevicePtr<T>,
    stream: &CudaStream,
    call: impl FnOnce() -> Result<R, DriverError>,
) -> Result<R, DriverError> {
    let _recording = lock(&RECORDING);
    let (_, queued) = buffer.device_ptr(stream);
    let included = include_earlier(&queued).map_err(|(_, error)| error);
    // The call records its own read.
    mem::forget(queued);
    included.and_then(|()| call())
}

/// Makes the stream that is about to record an event wait for the event. Where cudarc records nothing, as on a stream that is being
/// captured without events, there is nothing to wait for.
fn include_earlier<'a>(queued: &SyncOnDrop<'a>) -> Result<(), (&'a CudaStream, DriverError)> {
    match *queued {
        SyncOnDrop::Record(Some((event, stream)))
            if stream.context().is_managing_stream_synchronization() =>
        {
            stream.wait(event).map_err(|error| (stream, error))
        }
        _ => Ok(()),
    }
}
