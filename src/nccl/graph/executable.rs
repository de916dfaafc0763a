//! CUDA graphs of NCCL's work, made on streams of their own.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};

use crate::nccl::communicator::order;
use crate::nccl::cuda;
use crate::nccl::error::{Error, each};

/// A stream that no one else knows, for a capture. (cudarc tracks events of buffers from a second stream on, which a stream of
/// its own would bring about.)
#[derive(Debug)]
pub(super) struct PrivateStream {
    raw: CUstream,
    context: Arc<CudaContext>,
    capturing: bool,
}

impl PrivateStream {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        cuda::bind(context)?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(Error::cuda("cuStreamCreate"))?;
        Ok(Self { raw, context: Arc::clone(context), capturing: false })
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    pub(super) fn begin_capture(&mut self) -> Result<(), Error> {
        cuda::bind(&self.context)?;
        // Only NCCL's calls come until the end; what it allocates meanwhile is its own matter.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and its context current.
        unsafe { result::stream::begin_capture(self.raw, mode) }
            .map_err(Error::cuda("cuStreamBeginCapture"))?;
        self.capturing = true;
        Ok(())
    }

    /// Ends the capture; nothing where it is empty. The graph is launched on `stream`.
    pub(super) fn end_capture(&mut self, stream: &Arc<CudaStream>) -> Result<Option<Part>, Error> {
        // Before the capture ends: it answers with a failure that cudarc has noted, if there is one.
        let event = stream.context().new_event(None).map_err(Error::cuda("cuEventCreate"))?;
        cuda::bind(&self.context)?;
        self.capturing = false;
        // SAFETY: the stream is alive and its context current.
        let graph = unsafe { result::stream::end_capture(self.raw) };
        let graph = graph.map_err(Error::cuda("cuStreamEndCapture"))?;
        if graph.is_null() {
            return Ok(None);
        }
        let mut part =
            Part { graph, exec: ptr::null_mut(), stream: Arc::clone(stream), homes: Vec::new(), event };
        // SAFETY: the graph is alive, and so is this stream; the context is current.
        unsafe {
            part.exec = result::graph::instantiate(graph, CUgraphInstantiate_flags(0))
                .map_err(Error::cuda("cuGraphInstantiate"))?;
            result::graph::upload(part.exec, self.raw).map_err(Error::cuda("cuGraphUpload"))?;
            result::stream::synchronize(self.raw).map_err(Error::cuda("cuStreamSynchronize"))?;
        }
        Ok(Some(part))
    }
}

impl Drop for PrivateStream {
    fn drop(&mut self) {
        if cuda::bind(&self.context).is_err() {
            return;
        }
        // SAFETY: the stream is alive, its context is current, and nobody else has it or the graph.
        unsafe {
            if self.capturing
                && let Ok(graph) = result::stream::end_capture(self.raw)
                && !graph.is_null()
            {
                let _already_failing = result::graph::destroy(graph);
            }
            if let Err(error) = result::stream::destroy(self.raw) {
                tracing::warn!("destroying the stream of a capture: {error}");
            }
        }
    }
}

/// A graph that can be launched on one stream.
#[derive(Debug)]
pub(super) struct Part {
    exec: CUgraphExec,
    graph: CUgraph,
    pub(super) stream: Arc<CudaStream>,
    /// Other streams that its buffers belong to.
    pub(super) homes: Vec<Arc<CudaStream>>,
    event: CudaEvent,
}

// SAFETY: handles of the driver, which may be used by any thread; they are only used one at a time.
unsafe impl Send for Part {}

impl Part {
    /// Refuses to launch while a stream of it is being captured, and after an error that cudarc has noted, since the buffers'
    /// streams may not be ordered with each other then.
    pub(super) fn check(&self, operation: &'static str) -> Result<(), Error> {
        self.stream.context().check_err().map_err(Error::cuda(operation))?;
        cuda::bind(self.stream.context())?;
        let streams = self.homes.iter().chain([&self.stream]);
        streams.into_iter().try_for_each(|stream| cuda::refuse_captured(operation, stream))
    }

    /// Launches it after what is queued on the streams of its buffers, and before what is queued there later. Where that cannot
    /// be ordered, its stream comes into `unordered`.
    pub(super) fn launch(
        &self,
        operation: &'static str,
        unordered: &mut Vec<Arc<CudaStream>>,
    ) -> Result<(), Error> {
        cuda::bind(self.stream.context())?;
        let ordered = Error::cuda("cuStreamWaitEvent");
        self.homes.iter().try_for_each(|home| order(&self.event, home, &self.stream)).map_err(ordered)?;
        // SAFETY: graph and stream are alive, and the context is current.
        let launched = unsafe { result::graph::launch(self.exec, self.stream.cu_stream()) };
        let led = each(&self.homes, |home| {
            order(&self.event, &self.stream, home).map_err(Error::cuda("cuStreamWaitEvent"))
        });
        if led.is_err() {
            unordered.push(Arc::clone(&self.stream));
        }
        launched.map_err(Error::cuda(operation)).and(led)
    }
}

impl Drop for Part {
    /// A launch that is under way ends first: the driver sees to that.
    fn drop(&mut self) {
        let destroy = || {
            cuda::bind(self.stream.context())?;
            // SAFETY: both are destroyed once, and their context is current.
            unsafe {
                if !self.exec.is_null() {
                    sys::cuGraphExecDestroy(self.exec).result().map_err(Error::cuda("cuGraphExecDestroy"))?;
                }
                result::graph::destroy(self.graph).map_err(Error::cuda("cuGraphDestroy"))
            }
        };
        if let Err(error) = destroy() {
            tracing::warn!("destroying a CUDA graph: {error}");
        }
    }
}
