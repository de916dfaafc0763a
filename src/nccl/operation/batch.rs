//! Operations that are checked first, and go to NCCL together later: those of a group and of a graph.

use std::{mem, ptr, sync::Arc};

use cudarc::driver::{CudaEvent, CudaStream};
use nccl_sys::{cudaStream_t, ncclResult_t};

use super::call::Submission;
use super::call_config::CallConfig;
use super::reduction::Operator;
use super::submit::{self, Accesses, Buffers, OtherStreams};
use super::{Kind, Operation};
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{Guards, Handle, Object, State, overlap};
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
    accesses: Vec<Accesses<'env>>,
    /// True when cudarc's events order an access.
    has_events: bool,
    /// The streams of buffers that are not their communicator's.
    pub(crate) others: Vec<OtherStream>,
    /// Keep buffers, and what NCCL knows of them, without the accesses.
    pub(crate) kept: Kept,
    /// Operators, until NCCL has copied them.
    operators: Vec<Arc<Operator>>,
    /// In a group of a graph: the buffers that its operations use.
    pub(crate) grouped: Option<Vec<OwnedBuffer>>,
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

/// Objects that the operations of a graph use whenever it is launched.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) owners: Vec<Owner>,
    /// Registrations and windows.
    pub(crate) known: Vec<Arc<dyn Object>>,
}

#[derive(Debug)]
pub(crate) enum Step {
    Call {
        /// Index of the communicator.
        member: usize,
        config: Option<CallConfig>,
        operation: Operation,
        addresses: (u64, u64),
    },
    Group(Vec<Step>),
}

impl<'env> Batch<'env> {
    /// Checks an operation as far as that can be done without NCCL, and makes the communicator's stream wait for the
    /// buffers'.
    pub(crate) fn record(
        &mut self,
        submission: Submission<'env>,
        buffers: Buffers<'env, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.admit(&submission)?;
        let Submission { communicator, operation, .. } = &submission;
        let name = operation.name;
        cuda::refuse_captured(name, &communicator.stream)?;
        let (mut others, offsets) = (OtherStreams::new(), buffers.offsets);
        let accesses = communicator.access(name, buffers, &mut others)?;
        if accesses.have_events() {
            if let Err(error) = communicator.check_accesses(name, false) {
                mem::forget(accesses);
                return Err(error);
            }
            self.has_events = true;
        }
        let addresses = communicator.addresses(operation, offsets, &accesses)?;
        if operation.waits() {
            others.extend(communicator.streams_of_windows());
        }
        self.accesses.push(accesses);
        self.push(submission, addresses, others)
    }

    /// Like [`record`](Self::record), for an operation that is launched whenever its graph is: it keeps its buffers by their
    /// owners, and no stream waits for another yet.
    pub(crate) fn record_owned<'b>(
        &mut self,
        submission: Submission<'b>,
        buffers: Buffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.admit(&submission)?;
        let Submission { communicator, operation, .. } = &submission;
        let name = operation.name;
        let (mut others, offsets) = (OtherStreams::new(), buffers.offsets);
        for buffer in buffers.uses(communicator, name)? {
            self.refuse_overlap(name, &buffer)?;
            let known = communicator.handle.registered_at(&buffer.addresses);
            self.kept.known.extend(known.into_iter().map(|(_, object)| object));
            self.kept.owners.push(buffer.owner);
            // Also the communicator's own: it may move to another stream before the graph is captured.
            others.push(buffer.stream);
        }
        self.operators.extend(buffers.operator.cloned());
        // Buffers with an owner have no events: nothing waits here.
        let addresses =
            communicator.addresses(operation, offsets, &buffers.accesses(&communicator.stream))?;
        for (memory, object) in communicator.handle.registered() {
            let is_target = matches!(operation.kind, Kind::Put { window, .. } if window.addr() == memory.raw);
            if is_target || operation.waits() {
                self.kept.known.push(object);
            }
        }
        if operation.waits() {
            others.extend(communicator.streams_of_windows());
        }
        self.push(submission, addresses, others)
    }

    /// Operations of one group run at the same time: what one writes, no other uses. Outside of graphs the types see to that.
    /// Only memory of one owner is compared: for memory by its address, its maker has vouched.
    fn refuse_overlap(&mut self, operation: &'static str, buffer: &OwnedBuffer) -> Result<(), Error> {
        let Some(grouped) = &mut self.grouped else { return Ok(()) };
        let overlaps = |other: &OwnedBuffer| {
            (buffer.is_written || other.is_written)
                && Arc::ptr_eq(&buffer.owner, &other.owner)
                && overlap(&buffer.addresses, &other.addresses)
        };
        if grouped.iter().any(overlaps) {
            let reason = "another operation of the group writes what this one uses, or uses what it writes";
            return Err(Error::argument(operation, reason));
        }
        grouped.push(buffer.clone());
        Ok(())
    }

    fn admit(&mut self, submission: &Submission<'_>) -> Result<(), Error> {
        let Submission { communicator, config, operation } = submission;
        let library = self.library.unwrap_or(communicator.library());
        if !ptr::eq(communicator.library().raw(), library.raw()) {
            return Err(Error::WrongLibrary { operation: operation.name });
        }
        operation.require(library)?;
        config.map(|config| config.raw(library)).transpose()?;
        communicator.handle.comm(*communicator.handle.lock(), State::is_alive, operation.name)?;
        cuda::bind(&communicator.handle.context)
    }

    fn push(
        &mut self,
        Submission { communicator, config, operation }: Submission<'_>,
        addresses: (u64, u64),
        others: OtherStreams,
    ) -> Result<(), Error> {
        let known = self.members.iter().position(|member| Arc::ptr_eq(&member.handle, &communicator.handle));
        let member = known.unwrap_or_else(|| {
            let (handle, stream) = (Arc::clone(&communicator.handle), Arc::clone(&communicator.stream));
            self.members.push(Member { handle, stream, rank: communicator.rank() });
            self.members.len() - 1
        });
        self.library = Some(communicator.library());
        for stream in others {
            self.others.push(OtherStream { member, stream, event: communicator.event()? });
        }
        self.steps.push(Step::Call { member, config: config.cloned(), operation, addresses });
        Ok(())
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

    /// Before the operations: see [`Handle::fence`].
    pub(crate) fn fence(&self) -> Result<(), Error> {
        self.members.iter().try_for_each(|member| member.handle.fence(&member.stream))
    }

    /// Keeps other threads from using or ending the communicators, all of which can be used.
    pub(crate) fn lock(&self, operation: &'static str) -> Result<Guards<'_>, Error> {
        Guards::lock(self.members.iter().map(|member| &*member.handle)).all_alive(operation)
    }

    /// Waits until NCCL's own threads are done with what they were given.
    pub(crate) fn settle(&self, operation: &'static str) -> Result<(), Error> {
        // Each, whatever the others say: afterwards the buffers may be used again.
        each(&self.members, |member| submit::finish(&member.handle, operation, ncclResult_t::ncclInProgress))
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
        led.and(each(&self.members, |member| submit::released(&member.stream)))
    }
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
        match self {
            Step::Group(steps) => steps.iter().try_fold(ncclResult_t::ncclSuccess, |answer, step| {
                // SAFETY: as this function. A group in a group adds nothing.
                let code = unsafe { step.call(members, streams) }?;
                Ok(if code == ncclResult_t::ncclInProgress { code } else { answer })
            }),
            Step::Call { member, config, operation, addresses } => {
                let (handle, stream) = (&members[*member].handle, streams[*member]);
                cuda::bind(&handle.context)?;
                // SAFETY: checked buffers, which the batch keeps; the guard is held, and the state was found to be this one.
                let code = unsafe {
                    submit::call_nccl(handle, stream, State::Alive, config.as_ref(), operation, *addresses)
                }?;
                if code != ncclResult_t::ncclInProgress {
                    handle.library.check(operation.name, code)?;
                }
                Ok(code)
            }
        }
    }
}
