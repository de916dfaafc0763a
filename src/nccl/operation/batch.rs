//! Batches: operations of a group or graph, checked first and passed to NCCL together.

use std::{cell::RefCell, num::NonZeroU64, ops::Range, ptr, sync::Arc};

use cudarc::driver::{CudaEvent, CudaStream};
use nccl_sys::{cudaStream_t, ncclResult_t};

use super::buffers::{Accesses, CallBuffers, OtherStreams, check_recorded, refuse_misread};
use super::call::Submission;
use super::call_config::CallConfig;
use super::kind::{NcclOperation, OperationKind};
use super::reduction::Operator;
use super::submit::call_nccl;
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{
    Communicator, CommunicatorState, Guards, Handle, Object, RegisteredMemory, ranges_overlap,
};
use crate::nccl::cuda;
use crate::nccl::error::{Error, each_first_error};
use crate::nccl::library::Library;
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut, OwnedBuffer};

/// Operations, and the objects they need until they are done.
#[derive(Debug, Default)]
pub(crate) struct Batch<'env> {
    /// Common library of the communicators; `None` without operations.
    pub(crate) library: Option<Library>,
    pub(crate) steps: Vec<BatchStep>,
    /// Communicators, without duplicates. Steps and streams refer to them by index.
    pub(crate) members: Vec<BatchMember>,
    /// Keep the buffers' addresses valid. A batch dropped before its work was queued records no events: the
    /// streams may have become part of a capture, and cudarc would replace the events of earlier work there.
    accesses: Vec<Accesses<'env>>,
    has_events: bool,
    pub(crate) others: Vec<OtherStream>,
    /// Owners of the buffers, registrations and windows used in every launch of a graph or of prepared
    /// operations.
    pub(crate) kept: Vec<Owner>,
    /// Addresses of the buffers of a graph or of prepared operations, each with its member.
    owned: Vec<(usize, Range<u64>)>,
    /// Operators, kept until NCCL has copied them.
    pub(super) operators: Vec<Arc<Operator>>,
    /// Number of [nested](run_nested) groups that have not ended, have failed or have panicked.
    unfinished: usize,
    /// Index of the first step of the outermost nested group.
    group: usize,
    /// Buffers of the outermost nested group, if the operations own their buffers.
    group_buffers: Vec<OwnedBuffer>,
}

#[derive(Debug)]
pub(crate) struct BatchMember {
    pub(crate) handle: Arc<Handle>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) rank: usize,
}

/// An object of a member. It depends on its communicator.
#[derive(Debug)]
pub(crate) struct MemberObject {
    member: usize,
    /// Memory of a registration or window; `None` for graphs and operators.
    memory: Option<RegisteredMemory>,
    object: Arc<dyn Object>,
}

#[derive(Debug)]
pub(crate) struct OtherStream {
    pub(crate) member: usize,
    pub(crate) stream: Arc<CudaStream>,
    event: Arc<CudaEvent>,
}

#[derive(Debug)]
pub(crate) struct BatchStep {
    pub(crate) member: usize,
    pub(super) config: Option<CallConfig>,
    pub(crate) operation: NcclOperation,
    pub(super) addresses: (u64, u64),
    /// See [`Accesses::misaligned_address`](super::buffers::Accesses::misaligned_address), if a window can be
    /// created around the buffer before NCCL is called.
    pub(super) misaligned: Option<NonZeroU64>,
    /// Index of the first step of the step's [nested](run_nested) group.
    pub(crate) group: Option<usize>,
}

impl<'env> Batch<'env> {
    /// Checks an operation as far as possible without NCCL, and orders the communicator's stream after the
    /// buffers' streams.
    pub(crate) fn record_operation(
        &mut self,
        submission: Submission<'env>,
        buffers: CallBuffers<'env, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.check_submission(&submission)?;
        let Submission { communicator, operation, .. } = &submission;
        cuda::refuse_captured(operation.operation_name(), &communicator.stream)?;
        let (mut others, offsets) = (OtherStreams::new(), buffers.offsets);
        let accesses = communicator.access_buffers(operation, buffers, false, &mut others)?;
        let addresses = communicator.operation_addresses(operation, offsets, &accesses)?;
        self.has_events |= accesses.have_events();
        self.accesses.push(accesses);
        self.push_step(submission, addresses, None, others)
    }

    /// Like [`record_operation`](Self::record_operation), for an operation of a graph or a prepared one:
    /// keeps the owners of its buffers, and does not order streams yet.
    pub(crate) fn record_owned<'b>(
        &mut self,
        submission: Submission<'b>,
        buffers: CallBuffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.check_submission(&submission)?;
        let Submission { communicator, operation, .. } = &submission;
        let (mut others, offsets) = (OtherStreams::new(), buffers.offsets);
        let mut owned = Vec::new();
        for buffer in buffers.owned_buffers(communicator, operation.operation_name())? {
            self.refuse_overlap(operation.operation_name(), &buffer)?;
            let registered = communicator.handle.registered_at(&buffer.addresses);
            self.kept.extend(registered.into_iter().map(|(_, object)| Arc::new(object) as Owner));
            self.kept.push(buffer.owner);
            owned.push(buffer.addresses);
            // Including the communicator's own stream: it may change before the graph is captured.
            others.push(buffer.stream);
        }
        self.operators.extend(buffers.operator.cloned());
        // Buffers with an owner have no events, so this does not wait.
        let accesses = buffers.into_accesses(&communicator.stream);
        let addresses = communicator.operation_addresses(operation, offsets, &accesses)?;
        let misaligned = accesses.misaligned_address(operation);
        for (memory, object) in communicator.handle.registered_objects() {
            let is_target =
                matches!(operation.kind, OperationKind::Put(_, window, _) if window.0.addr() == memory.raw);
            if is_target || operation.waits_for_signals() {
                self.kept.push(Arc::new(object));
            }
        }
        if operation.waits_for_signals() {
            communicator.add_streams_of_windows(&mut others)?;
        }
        let member = self.member_index(communicator);
        self.owned.extend(owned.into_iter().map(|addresses| (member, addresses)));
        self.push_step(submission, addresses, misaligned, others)
    }

    /// Refuses an overlap of buffers in one group, if one of them is written: operations of a group run
    /// concurrently. Outside of graphs, borrows ensure this. Only buffers of one owner are compared: for raw
    /// addresses, the caller of the unsafe constructor guarantees it.
    fn refuse_overlap(&mut self, operation: &'static str, buffer: &OwnedBuffer) -> Result<(), Error> {
        if self.unfinished == 0 {
            return Ok(());
        }
        let overlaps = |other: &OwnedBuffer| {
            (buffer.is_written || other.is_written)
                && Arc::ptr_eq(&buffer.owner, &other.owner)
                && ranges_overlap(&buffer.addresses, &other.addresses)
        };
        if self.group_buffers.iter().any(overlaps) {
            let reason = "another operation of the group writes what this one uses, or uses what it writes";
            return Err(Error::bad_argument(operation, reason));
        }
        self.group_buffers.push(buffer.clone());
        Ok(())
    }

    fn check_submission(&self, submission: &Submission<'_>) -> Result<(), Error> {
        let Submission { communicator, config, operation } = submission;
        let library = self.library.unwrap_or(communicator.library());
        if !ptr::eq(communicator.library().raw(), library.raw()) {
            return Err(Error::WrongLibrary { operation: operation.operation_name() });
        }
        operation.require_function(library)?;
        config.map(|config| config.raw_config(library)).transpose()?;
        communicator.handle.comm_in_state(
            *communicator.handle.lock_state(),
            CommunicatorState::is_alive,
            operation.operation_name(),
        )?;
        cuda::bind_context(&communicator.handle.context)
    }

    fn push_step(
        &mut self,
        Submission { communicator, config, operation }: Submission<'_>,
        addresses: (u64, u64),
        misaligned: Option<NonZeroU64>,
        others: OtherStreams,
    ) -> Result<(), Error> {
        let member = self.member_index(communicator);
        self.library = Some(communicator.library());
        for stream in others {
            self.others.push(OtherStream { member, stream, event: communicator.order_event()? });
        }
        let group = (self.unfinished > 0).then_some(self.group);
        let config = config.cloned();
        self.steps.push(BatchStep { member, config, operation, addresses, misaligned, group });
        Ok(())
    }

    /// Returns the index of the communicator in the members. Adds it if it is missing.
    fn member_index(&mut self, communicator: &Communicator) -> usize {
        let found = self.members.iter().position(|member| Arc::ptr_eq(&member.handle, &communicator.handle));
        found.unwrap_or_else(|| {
            let (handle, stream) = (Arc::clone(&communicator.handle), Arc::clone(&communicator.stream));
            self.members.push(BatchMember { handle, stream, rank: communicator.rank() });
            self.members.len() - 1
        })
    }

    /// Objects of the members now. Drop them without the guards, all of them: see [`Handle::live_objects`].
    pub(crate) fn member_objects(&self) -> Vec<MemberObject> {
        let of_member = |(index, member): (usize, &BatchMember)| {
            let objects = member.handle.live_objects().into_iter();
            objects.map(move |object| MemberObject {
                member: index,
                memory: object.registered_memory(),
                object,
            })
        };
        self.members.iter().enumerate().flat_map(of_member).collect()
    }

    /// Keeps the registrations and windows used by the operations. Some may be newer than the operations.
    pub(crate) fn keep_objects(&mut self, objects: Vec<MemberObject>) {
        for MemberObject { member, memory, object } in objects {
            let Some(memory) = memory else { continue };
            let is_used = |(user, addresses): &(usize, Range<u64>)| {
                *user == member && ranges_overlap(addresses, &memory.addresses)
            };
            if self.owned.iter().any(is_used) {
                self.kept.push(Arc::new(object));
            }
        }
    }

    /// Refuses misaligned places in symmetric windows. Some windows may be newer than the operations.
    pub(crate) fn refuse_misaligned(&self, objects: &[MemberObject]) -> Result<(), Error> {
        self.steps.iter().try_for_each(|BatchStep { member, operation, misaligned, .. }| {
            let in_symmetric_window = |address: &NonZeroU64| {
                let known = objects.iter().filter(|known| known.member == *member);
                let mut memories = known.filter_map(|known| known.memory.as_ref());
                memories.any(|memory| memory.symmetric && memory.addresses.contains(&address.get()))
            };
            let library = self.members[*member].handle.library;
            misaligned.filter(in_symmetric_window).map_or(Ok(()), |_| refuse_misread(library, operation))
        })
    }

    /// Returns an error after a failed [nested](run_nested) group.
    pub(crate) fn refuse_unfinished(&self, operation: &'static str) -> Result<(), Error> {
        let reason = "cancelled, because a group in it failed or panicked";
        if self.unfinished == 0 { Ok(()) } else { Err(Error::bad_argument(operation, reason)) }
    }

    /// Refuses captured streams: a capture may have begun since the operations were recorded, or a buffer's
    /// events may have made a stream part of one.
    pub(crate) fn refuse_captured(&self, operation: &'static str) -> Result<(), Error> {
        let members = self.members.iter().map(|member| &member.stream);
        for stream in members.chain(self.others.iter().map(|other| &other.stream)) {
            cuda::bind_context(stream.context())?;
            cuda::refuse_captured(operation, stream)?;
        }
        Ok(())
    }

    pub(crate) fn lock_members(&self, operation: &'static str) -> Result<Guards<'_>, Error> {
        Guards::lock_all(self.members.iter().map(|member| &*member.handle)).all_alive(operation)
    }

    /// Waits until NCCL's own threads have finished the operations.
    pub(crate) fn wait_for_threads(&self, operation: &'static str) -> Result<(), Error> {
        // Each one, in spite of errors: afterwards the buffers may be used again.
        each_first_error(&self.members, |member| {
            member.handle.finish_operation(operation, ncclResult_t::ncclInProgress)
        })
    }

    /// Returns the buffers to cudarc, and makes their streams wait for the communicators' streams.
    pub(crate) fn release_buffers(&mut self) -> Result<(), Error> {
        // Each one, in spite of errors: from now on, memory may be freed in the order of these streams.
        // Before the events of the buffers: waiting for one can make a stream part of a capture.
        let led = each_first_error(&self.others, |OtherStream { member, stream: other, event }| {
            let stream = &self.members[*member].stream;
            cuda::bind_context(stream.context()).and_then(|()| cuda::make_wait(event, stream, other))
        });
        self.accesses.drain(..).for_each(|accesses| drop(accesses.into_queued()));
        if !self.has_events {
            return led;
        }
        led.and(check_recorded(self.members.iter().map(|member| &*member.stream)))
    }
}

/// Runs a nested group. If it fails or panics, it counts as unfinished, and the whole batch fails.
pub(crate) fn run_nested<T, E>(
    batch: &RefCell<Batch<'_>>,
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
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

impl BatchStep {
    /// True for steps of one [nested](run_nested) group.
    pub(crate) fn is_grouped_with(&self, other: &Self) -> bool {
        self.group.is_some() && self.group == other.group
    }

    /// Calls NCCL with the stream of each communicator from `streams`. Returns ncclSuccess or ncclInProgress.
    ///
    /// # Safety
    /// The caller holds the guards of [`Batch::lock_members`], and the batch of the step lives until NCCL is
    /// done with it.
    pub(crate) unsafe fn call_operation(
        &self,
        members: &[BatchMember],
        streams: &[cudaStream_t],
    ) -> Result<ncclResult_t, Error> {
        let Self { operation, addresses, .. } = self;
        let (handle, stream) = (&members[self.member].handle, streams[self.member]);
        cuda::bind_context(&handle.context)?;
        // SAFETY: checked buffers, kept by the batch; the guard is held, and the state was found to be this
        // one.
        let code = unsafe {
            call_nccl(handle, stream, CommunicatorState::Alive, self.config.as_ref(), operation, *addresses)
        }?;
        handle.library.accept_code(operation.operation_name(), code)
    }
}
