//! CUDA graphs of NCCL's work on one device, captured on private streams.

use std::{mem, ptr, sync::Arc};

use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use nccl_sys::cudaStream_t;

use crate::log;
use crate::nccl::cuda;
use crate::nccl::error::{Error, each_first_error};

/// A stream for capturing. (Not one of cudarc: with a second stream, cudarc begins to track events of
/// buffers.)
#[derive(Debug)]
pub(super) struct PrivateStream {
    raw: CUstream,
    /// Stream of the graph's launches.
    stream: Arc<CudaStream>,
    capturing: bool,
}

impl PrivateStream {
    /// A stream on the device of `stream`.
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        cuda::bind_context(stream.context())?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(Error::of_cuda("cuStreamCreate"))?;
        Ok(Self { raw, stream: Arc::clone(stream), capturing: false })
    }

    pub(super) fn begin_capture(&mut self) -> Result<(), Error> {
        cuda::bind_context(self.stream_context())?;
        // Only NCCL calls the driver until the end of the capture, and its allocations are its own matter.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and its context current.
        unsafe { result::stream::begin_capture(self.raw, mode) }
            .map_err(Error::of_cuda("cuStreamBeginCapture"))?;
        self.capturing = true;
        Ok(())
    }

    pub(super) fn raw_stream(&self) -> cudaStream_t {
        self.raw as cudaStream_t
    }

    pub(super) fn stream_context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Ends the capture, and adds its graph to `graphs`. Streams of `streams` on this device are ordered with
    /// the graph.
    pub(super) fn end_capture<'a>(
        &mut self,
        streams: impl Iterator<Item = &'a Arc<CudaStream>>,
        graphs: &mut Vec<DeviceGraph>,
    ) -> Result<(), Error> {
        // Before the end of the capture: it returns an error recorded by cudarc, if any.
        let event = self.stream_context().new_event(None).map_err(Error::of_cuda("cuEventCreate"))?;
        cuda::bind_context(self.stream_context())?;
        self.capturing = false;
        // SAFETY: the stream is alive and its context current.
        let graph = unsafe { result::stream::end_capture(self.raw) };
        let graph = graph.map_err(Error::of_cuda("cuStreamEndCapture"))?;
        let (exec, stream, buffer_streams) = (ptr::null_mut(), Arc::clone(&self.stream), Vec::new());
        let mut captured = DeviceGraph { exec, graph: Some(graph), stream, buffer_streams, event };
        for stream in streams {
            if captured.is_other(stream) {
                captured.buffer_streams.push(Arc::clone(stream));
            }
        }
        // SAFETY: the graph is alive, and so is this stream; the context is current.
        let ready = cuda::call_relaxed(|| unsafe {
            captured.exec = result::graph::instantiate(graph, CUgraphInstantiate_flags(0))
                .map_err(Error::of_cuda("cuGraphInstantiate"))?;
            result::graph::upload(captured.exec, self.raw).map_err(Error::of_cuda("cuGraphUpload"))?;
            result::stream::synchronize(self.raw).map_err(Error::of_cuda("cuStreamSynchronize"))
        });
        // Also a failed graph: the caller drops it without its lock.
        graphs.push(captured);
        ready
    }

    /// Ends a capture without a graph, and without a log.
    pub(super) fn cancel_capture(&mut self) {
        if !mem::take(&mut self.capturing) {
            return;
        }
        // SAFETY: the stream is alive, its context is current, and nobody else has it or the graph.
        let _already_failing = cuda::bind_context(self.stream_context()).map(|()| unsafe {
            result::stream::end_capture(self.raw).and_then(|graph| result::graph::destroy(graph))
        });
    }
}

impl Drop for PrivateStream {
    fn drop(&mut self) {
        self.cancel_capture();
        let destroy = || {
            cuda::bind_context(self.stream_context())?;
            // SAFETY: the stream is alive, its context is current, and nobody else has it.
            unsafe { result::stream::destroy(self.raw).map_err(Error::of_cuda("cuStreamDestroy")) }
        };
        if let Err(error) = destroy() {
            log::warn(format_args!("destroying the stream of a capture: {error}"));
        }
    }
}

/// Graph of one device, launched on one stream.
#[derive(Debug)]
pub(super) struct DeviceGraph {
    exec: CUgraphExec,
    /// `None` once it is destroyed.
    graph: Option<CUgraph>,
    stream: Arc<CudaStream>,
    /// Streams of its buffers and of its other communicators.
    buffer_streams: Vec<Arc<CudaStream>>,
    event: CudaEvent,
}

// SAFETY: handles of the driver: any thread may use them, and they are only used one at a time.
unsafe impl Send for DeviceGraph {}

impl DeviceGraph {
    fn all_streams(&self) -> impl Iterator<Item = &Arc<CudaStream>> {
        self.buffer_streams.iter().chain([&self.stream])
    }

    /// True for another stream of the device.
    fn is_other(&self, stream: &Arc<CudaStream>) -> bool {
        stream.context() == self.stream.context() && !self.all_streams().any(|own| own == stream)
    }

    /// Refuses to launch while one of its streams is being captured, and after an error recorded by cudarc,
    /// since the streams may not be ordered with each other then.
    pub(super) fn check_launch(&self, operation: &'static str) -> Result<(), Error> {
        self.stream.context().check_err().map_err(Error::of_cuda(operation))?;
        cuda::bind_context(self.stream.context())?;
        self.all_streams().try_for_each(|stream| cuda::refuse_captured(operation, stream))
    }

    /// Launches the graph, ordered after the queued work of its buffers' streams. Later work on them, and on
    /// streams of `written` on the same device, is ordered after it. If the ordering fails, the graph's
    /// stream is added to `unordered`.
    pub(super) fn launch_graph<'a>(
        &'a self,
        operation: &'static str,
        written: impl Iterator<Item = &'a Arc<CudaStream>>,
        unordered: &mut Vec<Arc<CudaStream>>,
    ) -> Result<(), Error> {
        let order = |first, second| cuda::order_streams(&self.event, first, second);
        cuda::bind_context(self.stream.context())?;
        self.buffer_streams.iter().try_for_each(|other| order(other, &self.stream))?;
        // A capture of one of them may have begun before the wait for it.
        cuda::refuse_captured(operation, &self.stream)?;
        // SAFETY: graph and stream are alive, and the context is current.
        let launched = unsafe { result::graph::launch(self.exec, self.stream.cu_stream()) };
        let later = self.buffer_streams.iter().chain(written.filter(|stream| self.is_other(stream)));
        let ordered = each_first_error(later, |other| order(&self.stream, other));
        if ordered.is_err() {
            unordered.push(Arc::clone(&self.stream));
        }
        launched.map_err(Error::of_cuda(operation)).and(ordered)
    }

    /// Destroys it, without a log. The driver completes a running launch first.
    pub(super) fn destroy_graph(&mut self) -> Result<(), Error> {
        let (exec, graph) = (mem::replace(&mut self.exec, ptr::null_mut()), self.graph.take());
        let Some(graph) = graph else { return Ok(()) };
        cuda::bind_context(self.stream.context())?;
        // SAFETY: both are destroyed once, and their context is current.
        unsafe {
            if !exec.is_null() {
                sys::cuGraphExecDestroy(exec).result().map_err(Error::of_cuda("cuGraphExecDestroy"))?;
            }
            result::graph::destroy(graph).map_err(Error::of_cuda("cuGraphDestroy"))
        }
    }
}

impl Drop for DeviceGraph {
    fn drop(&mut self) {
        warn_of_graph(self.destroy_graph());
    }
}

/// Logs a failure to destroy a graph.
pub(super) fn warn_of_graph(destroyed: Result<(), Error>) {
    if let Err(error) = destroyed {
        log::warn(format_args!("destroying a CUDA graph: {error}"));
    }
}
