//! Groups over GPUs.

mod buffers;
mod closing;
mod offer;
mod operations;

use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{iter, mem};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};

pub(super) use offer::choose_device;

use closing::{OpenGroup, close_in_background};

use super::backend::GroupDevice;
use super::buffer::{BufferSet, hold_buffers, memory::GroupMemory};
use super::gpu_operation::{
    Comparison, FirstCall, GpuOperation, GroupWatch, Mark, SpareMemory, Watched, refuse_captured,
};
use super::guard::is_group_thread;
use super::held::HeldBuffers;
use super::work::{Work, WorkState};
use super::work_error::FailedWork;
use crate::Error;
use crate::hash::fnv1a_hash;
use crate::lock::lock;
use crate::log;
use crate::nccl::{self, Communicator, Config, UniqueId, cuda};
use crate::purpose::Purpose;
use crate::world::{self, Part, World};

/// Polling interval while NCCL connects the ranks.
const POLL: Duration = Duration::from_millis(1);
/// Time limit for taking the communicator once its ranks are connected.
const READY: Duration = Duration::from_secs(60);

/// One rank of a group over GPUs. Clones are the same rank.
#[derive(Clone)]
pub struct GpuGroup {
    rank: Arc<GpuRank>,
    /// Purpose of the operations that are called through this value.
    purpose: Option<Purpose>,
}

struct GpuRank {
    device: GroupDevice,
    stream: Arc<CudaStream>,
    /// Copies results of operations that have ended to the host; made for the first one.
    reading: Mutex<Option<Arc<CudaStream>>>,
    spare: Arc<SpareMemory>,
    communicator: Arc<Watched>,
    watch: Arc<GroupWatch>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    size: usize,
    description: String,
    _open: OpenGroup,
}

impl GpuGroup {
    /// Connects the ranks of a part, each with a device of its own. Collective.
    pub(crate) fn connect_part(part: &Arc<Part>, device: GroupDevice) -> Result<Self, Error> {
        let stream = cuda::own_result(&device.context, || device.context.new_stream())?;
        let first = part.rank() == 0;
        let id = if first { UniqueId::new(device.library)?.as_bytes().to_vec() } else { Vec::new() };
        let all = part.all_gather(&id)?;
        let id = all.first().and_then(|id| id.as_slice().try_into().ok()).map(UniqueId::from_bytes);
        let Some(id) = id else {
            return Err(Error::Job(
                "rank 0 of the group has sent no NCCL id: start all ranks with the same version of the \
                 program"
                    .into(),
            ));
        };
        // The others wait inside NCCL from here on, and not in an exchange of the part.
        let connected = Self::join_ranks(&**part, &device, &stream, &id);
        let communicator = connected.map_err(|error| {
            let cause = world::cause(&**part).map_or(error, Error::from);
            if !matches!(cause, Error::RankFailed { .. }) {
                part.fail(world::Reason::from(&cause));
            }
            cause
        })?;
        let topic = fnv1a_hash(id.as_bytes().iter().copied());
        let description = format!(
            "NCCL {} over {} GPUs, rank {} on device {}",
            device.library.version(),
            part.size(),
            part.rank(),
            device.context.ordinal()
        );
        let world: world::Handle = Arc::clone(part) as world::Handle;
        let size = world.size();
        let watch = GroupWatch::new(world, part.job_ranks().to_vec(), topic, communicator.abort_handle());
        let communicator = Arc::new(Mutex::new(Some(communicator)));
        let threads = Mutex::default();
        let (reading, spare, _open) = (Mutex::default(), Arc::default(), OpenGroup::new());
        let rank = GpuRank {
            device,
            stream,
            reading,
            spare,
            communicator,
            watch,
            threads,
            size,
            description,
            _open,
        };
        rank.start_threads()?;
        Ok(Self { rank: Arc::new(rank), purpose: None })
    }

    fn join_ranks(
        world: &dyn World,
        device: &GroupDevice,
        stream: &Arc<CudaStream>,
        id: &UniqueId,
    ) -> Result<Communicator, Error> {
        let builder = Communicator::builder(device.library, stream).rank(world.rank(), world.size()).id(id);
        // Calls of such a communicator can be ended while they wait for another rank.
        let mut pending = builder.config(&Config::new().blocking(false)).init_pending()?;
        while !pending.poll()? {
            world.check()?;
            thread::sleep(POLL);
        }
        Ok(pending.wait(READY)?)
    }

    /// Makes memory of the group itself. An error stops the group, since the other ranks wait for this one.
    fn make_slice<T>(
        &self,
        make: impl FnOnce(&Arc<CudaStream>) -> Result<CudaSlice<T>, DriverError>,
    ) -> Result<CudaSlice<T>, Error> {
        self.rank.watch.stop_on_error(cuda::make_slice(&self.rank.stream, make))
    }

    /// Refuses an operation while the group's stream is being captured, before anything of it becomes part of
    /// the graph.
    fn refuse_captured(&self, operation: &'static str) -> Result<(), Error> {
        match refuse_captured(operation, &self.rank.stream) {
            Err(error) if error.is_refusal() => Err(error),
            other => self.rank.watch.stop_on_error(other),
        }
    }

    /// Queues an operation on the group's stream. Buffers of the program, which have these contexts, are
    /// refused after an error that cudarc has noted.
    fn start_checked<B: GroupMemory, W: BufferSet<B>>(
        &self,
        operation: String,
        contexts: impl IntoIterator<Item = Arc<CudaContext>>,
        buffers: W,
        call: impl FnOnce(&Communicator, &mut W) -> Result<(), nccl::Error>,
    ) -> Work<W> {
        let own = Arc::clone(self.rank.stream.context());
        let contexts: Vec<_> = iter::once(own).chain(contexts).collect();
        match self.refuse_noted(&operation, &contexts) {
            Ok(()) => self.start_ordered::<B, W>(operation, buffers, call),
            Err(error) => {
                // The missing event of a use cannot order their release.
                let leak = |buffers| cuda::leak_memory(buffers, "an earlier call of cudarc has failed");
                Work::not_begun(FailedWork::new(error, HeldBuffers::new(buffers, leak)))
            }
        }
    }

    /// Refuses buffers of the program, whose events cudarc may have failed to record: nothing orders the
    /// operation after their uses then. The library orders its own buffers itself. cudarc notes an error in
    /// the context object of the stream that failed, so all objects are asked.
    fn refuse_noted(&self, operation: &str, contexts: &[Arc<CudaContext>]) -> Result<(), Error> {
        // The first one is the group's own, whose error concerns no buffer without events.
        if self.purpose.is_some() || contexts.len() == 1 {
            return Ok(());
        }
        let noted = |context: &Arc<CudaContext>| {
            let is_tracking = context.is_event_tracking();
            if is_tracking { context.check_err().err() } else { None }
        };
        // Takes the error from every object: one failure can be noted in two.
        let Some(error) = contexts.iter().filter_map(noted).reduce(|first, _| first) else { return Ok(()) };
        Err(Error::Buffer(format!(
            "{operation}: an earlier call of cudarc has failed ({error}), perhaps for one of the buffers: \
             wait for their streams, and call the operation again"
        )))
    }

    /// Queues an operation on buffers whose uses have events, or that the library has ordered.
    fn start_ordered<B: GroupMemory, W: BufferSet<B>>(
        &self,
        operation: String,
        mut buffers: W,
        call: impl FnOnce(&Communicator, &mut W) -> Result<(), nccl::Error>,
    ) -> Work<W> {
        let first = self.first_call(&operation);
        let operation = self.describe_with_purpose(operation);
        let mut queued = false;
        let mark = self.queue_operation(&operation, first, |communicator| {
            call(communicator, &mut buffers).inspect(|()| queued = true)
        });
        let buffers = hold_buffers::<B, _>(buffers);
        match mark {
            Ok(mark) => WorkState::Gpu(GpuOperation::new(mark, Arc::clone(&self.rank.watch), buffers)).into(),
            // Only the program's buffers are returned.
            Err(error) if !queued && error.is_refusal() && self.purpose.is_none() => {
                Work::not_begun(FailedWork::new(error, buffers))
            }
            Err(error) => {
                // Not returned: after a failure NCCL may still use them. Freed before the failure is
                // reported, since the report runs code of the program.
                drop(buffers);
                let error = if error.is_refusal() { error } else { self.rank.watch.stop_with(error) };
                Work::not_begun(error.into())
            }
        }
    }

    /// The description of an operation with its purpose.
    fn describe_with_purpose(&self, mut operation: String) -> String {
        if let Some(purpose) = self.purpose {
            operation += &purpose.to_string();
        }
        operation
    }

    /// The operation, if it is the first one of a step, which the ranks compare.
    fn first_call(&self, operation: &str) -> Option<FirstCall> {
        let purpose = self.purpose.filter(|_| self.rank.size > 1)?;
        let step = purpose.first_of_step()?;
        Some(FirstCall { operation: operation.to_owned(), purpose, step })
    }

    fn queue_operation(
        &self,
        operation: &str,
        first: Option<FirstCall>,
        call: impl FnOnce(&Communicator) -> Result<(), nccl::Error>,
    ) -> Result<Arc<Mark>, Error> {
        // Held until the mark is recorded, so that operations and marks have the same order.
        let guard = lock(&self.rank.communicator);
        let Some(communicator) = guard.as_ref() else {
            return Err(Error::Job("the group has ended".to_owned()));
        };
        self.rank.watch.enter_call(operation)?;
        // NCCL's layer takes errors that cudarc has noted for those of the operation's buffers.
        let queued = cuda::without_noted(self.rank.stream.context(), || match call(communicator) {
            Ok(()) => self.compare_steps(communicator, first),
            Err(error) => Err(error_of_call(error)),
        });
        let queued = queued.and_then(|comparison| Mark::record_work(&self.rank.stream, comparison));
        self.rank.watch.leave_call(queued.as_ref());
        drop(guard);
        queued
    }

    /// Queues the comparison of the ranks' steps after the first operation of one.
    fn compare_steps(
        &self,
        communicator: &Communicator,
        first: Option<FirstCall>,
    ) -> Result<Option<Comparison>, Error> {
        let Some(first) = first else { return Ok(None) };
        Comparison::start_reduction(communicator, self.reading_stream()?, Arc::clone(&self.rank.spare), first)
            .map(Some)
    }

    /// The stream for copies of results, which waits for nothing else.
    fn reading_stream(&self) -> Result<Arc<CudaStream>, Error> {
        let mut reading = lock(&self.rank.reading);
        if let Some(stream) = &*reading {
            return Ok(Arc::clone(stream));
        }
        let context = self.rank.stream.context();
        Ok(Arc::clone(reading.insert(cuda::own_result(context, || context.new_stream())?)))
    }
}

/// The error of a call of NCCL; a refusal if nothing was sent.
fn error_of_call(error: nccl::Error) -> Error {
    use nccl::Error as Nccl;
    match error {
        Nccl::Nccl { .. }
        | Nccl::Cuda { .. }
        | Nccl::Deadline { .. }
        | Nccl::Aborted { .. }
        | Nccl::Unusable { .. }
        | Nccl::Busy { .. } => Error::Nccl(error),
        refused => Error::Buffer(refused.to_string()),
    }
}

impl GpuRank {
    fn start_threads(&self) -> Result<(), Error> {
        let (bound, is_bound) = mpsc::channel();
        let guard = {
            let (watch, communicator) = (Arc::clone(&self.watch), Arc::clone(&self.communicator));
            let context = Arc::clone(&self.device.context);
            move || {
                let result = cuda::bind_context(&context);
                let has_context = result.is_ok();
                if bound.send(result).is_ok() && has_context {
                    watch.guard_group(&communicator);
                }
            }
        };
        let complete = {
            let watch = Arc::clone(&self.watch);
            move || watch.complete_operations()
        };
        for body in [Box::new(guard) as Box<dyn FnOnce() + Send>, Box::new(complete)] {
            let thread = thread::Builder::new().name("collectives".to_owned()).spawn(body);
            let thread = thread
                .map_err(|error| Error::Job(format!("the group's threads cannot be started: {error}")))?;
            lock(&self.threads).push(thread);
        }
        let ended = |_| Error::Job("the group's thread has ended".to_owned());
        Ok(is_bound.recv().map_err(ended)??)
    }
}

/// The watch of a group that is being closed, whose threads end when this is dropped.
struct EndingWatch(Arc<GroupWatch>);

impl EndingWatch {
    /// Waits for the group's operations.
    fn settle_operations(&self, communicator: &Communicator) {
        self.0.during_close(|| self.0.settle_operations(communicator));
    }
}

impl Drop for EndingWatch {
    fn drop(&mut self) {
        self.0.end_threads();
    }
}

impl Drop for GpuRank {
    fn drop(&mut self) {
        if thread::panicking() {
            self.watch.stop_with(Error::Job("its thread panicked".to_owned()));
        }
        let ending = EndingWatch(Arc::clone(&self.watch));
        let communicator = lock(&self.communicator).take();
        let threads = mem::take(&mut *lock(&self.threads));
        if is_group_thread() {
            // A future's waker has dropped the last handle: operations under way may need the thread that
            // called it.
            if let Some(communicator) = communicator {
                close_in_background(communicator, move |communicator| ending.settle_operations(communicator));
            }
            return;
        }
        if let Some(communicator) = communicator {
            ending.settle_operations(&communicator);
            close_in_background(communicator, |_| ());
        }
        drop(ending);
        for thread in threads {
            if thread.join().is_err() {
                log::warn(format_args!("a thread of a group has panicked"));
            }
        }
    }
}
