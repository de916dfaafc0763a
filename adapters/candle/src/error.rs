//! The error of this crate.

use candle_core::DType;
use collectives::job::Group;

/// An error of training over several ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Other ranks, or the communication with them, have failed.
    #[error(transparent)]
    Collectives(#[from] collectives::Error),
    /// candle has failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A tensor of a type not supported for gradients.
    #[error("{name} has the type {dtype:?}; gradients are averaged in f32, f64, bf16 and f16")]
    DType {
        /// The parameter, or the operation.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// Tensors that do not fit each other or the group.
    #[error("{0}")]
    Tensor(String),
}

impl Error {
    /// True if other ranks or the communication failed. The remaining ranks can then continue in a new job.
    #[must_use]
    pub fn is_of_group(&self) -> bool {
        use collectives::Error as Of;
        match self {
            Self::Collectives(Of::Job(_) | Of::Buffer(_)) => false,
            #[cfg(feature = "cuda")]
            Self::Collectives(Of::Cuda(_)) => false,
            other => matches!(other, Self::Collectives(_)),
        }
    }
}

/// Reports an error of this rank to the other ranks, since they would wait for it.
pub(crate) fn tell<T>(group: &Group, result: Result<T, Error>) -> Result<T, Error> {
    result.inspect_err(|error| {
        if !error.is_of_group() {
            group.world().fail(error.to_string().into());
        }
    })
}
