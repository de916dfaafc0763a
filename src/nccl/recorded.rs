//! Operations that are checked and recorded first, and go to NCCL together later: those of a group and of a graph.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::ncclResult_t;

use super::abort::{State, StateGuard};
use super::buffer::{DeviceBuffer, DeviceBufferMut};
use super::call_config::CallConfig;
use super::communicator::Communicator;
use super::cuda;
use super::error::Error;
use super::launch::{Accesses, Buffers, Foreign};
use super::library::Library;
use super::operation::Operation;

/// Operations with all that they need until they are done.
#[derive(Default)]
pub(crate) struct Recorded<'env> {
    pub(crate) steps: Vec<Step<'env>>,
    /// Each communicator once.
    communicators: Vec<&'env Communicator>,
    /// Keep the buffers' addresses valid, and hold back what cudarc does when the work is queued.
    accesses: Vec<Accesses<'env>>,
    /// The streams that come after the operations, each with a communicator.
    foreign: Vec<(&'env Communicator, Arc<CudaStream>)>,
}

pub(crate) enum Step<'env> {
    Call {
        communicator: &'env Communicator,
        config: Option<&'env CallConfig>,
        operation: Operation,
        addresses: (u64, u64),
    },
    Group(Vec<Step<'env>>),
}

impl<'env> Recorded<'env> {
    /// Checks an operation as far as that can be done without NCCL, and makes the communicator's stream wait for the
    /// buffers'.
    pub(crate) fn record<S, R>(
        &mut self,
        library: Library,
        communicator: &'env Communicator,
        config: Option<&'env CallConfig>,
        operation: Operation,
        buffers: Buffers<'env, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        let name = operation.name;
        if !ptr::eq(communicator.library().raw(), library.raw()) {
            return Err(Error::WrongLibrary { operation: name });
        }
        operation.require(library)?;
        if let Some(config) = config {
            config.raw(library)?;
        }
        communicator.shared.handle(*communicator.shared.lock(), name)?;
        cuda::bind(&communicator.shared.context)?;
        cuda::refuse_captured(name, &communicator.stream)?;
        let mut foreign = Foreign::new();
        let accesses = communicator.access(name, buffers, &mut foreign)?;
        let addresses = communicator.addresses(&operation, &accesses)?;
        if !self.communicators.iter().any(|&member| ptr::eq(member, communicator)) {
            self.communicators.push(communicator);
        }
        self.accesses.push(accesses);
        self.foreign.extend(foreign.into_iter().map(|home| (communicator, home)));
        self.steps.push(Step::Call { communicator, config, operation, addresses });
        Ok(())
    }

    pub(crate) fn communicators(&self) -> &[&'env Communicator] {
        &self.communicators
    }

    /// The communicators' streams, each once.
    pub(crate) fn streams(&self) -> Vec<&'env Arc<CudaStream>> {
        let mut streams: Vec<&Arc<CudaStream>> = Vec::new();
        for communicator in &self.communicators {
            if !streams.iter().any(|stream| ***stream == *communicator.stream) {
                streams.push(&communicator.stream);
            }
        }
        streams
    }

    /// A capture may have begun since the operations were recorded, or have drawn a stream in through a buffer's events.
    pub(crate) fn refuse_captured(&self, operation: &'static str) -> Result<(), Error> {
        for communicator in &self.communicators {
            cuda::bind(&communicator.shared.context)?;
            cuda::refuse_captured(operation, &communicator.stream)?;
        }
        for (communicator, home) in &self.foreign {
            cuda::bind(&communicator.shared.context)?;
            cuda::refuse_captured(operation, home)?;
        }
        Ok(())
    }

    /// Keeps other threads from using or ending the communicators, all of which can be used.
    pub(crate) fn lock(&self, operation: &'static str) -> Result<Vec<StateGuard<'env>>, Error> {
        let lock = |communicator: &&'env Communicator| {
            let state = communicator.shared.lock();
            communicator.shared.handle(*state, operation)?;
            Ok(state)
        };
        self.communicators.iter().map(lock).collect()
    }

    /// Waits until NCCL's own threads are done with what they were given.
    pub(crate) fn settle(&self, operation: &'static str) -> Result<(), Error> {
        // Each, whatever the others say: afterwards the buffers may be used again.
        let mut result = Ok(());
        for communicator in &self.communicators {
            result = result.and(communicator.finish(operation, ncclResult_t::ncclInProgress));
        }
        result
    }

    /// Makes the buffers' streams wait for what the communicators' have to do.
    pub(crate) fn lead(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for (communicator, home) in &self.foreign {
            let ordered = cuda::bind(&communicator.shared.context).and_then(|()| communicator.lead(home));
            result = result.and(ordered);
        }
        result
    }

    /// Gives the buffers back to cudarc.
    pub(crate) fn release(&mut self) {
        self.accesses.clear();
    }
}

impl Step<'_> {
    /// Calls NCCL; ncclSuccess or ncclInProgress.
    ///
    /// # Safety
    /// The caller holds the guards of [`Recorded::lock`], and the record of the step lives until NCCL is done with it.
    pub(crate) unsafe fn call(&self) -> Result<ncclResult_t, Error> {
        let (communicator, operation, code) = match self {
            Step::Group(steps) => {
                // SAFETY: as this function. A group in a group adds nothing.
                return steps.iter().try_fold(ncclResult_t::ncclSuccess, |_, step| unsafe { step.call() });
            }
            Step::Call { communicator, config, operation, addresses } => {
                cuda::bind(&communicator.shared.context)?;
                // SAFETY: checked buffers, whose accesses the record keeps; the guard is held, and the state was found
                // to be this one.
                let code = unsafe { communicator.call_nccl(State::Alive, *config, operation, *addresses) }?;
                (communicator, operation, code)
            }
        };
        if code != ncclResult_t::ncclInProgress {
            communicator.library().check(operation.name, code)?;
        }
        Ok(code)
    }
}
