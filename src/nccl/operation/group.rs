//! Groups: several operations, on any number of communicators, launched together by NCCL.

use std::{cell::RefCell, marker::PhantomData, time::Duration};

use nccl_sys::{Nccl, cudaStream_t, ncclResult_t, ncclSimInfo_t};

use super::agreement;
use super::batch::{Batch, BatchStep, run_nested};
use super::buffers::CallBuffers;
use super::call::{Call, Submission, sealed};
use crate::nccl::communicator::Communicator;
use crate::nccl::error::Error;
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut};
use crate::nccl::nccl_group::{self, END, START, Scope};

const SIMULATE: &str = "ncclGroupSimulateEnd";

/// Records operations and launches them together (`ncclGroupStart`, `ncclGroupEnd`): to use several
/// communicators in one thread, to send and receive at the same time, and to let NCCL overlap operations.
///
/// Nothing is passed to NCCL before the closure has returned, or if it returns an error or panics.
/// Communicators and buffers stay borrowed until the group has ended. Several ranks of one communicator in
/// the group are compared first.
///
/// ```no_run
/// # use collectives::nccl::{self, Collectives, Communicator, Error, Memory};
/// # fn example(communicator: &Communicator, mine: &Memory, theirs: &mut Memory) -> Result<(), Error> {
/// // Every rank sends to its right neighbour and receives from its left one.
/// let (rank, size) = (communicator.rank(), communicator.size());
/// let (outgoing, mut incoming) = (mine.slice::<f32>(..1024)?, theirs.slice_mut::<f32>(..1024)?);
/// nccl::group(|group| {
///     group.on(communicator).send(&outgoing, (rank + 1) % size)?;
///     group.on(communicator).recv(&mut incoming, (rank + size - 1) % size)
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The closure's; [`Error::InsideGroup`] inside another group: see [`Group::nested`]; [`Error::WrongLibrary`]
/// for communicators of different libraries; [`Error::Disagreement`] if ranks of one communicator call
/// different operations; [`Error::Nccl`], [`Error::Deadline`] or [`Error::Aborted`] if the launch fails.
pub fn group<'env, T, E: From<Error>>(body: impl FnOnce(&Group<'env>) -> Result<T, E>) -> Result<T, E> {
    let scope = Scope::enter_group(START)?;
    let group = Group { simulated: false, batch: RefCell::default(), environment: PhantomData };
    let value = body(&group)?;
    drop(scope);
    // SAFETY: no arguments; closes NCCL's group of this thread.
    group.run_batch(END, |raw| unsafe { raw.ncclGroupEnd() })?;
    Ok(value)
}

/// Like [`group()`], but launches nothing: NCCL only estimates the duration of the operations
/// (`ncclGroupSimulateEnd`, NCCL 2.22). Returns `None` if NCCL has no estimate. Operations on communicators
/// of one rank are skipped. All ranks simulate the same, since NCCL may connect them for it. Only all_reduce,
/// reduce, broadcast, all_gather and reduce_scatter are supported, and only blocking communicators.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{self, Collectives, Communicator, Error, Memory}};
/// # fn example(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
/// let mut gradients = memory.slice_mut::<f32>(..1024)?;
/// let estimate: Result<_, Error> =
///     nccl::simulate(|group| group.on(communicator).all_reduce_in_place(&mut gradients, ReduceOp::Sum));
/// println!("{:?}", estimate?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`group()`]; [`Error::MissingSymbol`] before NCCL 2.22; [`Error::Argument`] for sends,
/// receives, and operations composed of them: after simulating these, NCCL (at least up to 2.30) treats
/// unconnected ranks as connected.
pub fn simulate<'env, E: From<Error>>(
    body: impl FnOnce(&Group<'env>) -> Result<(), E>,
) -> Result<Option<Duration>, E> {
    let scope = Scope::enter_group(START)?;
    let group = Group { simulated: true, batch: RefCell::default(), environment: PhantomData };
    body(&group)?;
    drop(scope);
    let mut info = ncclSimInfo_t::default();
    group.run_batch(SIMULATE, |raw| {
        // SAFETY: closes NCCL's group of this thread; writes into one struct of ours.
        unsafe { raw.ncclGroupSimulateEnd(&mut info) }.unwrap_or(ncclResult_t::ncclInvalidUsage)
    })?;
    // In microseconds; negative without an estimate.
    Ok(Duration::try_from_secs_f64(f64::from(info.estimatedTime) * 1e-6).ok())
}

/// Records operations until the closure of [`group()`] returns.
pub struct Group<'env> {
    simulated: bool,
    batch: RefCell<Batch<'env>>,
    /// Operations borrow for exactly `'env`, neither longer nor shorter.
    environment: PhantomData<&'env mut &'env ()>,
}

impl<'env> Group<'env> {
    /// Returns the collectives of a communicator, as part of the group.
    pub fn on<'g>(&'g self, communicator: &'env Communicator) -> Call<'env, &'g Self> {
        Call::new(communicator, self)
    }

    /// Nests a group in this one. The outer group launches it. For functions that group operations and may be
    /// called inside a group or not. If it fails, this whole group is cancelled, even if the error is not
    /// propagated.
    pub fn nested<T, E>(&self, body: impl FnOnce(&Self) -> Result<T, E>) -> Result<T, E> {
        run_nested(&self.batch, || body(self))
    }

    /// Passes all operations to NCCL, and orders other streams after them, even after an error.
    fn run_batch(self, name: &'static str, end: impl FnOnce(&Nccl) -> ncclResult_t) -> Result<(), Error> {
        let mut batch = self.batch.into_inner();
        batch.refuse_unfinished(START)?;
        agreement::check_agreement(&batch.members, &batch.steps, |_, _| true)?;
        let Some(library) = batch.library else { return Ok(()) };
        batch.refuse_captured(name)?;
        if !self.simulated {
            batch.members.iter().try_for_each(|member| member.handle.fence_operation(&member.stream))?;
        }
        let streams = batch.members.iter().map(|member| member.stream.cu_stream() as cudaStream_t);
        let streams: Vec<_> = streams.collect();
        let guards = batch.lock_members(name)?;
        // SAFETY: the guards are held, and the batch lives until the end of this function, by when NCCL has
        // queued the operations.
        let call = |step: &BatchStep| unsafe { step.call_operation(&batch.members, &streams) }.map(drop);
        let ended = nccl_group::run_until(library, || batch.steps.iter().try_for_each(call), name, end);
        drop(guards);
        let finished = match ended {
            // NCCL's own thread is still launching, and the ordering below must come afterwards.
            Ok((ncclResult_t::ncclInProgress, ())) => batch.wait_for_threads(name),
            ended => ended.map(drop),
        };
        finished.and(batch.release_buffers())
    }
}

impl<'env> sealed::Launch<'env> for &Group<'env> {
    fn launch(
        self,
        submission: Submission<'env>,
        buffers: CallBuffers<'env, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        let Submission { communicator, operation, .. } = &submission;
        if self.simulated {
            communicator.library().raw().require(SIMULATE)?;
            if !operation.has_algorithm() {
                let reason = "not possible in a simulation: NCCL would treat unconnected ranks as connected";
                return Err(Error::bad_argument(operation.operation_name(), reason));
            }
            if !communicator.handle.is_blocking() {
                let reason =
                    "not possible in a simulation on a non-blocking communicator: NCCL would launch it";
                return Err(Error::bad_argument(operation.operation_name(), reason));
            }
        }
        // NCCL copies the data of a single rank immediately, even in a simulated group.
        let left_out = self.simulated && operation.size == 1;
        let mut batch = self.batch.borrow_mut();
        batch.record_operation(submission, buffers)?;
        if left_out {
            batch.steps.pop();
        }
        Ok(())
    }
}
