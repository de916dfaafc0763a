//! Gradients in GPU memory.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, DeviceSlice as _, ValidAsZeroBits,
};
use half::bf16;

use super::bucket::{Bucket, Gradient, no_memory, outside_error};
use super::rounding::Rounding;
use super::streams::{OnGroup, OnProgram, Streams};
use crate::Error;
use crate::job::{Buffer, Group, Work, of_driver, refuse_captured};
use crate::nccl::Error as NcclError;
use crate::nccl::cuda::{self, Event};
use crate::nccl::nccl_group;
use crate::nccl::{begin_write, queue_read};

/// The group's stream, and those of the program's memory.
///
/// Copies run on the program's streams. So memory of the program is used on its own stream only, and may be
/// freed there at once; and no stream of the program waits for an operation under way.
pub struct GpuStreams {
    own: Arc<CudaStream>,
    /// Recorded on `own`.
    done: Event,
    /// Streams of the program, each with an event that is recorded on it.
    callers: Vec<(Arc<CudaStream>, Event)>,
    /// Context objects of the program's memory other than the group's: cudarc notes errors in each.
    contexts: Vec<Arc<CudaContext>>,
    /// Loaded when gradients travel as bfloat16 numbers.
    rounding: Option<Rounding>,
    /// Unused streams of [`cuda::track_events`] for the program's context objects.
    tracking: Vec<Arc<CudaStream>>,
}

impl GpuStreams {
    /// Refuses captured streams. Waiting for one would make the other stream part of the capture, and waiting
    /// on one for work outside of the capture would end it.
    fn refuse_captured(&self) -> Result<(), Error> {
        refuse_captured("the group's stream", &self.own)?;
        self.callers.iter().try_for_each(|(caller, _)| refuse_captured(GRADIENT, caller))
    }

    /// Registers a stream of the program, and makes it wait for the group's operations so far.
    fn register_stream(&mut self, caller: &Arc<CudaStream>) -> Result<(), Error> {
        if caller.context() != self.own.context() {
            return Err(Error::Buffer(format!(
                "memory of device {} in a group on device {}: use memory of the group's device",
                caller.context().ordinal(),
                self.own.context().ordinal()
            )));
        }
        cuda::refuse_per_thread(GRADIENT, caller).map_err(|error| Error::Buffer(error.to_string()))?;
        refuse_captured(GRADIENT, caller)?;
        // The copies wait for the events of gradients.
        cuda::keep_tracking(&mut self.tracking, caller.context()).map_err(|error| match error {
            NcclError::Stream { .. } => Error::Buffer(error.to_string()),
            other => of_driver(other),
        })?;
        wait_if_noted(caller.context())?;
        if !self.known_contexts().any(|known| Arc::ptr_eq(known, caller.context())) {
            self.contexts.push(Arc::clone(caller.context()));
        }
        let is = |known: &CudaStream| known.cu_stream() == caller.cu_stream();
        if is(&self.own) || self.callers.iter().any(|(known, _)| is(known)) {
            return Ok(());
        }
        let event = Event::new(caller.context()).map_err(of_driver)?;
        order_work(&self.done, &self.own, caller)?;
        self.callers.push((Arc::clone(caller), event));
        Ok(())
    }

    /// The context objects of the group's and the program's memory. An error of one can also be noted in
    /// another: cudarc notes it for the stream that uses memory of the first.
    fn known_contexts(&self) -> impl Iterator<Item = &Arc<CudaContext>> {
        iter::once(self.own.context()).chain(&self.contexts)
    }

    fn rounding_kernels(&self) -> Result<&Rounding, Error> {
        self.rounding.as_ref().ok_or_else(|| Error::Job("the kernels of bfloat16 are not loaded".to_owned()))
    }

    /// The stream on which to clear memory.
    fn clearing_stream(&self) -> &Arc<CudaStream> {
        self.callers.first().map_or(&self.own, |(caller, _)| caller)
    }
}

impl Streams for GpuStreams {
    /// Refuses a call inside of an NCCL group, and while a stream is being captured: a capture may have begun
    /// since the stream was registered.
    fn check_callable(&self) -> Result<(), Error> {
        nccl_group::forbid_group("a step").map_err(|error| Error::Job(error.to_string()))?;
        self.refuse_captured()?;
        self.known_contexts().try_for_each(|context| wait_if_noted(context))
    }

    fn has_program_streams(&self) -> bool {
        !self.callers.is_empty()
    }

    fn make_group_wait(&self) -> Result<(), Error> {
        self.refuse_captured()?;
        self.callers.iter().try_for_each(|(caller, event)| order_work(event, caller, &self.own))
    }

    fn make_program_wait(&self) -> Result<(), Error> {
        self.refuse_captured()?;
        self.callers.iter().try_for_each(|(caller, _)| order_work(&self.done, &self.own, caller))
    }

    /// Makes the group's stream, on which buckets are freed, wait for the program's copies. Where that fails,
    /// or where copies may have no events, the host waits.
    fn settle_memory(&self) -> Result<(), Error> {
        self.refuse_captured()?;
        self.known_contexts().try_for_each(|context| wait_if_noted(context))?;
        self.callers.iter().try_for_each(|(caller, event)| {
            let wait = |_| {
                cuda::bind_context(caller.context())
                    .and_then(|()| cuda::wait_for_stream(caller))
                    .map_err(of_driver)
            };
            order_work(event, caller, &self.own).or_else(wait)
        })
    }

    fn collect_buffers<W>(&self, work: Work<W>) -> Result<W, Error> {
        work.wait_on(&self.own)
    }
}

/// Waits for all work of the context if cudarc has noted an error. The error may concern an event of a
/// gradient, and copies are then not ordered after that gradient's last use. The error stays noted.
fn wait_if_noted(context: &CudaContext) -> Result<(), Error> {
    if !context.is_event_tracking() {
        return Ok(());
    }
    let Err(noted) = context.check_err() else { return Ok(()) };
    // At once, for checks by other threads.
    context.record_err::<()>(Err(noted));
    cuda::wait_for_context(context).map_err(|error| {
        Error::Buffer(format!(
            "an earlier call of cudarc has failed ({noted}), perhaps for a gradient, and its device cannot \
             be waited for: {error}"
        ))
    })
}

/// Subject of errors about the program's streams.
const GRADIENT: &str = "a gradient";

fn order_work(event: &Event, first: &CudaStream, second: &CudaStream) -> Result<(), Error> {
    event.record_stream(first).and_then(|()| event.make_wait(second)).map_err(of_driver)
}

/// Copies a gradient or parameter. Other streams may be reading it, which cudarc's copy alone would make it
/// forget. Fails before the copy if an earlier use of one of the buffers is part of a capture: a graph would
/// have the address of the library's memory.
fn copy_on<T: DeviceRepr>(
    stream: &Arc<CudaStream>,
    view: &CudaView<'_, T>,
    target: &mut CudaViewMut<'_, T>,
) -> Result<(), Error> {
    let (source, destination) = (view.stream().context(), Arc::clone(target.stream().context()));
    let memory = if Arc::ptr_eq(stream.context(), source) { &destination } else { source };
    Ok(cuda::queue_work(stream, memory, || {
        let _writing = begin_write(target, stream)?;
        queue_read(view, stream, || stream.memcpy_dtod(view, target))
    })?)
}

impl<T: Gradient + DeviceRepr + ValidAsZeroBits> Bucket for CudaSlice<T> {
    type View<'a> = CudaView<'a, T>;
    type ViewMut<'a> = CudaViewMut<'a, T>;
    type Wire = CudaSlice<bf16>;
    type Streams = GpuStreams;

    fn view_len(view: &CudaView<'_, T>) -> usize {
        view.len()
    }

    fn read<'a>(view: &'a CudaViewMut<'_, T>) -> CudaView<'a, T> {
        view.as_view()
    }

    fn part<'a>(view: &Self::View<'a>, range: Range<usize>) -> Result<Self::View<'a>, Error> {
        view.try_slice(range.clone()).ok_or_else(|| outside_error(&range, view.len()))
    }

    fn view(&self, range: Range<usize>) -> Result<CudaView<'_, T>, Error> {
        self.try_slice(range.clone()).ok_or_else(|| outside_error(&range, Buffer::len(self)))
    }

    fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.as_view_mut()
    }

    fn streams(group: &Group) -> Result<GpuStreams, Error> {
        let own = group.stream().ok_or_else(|| {
            Error::Buffer("gradients in GPU memory, but a group over hosts: use Backend::Gpu".to_owned())
        })?;
        Ok(GpuStreams {
            own: Arc::clone(own),
            done: Event::new(own.context()).map_err(of_driver)?,
            callers: Vec::new(),
            contexts: Vec::new(),
            rounding: None,
            tracking: Vec::new(),
        })
    }

    fn register(streams: &mut GpuStreams, view: &CudaView<'_, T>) -> Result<(), Error> {
        streams.register_stream(view.stream())
    }

    fn zeros(side: &mut OnGroup<'_, GpuStreams>, len: usize) -> Result<Self, Error> {
        let own = &side.streams.own;
        // CUDA allocates no empty memory.
        let zeros = cuda::make_slice(own, |own| own.alloc_zeros(len.max(1)));
        zeros.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => no_memory::<T>(len),
            _ => error.into(),
        })
    }

    fn wire_zeros(side: &mut OnGroup<'_, GpuStreams>, len: usize) -> Result<CudaSlice<bf16>, Error> {
        let streams = &mut *side.streams;
        if streams.rounding.is_none() {
            streams.rounding = Some(Rounding::load_kernels(streams.own.context(), T::DATA_TYPE)?);
        }
        Bucket::zeros(side, len)
    }

    fn put(
        &mut self,
        _: &OnProgram<'_, GpuStreams>,
        start: usize,
        view: &CudaView<'_, T>,
    ) -> Result<(), Error> {
        let (range, len) = (start..start + view.len(), Buffer::len(self));
        let mut target = self.try_slice_mut(range.clone()).ok_or_else(|| outside_error(&range, len))?;
        if view.is_empty() {
            return Ok(());
        }
        copy_on(view.stream(), view, &mut target)
    }

    fn wire_put(
        wire: &mut CudaSlice<bf16>,
        side: &OnProgram<'_, GpuStreams>,
        start: usize,
        view: &CudaView<'_, T>,
    ) -> Result<(), Error> {
        let (range, len) = (start..start + view.len(), Buffer::len(wire));
        let mut target = wire.try_slice_mut(range.clone()).ok_or_else(|| outside_error(&range, len))?;
        side.streams.rounding_kernels()?.encode_gradient(view, &mut target)
    }

    fn clear(&mut self, side: &OnProgram<'_, GpuStreams>, range: Range<usize>) -> Result<(), Error> {
        let len = Buffer::len(self);
        let mut part = self.try_slice_mut(range.clone()).ok_or_else(|| outside_error(&range, len))?;
        if part.is_empty() {
            return Ok(());
        }
        let (stream, target) = (side.streams.clearing_stream(), Arc::clone(part.stream().context()));
        Ok(cuda::own_result_among([stream.context(), &target], || stream.memset_zeros(&mut part))?)
    }

    fn copy(view: &CudaView<'_, T>, target: &mut CudaViewMut<'_, T>) -> Result<(), Error> {
        if view.len() > target.len() {
            return Err(outside_error(&(0..view.len()), target.len()));
        }
        if view.is_empty() {
            return Ok(());
        }
        let stream = Arc::clone(target.stream());
        copy_on(&stream, view, target)
    }

    fn wire_get(&mut self, side: &mut OnGroup<'_, GpuStreams>, wire: &CudaSlice<bf16>) -> Result<(), Error> {
        let streams = &*side.streams;
        streams.rounding_kernels()?.decode_gradient(&streams.own, &wire.as_view(), &mut self.as_view_mut())
    }
}
