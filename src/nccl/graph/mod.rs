//! CUDA graphs of collectives.

mod executable;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::CudaStream;
use nccl_sys::{cudaStream_t, ncclResult_t};

use super::communicator::{Communicator, Dependent, Ending, Handle, Object};
use super::cuda;
use super::error::{Error, each};
use super::library::Library;
use super::memory::{DeviceBuffer, DeviceBufferMut};
use super::operation::agreement;
use super::operation::batch::{self, Batch, Kept, Member, Step};
use super::operation::submit::{Buffers, Launch, sealed};
use super::operation::{Call, CallConfig, Operation, nested};
use super::section;
use executable::{Part, PrivateStream};

const CAPTURE: &str = "capturing collectives into a CUDA graph";
const LAUNCH: &str = "cuGraphLaunch";

/// Collectives as a CUDA graph, which launches all of them at the cost of one kernel, any number of times.
///
/// It owns its buffers together with their [`Memory`](super::Memory), which stays the program's between launches: new values
/// written into it, on its own stream or through cudarc, come before the next launch, and what is queued later comes after the
/// launches before. Another thread that uses the memory meanwhile sees any mixture of old and new values. Slices of cudarc are
/// adopted with `Memory::try_from`.
///
/// The collectives of a device run in the order of the calls, on the stream that the first of its communicators had when it was
/// captured, and in order with the streams of the others. It ends with the first of them that is closed,
/// finalized or aborted: it cannot be launched any more then.
///
/// For graphs that also have kernels and copies of your own, see [`Communicator::captured`].
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error, Graph, Memory}};
/// # fn example(communicator: &Communicator, gradients: &mut Memory) -> Result<(), Box<dyn std::error::Error>> {
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
    executable: Arc<Executable>,
}

#[derive(Debug)]
struct Executable {
    /// Each communicator once.
    handles: Vec<Arc<Handle>>,
    /// One for each device; nothing when a communicator has ended. Destroyed before what is below.
    parts: Mutex<Option<Vec<Part>>>,
    _kept: Kept,
}

impl Executable {
    fn parts(&self) -> MutexGuard<'_, Option<Vec<Part>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Executable {
    /// NCCL waits for the graphs of a communicator before it ends it.
    fn end(&self, _: Ending) {
        *self.parts() = None;
    }
}

/// Takes collectives for a [`Graph`].
#[derive(Debug, Default)]
pub struct Capture {
    batch: RefCell<Batch<'static>>,
    /// True when a group in it has failed or panicked.
    failed: Cell<bool>,
}

impl Capture {
    /// The collectives of a communicator, for the graph. Their buffers have owners: [`Memory`](super::Memory), its views, and
    /// [`RawBuffer`](super::RawBuffer)s with an owner.
    pub fn on<'b>(&self, communicator: &'b Communicator) -> Call<'b, &Self> {
        Call::new(communicator, self)
    }

    /// Collectives that NCCL launches as one, as in a [`group`](super::group()): what several communicators of one
    /// thread need here, too.
    ///
    /// # Errors
    /// The closure's.
    pub fn group<T, E>(&self, body: impl FnOnce(&Self) -> Result<T, E>) -> Result<T, E> {
        let outermost = self.batch.borrow().grouped.is_none();
        let before = mem::take(&mut self.batch.borrow_mut().steps);
        self.batch.borrow_mut().grouped.get_or_insert_default();
        let result = nested(&self.failed, || body(self));
        let mut batch = self.batch.borrow_mut();
        if outermost {
            batch.grouped = None;
        }
        let grouped = mem::replace(&mut batch.steps, before);
        batch.steps.push(Step::Group(grouped));
        result
    }
}

impl Launch<'_> for &Capture {}

impl<'b> sealed::Launch<'b> for &Capture {
    fn launch<S, R>(
        self,
        communicator: &'b Communicator,
        config: Option<&CallConfig>,
        operation: Operation,
        buffers: Buffers<'b, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        self.batch.borrow_mut().record_owned(communicator, config, operation, buffers)
    }
}

impl Graph {
    /// Makes a graph of the collectives that the closure calls. Nothing runs before [`launch`](Self::launch). All ranks
    /// capture the same collectives and launch their graphs as often as each other.
    ///
    /// # Errors
    /// The closure's; [`Error::NotOwned`] for a buffer without an owner; [`Error::Overlap`] for operations of one group that
    /// share what one of them writes; [`Error::WrongLibrary`]; [`Error::Disagreement`] where
    /// ranks of one communicator do not ask for the same; [`Error::InsideGroup`]; [`Error::Stream`] when a communicator is
    /// non-blocking, by its configuration or `NCCL_COMM_BLOCKING`; [`Error::Nccl`] and [`Error::Cuda`] when the capture fails.
    pub fn capture<E: From<Error>>(body: impl FnOnce(&Capture) -> Result<(), E>) -> Result<Self, E> {
        section::forbid(CAPTURE)?;
        let capture = Capture::default();
        body(&capture)?;
        if capture.failed.get() {
            return Err(Error::Cancelled { operation: CAPTURE }.into());
        }
        Ok(Self::of(capture.batch.into_inner())?)
    }

    fn of(mut batch: Batch<'static>) -> Result<Self, Error> {
        agreement::check(&batch.members, &batch.steps)?;
        if batch.members.iter().any(|member| !member.handle.config.is_blocking()) {
            return Err(NON_BLOCKING);
        }
        let parts = match batch.library() {
            Some(library) => capture(library, &batch)?,
            None => Vec::new(),
        };
        let handles = batch.members.into_iter().map(|member| member.handle).collect();
        let executable =
            Executable { handles, parts: Mutex::new(Some(parts)), _kept: mem::take(&mut batch.kept) };
        let executable = Arc::new(executable);
        for handle in &executable.handles {
            let object: Weak<dyn Object> = Arc::downgrade(&(Arc::clone(&executable) as Arc<dyn Object>));
            handle.add(Dependent { memory: None, object });
        }
        // One that was aborted meanwhile did not see the graph, and NCCL waits for it.
        if executable.handles.iter().any(|handle| handle.is_ending()) {
            *executable.parts() = None;
            return Err(Error::Aborted { operation: CAPTURE });
        }
        Ok(Self { executable })
    }

    /// Launches all collectives of the graph, after what is queued on the communicators' and the buffers' streams. Returns when
    /// they are queued. Work that is queued on those streams later comes after them.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Aborted`] and [`Error::Unusable`]; [`Error::InsideGroup`]; [`Error::Stream`] when a
    /// stream is being captured.
    pub fn launch(&self) -> Result<(), Error> {
        section::forbid(LAUNCH)?;
        let parts = self.executable.parts();
        // As long as the guards are held, nobody ends a communicator that the graph needs.
        let guards = batch::lock(self.executable.handles.iter().map(|handle| &**handle), LAUNCH)?;
        let Some(launched) = &*parts else {
            return Err(Error::Unusable { operation: LAUNCH, reason: ENDED });
        };
        launched.iter().try_for_each(|part| part.check(LAUNCH))?;
        // Each, whatever the others say: those that are launched give their buffers back.
        let mut unordered = Vec::new();
        let result = each(launched, |part| part.launch(LAUNCH, &mut unordered));
        drop(guards);
        drop(parts);
        // Memory may be freed in the order of streams that do not come after the launch: it has to be done.
        each(unordered, |stream| cuda::bind(stream.context()).and_then(|()| cuda::wait(&stream))).and(result)
    }
}

const ENDED: &str = "a communicator of the graph has been finalized, closed or aborted: capture a new one";

const NON_BLOCKING: Error = Error::Stream {
    operation: CAPTURE,
    reason: "communicators of CUDA graphs must be blocking (Config::blocking, NCCL_COMM_BLOCKING)",
};

/// Captures the operations on streams of their own, one for each device, so that those of a device keep their order whatever the
/// communicators' streams are. They are launched on the stream of the device's first communicator.
fn capture(library: Library, batch: &Batch<'_>) -> Result<Vec<Part>, Error> {
    let mut streams: Vec<&Arc<CudaStream>> = Vec::new();
    for Member { stream, .. } in &batch.members {
        if !streams.iter().any(|first| first.context() == stream.context()) {
            streams.push(stream);
        }
    }
    let first = |stream: &CudaStream| {
        streams.iter().position(|first| first.context() == stream.context()).unwrap_or_default()
    };
    let mut captures =
        streams.iter().map(|stream| PrivateStream::new(stream.context())).collect::<Result<Vec<_>, _>>()?;
    let guards = batch.lock(CAPTURE)?;
    captures.iter_mut().try_for_each(PrivateStream::begin_capture)?;
    let raw = |member: &Member| captures[first(&member.stream)].raw() as cudaStream_t;
    let captured = run(library, batch, &batch.members.iter().map(raw).collect::<Vec<_>>());
    drop(guards);
    if captured? == ncclResult_t::ncclInProgress {
        // A thread of NCCL's has to be done with what it was given; an abort would wait for the captures.
        batch.members.iter().for_each(|member| member.handle.wait_for_thread(CAPTURE));
        drop(captures);
        batch.settle(CAPTURE)?;
        return Err(NON_BLOCKING);
    }
    let mut parts = Vec::new();
    for (capture, stream) in captures.iter_mut().zip(streams) {
        let Some(mut part) = capture.end_capture(stream)? else { continue };
        let members = batch.members.iter().map(|member| &member.stream);
        for home in members.chain(batch.foreign.iter().map(|foreign| &foreign.home)) {
            if home.context() == stream.context() && home != stream && !part.homes.contains(home) {
                part.homes.push(Arc::clone(home));
            }
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Calls NCCL for every step. The guards of the communicators are held. ncclInProgress where a communicator is non-blocking
/// after all.
fn run(library: Library, batch: &Batch<'_>, streams: &[cudaStream_t]) -> Result<ncclResult_t, Error> {
    let mut answer = ncclResult_t::ncclSuccess;
    for step in &batch.steps {
        // SAFETY: the guards are held, and the batch lives until NCCL is done; the graph keeps its buffers.
        let call = || unsafe { step.call(&batch.members, streams) };
        let code = match step {
            Step::Group(_) => section::grouped(library, call)?.0,
            Step::Call { .. } => call()?,
        };
        if code == ncclResult_t::ncclInProgress {
            answer = code;
        }
    }
    Ok(answer)
}

impl fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.executable.parts().as_ref().map_or(0, Vec::len);
        formatter.debug_struct("Graph").field("devices", &devices).finish_non_exhaustive()
    }
}
