//! Gradients in GPU memory.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, DeviceSlice as _, ValidAsZeroBits,
};
use half::bf16;

use super::bucket::{Bucket, Gradient, outside};
use crate::Error;
use crate::job::{Buffer, Group, Work};

/// The group's stream, and the streams of the program's memory. Copies run on the streams of the program: its memory is then used
/// on its own stream only, where it may be freed at once, and no stream of the program waits for an operation under way.
pub struct Streams {
    own: Arc<CudaStream>,
    /// Recorded on `own`.
    done: CudaEvent,
    /// Streams of the program, each with an event that is recorded on it.
    callers: Vec<(Arc<CudaStream>, CudaEvent)>,
}

impl Streams {
    /// Makes a stream of the program known. It waits for the group's operations so far.
    fn register(&mut self, caller: &Arc<CudaStream>) -> Result<(), Error> {
        if caller.context() != self.own.context() {
            return Err(Error::Buffer(format!(
                "memory of device {} in a group on device {}: use memory of the group's device",
                caller.context().ordinal(),
                self.own.context().ordinal()
            )));
        }
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
        Ok(Streams { own: Arc::clone(own), done: own.context().new_event(None)?, callers: Vec::new() })
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
        Ok(streams.own.alloc_zeros(len.max(1))?)
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

    fn wire_zeros(_: &mut Streams, _: usize) -> Result<CudaSlice<bf16>, Error> {
        Err(no_wire())
    }

    fn wire_put(_: &mut CudaSlice<bf16>, _: usize, _: &CudaView<'_, T>) -> Result<(), Error> {
        Err(no_wire())
    }

    fn wire_clear(_: &mut CudaSlice<bf16>, _: &mut Streams, _: Range<usize>) -> Result<(), Error> {
        Err(no_wire())
    }

    fn wire_get(&mut self, _: &mut Streams, _: &CudaSlice<bf16>) -> Result<(), Error> {
        Err(no_wire())
    }
}

fn no_wire() -> Error {
    Error::Job(
        "ReducerOptions::wire: gradients in GPU memory travel as they are: use Wire::Same, or bf16 gradients"
            .to_owned(),
    )
}
