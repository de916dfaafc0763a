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
    fn enter(&mut self, caller: &Arc<CudaStream>) -> Result<(), Error> {
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
    fn follow(&self) -> Result<(), Error> {
        for (caller, event) in &self.callers {
            event.record(caller)?;
            self.own.wait(event)?;
        }
        Ok(())
    }

    /// Makes the program's streams wait for that of the group.
    fn lead(&self) -> Result<(), Error> {
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
        if let Err(error) = self.follow() {
            tracing::warn!("the end of a reducer: {error}");
        }
    }
}

impl<T: Gradient + DeviceRepr + ValidAsZeroBits> Bucket for CudaSlice<T> {
    type View<'a> = CudaView<'a, T>;
    type ViewMut<'a> = CudaViewMut<'a, T>;
    type Wire = CudaSlice<bf16>;
    type Queue = Streams;

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

    fn queue(group: &Group) -> Result<Streams, Error> {
        let own = group.stream().ok_or_else(|| {
            Error::Buffer("gradients in GPU memory, but a group over hosts: use Backend::Gpu".to_owned())
        })?;
        Ok(Streams { own: Arc::clone(own), done: own.context().new_event(None)?, callers: Vec::new() })
    }

    fn enter(queue: &mut Streams, view: &CudaView<'_, T>) -> Result<(), Error> {
        queue.enter(view.stream())
    }

    fn follow(queue: &mut Streams) -> Result<(), Error> {
        queue.follow()
    }

    fn lead(queue: &mut Streams) -> Result<(), Error> {
        queue.lead()
    }

    fn align(queue: &mut Streams) -> Result<(), Error> {
        if queue.callers.len() > 1 {
            queue.follow()?;
            queue.lead()?;
        }
        Ok(())
    }

    fn collect<W>(queue: &mut Streams, work: Work<W>) -> Result<W, Error> {
        work.wait_on(&queue.own)
    }

    fn zeros(queue: &mut Streams, len: usize) -> Result<Self, Error> {
        // CUDA allocates no empty memory.
        Ok(queue.own.alloc_zeros(len.max(1))?)
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

    fn clear(&mut self, queue: &mut Streams, range: Range<usize>) -> Result<(), Error> {
        let len = Buffer::len(self);
        let mut part = self.try_slice_mut(range.clone()).ok_or_else(|| outside(&range, len))?;
        if !part.is_empty() {
            queue.clearing().memset_zeros(&mut part)?;
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
