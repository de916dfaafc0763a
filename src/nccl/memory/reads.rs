//! Order of accesses to cudarc's buffers that can run at the same time: reads, and writes of views of
//! different parts.
//!
//! cudarc keeps one event for all reads of a slice and one for all writes, and each access records it again:
//! an access on another stream is then forgotten, and the slice can be freed, read or written during it. So
//! the stream of an access waits for the event before it records it.

use std::mem;
use std::sync::{Condvar, Mutex, PoisonError};

use cudarc::driver::{CudaEvent, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop};

use crate::lock::lock;
use crate::nccl::cuda;

/// Handles of the events that threads are recording. Not one lock for all: a call of the driver can wait for
/// work that waits for a call of another thread, with other buffers.
static RECORDING: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static RECORDED: Condvar = Condvar::new();

/// Held from the wait for an event until its record: between them, another thread's record would be lost.
pub(crate) struct Recording(usize);

impl Recording {
    fn begin_recording(event: &CudaEvent) -> Self {
        let (event, mut recording) = (event.cu_event() as usize, lock(&RECORDING));
        while recording.contains(&event) {
            recording = RECORDED.wait(recording).unwrap_or_else(PoisonError::into_inner);
        }
        recording.push(event);
        Self(event)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        lock(&RECORDING).retain(|event| *event != self.0);
        RECORDED.notify_all();
    }
}

/// Records a queued access, in addition to earlier ones. A failure is noted as by cudarc, and nothing is
/// recorded then.
#[cold]
pub(super) fn record_access(queued: SyncOnDrop<'_>) {
    let Some((event, stream)) = to_record(&queued) else { return drop(queued) };
    let recording = Recording::begin_recording(event);
    match cuda::wait_for_queued(stream, event) {
        Ok(()) => drop(queued),
        Err(error) => {
            stream.context().record_err::<()>(Err(error));
            mem::forget(queued);
        }
    }
    drop(recording);
}

/// Calls cudarc for work on `stream` that reads a buffer, and records the read in addition to earlier ones.
///
/// # Errors
/// The call's, and before it if the last write of the buffer is part of a capture.
pub(crate) fn queue_read<T, R>(
    buffer: &impl DevicePtr<T>,
    stream: &CudaStream,
    call: impl FnOnce() -> Result<R, DriverError>,
) -> Result<R, DriverError> {
    let (_, queued) = buffer.device_ptr(stream);
    let event = to_record(&queued);
    // The call records its own read.
    mem::forget(queued);
    cuda::refuse_captured_copy(stream)?;
    let Some((event, _)) = event else { return call() };
    let _recording = Recording::begin_recording(event);
    cuda::wait_for_queued(stream, event)?;
    call()
}

/// Makes `stream`, which is about to write a buffer, wait for its earlier uses. Hold the result until cudarc
/// has recorded the write: another thread's record for another part of the slice would be lost.
///
/// # Errors
/// If an earlier use is part of a capture: the stream is then part of it as well.
pub(crate) fn begin_write<T>(
    buffer: &mut impl DevicePtrMut<T>,
    stream: &CudaStream,
) -> Result<Option<Recording>, DriverError> {
    let (_, queued) = buffer.device_ptr_mut(stream);
    let event = to_record(&queued);
    // The write records itself.
    mem::forget(queued);
    cuda::refuse_captured_copy(stream)?;
    let Some((event, _)) = event else { return Ok(None) };
    let recording = Recording::begin_recording(event);
    cuda::wait_for_queued(stream, event)?;
    Ok(Some(recording))
}

/// Returns the event of cudarc's next record, and its stream. If cudarc records nothing, as on a stream
/// captured without events, no earlier record is lost.
fn to_record<'a>(queued: &SyncOnDrop<'a>) -> Option<(&'a CudaEvent, &'a CudaStream)> {
    match *queued {
        SyncOnDrop::Record(recorded) => {
            recorded.filter(|(_, stream)| stream.context().is_managing_stream_synchronization())
        }
        SyncOnDrop::Sync(_) => None,
    }
}
