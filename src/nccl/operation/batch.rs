//! Operations that are checked first, and go to NCCL together later: those of a group and of a graph.

use std::mem;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};
use nccl_sys::{cudaStream_t, ncclResult_t};

use super::call_config::CallConfig;
use super::submit::{self, Accesses, Buffers, Foreign};
use super::{Kind, Operation};
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{Communicator, Handle, Object, State, StateGuard, lead, overlap};
use crate::nccl::cuda;
use crate::nccl::error::{Error, each};
use crate::nccl::library::Library;
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut};

/// Operations with all that they need until they are done.
#[derive(Debug, Default)]
pub(crate) struct Batch<'env> {
    library: Option<Library>,
    pub(crate) steps: Vec<Step>,
    /// Each communicator once.
    pub(crate) members: Vec<Member>,
    /// Keep the buffers' addresses valid, and hold back what cudarc does when the work is queued.
    accesses: Vec<Accesses<'env>>,
    /// True when cudarc's events order an access.
    ordered: bool,
    /// The streams of buffers that are not their communicator's.
    pub(crate) foreign: Vec<ForeignStream>,
    /// Keep buffers, and what NCCL knows of them, without the accesses.
    pub(crate) kept: Kept,
    /// Operators, until NCCL has copied them.
    operators: Vec<Owner>,
    /// In a group of a graph: the addresses that its operations use, and whether they write them.
    pub(crate) grouped: Option<Vec<(Range<u64>, bool)>>,
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
pub(crate) struct ForeignStream {
    /// Index of the communicator.
    pub(crate) member: usize,
    pub(crate) home: Arc<CudaStream>,
    event: Arc<CudaEvent>,
}

/// What operations of a graph use whenever it is launched.
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
    /// The library of all communicators; none where there is no operation.
    pub(crate) fn library(&self) -> Option<Library> {
        self.library
    }

    /// Checks an operation as far as that can be done without NCCL, and makes the communicator's stream wait for the
    /// buffers'.
    pub(crate) fn record<S, R>(
        &mut self,
        communicator: &'env Communicator,
        config: Option<&CallConfig>,
        operation: Operation,
        buffers: Buffers<'env, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        let name = operation.name;
        self.admit(communicator, config, &operation)?;
        cuda::refuse_captured(name, &communicator.stream)?;
        let mut homes = Foreign::new();
        let accesses = communicator.access(name, buffers, &mut homes)?;
        if accesses.ordered() {
            if let Err(error) = communicator.check_accesses(name, false) {
                mem::forget(accesses);
                return Err(error);
            }
            self.ordered = true;
        }
        let addresses = communicator.addresses(&operation, &accesses)?;
        if operation.waits() {
            homes.extend(communicator.homes_of_windows());
        }
        self.accesses.push(accesses);
        self.push(communicator, config, operation, addresses, homes)
    }

    /// Like [`record`](Self::record), for an operation that is launched whenever its graph is: it keeps its buffers by their
    /// owners, and no stream waits for another yet.
    pub(crate) fn record_owned<S, R>(
        &mut self,
        communicator: &Communicator,
        config: Option<&CallConfig>,
        operation: Operation,
        buffers: Buffers<'_, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        let name = operation.name;
        self.admit(communicator, config, &operation)?;
        let mut homes = Foreign::new();
        let owners = buffers.owners(communicator, name, &mut homes)?;
        let ranges = buffers.ranges();
        let operator = buffers.scalar.and_then(|scalar| scalar.operator());
        self.refuse_overlap(name, &ranges)?;
        // Buffers with an owner have no events: nothing waits here.
        let accesses = buffers.accesses(&communicator.stream);
        let addresses = communicator.addresses(&operation, &accesses)?;
        if operation.waits() {
            homes.extend(communicator.homes_of_windows());
            self.kept.known.extend(communicator.handle.known().into_iter().map(|(_, object)| object));
        }
        self.kept.owners.extend(owners);
        self.operators.extend(operator);
        let known = ranges.iter().flat_map(|(range, _)| communicator.handle.known_at(range));
        self.kept.known.extend(known.map(|(_, object)| object));
        if let Kind::Put { window, .. } = operation.kind {
            let target =
                communicator.handle.known().into_iter().find(|(memory, _)| memory.raw == window.addr());
            self.kept.known.extend(target.map(|(_, object)| object));
        }
        self.push(communicator, config, operation, addresses, homes)
    }

    /// Operations of one group run at the same time: what one writes, no other uses. Outside of graphs the types see to that.
    fn refuse_overlap(
        &mut self,
        operation: &'static str,
        ranges: &[(Range<u64>, bool)],
    ) -> Result<(), Error> {
        let Some(grouped) = &mut self.grouped else { return Ok(()) };
        for (range, writes) in ranges {
            let overlaps =
                |(other, written): &&(Range<u64>, bool)| (*writes || *written) && overlap(range, other);
            if grouped.iter().any(|other| overlaps(&other)) {
                return Err(Error::Overlap { operation });
            }
        }
        grouped.extend_from_slice(ranges);
        Ok(())
    }

    fn admit(
        &mut self,
        communicator: &Communicator,
        config: Option<&CallConfig>,
        operation: &Operation,
    ) -> Result<(), Error> {
        let library = *self.library.get_or_insert(communicator.library());
        if !ptr::eq(communicator.library().raw(), library.raw()) {
            return Err(Error::WrongLibrary { operation: operation.name });
        }
        operation.require(library)?;
        if let Some(config) = config {
            config.raw(library)?;
        }
        communicator.handle.handle(*communicator.handle.lock(), operation.name)?;
        cuda::bind(&communicator.handle.context)
    }

    fn push(
        &mut self,
        communicator: &Communicator,
        config: Option<&CallConfig>,
        operation: Operation,
        addresses: (u64, u64),
        homes: Foreign,
    ) -> Result<(), Error> {
        let known = self.members.iter().position(|member| Arc::ptr_eq(&member.handle, &communicator.handle));
        let member = known.unwrap_or_else(|| {
            let (handle, stream) = (Arc::clone(&communicator.handle), Arc::clone(&communicator.stream));
            self.members.push(Member { handle, stream, rank: communicator.rank() });
            self.members.len() - 1
        });
        for home in homes {
            self.foreign.push(ForeignStream { member, home, event: communicator.event()? });
        }
        self.steps.push(Step::Call { member, config: config.cloned(), operation, addresses });
        Ok(())
    }

    /// A capture may have begun since the operations were recorded, or have drawn a stream in through a buffer's events.
    pub(crate) fn refuse_captured(&self, operation: &'static str) -> Result<(), Error> {
        for stream in self
            .members
            .iter()
            .map(|member| &member.stream)
            .chain(self.foreign.iter().map(|foreign| &foreign.home))
        {
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
    pub(crate) fn lock(&self, operation: &'static str) -> Result<Vec<StateGuard<'_>>, Error> {
        lock(self.members.iter().map(|member| &*member.handle), operation)
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
        let led = each(&self.foreign, |ForeignStream { member, home, event }| {
            let stream = &self.members[*member].stream;
            cuda::bind(stream.context()).and_then(|()| lead(event, stream, home))
        });
        if !self.ordered {
            return led;
        }
        led.and(each(&self.members, |member| submit::released(&member.stream)))
    }
}

/// Keeps other threads from using or ending the communicators, all of which can be used.
pub(crate) fn lock<'a>(
    handles: impl Iterator<Item = &'a Handle>,
    operation: &'static str,
) -> Result<Vec<StateGuard<'a>>, Error> {
    let lock = |handle: &'a Handle| {
        let state = handle.lock();
        handle.handle(*state, operation)?;
        Ok(state)
    };
    // In one order, whoever locks several: a graph may be launched by another thread.
    let mut handles: Vec<_> = handles.collect();
    handles.sort_by_key(|handle| ptr::from_ref(*handle).addr());
    handles.into_iter().map(lock).collect()
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
