//! Purposes of the library's own operations.

use std::fmt;

/// Largest number of a step. Step and rank share 64 bits, which GPUs compare.
pub(crate) const MAX_STEP: u64 = (1 << 44) - 1;

/// The part of the library that calls an operation. Ranks with the same operation for different purposes
/// notice it, as if the operations were different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// [`Group::all_gather_bytes`](crate::job::Group::all_gather_bytes).
    Messages,
    /// [`Group::all_reduce_list`](crate::job::Group::all_reduce_list).
    #[cfg(feature = "fabric")]
    List,
    /// [`Group::split`](crate::job::Group::split).
    Split,
    /// [`Reducer::new`](crate::train::Reducer::new).
    NewReducer,
    /// [`Zero1::new`](crate::train::Zero1::new).
    NewZero1,
    /// The average of a bucket. Reducers of a group are counted from 0. `is_first` is true for the first
    /// bucket of a step.
    Bucket { reducer: u32, bucket: u32, step: u64, is_first: bool },
    /// The order of the buckets of a reducer.
    Order { reducer: u32 },
    /// An operation of a step of a [`Zero1`](crate::train::Zero1). They are counted with the reducers.
    Step { optimizer: u32, step: u64, is_first: bool },
}

impl Purpose {
    /// Returns the number of the step, as counted by the program.
    #[cfg(feature = "fabric")]
    pub(crate) fn step_number(self) -> Option<u64> {
        match self {
            Self::Bucket { step, .. } | Self::Step { step, .. } => Some(step),
            _ => None,
        }
    }

    /// Returns the number of the step, for its first operation only.
    #[cfg(feature = "nccl")]
    pub(crate) fn first_of_step(self) -> Option<u64> {
        match self {
            Self::Bucket { step, is_first: true, .. } | Self::Step { step, is_first: true, .. } => Some(step),
            _ => None,
        }
    }

    /// Returns the same purpose in another step.
    #[cfg(feature = "nccl")]
    pub(crate) fn in_step(mut self, number: u64) -> Self {
        if let Self::Bucket { step, .. } | Self::Step { step, .. } = &mut self {
            *step = number;
        }
        self
    }

    /// Returns a number for hashes, different from all other purposes. It does not contain the step.
    #[cfg(feature = "fabric")]
    pub(crate) fn hash_word(self) -> u64 {
        let (kind, owner, part) = match self {
            Self::Messages => (1, 0, 0),
            Self::List => (2, 0, 0),
            Self::Split => (3, 0, 0),
            Self::NewReducer => (4, 0, 0),
            Self::NewZero1 => (5, 0, 0),
            Self::Bucket { reducer, bucket, .. } => (6, reducer, bucket),
            Self::Order { reducer } => (7, reducer, 0),
            Self::Step { optimizer, .. } => (8, optimizer, 0),
        };
        // Unique up to 2^28 buckets.
        u64::from(owner) << 32 | u64::from(part) << 4 & 0xffff_fff0 | kind
    }
}

/// Writes ` for bucket 0 of reducer 1 in step 7`, to follow the operation.
impl fmt::Display for Purpose {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages => formatter.write_str(" for all_gather_bytes"),
            #[cfg(feature = "fabric")]
            Self::List => formatter.write_str(" for all_reduce_list"),
            Self::Split => formatter.write_str(" for split"),
            Self::NewReducer => formatter.write_str(" for Reducer::new"),
            Self::NewZero1 => formatter.write_str(" for Zero1::new"),
            Self::Bucket { reducer, bucket, step, .. } => {
                write!(formatter, " for bucket {bucket} of reducer {reducer} in step {step}")
            }
            Self::Order { reducer } => write!(formatter, " for the order of reducer {reducer}"),
            Self::Step { optimizer, step, .. } => {
                write!(formatter, " for step {step} of Zero1 {optimizer}")
            }
        }
    }
}
