//! CUDA graphs of collectives.

mod device;

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::{cell::RefCell, fmt, mem};

use cudarc::driver::CudaStream;
use nccl_sys::{cudaStream_t, ncclResult_t};

use super::allocation::{Allocation, Owner};
use super::communicator::{Communicator, Guards, Handle, Object};
use super::error::{Error, each_first_error};
use super::memory::{DeviceBuffer, DeviceBufferMut};
use super::operation::batch::{Batch, BatchMember, BatchStep, MemberObject, run_nested};
use super::operation::buffers::CallBuffers;
use super::operation::call::{Submission, sealed};
use super::operation::{Call, agreement};
use super::{cuda, library::Library, nccl_group};
use crate::lock::lock;
use device::{DeviceGraph, PrivateStream, warn_of_graph};

const CAPTURE: &str = "capturing collectives into a CUDA graph";
const LAUNCH: &str = "cuGraphLaunch";

/// A CUDA graph of collectives. It launches all of them at the cost of one kernel, any number of times.
///
/// It owns its buffers together with their [`Memory`](super::Memory). The program can use the memory between
/// launches: writes on the memory's stream or through cudarc come before the next launch, and later work
/// comes after the previous launches. Concurrent accesses from another thread see a mixture of old and new
/// values. Adopt slices of cudarc with `Memory::try_from`.
///
/// The collectives of a device run in the order of the calls, on the stream that the first of its
/// communicators had at the capture, and are ordered with the streams of the others. The graph ends when the
/// first of its communicators is closed, finalized or aborted: it can no longer be launched then.
///
/// For graphs with other kernels and copies, see [`Communicator::captured`].
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error, Graph, Memory}};
/// # fn example(
/// #     communicator: &Communicator, gradients: &mut Memory,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let graph: Result<_, Error> = Graph::capture(|capture| {
///     capture.on(communicator).all_reduce_in_place(&mut gradients.slice_mut::<f32>(..1024)?, ReduceOp::Avg)
/// });
/// let graph = graph?;
/// for _ in 0..100 {
///     communicator.stream().memcpy_htod(&[1.0; 1024], &mut gradients.slice_mut::<f32>(..1024)?)?;
///     graph.launch()?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Graph {
    state: Arc<GraphState>,
}

#[derive(Debug)]
struct GraphState {
    handles: Vec<Arc<Handle>>,
    /// True if it waits for signals: other ranks may have written into windows when a launch is done.
    waits: bool,
    /// Graphs by device; `None` before the capture has ended, and once a communicator has. Destroyed before
    /// the fields below.
    graphs: Mutex<Option<Vec<DeviceGraph>>>,
    /// Set once the capture has ended.
    kept: OnceLock<Vec<Owner>>,
}

impl GraphState {
    fn new(batch: &Batch<'_>) -> Arc<Self> {
        Arc::new(Self {
            handles: batch.members.iter().map(|member| Arc::clone(&member.handle)).collect(),
            waits: batch.steps.iter().any(|step| step.operation.waits_for_signals()),
            graphs: Mutex::default(),
            kept: OnceLock::new(),
        })
    }

    /// The communicators release it before they end.
    fn add_to_communicators(self: &Arc<Self>) {
        for handle in &self.handles {
            handle.add_object(Arc::downgrade(self) as Weak<dyn Object>);
        }
    }

    /// Destroys the graphs under the lock: a thread that ends another of their communicators waits for this.
    /// Logs failures without the lock: a subscriber of the log is the program's code, and may launch the
    /// graph.
    fn destroy_graphs(&self) {
        let mut graphs = lock(&self.graphs);
        let destroyed: Vec<_> =
            graphs.take().into_iter().flatten().map(|mut graph| graph.destroy_graph()).collect();
        drop(graphs);
        destroyed.into_iter().for_each(warn_of_graph);
    }
}

impl Object for GraphState {
    /// NCCL waits for the graphs of a communicator before it ends it.
    fn release_object(&self) {
        self.destroy_graphs();
    }

    fn is_graph(&self) -> bool {
        true
    }
}

/// Records collectives of a [`Graph`].
#[derive(Debug)]
pub struct Capture {
    batch: RefCell<Batch<'static>>,
}

impl Capture {
    /// Returns the collectives of a communicator, for the graph. Their buffers need owners:
    /// [`Memory`](super::Memory) and its views.
    pub fn on<'b>(&self, communicator: &'b Communicator) -> Call<'b, &Self> {
        Call::new(communicator, self)
    }

    /// Groups collectives to be launched together by NCCL, as in a [`group`](super::group()). Several
    /// communicators of one thread need it.
    pub fn group<T, E>(&self, body: impl FnOnce(&Self) -> Result<T, E>) -> Result<T, E> {
        run_nested(&self.batch, || body(self))
    }
}

impl<'b> sealed::Launch<'b> for &Capture {
    fn launch(
        self,
        submission: Submission<'b>,
        buffers: CallBuffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.batch.borrow_mut().record_owned(submission, buffers)
    }
}

impl Graph {
    /// Captures a graph of the collectives called by the closure. Nothing runs before
    /// [`launch`](Self::launch). All ranks capture the same collectives and launch their graphs equally
    /// often.
    ///
    /// # Errors
    /// The closure's; [`Error::NotOwned`] for a buffer without an owner; [`Error::Argument`] for operations
    /// of one group that access a buffer written by one of them, for ranks of one communicator on one GPU,
    /// and for a non-blocking communicator, by its configuration or `NCCL_COMM_BLOCKING`;
    /// [`Error::WrongLibrary`]; [`Error::Disagreement`] if ranks of one communicator call different
    /// operations; [`Error::InsideGroup`]; [`Error::Nccl`] and [`Error::Cuda`] if the capture fails.
    pub fn capture<E: From<Error>>(body: impl FnOnce(&Capture) -> Result<(), E>) -> Result<Self, E> {
        nccl_group::forbid_group(CAPTURE)?;
        let capture = Capture { batch: RefCell::default() };
        body(&capture)?;
        Ok(Self::of_batch(capture.batch.into_inner())?)
    }

    fn of_batch(mut batch: Batch<'static>) -> Result<Self, Error> {
        batch.refuse_unfinished(CAPTURE)?;
        agreement::check_agreement(&batch.members, &batch.steps, BatchStep::is_grouped_with)?;
        if batch.members.iter().any(|member| !member.handle.is_blocking()) {
            return Err(non_blocking());
        }
        refuse_ranks_of_one_device(&batch.members)?;
        let state = GraphState::new(&batch);
        match batch.library {
            Some(library) => capture_batch(library, &mut batch, &state)?,
            None => *lock(&state.graphs) = Some(Vec::new()),
        }
        let _never_set_before = state.kept.set(mem::take(&mut batch.kept));
        // A communicator has destroyed the graph if it ended meanwhile.
        if state.handles.iter().any(|handle| handle.is_ending()) {
            return Err(Error::Aborted { operation: CAPTURE });
        }
        Ok(Self { state })
    }

    /// Launches all collectives of the graph, ordered after the queued work of the communicators' and the
    /// buffers' streams. Returns once they are queued. Later work of those streams is ordered after them.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Aborted`] and [`Error::Unusable`]; [`Error::InsideGroup`]; [`Error::Stream`]
    /// while a stream is being captured, or after a failed wait for a copy of a buffer.
    pub fn launch(&self) -> Result<(), Error> {
        nccl_group::forbid_group(LAUNCH)?;
        let state = &*self.state;
        // Including windows created after the capture. Dropped last: the last owner of one waits for the
        // communicator.
        let receiving = state.handles.iter().filter(|_| state.waits);
        let windows: Vec<_> = receiving.flat_map(|handle| handle.registered_objects()).collect();
        let graphs = lock(&state.graphs);
        // While the guards are held, no communicator of the graph can be ended.
        let guards = Guards::lock_all(state.handles.iter().map(|handle| &**handle)).all_alive(LAUNCH)?;
        let reason = "a communicator of the graph has been finalized, closed or aborted: capture a new one";
        let launched = graphs.as_ref().ok_or(Error::Unusable { operation: LAUNCH, reason })?;
        launched.iter().try_for_each(|graph| graph.check_launch(LAUNCH))?;
        let memories = state.kept.get().into_iter().flatten().filter_map(|owner| owner.downcast_ref());
        memories.into_iter().try_for_each(|memory: &Allocation| memory.check_copies(LAUNCH))?;
        // Each one, in spite of errors: launched graphs release their buffers.
        let mut unordered = Vec::new();
        let written = || windows.iter().map(|(memory, _)| &memory.stream);
        let result =
            each_first_error(launched, |graph| graph.launch_graph(LAUNCH, written(), &mut unordered));
        drop(guards);
        drop(graphs);
        // Memory may be freed in the order of streams not ordered after the launch, so wait for it.
        each_first_error(unordered, |stream| {
            cuda::bind_context(stream.context()).and_then(|()| cuda::wait_for_stream(&stream))
        })
        .and(result)
    }
}

fn non_blocking() -> Error {
    Error::bad_argument(CAPTURE, "communicators must be blocking (Config::blocking, NCCL_COMM_BLOCKING)")
}

/// Collectives of a device run one after the other, so ranks of one communicator on it would wait for each
/// other.
fn refuse_ranks_of_one_device(members: &[BatchMember]) -> Result<(), Error> {
    let share = |one: &BatchMember, other: &BatchMember| {
        one.handle.communicator_key == other.handle.communicator_key
            && one.stream.context() == other.stream.context()
    };
    if (0..).zip(members).any(|(index, one)| members[..index].iter().any(|other| share(one, other))) {
        let reason =
            "ranks of one communicator that share a GPU need a graph each, captured in a thread of its own";
        return Err(Error::bad_argument(CAPTURE, reason));
    }
    Ok(())
}

/// Captures the operations on private streams, one per device: this keeps the order of a device's operations
/// for any streams of the communicators. They are launched on the stream of the device's first communicator.
fn capture_batch(library: Library, batch: &mut Batch<'static>, state: &Arc<GraphState>) -> Result<(), Error> {
    let mut objects = Vec::new();
    let captured = capture_steps(library, batch, state, &mut objects);
    batch.keep_objects(objects);
    captured
}

/// Fills `objects` with the communicators' objects, for the caller to drop without the guards.
fn capture_steps(
    library: Library,
    batch: &Batch<'_>,
    state: &Arc<GraphState>,
    objects: &mut Vec<MemberObject>,
) -> Result<(), Error> {
    let streams = || batch.members.iter().map(|member| &member.stream);
    // Dropped without locks and guards: their drop can log, and a subscriber of the log is the program's
    // code.
    let mut captures: Vec<PrivateStream> = Vec::new();
    let mut captured_graphs = Vec::new();
    for stream in streams() {
        if !captures.iter().any(|capture| capture.stream_context() == stream.context()) {
            captures.push(PrivateStream::new(stream)?);
        }
    }
    // A thread that ends a communicator after the guards are dropped waits here until the captures have
    // ended.
    let mut graphs = lock(&state.graphs);
    let guards = batch.lock_members(CAPTURE)?;
    state.add_to_communicators();
    // The closure of `Graph::capture` can have made some after the operations. No thread makes any while the
    // guards are held.
    *objects = batch.member_objects();
    batch.refuse_misaligned(objects)?;
    captures.iter_mut().try_for_each(PrivateStream::begin_capture)?;
    let private = |stream: &Arc<CudaStream>| {
        captures.iter().find(|capture| capture.stream_context() == stream.context())
    };
    let private: Vec<_> = streams().filter_map(private).map(PrivateStream::raw_stream).collect();
    let captured = run_steps(library, batch, &private);
    drop(guards);
    let all = || streams().chain(batch.others.iter().map(|other| &other.stream));
    let ended = match captured {
        Ok(ncclResult_t::ncclInProgress) => {
            // NCCL's own thread must finish first; an abort would wait for the captures.
            batch.members.iter().for_each(|member| member.handle.wait_for_thread(CAPTURE));
            captures.iter_mut().for_each(PrivateStream::cancel_capture);
            // An abort, perhaps by this thread, waits for the graph.
            drop(graphs);
            drop(captures);
            batch.wait_for_threads(CAPTURE)?;
            return Err(non_blocking());
        }
        captured => {
            let end = |capture: &mut PrivateStream| capture.end_capture(all(), &mut captured_graphs);
            captured.and_then(|_| captures.iter_mut().try_for_each(end))
        }
    };
    match ended {
        Ok(()) => {
            *graphs = Some(captured_graphs);
            Ok(())
        }
        Err(error) => {
            captures.iter_mut().for_each(PrivateStream::cancel_capture);
            Err(error)
        }
    }
}

/// Calls NCCL for every step. The guards of the communicators are held. Returns ncclInProgress if a
/// communicator is non-blocking in spite of its configuration.
fn run_steps(library: Library, batch: &Batch<'_>, streams: &[cudaStream_t]) -> Result<ncclResult_t, Error> {
    // SAFETY: the guards are held, and the batch lives until NCCL is done; the graph keeps its buffers.
    let call = |step: &BatchStep| unsafe { step.call_operation(&batch.members, streams) };
    let mut result = ncclResult_t::ncclSuccess;
    for steps in batch.steps.chunk_by(BatchStep::is_grouped_with) {
        let code = match steps {
            [step] if step.group.is_none() => call(step)?,
            _ => {
                nccl_group::run_calls(library, nccl_group::END, || {
                    steps.iter().try_for_each(|step| call(step).map(drop))
                })?
                .0
            }
        };
        if code == ncclResult_t::ncclInProgress {
            result = code;
        }
    }
    Ok(result)
}

impl fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = lock(&self.state.graphs).as_ref().map_or(0, Vec::len);
        formatter.debug_struct("Graph").field("devices", &devices).finish_non_exhaustive()
    }
}
