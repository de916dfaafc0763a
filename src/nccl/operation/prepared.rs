//! Prepared operations: checked once, and queued any number of times.

use std::{cell::RefCell, fmt, num::NonZeroU64, ops::RangeBounds, slice, sync::Arc};

use cudarc::driver::CudaStream;
use nccl_sys::{cudaStream_t, ncclResult_t};

use super::batch::{Batch, BatchStep, run_nested};
use super::buffers::{CallBuffers, OtherStreams};
use super::call::{Call, Submission, sealed};
use super::call_config::CallConfig;
use super::collectives::Collectives;
use super::kind::NcclOperation;
use super::reduction::Operator;
use super::submit::call_nccl;
use crate::nccl::allocation::{Allocation, Owner};
use crate::nccl::communicator::{Communicator, CommunicatorState, Handle};
use crate::nccl::cuda;
use crate::nccl::error::{Error, each_first_error};
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut, checked_range};
use crate::nccl::nccl_group::{self, END};

const PREPARE: &str = "preparing operations";
const QUEUE: &str = "queueing prepared operations";

/// Operations of one communicator, checked once, by [`Communicator::prepare`], and queued any number of
/// times, by [`Communicator::queue`]. Queueing passes the stored arguments to NCCL's function, and costs
/// about 10 ns more than the function, and for each call of `queue` a question to the driver (about 30 ns).
///
/// It owns its buffers together with their [`Memory`](crate::nccl::Memory). The program can use the memory
/// between the calls of `queue`: a call is ordered after earlier work queued on the memory's stream, and
/// before later work queued there. Concurrent accesses from another thread see a mixture of old and new
/// values.
///
/// It does not keep the communicator. If it outlives the communicator, it only keeps the buffers.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error, Memory}};
/// # fn example(
/// #     communicator: &Communicator, gradients: &mut Memory,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let prepared = communicator.prepare(|prepare| {
///     prepare.all_reduce_in_place(&mut gradients.slice_mut::<f32>(..1024)?, ReduceOp::Avg)?;
///     prepare.all_reduce_in_place(&mut gradients.slice_mut::<f32>(1024..4096)?, ReduceOp::Avg)
/// });
/// let prepared = prepared?;
/// for _ in 0..100 {
///     communicator.stream().memcpy_htod(&[1.0; 4096], &mut gradients.slice_mut::<f32>(..4096)?)?;
///     communicator.queue(&prepared)?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Prepared {
    /// Handle of the communicator. The communicator may have ended.
    handle: Arc<Handle>,
    entries: Box<[PreparedEntry]>,
    /// Streams of the buffers, without duplicates.
    streams: Vec<Arc<CudaStream>>,
    /// True if an operation waits for signals: other ranks may have written into windows when it is done.
    waits: bool,
    /// True if NCCL's device must be current for an operation.
    needs_device: bool,
    /// The memories of the buffers.
    memories: Vec<Arc<Allocation>>,
    _kept: Vec<Owner>,
    _operators: Vec<Arc<Operator>>,
}

/// One call, or several launched together by NCCL.
enum PreparedEntry {
    Call(PreparedCall),
    /// A call with settings, or with a check each time.
    Special(Box<SpecialCall>),
    Group(Box<[SpecialCall]>),
}

struct PreparedCall {
    operation: NcclOperation,
    addresses: (u64, u64),
}

struct SpecialCall {
    call: PreparedCall,
    config: Option<CallConfig>,
    /// See [`BatchStep::misaligned`].
    misaligned: Option<NonZeroU64>,
}

impl Prepared {
    /// Number of entries: operations outside of groups, and groups with operations.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is nothing to queue.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Prepared").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Records operations of a [`Prepared`]. Its methods are the [collectives](Collectives). Their buffers need
/// owners: [`Memory`](crate::nccl::Memory) and its views.
#[derive(Debug)]
pub struct Preparation<'b> {
    communicator: &'b Communicator,
    batch: RefCell<Batch<'static>>,
}

impl<'b> Preparation<'b> {
    /// Returns the collectives with settings for one call. All ranks use the same.
    pub fn with(&self, config: &'b CallConfig) -> Call<'b, &Self> {
        self.call().with(config)
    }

    /// Groups operations to be launched together by NCCL, as in a [`group`](super::group()).
    pub fn group<T, E>(&self, body: impl FnOnce(&Self) -> Result<T, E>) -> Result<T, E> {
        run_nested(&self.batch, || body(self))
    }

    fn into_prepared(self) -> Result<Prepared, Error> {
        let batch = self.batch.into_inner();
        batch.refuse_unfinished(PREPARE)?;
        let Batch { steps, others, kept, operators, .. } = batch;
        let mut streams: Vec<Arc<CudaStream>> = Vec::new();
        for other in others {
            if !streams.contains(&other.stream) {
                streams.push(other.stream);
            }
        }
        let waits = steps.iter().any(|step| step.operation.waits_for_signals());
        let needs_device = steps.iter().any(|step| step.operation.is_scale);
        let mut entries = Vec::with_capacity(steps.len());
        let mut steps = steps.into_iter().peekable();
        while let Some(step) = steps.next() {
            let Some(group) = step.group else {
                entries.push(SpecialCall::from(step).into());
                continue;
            };
            let mut calls = vec![SpecialCall::from(step)];
            while let Some(step) = steps.next_if(|step| step.group == Some(group)) {
                calls.push(step.into());
            }
            entries.push(PreparedEntry::Group(calls.into()));
        }
        let handle = Arc::clone(&self.communicator.handle);
        let mut memories: Vec<Arc<Allocation>> =
            kept.iter().filter_map(|owner| Arc::clone(owner).downcast().ok()).collect();
        memories.sort_by_key(Arc::as_ptr);
        memories.dedup_by_key(|memory| Arc::as_ptr(memory));
        let (entries, _kept, _operators) = (entries.into(), kept, operators);
        Ok(Prepared { handle, entries, streams, waits, needs_device, memories, _kept, _operators })
    }
}

impl From<BatchStep> for SpecialCall {
    fn from(BatchStep { operation, addresses, misaligned, config, .. }: BatchStep) -> Self {
        Self { call: PreparedCall { operation, addresses }, config, misaligned }
    }
}

impl From<SpecialCall> for PreparedEntry {
    fn from(call: SpecialCall) -> Self {
        match call {
            SpecialCall { call, config: None, misaligned: None } => Self::Call(call),
            call => Self::Special(Box::new(call)),
        }
    }
}

impl<'b> Collectives<'b> for &Preparation<'b> {
    type Launch = Self;

    fn call(self) -> Call<'b, Self> {
        Call::new(self.communicator, self)
    }
}

impl<'b> sealed::Launch<'b> for &Preparation<'_> {
    fn launch(
        self,
        submission: Submission<'b>,
        buffers: CallBuffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        self.batch.borrow_mut().record_owned(submission, buffers)
    }
}

impl Communicator {
    /// Checks the operations called by the closure, and keeps their arguments and buffers for
    /// [`queue`](Self::queue). Nothing is queued.
    ///
    /// # Errors
    /// The closure's errors; the errors of the [collectives](Collectives) before anything is queued;
    /// [`Error::NotOwned`] for a buffer without an owner; [`Error::Argument`] for operations of one group
    /// that access a buffer written by one of them; [`Error::InsideGroup`].
    pub fn prepare<'b, E: From<Error>>(
        &'b self,
        body: impl FnOnce(&Preparation<'b>) -> Result<(), E>,
    ) -> Result<Prepared, E> {
        nccl_group::forbid_group(PREPARE)?;
        let preparation = Preparation { communicator: self, batch: RefCell::default() };
        body(&preparation)?;
        Ok(preparation.into_prepared()?)
    }

    /// Queues all prepared operations, one after the other, on the communicator's current stream. All ranks
    /// queue the same.
    ///
    /// # Errors
    /// [`Error::WrongCommunicator`], [`Error::InsideGroup`], and [`Error::Stream`] while one of the streams
    /// is being captured or a copy of a buffer could not be waited for, before anything is queued;
    /// [`Error::Cuda`]; [`Error::Misaligned`]; [`Error::Nccl`], [`Error::Aborted`], [`Error::Unusable`],
    /// [`Error::Deadline`] if NCCL could not queue an operation: earlier ones are queued then.
    pub fn queue(&self, prepared: &Prepared) -> Result<(), Error> {
        self.queue_entries(prepared, &prepared.entries)
    }

    /// Queues a part of the prepared operations: the range counts [entries](Prepared::len). It is ordered
    /// with the streams of all of them.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range reaches past the end; the errors of [`queue`](Self::queue).
    pub fn queue_range(&self, prepared: &Prepared, range: impl RangeBounds<usize>) -> Result<(), Error> {
        let entries = checked_range(range, prepared.len()).ok().and_then(|range| prepared.entries.get(range));
        let entries = entries.ok_or_else(|| {
            let reason = format!("the range reaches past the end of the {} entries", prepared.len());
            Error::bad_argument(QUEUE, reason)
        })?;
        self.queue_entries(prepared, entries)
    }

    fn queue_entries(&self, prepared: &Prepared, entries: &[PreparedEntry]) -> Result<(), Error> {
        nccl_group::forbid_group(QUEUE)?;
        let (handle, stream) = (&*self.handle, &*self.stream);
        if !Arc::ptr_eq(&prepared.handle, &self.handle) {
            return Err(Error::WrongCommunicator { operation: QUEUE, object: "list of prepared operations" });
        }
        if entries.is_empty() {
            return Ok(());
        }
        if prepared.needs_device || cuda::is_default(stream) {
            cuda::bind_context(&handle.context)?;
        } else {
            cuda::bind_once(&handle.context)?;
        }
        prepared.memories.iter().try_for_each(|memory| memory.check_copies(QUEUE))?;
        // Once for all entries: a capture begun by another thread during a call is an exception of the
        // module.
        cuda::refuse_captured(QUEUE, stream)?;
        if !prepared.waits && prepared.streams.iter().all(|other| Arc::ptr_eq(other, &self.stream)) {
            return entries.iter().try_for_each(|entry| self.queue_entry(entry));
        }
        let others = self.wait_for_streams(prepared)?;
        let queued = entries.iter().try_for_each(|entry| self.queue_entry(entry));
        // Even after an error, something may have been queued.
        queued.and(each_first_error(&others, |stream| self.make_wait(stream)))
    }

    /// Makes the communicator's stream wait for the streams of the buffers. Returns the streams that must
    /// wait for it afterwards.
    #[cold]
    fn wait_for_streams(&self, prepared: &Prepared) -> Result<OtherStreams, Error> {
        let mut others = OtherStreams::new();
        for stream in &prepared.streams {
            self.wait_for_other(QUEUE, "buffer", stream, &mut others)?;
        }
        if prepared.waits {
            self.add_streams_of_windows(&mut others)?;
        }
        Ok(others)
    }

    #[inline(always)]
    fn queue_entry(&self, entry: &PreparedEntry) -> Result<(), Error> {
        let handle = &*self.handle;
        handle.fence_operation(&self.stream)?;
        let call = match entry {
            PreparedEntry::Call(call) => call,
            PreparedEntry::Special(call) => return self.queue_special(slice::from_ref(call), false),
            PreparedEntry::Group(calls) => return self.queue_special(calls, true),
        };
        let state = handle.lock_state();
        // SAFETY: the guard is held.
        let code = unsafe { self.pass_operation(call, None, *state) };
        drop(state);
        match code {
            Ok(ncclResult_t::ncclSuccess) => Ok(()),
            code => code.and_then(|code| handle.finish_operation(call.operation.operation_name(), code)),
        }
    }

    /// Queues calls as a group, or one.
    fn queue_special(&self, calls: &[SpecialCall], is_group: bool) -> Result<(), Error> {
        let (handle, library) = (&*self.handle, self.library());
        for SpecialCall { call, misaligned, .. } in calls {
            if let Some(address) = misaligned {
                self.refuse_misaligned(&call.operation, address.get())?;
            }
        }
        let state = handle.lock_state();
        handle.comm_in_state(*state, CommunicatorState::is_alive, QUEUE)?;
        let each = || {
            calls.iter().try_fold(ncclResult_t::ncclSuccess, |_, SpecialCall { call, config, .. }| {
                // SAFETY: the guard is held.
                let code = unsafe { self.pass_operation(call, config.as_ref(), *state) }?;
                library.accept_code(call.operation.operation_name(), code)
            })
        };
        let code =
            if is_group { nccl_group::run_calls(library, END, each).map(|(code, _)| code) } else { each() };
        drop(state);
        handle.finish_operation(QUEUE, code?)
    }

    /// Calls NCCL's function of a prepared operation of this communicator.
    ///
    /// # Safety
    /// The caller holds the guard of the communicator's state, with the value `state`.
    #[inline(always)]
    unsafe fn pass_operation(
        &self,
        PreparedCall { operation, addresses }: &PreparedCall,
        config: Option<&CallConfig>,
        state: CommunicatorState,
    ) -> Result<ncclResult_t, Error> {
        let stream = self.stream.cu_stream() as cudaStream_t;
        // SAFETY: checked buffers of this communicator's device. `Prepared` owns them and is borrowed; once
        // it is dropped, they are freed in the order of their streams, and these wait for this one after the
        // call. The guard is held.
        unsafe { call_nccl(&self.handle, stream, state, config, operation, *addresses) }
    }
}
