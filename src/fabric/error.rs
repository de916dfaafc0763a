//! What can go wrong on the host backend.

use crate::world;

/// Why an operation of the host backend failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffers do not fit the operation. Nothing was sent; the communicator can be used on.
    #[error("{operation}: {problem}")]
    Length {
        /// The operation: `all_gather`.
        operation: &'static str,
        /// Which buffer has how many elements, and how many it needs.
        problem: String,
    },
    /// An earlier operation failed or panicked, and took the communicator's connections with it.
    #[error(
        "{operation}: the communicator was closed when an earlier operation failed; make a new one on every rank"
    )]
    Closed {
        /// The operation that was asked for.
        operation: &'static str,
    },
    /// The options ask for an algorithm that cannot do this.
    #[error(
        "{collective} on {ranks} ranks: algorithm '{algorithm}' cannot do it; choose one of {choices}, or none"
    )]
    Algorithm {
        /// The collective.
        collective: super::Collective,
        /// The algorithm that was asked for.
        algorithm: super::Algorithm,
        /// The number of ranks.
        ranks: usize,
        /// Those that can.
        choices: String,
    },
    /// Another rank failed.
    #[error(transparent)]
    World(#[from] world::Error),
    /// A message was not as long as the receiver expected.
    #[error(
        "rank {rank} expected {expected} bytes from rank {peer} over {provider} and got {received}: the ranks do not \
         call the same operations in the same order with the same lengths"
    )]
    MessageLength {
        /// The receiving rank.
        rank: usize,
        /// The sending rank.
        peer: usize,
        /// The provider.
        provider: String,
        /// Bytes expected.
        expected: usize,
        /// Bytes sent.
        received: usize,
    },
}
