//! CUDA graphs of collectives.

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream, result};
use nccl_sys::ncclResult_t;

use super::buffer::{DeviceBuffer, DeviceBufferMut};
use super::call::Call;
use super::call_config::CallConfig;
use super::communicator::Communicator;
use super::cuda;
use super::error::Error;
use super::group;
use super::inside;
use super::launch::{Buffers, Launch, sealed};
use super::library::Library;
use super::operation::Operation;
use super::recorded::{Recorded, Step};

const CAPTURE: &str = "capturing collectives into a CUDA graph";
const LAUNCH: &str = "cuGraphLaunch";

/// Collectives as a CUDA graph, which launches all of them at the cost of one kernel, any number of times.
/// Communicators and buffers stay borrowed as long as it lives: what lies in them can be seen afterwards.
///
/// For graphs that also have kernels and copies of your own, see [`Communicator::captured`].
///
/// NCCL ends a communicator only after all its graphs: one that is forgotten (`mem::forget`) makes closing wait for ever.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{Communicator, Error, Graph, Memory}};
/// # fn example(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
/// let mut gradients = memory.slice_mut::<f32>(0, 1024)?;
/// let graph = Graph::capture(communicator.library(), |capture| {
///     capture.on(communicator).all_reduce_in_place(&mut gradients, ReduceOp::Avg)
/// })?;
/// for _ in 0..100 {
///     graph.launch()?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Graph<'env> {
    /// One for each stream. Destroyed before what is below.
    graphs: Vec<CudaGraph>,
    recorded: Recorded<'env>,
}

/// Takes collectives for a [`Graph`].
pub struct Capture<'env> {
    library: Library,
    recorded: RefCell<Recorded<'env>>,
    /// The first error of a group in it.
    failed: RefCell<Option<Error>>,
}

impl<'env> Capture<'env> {
    /// The collectives of a communicator, for the graph.
    pub fn on<'c>(&'c self, communicator: &'env Communicator) -> Call<'env, &'c Self> {
        Call::new(communicator, self)
    }

    /// Collectives that NCCL launches as one, as in a [`group`](super::group()): what several communicators of one
    /// thread need here, too.
    ///
    /// # Errors
    /// The closure's.
    pub fn group<T>(&self, body: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        let before = mem::take(&mut self.recorded.borrow_mut().steps);
        let result = group::nested(&self.failed, || body(self));
        let steps = &mut self.recorded.borrow_mut().steps;
        let grouped = mem::replace(steps, before);
        steps.push(Step::Group(grouped));
        result
    }
}

impl<'env> Launch<'env> for &Capture<'env> {}
impl<'env> sealed::Launch<'env> for &Capture<'env> {
    fn launch<S, R>(
        self,
        communicator: &'env Communicator,
        config: Option<&'env CallConfig>,
        operation: Operation,
        buffers: Buffers<'env, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        // Streams wait for each other here, before the capture: a graph cannot wait for what is outside it.
        self.recorded.borrow_mut().record(self.library, communicator, config, operation, buffers)
    }
}

impl<'env> Graph<'env> {
    /// Makes a graph of the collectives that the closure calls. Nothing runs before [`launch`](Self::launch). All ranks
    /// capture the same collectives and launch their graphs as often as each other.
    ///
    /// # Errors
    /// The closure's; [`Error::WrongLibrary`]; [`Error::InsideGroup`]; [`Error::Stream`] when a stream is already being
    /// captured, or a communicator is non-blocking; [`Error::Nccl`] and [`Error::Cuda`] when the capture fails.
    pub fn capture(
        library: Library,
        body: impl FnOnce(&Capture<'env>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        inside::forbid(CAPTURE)?;
        let capture = Capture { library, recorded: RefCell::default(), failed: RefCell::default() };
        body(&capture)?;
        if let Some(error) = capture.failed.into_inner() {
            return Err(error);
        }
        let recorded = capture.recorded.into_inner();
        let guards = recorded.lock(CAPTURE)?;
        let mut begun = Vec::new();
        let captured = begin(recorded.streams(), &mut begun).and_then(|()| run(library, &recorded.steps));
        drop(guards);
        let settled = match captured {
            // NCCL works on threads of its own for non-blocking communicators, and nobody could end one whose graph
            // hangs: NCCL waits for the graph. First it has to be done with what it was given.
            Ok(ncclResult_t::ncclInProgress) => {
                let reason =
                    "communicators of CUDA graphs must be blocking (Config::blocking, NCCL_COMM_BLOCKING)";
                recorded.settle(CAPTURE).and(Err(Error::Stream { operation: CAPTURE, reason }))
            }
            captured => captured.map(drop),
        };
        // Whatever happened, every capture that has begun here must end, and no other.
        let ended: Vec<_> = begun.into_iter().map(end).collect();
        settled?;
        let graphs = ended.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        for communicator in recorded.communicators() {
            communicator.shared.add_graph();
        }
        Ok(Self { graphs, recorded })
    }

    /// Launches all collectives of the graph, each on its communicator's stream. Returns when they are queued. Work
    /// that is queued on the buffers' own streams later comes after them.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Aborted`] and [`Error::Unusable`]; [`Error::InsideGroup`]; [`Error::Stream`] when a
    /// stream is being captured.
    pub fn launch(&self) -> Result<(), Error> {
        inside::forbid(LAUNCH)?;
        // As long as the guards are held, nobody aborts a communicator that the graph needs.
        let _guards = self.recorded.lock(LAUNCH)?;
        for stream in self.recorded.streams() {
            cuda::bind(stream.context())?;
            cuda::refuse_captured(LAUNCH, stream)?;
        }
        let launched = self.graphs.iter().try_for_each(|graph| graph.launch().map_err(Error::cuda(LAUNCH)));
        // After each launch, and not when the graph is dropped: a graph that is forgotten gives its buffers back, too.
        launched.and(self.recorded.lead())
    }

    /// cudarc's graphs, one for each stream, for what this type does not offer: to make them parts of others, to see
    /// their nodes.
    ///
    /// # Safety
    /// They are launched only as long as this object lives and no communicator of it is aborted or suspended, and so
    /// are graphs that are made of them.
    #[must_use]
    pub unsafe fn cuda_graphs(&self) -> &[CudaGraph] {
        &self.graphs
    }
}

/// Begins a capture on each stream, which then is in `begun`.
fn begin<'a>(streams: Vec<&'a Arc<CudaStream>>, begun: &mut Vec<&'a Arc<CudaStream>>) -> Result<(), Error> {
    for stream in &streams {
        cuda::bind(stream.context())?;
        cuda::refuse_captured(CAPTURE, stream)?;
    }
    for stream in streams {
        // Only NCCL's calls come until the end; what it allocates meanwhile is its own matter.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(Error::cuda("cuStreamBeginCapture"))?;
        begun.push(stream);
    }
    Ok(())
}

/// Ends a capture; nothing where it is empty.
fn end(stream: &Arc<CudaStream>) -> Result<Option<CudaGraph>, Error> {
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).map_err(|error| {
        abandon(stream);
        Error::Cuda { operation: "cuStreamEndCapture", error }
    })?;
    if let Some(graph) = &graph {
        graph.upload().map_err(Error::cuda("cuGraphUpload"))?;
    }
    Ok(graph)
}

/// Ends a capture that cudarc has not ended: where it has noted a failure of its own before, it answers with that and
/// does nothing.
fn abandon(stream: &CudaStream) {
    if cuda::bind(stream.context()).is_err() {
        return;
    }
    // SAFETY: the stream is alive and its context current. Where nothing is captured any more the driver says so.
    let ended = unsafe { result::stream::end_capture(stream.cu_stream()) };
    if let Ok(graph) = ended
        && !graph.is_null()
    {
        // SAFETY: a graph of a capture of this module, which nobody else has.
        let _already_failing = unsafe { result::graph::destroy(graph) };
    }
}

/// Calls NCCL for every step. The guards of the communicators are held. ncclInProgress where a communicator is
/// non-blocking.
fn run(library: Library, steps: &[Step<'_>]) -> Result<ncclResult_t, Error> {
    let mut answer = ncclResult_t::ncclSuccess;
    for step in steps {
        // SAFETY: the guards are held, and the record lives as long as the graph.
        let call = || unsafe { step.call() };
        let code = match step {
            Step::Group(_) => group::raw(library, call)?.0,
            Step::Call { .. } => call()?,
        };
        if code == ncclResult_t::ncclInProgress {
            answer = code;
        }
    }
    Ok(answer)
}

impl Drop for Graph<'_> {
    /// The buffers may be used again after the last launch.
    fn drop(&mut self) {
        self.graphs.clear();
        for communicator in self.recorded.communicators() {
            communicator.shared.remove_graph();
        }
        self.recorded.release();
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Graph").field("streams", &self.graphs.len()).finish_non_exhaustive()
    }
}
