//! Groups over host memory.

mod list;
mod queue;

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::queue::{Queue, QueuedOperation};
use super::backend::{Backend, Choice};
use super::gather::{gather_messages, make_length_error};
use super::group_backend::{GroupBackend, Operations};
use super::guard::is_group_thread;
use super::host_buffer::HostBuffer;
use super::slot::Promise;
use super::work::{Work, WorkState};
use super::work_error::FailedWork;
use crate::lock::lock;
use crate::log;
use crate::purpose::Purpose;
use crate::world::sync::core_count;
use crate::world::{Handle, Part};
use crate::{Element, Error, ReduceOp, fabric};

/// One rank of a group over host memory. Clones are the same rank.
#[derive(Clone)]
pub struct HostGroup {
    rank: Arc<HostRank>,
    /// Purpose of the operations that are called through this value.
    purpose: Option<Purpose>,
}

struct HostRank {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    world: Handle,
    description: String,
}

/// An operation of which the group owns the buffers `B` while it runs.
struct Owned<B, F> {
    purpose: Option<Purpose>,
    buffers: B,
    call: Option<F>,
    promise: Promise<B>,
}

impl<B, F> QueuedOperation for Owned<B, F>
where
    B: Send,
    F: FnOnce(&mut fabric::Communicator, &mut B) -> Result<(), fabric::Error> + Send,
{
    fn run_with(&mut self, communicator: &mut fabric::Communicator) -> Result<(), fabric::Error> {
        let Some(call) = self.call.take() else { return Ok(()) };
        communicator.with_purpose(self.purpose, |communicator| call(communicator, &mut self.buffers))
    }

    fn deliver_result(self: Box<Self>, result: Result<(), Error>) {
        let Self { buffers, promise, .. } = *self;
        promise.fill_slot(match result {
            Ok(()) => Ok(buffers),
            // After an error the communicator does not use them.
            Err(error) => Err(FailedWork::new(error, buffers.into())),
        });
    }
}

impl HostGroup {
    /// Connects the ranks of a part. Collective.
    pub(crate) fn connect_part(part: &Arc<Part>, ranks: Vec<usize>) -> Result<Self, Error> {
        let world: Handle = Arc::clone(part) as Handle;
        let communicator = fabric::Communicator::new(Arc::clone(&world), &fabric::Options::default())?;
        let description = communicator.describe().to_owned();
        let spin = world.local_size().saturating_mul(2) <= core_count();
        let (queue, thread) = Queue::start_thread(communicator, Arc::clone(&world), ranks, spin)?;
        let rank = HostRank { queue, thread: Mutex::new(Some(thread)), world, description };
        Ok(Self { rank: Arc::new(rank), purpose: None })
    }

    fn start_operation<B: Send + 'static>(
        &self,
        buffers: B,
        call: impl FnOnce(&mut fabric::Communicator, &mut B) -> Result<(), fabric::Error> + Send + 'static,
    ) -> Work<B> {
        let HostRank { queue, world, .. } = &*self.rank;
        if let Some(error) = queue.stop_error() {
            return Work::not_begun(FailedWork::new(error, buffers.into()));
        }
        let (slot, promise) = queue.new_slot();
        let operation = Box::new(Owned { purpose: self.purpose, buffers, call: Some(call), promise });
        // One rank waits for nobody: a thread would only add its own start to the duration.
        let left = if world.size() == 1 { queue.try_here(operation) } else { Some(operation) };
        if let Some(operation) = left {
            queue.push_operation(operation);
        }
        WorkState::Host(slot).into()
    }

    /// Runs an operation on this thread.
    fn run_here<R>(
        &self,
        call: impl FnOnce(&mut fabric::Communicator) -> Result<R, fabric::Error>,
    ) -> Result<R, Error> {
        self.rank.queue.run_here(self.purpose, call)
    }
}

impl GroupBackend for HostGroup {
    const BACKEND: Backend = Backend::Host;

    fn describe_transport(&self) -> &str {
        &self.rank.description
    }

    fn purpose_mut(&mut self) -> &mut Option<Purpose> {
        &mut self.purpose
    }

    fn backend_choice(&self) -> Choice {
        Choice { backend: Backend::Host, device: None }
    }

    fn operation_timeout(&self) -> Option<Duration> {
        self.rank.queue.operation_timeout()
    }

    fn set_timeout(&self, limit: Option<Duration>) {
        self.rank.queue.set_timeout(limit);
    }

    fn check_group(&self) -> Result<(), Error> {
        self.rank.queue.stop_error().map_or_else(|| Ok(self.rank.world.check()?), Err)
    }

    fn run_barrier(&self) -> Result<(), Error> {
        self.run_here(fabric::Communicator::barrier)
    }

    fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.run_here(|communicator| communicator.all_reduce_in_place(data, op))
    }

    fn broadcast_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.run_here(|communicator| communicator.broadcast_in_place(data, root))
    }

    fn all_gather_bytes(&self, mine: &[u8], _: Option<&Handle>) -> Result<Vec<Vec<u8>>, Error> {
        let gathered = self.with_default_purpose(Purpose::Messages).run_here(|communicator| {
            gather_messages(mine, |part| {
                let mut whole = vec![0; part.len() * communicator.size()];
                communicator.all_gather(part, &mut whole)?;
                Ok(whole)
            })
        })?;
        gathered.ok_or_else(make_length_error)
    }
}

impl<B: HostBuffer> Operations<B> for HostGroup {
    fn all_reduce(&self, data: B, op: ReduceOp) -> Work<B> {
        self.start_operation(data, move |communicator, data| {
            communicator.all_reduce_in_place(data.elements_mut(), op)
        })
    }

    fn broadcast(&self, data: B, root: usize) -> Work<B> {
        self.start_operation(data, move |communicator, data| {
            communicator.broadcast_in_place(data.elements_mut(), root)
        })
    }

    fn all_gather(&self, part: B, whole: B) -> Work<(B, B)> {
        self.start_operation((part, whole), |communicator, (part, whole)| {
            communicator.all_gather(part.elements(), whole.elements_mut())
        })
    }

    fn reduce_scatter(&self, whole: B, part: B, op: ReduceOp) -> Work<(B, B)> {
        self.start_operation((whole, part), move |communicator, (whole, part)| {
            communicator.reduce_scatter(whole.elements(), part.elements_mut(), op)
        })
    }

    fn all_reduce_list(&self, data: Vec<B>, op: ReduceOp) -> Work<Vec<B>> {
        self.with_default_purpose(Purpose::List).start_operation(data, move |communicator, data| {
            let mut list: Vec<&mut [B::Element]> = data.iter_mut().map(B::elements_mut).collect();
            list::all_reduce(communicator, &mut list, op)
        })
    }
}

impl Drop for HostRank {
    fn drop(&mut self) {
        let panicking = thread::panicking();
        self.queue.end_thread(panicking);
        if panicking {
            // Ends the operation that is running, which other ranks may not reach any more.
            self.world.fail("its thread panicked".into());
        }
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|_| !is_group_thread())
            && thread.join().is_err()
        {
            log::warn(format_args!("the progress thread of a group has panicked"));
        }
    }
}
