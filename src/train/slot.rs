//! A bucket of a reducer: its memory, and its operation under way.

use std::mem;
use std::ops::Range;

use super::bucket::Bucket;
use super::layout::Layout;
use super::options::Wire;
use super::ordered::Releasable;
use super::streams::{OnGroup, OnProgram, Streams as _};
use crate::job::{Group, GroupMemory, Work, pair_memory};
use crate::{Element as _, Error, ReduceOp};

/// A bucket of a reducer.
pub(super) enum BucketSlot<B: Bucket> {
    /// Gradients that travel as they are.
    Same(Movable<B>),
    /// Gradients that travel as bfloat16 numbers, and their averages.
    Bf16 { wire: Movable<B::Wire>, values: B },
}

/// Memory that moves into an operation, and back at its end.
pub(super) enum Movable<M> {
    Idle(M),
    /// The operation under way owns the memory.
    Moved(Work<M>),
    /// An operation has failed, and its memory is freed.
    Lost,
}

impl<M> Movable<M> {
    fn idle_memory(&mut self) -> Result<&mut M, Error> {
        match self {
            Self::Idle(memory) => Ok(memory),
            Self::Moved(_) | Self::Lost => Err(not_idle()),
        }
    }

    /// Starts an operation.
    fn start_operation(&mut self, start: impl FnOnce(M) -> Work<M>) -> Result<(), Error> {
        match mem::replace(self, Self::Lost) {
            Self::Idle(memory) => {
                *self = Self::Moved(start(memory));
                Ok(())
            }
            other => {
                *self = other;
                Err(not_idle())
            }
        }
    }

    /// Waits for the operation under way, if any.
    fn finish_operation(
        &mut self,
        collect: impl FnOnce(Work<M>) -> Result<M, Error>,
    ) -> Result<&mut M, Error> {
        if matches!(self, Self::Moved(_))
            && let Self::Moved(work) = mem::replace(self, Self::Lost)
        {
            *self = Self::Idle(collect(work)?);
        }
        self.idle_memory()
    }
}

impl<M: GroupMemory> Movable<M> {
    fn release(self) {
        if let Self::Idle(memory) = self {
            memory.release();
        }
    }
}

impl<B: Bucket> Releasable for Vec<BucketSlot<B>> {
    fn release(self) {
        for slot in self {
            match slot {
                BucketSlot::Same(values) => values.release(),
                BucketSlot::Bf16 { wire, values } => {
                    wire.release();
                    values.release();
                }
            }
        }
    }
}

pub(super) fn not_idle() -> Error {
    Error::Job("the gradients of this bucket are being reduced: wait for the step first".to_owned())
}

impl<B: Bucket> BucketSlot<B> {
    /// Adds the buckets of a layout, of zeros. After an error, some may have been added.
    pub(super) fn allocate_slots(
        side: &mut OnGroup<'_, B::Streams>,
        slots: &mut Vec<Self>,
        layout: &Layout,
        wire: Wire,
    ) -> Result<(), Error> {
        for len in layout.buckets.iter().map(|bucket| bucket.elements) {
            let values = B::zeros(side, len)?;
            slots.push(match wire.for_gradients(B::Element::DATA_TYPE) {
                Wire::Same => Self::Same(Movable::Idle(values)),
                Wire::Bf16 => {
                    let (values, wire) = pair_memory(values, B::wire_zeros(side, len))?;
                    Self::Bf16 { wire: Movable::Idle(wire), values }
                }
            });
        }
        Ok(())
    }

    /// Copies a gradient into the bucket.
    pub(super) fn put_gradient(
        &mut self,
        side: &OnProgram<'_, B::Streams>,
        start: usize,
        gradient: &B::View<'_>,
    ) -> Result<(), Error> {
        match self {
            Self::Same(values) => values.idle_memory()?.put(side, start, gradient),
            Self::Bf16 { wire, .. } => B::wire_put(wire.idle_memory()?, side, start, gradient),
        }
    }

    /// Makes a gradient zero.
    pub(super) fn clear_gradient(
        &mut self,
        side: &OnProgram<'_, B::Streams>,
        range: Range<usize>,
    ) -> Result<(), Error> {
        match self {
            Self::Same(values) => values.idle_memory()?.clear(side, range),
            Self::Bf16 { wire, .. } => wire.idle_memory()?.clear(side, range),
        }
    }

    /// Starts the reduction.
    pub(super) fn start_reduction(&mut self, group: &Group, op: ReduceOp) -> Result<(), Error> {
        match self {
            Self::Same(values) => values.start_operation(|values| group.all_reduce(values, op)),
            Self::Bf16 { wire, .. } => wire.start_operation(|wire| group.all_reduce(wire, op)),
        }
    }

    /// Waits for the reduction.
    pub(super) fn finish_reduction(&mut self, side: &mut OnGroup<'_, B::Streams>) -> Result<(), Error> {
        match self {
            Self::Same(values) => {
                values.finish_operation(|work| side.streams.collect_buffers(work)).map(drop)
            }
            Self::Bf16 { wire, values } => {
                let wire = wire.finish_operation(|work| side.streams.collect_buffers(work))?;
                values.wire_get(side, wire)
            }
        }
    }

    /// The reduced gradients, unless an operation under way owns their memory.
    pub(super) fn reduced_values(&self) -> Result<&B, Error> {
        match self {
            Self::Same(Movable::Idle(values)) | Self::Bf16 { values, .. } => Ok(values),
            Self::Same(_) => Err(not_idle()),
        }
    }
}
