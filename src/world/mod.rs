//! Who the ranks are, and how they meet before any fast path exists.
//!
//! A [`World`] is one rank's view of all ranks of a job: its own number, how many there are, and slow but
//! dependable operations to exchange addresses, wait for each other, and end together.

use std::sync::Arc;

/// One rank's view of the job. All ranks call the collective methods in the same order.
///
/// Methods may be called from any thread, by one thread at a time per rank.
pub trait World: Send + Sync {
    /// This rank, `0..size`.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// This rank's number among the ranks of its host, in rank order.
    fn local_rank(&self) -> usize;

    /// How many ranks this host has.
    fn local_size(&self) -> usize;

    /// One line for a report's header: `one process`, `Open MPI 4.1.6`, `TCP rendezvous at 10.0.0.1:29500`.
    fn describe(&self) -> String;

    /// Returns when every rank has called it. Ranks leave as close in time as the transport allows.
    ///
    /// # Errors
    /// When another rank has failed or cannot be reached.
    fn barrier(&self) -> Result<(), Error>;

    /// Gathers one message of every rank, in rank order. Lengths may differ.
    ///
    /// # Errors
    /// When another rank has failed or cannot be reached.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Whether every other rank is, as far as known, alive. Cheap: for polling loops.
    ///
    /// # Errors
    /// Names the rank that has failed, with its host and the reason.
    fn check(&self) -> Result<(), Error>;

    /// Ends this process and, as soon as the transport can tell them, all others, with this exit code.
    /// `message` is printed once on standard error by this rank; the others name this rank.
    fn abort(&self, code: i32, message: &str) -> !;
}

/// A shared handle to a world: a rank's threads and communicators all hold one.
pub type Handle = Arc<dyn World>;

/// Why a world could not be joined or has ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank has failed.
    #[error("rank {rank} on host {host} {reason}")]
    RankFailed {
        /// The rank that failed.
        rank: usize,
        /// Its host's name.
        host: String,
        /// What happened, as a verb phrase: `died: its connection closed`.
        reason: String,
    },
}
