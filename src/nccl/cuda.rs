//! Availability of the CUDA driver, and the current context.
//!
//! cudarc panics without libcuda. Call [`available`] first, as everything in [`nccl`](super) does.

mod release;

use std::sync::{Arc, OnceLock};
use std::{cell::Cell, env, path::PathBuf};

use cudarc::driver::sys::{
    self, CUevent, CUevent_flags, CUevent_wait_flags, CUmemAccess_flags, CUmemAccessDesc, CUmemLocationType,
    CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};
use libloading::Library;

pub(crate) use release::{drop_in_order, leak_memory, make_slice, release_slice, wait_for_uses};

use super::error::Error;

/// Minimum driver API version, as returned by cuDriverGetVersion: CUDA 12.0.
const OLDEST: i32 = 12_000;

/// Checks that the CUDA driver library is installed and new enough, and initialises it (`cuInit`). The first
/// result is cached.
///
/// # Errors
/// [`Error::NoDriver`] with the reason; [`Error::NoDevice`] if the driver shows this process no GPU.
pub fn available() -> Result<(), Error> {
    static ANSWER: OnceLock<Result<(), Error>> = OnceLock::new();
    ANSWER.get_or_init(probe_driver).clone()
}

fn probe_driver() -> Result<(), Error> {
    // By cudarc's names on Linux. cudarc's own function for this, `is_culib_present`, is missing when another
    // crate of the program has cudarc link libcuda (`dynamic-linking`). SAFETY: loading libcuda has no
    // preconditions.
    let open = |name| unsafe { Library::new(name) };
    let opened = open("libcuda.so.1").or_else(|error| open("libcuda.so").map_err(|_| error));
    let opened = opened
        .map_err(|error| Error::NoDriver { reason: format!("libcuda.so.1 cannot be loaded: {error}") })?;
    for name in ["cuDriverGetVersion", "cuInit"] {
        // cudarc panics if one of them is missing.
        // SAFETY: the symbol is not used.
        if let Err(error) = unsafe { opened.get::<unsafe extern "C" fn()>(name) } {
            return Err(Error::NoDriver { reason: format!("libcuda.so.1 is not a CUDA driver: {error}") });
        }
    }
    let version = supported_version()?;
    if version < OLDEST {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        let reason = format!("the driver supports CUDA {major}.{minor}; 12.0 or newer is needed");
        return Err(Error::NoDriver { reason });
    }
    result::init().map_err(|error| refused_error(error.0))
}

/// Error of a failed `cuInit`. It reports "no device" also if CUDA_VISIBLE_DEVICES hides all devices.
fn refused_error(code: CUresult) -> Error {
    match code {
        CUresult::CUDA_ERROR_NO_DEVICE => {
            Error::NoDevice { visible: env::var_os("CUDA_VISIBLE_DEVICES").map(PathBuf::from) }
        }
        _ => Error::NoDriver { reason: format!("cuInit returned {code:?}") },
    }
}

/// Returns the newest CUDA version supported by libcuda. libcuda must be loaded.
fn supported_version() -> Result<i32, Error> {
    let mut version = 0;
    // SAFETY: writes one int; allowed before cuInit; every libcuda has it.
    match unsafe { sys::cuDriverGetVersion(&mut version) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        code => Err(Error::NoDriver { reason: format!("cuDriverGetVersion returned {code:?}") }),
    }
}

/// Returns the newest CUDA version supported by the driver (`cuDriverGetVersion`): 13000 for 13.0. Errors are
/// those of [`available`].
pub fn driver_version() -> Result<i32, Error> {
    available()?;
    supported_version()
}

/// Returns the number of CUDA devices of this process (`cuDeviceGetCount`). Errors are those of
/// [`available`].
pub fn device_count() -> Result<usize, Error> {
    available()?;
    let count = CudaContext::device_count().map_err(Error::of_cuda("cuDeviceGetCount"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// `CU_STREAM_LEGACY`, the same stream as handle 0. Each context has its own.
const LEGACY_STREAM: usize = 1;
const PER_THREAD_STREAM: usize = 2;

/// True for the legacy default stream of the current context.
#[inline]
pub(crate) fn is_default(stream: &CudaStream) -> bool {
    stream.cu_stream() as usize <= LEGACY_STREAM
}

pub(crate) fn check_stream(operation: &'static str, stream: &CudaStream) -> Result<(), Error> {
    if stream.context().is_primary() {
        return refuse_per_thread(operation, stream);
    }
    let reason = "the stream's context is not its device's primary context, but NCCL uses the primary \
                  context; make it with CudaContext::new";
    Err(Error::Stream { operation, reason })
}

/// Refuses a per-thread default stream: it is a different stream on every thread, so waiting on one thread
/// does not order work of others.
pub(crate) fn refuse_per_thread(operation: &'static str, stream: &CudaStream) -> Result<(), Error> {
    if stream.cu_stream() as usize != PER_THREAD_STREAM {
        return Ok(());
    }
    let reason = "a per-thread default stream is a different stream on every thread; use \
                  CudaContext::new_stream or CudaContext::default_stream";
    Err(Error::Stream { operation, reason })
}

const CAPTURED: &str = "the stream is being captured into a CUDA graph, and a graph does not keep buffers \
                        alive: end the capture first, and use Graph::capture, or Communicator::captured \
                        (unsafe)";

/// Refuses a stream under capture: a graph can be launched at any time, and does not keep buffers. Its
/// context is current.
#[inline]
pub(crate) fn refuse_captured(operation: &'static str, stream: &CudaStream) -> Result<(), Error> {
    // SAFETY: the stream is alive: cudarc's object holds it.
    match unsafe { result::stream::is_capturing(stream.cu_stream()) } {
        Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) => Ok(()),
        Ok(_) => Err(Error::Stream { operation, reason: CAPTURED }),
        Err(error) => Err(capture_status_error(operation, error)),
    }
}

/// `cuStreamIsCapturing` fails for the legacy default stream while a stream ordered with it is captured.
#[cold]
fn capture_status_error(operation: &'static str, error: DriverError) -> Error {
    match error.0 {
        CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Error::Stream { operation, reason: CAPTURED },
        _ => Error::Cuda { operation: "cuStreamIsCapturing", error },
    }
}

thread_local! {
    /// True once [`bind_context`] has been called on this thread.
    static BOUND: Cell<bool> = const { Cell::new(false) };
}

/// Ensures that this thread has a context before a call in which NCCL changes devices and restores the
/// previous one. Without a context it would restore the first GPU, and create a context there.
#[inline]
pub(crate) fn bind_once(context: &CudaContext) -> Result<(), Error> {
    if BOUND.get() { Ok(()) } else { bind_context(context) }
}

/// Makes the context current on this thread, unless it is already.
#[inline]
pub(crate) fn bind_context(context: &CudaContext) -> Result<(), Error> {
    BOUND.set(true);
    let current = result::ctx::get_current().map_err(Error::of_cuda("cuCtxGetCurrent"))?;
    if current == Some(context.cu_ctx()) {
        return Ok(());
    }
    // SAFETY: the context is alive: cudarc's object holds it.
    unsafe { result::ctx::set_current(context.cu_ctx()) }.map_err(Error::of_cuda("cuCtxSetCurrent"))
}

/// Waits for all work of the stream. Its context is current. (cudarc's `synchronize` does not wait after a
/// recorded failure.)
pub(crate) fn wait_for_stream(stream: &CudaStream) -> Result<(), Error> {
    call_relaxed(|| wait_unrelaxed(stream))
}

/// Waits like [`wait_for_stream`], without [`call_relaxed`]: fails if a capture forbids this thread to wait.
pub(crate) fn wait_unrelaxed(stream: &CudaStream) -> Result<(), Error> {
    // SAFETY: the stream is alive: cudarc's object holds it.
    unsafe { result::stream::synchronize(stream.cu_stream()) }.map_err(Error::of_cuda("cuStreamSynchronize"))
}

/// Makes a second object for the stream, with a context object of its own: for the driver, stream and context
/// are the same. cudarc notes errors in a context object (any thread may add or take one there), and neither
/// waits for nor records anything while one is noted. In the second object, only its owner notes errors.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` for a context other than the device's primary one; the driver's errors.
///
/// # Safety
/// The result is used only while `stream` lives.
pub(crate) unsafe fn second_object(stream: &CudaStream) -> Result<Arc<CudaStream>, DriverError> {
    if !stream.context().is_primary() {
        return Err(DriverError(CUresult::CUDA_ERROR_INVALID_CONTEXT));
    }
    let context = CudaContext::new(stream.context().ordinal())?;
    // SAFETY: a stream of this context, the device's primary one; it outlives the use of the result. For the
    // driver, work queued through either object is in the order of one stream.
    Ok(unsafe { context.wrap_borrowed_stream(stream.cu_stream()) })
}

/// Makes `second` wait for the queued work of `first`, a stream of the event's context. (cudarc's functions
/// fail after an error noted by other code.)
pub(crate) fn order_streams(event: &CudaEvent, first: &CudaStream, second: &CudaStream) -> Result<(), Error> {
    record_event(event.cu_event(), first)?;
    if second.context() != first.context() {
        bind_context(second.context())?;
    }
    make_wait_for_event(second, event.cu_event())
}

fn record_event(event: CUevent, stream: &CudaStream) -> Result<(), Error> {
    bind_context(stream.context())?;
    // SAFETY: both are alive: the callers hold their owners.
    unsafe { result::event::record(event, stream.cu_stream()) }.map_err(Error::of_cuda(ORDER))
}

/// Makes a stream of the current context wait for an event.
fn make_wait_for_event(stream: &CudaStream, event: CUevent) -> Result<(), Error> {
    let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: as above.
    unsafe { result::stream::wait_event(stream.cu_stream(), event, flags) }.map_err(Error::of_cuda(ORDER))
}

/// Driver function of errors about the order of two streams.
const ORDER: &str = "cuStreamWaitEvent";

/// An event. Its functions return their own errors only; the functions of cudarc's events also return errors
/// noted by other code.
pub(crate) struct Event {
    raw: CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: the driver's functions on events can be called by any thread, and by several at the same time.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        bind_context(context)?;
        let raw = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Self { raw: raw.map_err(Error::of_cuda("cuEventCreate"))?, context: Arc::clone(context) })
    }

    pub(crate) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Records the queued work of a stream of the event's context.
    pub(crate) fn record_stream(&self, stream: &CudaStream) -> Result<(), Error> {
        record_event(self.raw, stream)
    }

    /// Makes a stream wait for the recorded work.
    pub(crate) fn make_wait(&self, stream: &CudaStream) -> Result<(), Error> {
        bind_context(stream.context())?;
        make_wait_for_event(stream, self.raw)
    }

    /// True once the recorded work is done.
    pub(crate) fn is_complete(&self) -> Result<bool, Error> {
        // SAFETY: the event is alive.
        unsafe { is_complete(self.raw) }
    }
}

/// True once the recorded work of an event is done, and if none is recorded. Fails with
/// `CUDA_ERROR_CAPTURED_EVENT` if the work was recorded in a capture.
///
/// # Safety
/// The event is alive.
unsafe fn is_complete(event: CUevent) -> Result<bool, Error> {
    // SAFETY: by the contract above.
    call_relaxed(|| match unsafe { result::event::query(event) } {
        Ok(()) => Ok(true),
        Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
        Err(error) => Err(Error::Cuda { operation: "cuEventQuery", error }),
    })
}

/// Makes a stream wait for the work of cudarc's event. Work of a capture is not queued: there is nothing to
/// wait for, and the stream would become part of the capture.
pub(crate) fn wait_for_queued(stream: &CudaStream, event: &CudaEvent) -> Result<(), DriverError> {
    // SAFETY: cudarc's object keeps the event alive.
    match unsafe { is_complete(event.cu_event()) }.map_err(driver_error) {
        Ok(false) => stream.wait(event),
        Ok(true) | Err(DriverError(CUresult::CUDA_ERROR_CAPTURED_EVENT)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Refuses a copy on a captured stream.
pub(crate) fn refuse_captured_copy(stream: &CudaStream) -> Result<(), DriverError> {
    bind_context(stream.context()).and_then(|()| refuse_captured(COPY, stream)).map_err(driver_error)
}

pub(crate) const COPY: &str = "a copy of memory";

/// Returns the part of an error that cudarc can pass on.
pub(crate) fn driver_error(error: Error) -> DriverError {
    match error {
        Error::Cuda { error, .. } => error,
        _ => DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the driver frees the event once its recorded work is done; nothing uses it any more.
        let _failed_context =
            bind_context(&self.context).map(|()| unsafe { result::event::destroy(self.raw) });
    }
}

/// Calls cudarc for the result of the call itself, including an error that it only notes. If cudarc cannot
/// return an error, it notes it in the context, and returns it from any later call. Errors noted before stay
/// noted for the code they concern.
pub(crate) fn own_result<T>(
    context: &CudaContext,
    call: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    without_noted(context, || {
        let result = call();
        let noted = context.check_err();
        result.and_then(|value| noted.map(|()| value))
    })
}

/// Calls cudarc like [`own_result`] for work that uses memory of another context object than its stream's: an
/// error noted in either would be returned.
pub(crate) fn own_result_among<T>(
    [stream, memory]: [&CudaContext; 2],
    call: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    without_noted(memory, || own_result(stream, call))
}

/// Calls cudarc like [`own_result_among`] for work on `stream`. Waits for the work after an error: it may be
/// queued without the event of a buffer, and cudarc does not order uses on other streams after it then.
pub(crate) fn queue_work<T>(
    stream: &CudaStream,
    memory: &CudaContext,
    queue: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    own_result_among([stream.context(), memory], queue).inspect_err(|_| {
        // A wait would end a capture, in which nothing is queued.
        if refuse_captured_copy(stream).is_ok() {
            _ = wait_for_stream(stream);
        }
    })
}

/// Runs calls of cudarc while errors noted before are put aside.
pub(crate) fn without_noted<R>(context: &CudaContext, calls: impl FnOnce() -> R) -> R {
    let noted = context.check_err();
    let result = calls();
    context.record_err(noted);
    result
}

/// Waits for all work of the context. Fails if a capture forbids it.
pub(crate) fn wait_for_context(context: &CudaContext) -> Result<(), Error> {
    bind_context(context)?;
    call_relaxed(|| result::ctx::synchronize().map_err(Error::of_cuda("cuCtxSynchronize")))
}

/// True while cudarc neither waits for events of this context object nor records them. It respects events
/// only while a stream of [`CudaContext::new_stream`] exists. Another thread may make or drop such a stream
/// at any time, so only the caller's own stream proves that cudarc respects events ([`track_events`]).
fn ignores_events(context: &CudaContext) -> bool {
    context.is_event_tracking() && !context.is_in_multi_stream_mode()
}

/// Makes cudarc respect the events of a context object as long as the result lives. If cudarc has ignored the
/// context object's events, waits for all its work.
pub(crate) fn track_events(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, Error> {
    if ignores_events(context) {
        // cudarc also waits, but counts the stream even if the wait fails.
        wait_for_context(context).map_err(|error| match error {
            Error::Cuda { error: DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), .. } => {
                Error::Stream {
                    operation: "waiting for work without recorded events",
                    reason: "a stream of the device is being captured: make a stream with \
                             CudaContext::new_stream before",
                }
            }
            other => other,
        })?;
    }
    own_result(context, || context.new_stream()).map_err(Error::of_cuda("cuStreamCreate"))
}

/// Adds a stream of [`track_events`] to the streams of other context objects in `kept`, unless it has one or
/// event tracking is off.
pub(crate) fn keep_tracking(
    kept: &mut Vec<Arc<CudaStream>>,
    context: &Arc<CudaContext>,
) -> Result<(), Error> {
    // A context object held only by its stream in the list has no buffers.
    kept.retain(|stream| Arc::strong_count(stream.context()) > 1);
    if context.is_event_tracking() && !kept.iter().any(|stream| Arc::ptr_eq(stream.context(), context)) {
        kept.push(track_events(context)?);
    }
    Ok(())
}

/// Makes `second` wait for the queued work of `first`, NCCL's stream. If this fails, the host waits for
/// `first`, since memory of `second` may be freed in the order of `second` from then on.
pub(crate) fn make_wait(event: &CudaEvent, first: &CudaStream, second: &CudaStream) -> Result<(), Error> {
    order_streams(event, first, second).inspect_err(|_| _ = wait_for_stream(first))
}

/// True if the stream has no work left. Its context is current.
pub(crate) fn is_idle(stream: &CudaStream) -> Result<bool, Error> {
    // SAFETY: the stream is alive: cudarc's object holds it.
    call_relaxed(|| match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => code.result().map(|()| true).map_err(Error::of_cuda("cuStreamQuery")),
    })
}

/// Runs driver calls unrelated to any captured stream. Otherwise, while this thread captures any stream, or
/// another thread does in global mode, CUDA would refuse to wait for work, query it or free memory, and
/// invalidate the capture.
pub(crate) fn call_relaxed<T>(calls: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges this thread's mode with the one behind the pointer, now and to restore it below.
    let mut exchange = || unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result();
    let operation = "cuThreadExchangeStreamCaptureMode";
    exchange().map_err(Error::of_cuda(operation))?;
    let result = calls();
    exchange().map_err(Error::of_cuda(operation)).and(result)
}

/// `CUmemAccessDesc` of a device, in the layout of every CUDA version. (cudarc's struct depends on its
/// features.)
#[repr(C)]
struct DeviceAccess {
    location: CUmemLocationType,
    device: i32,
    flags: CUmemAccess_flags,
}

const _: () = assert!(size_of::<DeviceAccess>() == size_of::<CUmemAccessDesc>());

/// Gives the process's other GPUs access to the device's memory pool: cudarc allocates from it. Before 2.23,
/// NCCL accesses the buffers of ranks in its process directly, and requires this access.
pub(crate) fn share_pool(context: &CudaContext) -> Result<(), Error> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    let mut peers = Vec::new();
    for ordinal in 0..CudaContext::device_count().map_err(Error::of_cuda("cuDeviceGetCount"))? {
        let peer = result::device::get(ordinal).map_err(Error::of_cuda("cuDeviceGet"))?;
        let mut reachable = 0;
        // SAFETY: both devices are valid; writes one int.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&mut reachable, peer, context.cu_device()) };
        code.result().map_err(Error::of_cuda("cuDeviceCanAccessPeer"))?;
        if peer != context.cu_device() && reachable != 0 {
            let location = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            peers.push(DeviceAccess { location, device: peer, flags });
        }
    }
    if peers.is_empty() {
        return Ok(());
    }
    // SAFETY: the device is valid.
    let pool = unsafe { result::device::get_mem_pool(context.cu_device()) }
        .map_err(Error::of_cuda("cuDeviceGetMemPool"))?;
    // SAFETY: the pool is the device's own, and the list has this number of entries.
    let code = unsafe { sys::cuMemPoolSetAccess(pool, peers.as_ptr().cast(), peers.len()) };
    code.result().map_err(Error::of_cuda("cuMemPoolSetAccess"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fake driver always has devices.
    #[test]
    fn a_driver_without_a_visible_gpu_is_not_a_missing_driver() {
        assert!(matches!(refused_error(CUresult::CUDA_ERROR_NO_DEVICE), Error::NoDevice { .. }));
        let mismatch = refused_error(CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH).to_string();
        assert!(mismatch.contains("cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{mismatch}");
    }
}
