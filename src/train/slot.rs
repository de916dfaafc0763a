//! A bucket of a reducer: its memory, and its operation under way.

use std::ops::Range;

use super::bucket::Bucket;
use super::options::Wire;
use crate::job::{Group, Work};
use crate::{Error, ReduceOp};

/// A bucket of a reducer.
pub(super) enum Slot<B: Bucket> {
    /// Gradients that travel as they are.
    Same(Traveller<B>),
    /// Gradients that travel as bfloat16 numbers, and their averages.
    Bf16 { wire: Traveller<B::Wire>, values: B },
}

/// Memory, which the operation has while it is under way.
pub(super) enum Traveller<M> {
    Here(M),
    Under(Work<M>),
    /// An operation has failed.
    Lost,
}

impl<M> Traveller<M> {
    fn here(&mut self) -> Result<&mut M, Error> {
        match self {
            Self::Here(memory) => Ok(memory),
            Self::Under(_) | Self::Lost => Err(away()),
        }
    }

    /// Starts an operation.
    fn depart(&mut self, start: impl FnOnce(M) -> Work<M>) -> Result<(), Error> {
        match std::mem::replace(self, Self::Lost) {
            Self::Here(memory) => {
                *self = Self::Under(start(memory));
                Ok(())
            }
            other => {
                *self = other;
                Err(away())
            }
        }
    }

    /// Waits for the operation under way, if any.
    fn arrive(&mut self, collect: impl FnOnce(Work<M>) -> Result<M, Error>) -> Result<&mut M, Error> {
        if matches!(self, Self::Under(_))
            && let Self::Under(work) = std::mem::replace(self, Self::Lost)
        {
            *self = Self::Here(collect(work)?);
        }
        self.here()
    }
}

fn away() -> Error {
    Error::Job("the gradients of this bucket are being reduced: wait for the step first".to_owned())
}

impl<B: Bucket> Slot<B> {
    pub(super) fn new(queue: &mut B::Queue, len: usize, wire: Wire) -> Result<Self, Error> {
        let values = B::zeros(queue, len)?;
        Ok(match wire {
            Wire::Same => Self::Same(Traveller::Here(values)),
            Wire::Bf16 => Self::Bf16 { wire: Traveller::Here(B::wire_zeros(queue, len)?), values },
        })
    }

    /// Copies a gradient into the bucket.
    pub(super) fn put(&mut self, start: usize, gradient: &B::View<'_>) -> Result<(), Error> {
        match self {
            Self::Same(values) => values.here()?.put(start, gradient),
            Self::Bf16 { wire, .. } => B::wire_put(wire.here()?, start, gradient),
        }
    }

    /// Makes a gradient zero.
    pub(super) fn clear(&mut self, queue: &mut B::Queue, range: Range<usize>) -> Result<(), Error> {
        match self {
            Self::Same(values) => values.here()?.clear(queue, range),
            Self::Bf16 { wire, .. } => B::wire_clear(wire.here()?, queue, range),
        }
    }

    /// Starts the reduction.
    pub(super) fn start(&mut self, group: &Group, op: ReduceOp) -> Result<(), Error> {
        match self {
            Self::Same(values) => values.depart(|values| group.all_reduce(values, op)),
            Self::Bf16 { wire, .. } => wire.depart(|wire| group.all_reduce(wire, op)),
        }
    }

    /// Waits for the reduction.
    pub(super) fn finish(&mut self, queue: &mut B::Queue) -> Result<(), Error> {
        match self {
            Self::Same(values) => values.arrive(|work| B::collect(queue, work)).map(drop),
            Self::Bf16 { wire, values } => {
                let wire = wire.arrive(|work| B::collect(queue, work))?;
                values.wire_get(queue, wire)
            }
        }
    }

    /// The reduced gradients, unless an operation under way owns their memory.
    pub(super) fn values(&self) -> Result<&B, Error> {
        match self {
            Self::Same(Traveller::Here(values)) | Self::Bf16 { values, .. } => Ok(values),
            Self::Same(_) => Err(away()),
        }
    }
}
