//! Options of a reducer.

use crate::{DataType, ReduceOp};

/// The element type in which gradients travel between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wire {
    /// The gradients' own type.
    #[default]
    Same,
    /// bfloat16: half as many bytes as `f32`. Gradients are rounded before they are sent, and so is every
    /// partial sum.
    Bf16,
}

impl Wire {
    /// This wire for gradients of a type: [`Wire::Same`] where nothing need be converted.
    pub(super) fn for_gradients(self, gradients: DataType) -> Self {
        match self {
            Self::Bf16 if gradients != DataType::Bfloat16 => Self::Bf16,
            _ => Self::Same,
        }
    }
}

/// Options of a [`Reducer`](super::Reducer) or [`Zero1`](super::Zero1). They must be the same on every rank.
///
/// ```
/// use collectives::train::{ReducerOptions, Wire};
///
/// let options = ReducerOptions::default().bucket_bytes(4 << 20).wire(Wire::Bf16);
/// assert_eq!(options.bucket_bytes, 4 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReducerOptions {
    /// Bytes of gradients at which a bucket is full, 25 MiB by default. A bucket ends with the parameter that
    /// reaches this size, and so can be larger.
    pub bucket_bytes: usize,
    /// The same for the first bucket of a step, 1 MiB by default: communication starts early.
    pub first_bucket_bytes: usize,
    /// The type in which gradients travel, by default their own.
    pub wire: Wire,
    /// The reduction, by default an average.
    pub op: ReduceOp,
}

impl Default for ReducerOptions {
    fn default() -> Self {
        Self { bucket_bytes: 25 << 20, first_bucket_bytes: 1 << 20, wire: Wire::Same, op: ReduceOp::Avg }
    }
}

impl ReducerOptions {
    /// Sets [`bucket_bytes`](Self::bucket_bytes).
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// Sets [`first_bucket_bytes`](Self::first_bucket_bytes).
    #[must_use]
    pub fn first_bucket_bytes(mut self, bytes: usize) -> Self {
        self.first_bucket_bytes = bytes;
        self
    }

    /// Sets [`wire`](Self::wire).
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Sets [`op`](Self::op).
    #[must_use]
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.op = op;
        self
    }
}
