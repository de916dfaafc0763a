//! Gradients in GPU memory.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, DeviceSlice as _, ValidAsZeroBits,
};
use half::bf16;

use super::bucket::{Bucket, Gradient, no_memory, outside};
use super::rounding::Rounding;
use crate::Error;
use crate::job::{Buffer, Group, Work, refuse_captured};

/// The group's stream, and the streams of the program's memory.
///
/// Copies run on the program's streams. So memory of the program is used on its own stream only, and may be freed there at once; and
/// no stream of the program waits for an operation under way.
pub struct Streams {
    own: Arc<CudaStream>,
    /// Recorded on `own`.
    done: CudaEvent,
    /// Streams of the program, each with an event that is recorded on it.
    callers: Vec<(Arc<CudaStream>, CudaEvent)>,
    /// Loaded when gradients travel as bfloat16 numbers.
    rounding: Option<Rounding>,
}

impl Streams {
    /// Registers a stream of the program, and makes it wait for the group's operations so far.
    fn register(&mut self, caller: &Arc<CudaStream>) -> Result<(), Error> {
        if caller.context() != self.own.context() {
            return Err(Error::Buffer(format!(
                "memory of device {} in a group on device {}: use memory of the group's device",
                caller.context().ordinal(),
                self.own.context().ordinal()
            )));
        }
        refuse_captured("a gradient", caller)?;
        let is = |known: &CudaStream| known.cu_stream() == caller.cu_stream();
        if is(&self.own) || self.callers.iter().any(|(known, _)| is(known)) {
            return Ok(());
        }
        let event = caller.context().new_event(None)?;
        self.done.record(&self.own)?;
        caller.wait(&self.done)?;
        self.callers.push((Arc::clone(caller), event));
        Ok(())
    }

    /// Makes the group's stream wait for those of the program.
    fn make_group_wait(&self) -> Result<(), Error> {
        for (caller, event) in &self.callers {
            event.record(caller)?;
            self.own.wait(event)?;
        }
        Ok(())
    }

    /// Makes the program's streams wait for that of the group.
    fn make_program_wait(&self) -> Result<(), Error> {
        self.done.record(&self.own)?;
        self.callers.iter().try_for_each(|(caller, _)| Ok(caller.wait(&self.done)?))
    }

    fn rounding(&self) -> Result<&Rounding, Error> {
        self.rounding.as_ref().ok_or_else(|| Error::Job("the kernels of bfloat16 are not loaded".to_owned()))
    }

    /// The stream on which to clear memory.
    fn clearing(&self) -> &Arc<CudaStream> {
        self.callers.first().map_or(&self.own, |(caller, _)| caller)
    }
}

/// Buckets are freed on the group's stream, which must wait for the program's copies.
impl Drop for Streams {
    fn drop(&mut self) {
        if let Err(error) = self.make_group_wait() {
            tracing::warn!("the end of a reducer: {error}");
            for (caller, _) in &self.callers {
                // If this fails, too, the context has failed, and runs nothing any more.
                let _ended = caller.synchronize();
            }
        }
    }
}

impl<T: Gradient + DeviceRepr + ValidAsZeroBits> Bucket for CudaSlice<T> {
    type View<'a> = CudaView<'a, T>;
    type ViewMut<'a> = CudaViewMut<'a, T>;
    type Wire = CudaSlice<bf16>;
    type Streams = Streams;

    fn view_len(view: &CudaView<'_, T>) -> usize {
        view.len()
    }

    fn view_mut_len(view: &CudaViewMut<'_, T>) -> usize {
        view.len()
    }

    fn read<'a>(view: &'a CudaViewMut<'_, T>) -> CudaView<'a, T> {
        view.as_view()
    }

    fn part<'a>(view: &Self::View<'a>, range: Range<usize>) -> Result<Self::View<'a>, Error> {
        view.try_slice(range.clone()).ok_or_else(|| outside(&range, view.len()))
    }

    fn view(&self, range: Range<usize>) -> Result<CudaView<'_, T>, Error> {
        self.try_slice(range.clone()).ok_or_else(|| outside(&range, Buffer::len(self)))
    }

    fn streams(group: &Group) -> Result<Streams, Error> {
        let own = group.stream().ok_or_else(|| {
            Error::Buffer("gradients in GPU memory, but a group over hosts: use Backend::Gpu".to_owned())
        })?;
        Ok(Streams {
            own: Arc::clone(own),
            done: own.context().new_event(None)?,
            callers: Vec::new(),
            rounding: None,
        })
    }

    fn register(streams: &mut Streams, view: &CudaView<'_, T>) -> Result<(), Error> {
        streams.register(view.stream())
    }

    fn make_group_wait(streams: &mut Streams) -> Result<(), Error> {
        streams.make_group_wait()
    }

    fn make_program_wait(streams: &mut Streams) -> Result<(), Error> {
        streams.make_program_wait()
    }

    fn join_streams(streams: &mut Streams) -> Result<(), Error> {
        if streams.callers.len() > 1 {
            streams.make_group_wait()?;
            streams.make_program_wait()?;
        }
        Ok(())
    }

    fn collect<W>(streams: &mut Streams, work: Work<W>) -> Result<W, Error> {
        work.wait_on(&streams.own)
    }

    fn zeros(streams: &mut Streams, len: usize) -> Result<Self, Error> {
        // CUDA allocates no empty memory.
        streams.own.alloc_zeros(len.max(1)).map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => no_memory::<T>(len),
            _ => error.into(),
        })
    }

    fn put(&mut self, start: usize, view: &CudaView<'_, T>) -> Result<(), Error> {
        let (range, len) = (start..start + view.len(), Buffer::len(self));
        let mut target = self.try_slice_mut(range.clone()).ok_or_else(|| outside(&range, len))?;
        if !view.is_empty() {
            view.stream().memcpy_dtod(view, &mut target)?;
        }
        Ok(())
    }

    fn copy(view: &CudaView<'_, T>, target: &mut CudaViewMut<'_, T>) -> Result<(), Error> {
        if view.len() > target.len() {
            return Err(outside(&(0..view.len()), target.len()));
        }
        let stream = Arc::clone(target.stream());
        if !view.is_empty() {
            stream.memcpy_dtod(view, target)?;
        }
        Ok(())
    }

    fn clear(&mut self, streams: &mut Streams, range: Range<usize>) -> Result<(), Error> {
        let len = Buffer::len(self);
        let mut part = self.try_slice_mut(range.clone()).ok_or_else(|| outside(&range, len))?;
        if !part.is_empty() {
            streams.clearing().memset_zeros(&mut part)?;
        }
        Ok(())
    }

    fn wire_zeros(streams: &mut Streams, len: usize) -> Result<CudaSlice<bf16>, Error> {
        if streams.rounding.is_none() {
            streams.rounding = Some(Rounding::load(streams.own.context(), T::DATA_TYPE)?);
        }
        Bucket::zeros(streams, len)
    }

    fn wire_put(
        wire: &mut CudaSlice<bf16>,
        streams: &mut Streams,
        start: usize,
        view: &CudaView<'_, T>,
    ) -> Result<(), Error> {
        let (range, len) = (start..start + view.len(), Buffer::len(wire));
        let mut target = wire.try_slice_mut(range.clone()).ok_or_else(|| outside(&range, len))?;
        streams.rounding()?.encode(view, &mut target)
    }

    fn wire_clear(
        wire: &mut CudaSlice<bf16>,
        streams: &mut Streams,
        range: Range<usize>,
    ) -> Result<(), Error> {
        Bucket::clear(wire, streams, range)
    }

    fn wire_get(&mut self, streams: &mut Streams, wire: &CudaSlice<bf16>) -> Result<(), Error> {
        streams.rounding()?.decode(&streams.own, &wire.as_view(), &mut self.as_view_mut())
    }
}
