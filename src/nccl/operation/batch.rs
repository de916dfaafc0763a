//! Operations that are checked first, and go to NCCL together later: those of a group and of a graph.

use std::{cell::RefCell, ptr, sync::Arc};

use cudarc::driver::{CudaEvent, CudaStream};
use nccl_sys::{cudaStream_t, ncclResult_t};

use super::buffers::{Buffers, OtherStreams, Queued, released};
use super::call::Submission;
use super::call_config::CallConfig;
use super::kind::{Kind, Operation};
use super::reduction::Operator;
use super::submit::call_nccl;
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{Guards, Handle, State, overlap};
use crate::nccl::cuda;
use crate::nccl::error::{Error, each};
use crate::nccl::library::Library;
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut, OwnedBuffer};

/// Operations with all that they need until they are done.
#[derive(Debug, Default)]
pub(crate) struct Batch<'env> {
    /// The library of all communicators; none where there is no operation.
    pub(crate) library: Option<Library>,
    pub(crate) steps: Vec<Step>,
    /// Each communicator once.
    pub(crate) members: Vec<Member>,
    /// Keep the buffers' addresses valid, and hold back what cudarc does when the work is queued.
    accesses: Vec<Queued<'env>>,
    /// True when cudarc's events order an access.
    has_events: bool,
    /// The streams of buffers that are not their communicator's.
    pub(crate) others: Vec<OtherStream>,
    /// Owners of the buffers, registrations and windows that a graph uses at every launch.
    pub(crate) kept: Vec<Owner>,
    /// Operators, until NCCL has copied them.
    operators: Vec<Arc<Operator>>,
    /// [Nested](nested) groups that have not ended, have failed or have panicked.
    unfinished: usize,
    /// The index of the first step of the outermost of these.
    group: usize,
    /// The buffers that it uses so far; in graphs only.
    group_buffers: Vec<OwnedBuffer>,
}

/// A communicator of a batch.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) handle: Arc<Handle>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) rank: usize,
}

/// A stream that work of a batch is ordered with.
#[derive(Debug)]
pub(crate) struct OtherStream {
    /// Index of the communicator.
    pub(crate) member: usize,
    pub(crate) stream: Arc<CudaStream>,
    event: Arc<CudaEvent>,
}

#[derive(Debug)]
pub(crate) struct Step {
    /// Index of the communicator.
    pub(crate) member: usize,
    config: Option<CallConfig>,
    pub(crate) operation: Operation,
    addresses: (u64, u64),
    /// In a [nested] group: the index of its first step.
    pub(crate) group: Option<usize>,
}

impl<'env> Batch<'env> {
    /// Checks an operation as far as that can be done without NCCL, and makes the communicator's stream wait for the buffers'.
    pub(crate) fn record(
        &mut self,
        submission: Submission<'env>,
        buffers: Buffers<'env, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.check(&submission)?;
        let Submission { communicator, operation, .. } = &submission;
        cuda::refuse_captured(operation.name(), &communicator.stream)?;
        let (mut others, offsets) = (OtherStreams::new(), buffers.offsets);
        let accesses = communicator.access(operation, buffers, false, &mut others)?;
        let addresses = communicator.addresses(operation, offsets, &accesses)?;
        self.has_events |= accesses.have_events();
        self.accesses.push(accesses.queued());
        self.push(submission, addresses, others)
    }

    /// Like [`record`](Self::record), for an operation that is launched whenever its graph is: it keeps its buffers by their
    /// owners, and no stream waits for another yet.
    pub(crate) fn record_for_graph<'b>(
        &mut self,
        submission: Submission<'b>,
        buffers: Buffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.check(&submission)?;
        let Submission { communicator, operation, .. } = &submission;
        let (mut others, offsets) = (OtherStreams::new(), buffers.offsets);
        for buffer in buffers.owned(communicator, operation.name())? {
            self.refuse_overlap(operation.name(), &buffer)?;
            let registered = communicator.handle.registered_at(&buffer.addresses);
            self.kept.extend(registered.into_iter().map(|(_, object)| Arc::new(object) as Owner));
            self.kept.push(buffer.owner);
            // Also the communicator's own: it may move to another stream before the graph is captured.
            others.push(buffer.stream);
        }
        self.operators.extend(buffers.operator.cloned());
        // Buffers with an owner have no events: nothing waits here.
        let addresses =
            communicator.addresses(operation, offsets, &buffers.accesses(&communicator.stream))?;
        for (memory, object) in communicator.handle.registered() {
            let is_target = matches!(operation.kind, Kind::Put(_, window, _) if window.addr() == memory.raw);
            if is_target || operation.waits() {
                self.kept.push(Arc::new(object));
            }
        }
        if operation.waits() {
            communicator.add_streams_of_windows(&mut others)?;
        }
        self.push(submission, addresses, others)
    }

    /// Operations of one group run at the same time: what one writes, no other uses. Outside of graphs the types see to that.
    /// Only memory of one owner is compared: for memory by its address, its maker has vouched.
    fn refuse_overlap(&mut self, operation: &'static str, buffer: &OwnedBuffer) -> Result<(), Error> {
        if self.unfinished == 0 {
            return Ok(());
        }
        let overlaps = |other: &OwnedBuffer| {
            (buffer.is_written || other.is_written)
                && Arc::ptr_eq(&buffer.owner, &other.owner)
                && overlap(&buffer.addresses, &other.addresses)
        };
        if self.group_buffers.iter().any(overlaps) {
            let reason = "another operation of the group writes what this one uses, or uses what it writes";
            return Err(Error::argument(operation, reason));
        }
        self.group_buffers.push(buffer.clone());
        Ok(())
    }

    /// Checks that NCCL has the operation, and that the communicator can be used, together with the others.
    fn check(&self, submission: &Submission<'_>) -> Result<(), Error> {
        let Submission { communicator, config, operation } = submission;
        let library = self.library.unwrap_or(communicator.library());
        if !ptr::eq(communicator.library().raw(), library.raw()) {
            return Err(Error::WrongLibrary { operation: operation.name() });
        }
        operation.require(library)?;
        config.map(|config| config.raw(library)).transpose()?;
        communicator.handle.comm(*communicator.handle.lock(), State::is_alive, operation.name())?;
        cuda::bind(&communicator.handle.context)
    }

    fn push(
        &mut self,
        Submission { communicator, config, operation }: Submission<'_>,
        addresses: (u64, u64),
        others: OtherStreams,
    ) -> Result<(), Error> {
        let found = self.members.iter().position(|member| Arc::ptr_eq(&member.handle, &communicator.handle));
        let member = found.unwrap_or_else(|| {
            let (handle, stream) = (Arc::clone(&communicator.handle), Arc::clone(&communicator.stream));
            self.members.push(Member { handle, stream, rank: communicator.rank() });
            self.members.len() - 1
        });
        self.library = Some(communicator.library());
        for stream in others {
            self.others.push(OtherStream { member, stream, event: communicator.event()? });
        }
        let group = (self.unfinished > 0).then_some(self.group);
        self.steps.push(Step { member, config: config.cloned(), operation, addresses, group });
        Ok(())
    }

    /// Refuses to go on where a [nested] group failed.
    pub(crate) fn refuse_unfinished(&self, operation: &'static str) -> Result<(), Error> {
        let reason = "cancelled, because a group in it failed or panicked";
        if self.unfinished == 0 { Ok(()) } else { Err(Error::argument(operation, reason)) }
    }

    /// A capture may have begun since the operations were recorded, or have drawn a stream in through a buffer's events.
    pub(crate) fn refuse_captured(&self, operation: &'static str) -> Result<(), Error> {
        let members = self.members.iter().map(|member| &member.stream);
        for stream in members.chain(self.others.iter().map(|other| &other.stream)) {
            cuda::bind(stream.context())?;
            cuda::refuse_captured(operation, stream)?;
        }
        Ok(())
    }

    /// Keeps other threads from using or ending the communicators, all of which can be used.
    pub(crate) fn lock(&self, operation: &'static str) -> Result<Guards<'_>, Error> {
        Guards::lock(self.members.iter().map(|member| &*member.handle)).all_alive(operation)
    }

    /// Waits until NCCL's own threads are done with what they were given.
    pub(crate) fn settle(&self, operation: &'static str) -> Result<(), Error> {
        // Each, whatever the others say: afterwards the buffers may be used again.
        each(&self.members, |member| member.handle.finish(operation, ncclResult_t::ncclInProgress))
    }

    /// Gives the buffers back to cudarc, and makes their streams wait for the communicators'.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        self.accesses.clear();
        // Each, whatever the others say: their memory may be freed in the order of their streams from now on.
        let led = each(&self.others, |OtherStream { member, stream: other, event }| {
            let stream = &self.members[*member].stream;
            cuda::bind(stream.context()).and_then(|()| cuda::make_wait(event, stream, other))
        });
        if !self.has_events {
            return led;
        }
        led.and(each(&self.members, |member| released(&member.stream)))
    }
}

/// A group in the batch, all of which fails when this fails or panics: it counts as unfinished then.
pub(crate) fn nested<T, E>(batch: &RefCell<Batch<'_>>, body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let mut outer = batch.borrow_mut();
    if outer.unfinished == 0 {
        outer.group = outer.steps.len();
        outer.group_buffers.clear();
    }
    outer.unfinished += 1;
    drop(outer);
    let value = body()?;
    batch.borrow_mut().unfinished -= 1;
    Ok(value)
}

impl Step {
    /// Calls NCCL with the stream that each communicator has in `streams`; ncclSuccess or ncclInProgress.
    ///
    /// # Safety
    /// The caller holds the guards of [`Batch::lock`], and the batch of the step lives until NCCL is done with it.
    pub(crate) unsafe fn call(
        &self,
        members: &[Member],
        streams: &[cudaStream_t],
    ) -> Result<ncclResult_t, Error> {
        let Self { operation, addresses, .. } = self;
        let (handle, stream) = (&members[self.member].handle, streams[self.member]);
        cuda::bind(&handle.context)?;
        // SAFETY: checked buffers, which the batch keeps; the guard is held, and the state was found to be this one.
        let code =
            unsafe { call_nccl(handle, stream, State::Alive, self.config.as_ref(), operation, *addresses) }?;
        handle.library.accept(operation.name(), code)
    }
}
