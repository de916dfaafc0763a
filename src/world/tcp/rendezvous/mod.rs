//! How ranks find each other over TCP: rank 0 listens, all others connect to it.
//!
//! Rank 0 serves all connections from one thread without ever waiting for one of them. Whoever connects has five
//! seconds to say the greeting of this job; anything else is turned away and counted. Other ranks retry until the
//! deadline, whatever they find at the address, and also when its name is not known yet, as that of a pod that starts
//! later.

mod acceptor;
mod address;
mod joiner;

use super::wire::{Frames, Member};
use crate::world::host::host;
use crate::world::{Error, Options, Place};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

pub(crate) use acceptor::listen;
#[cfg(any(test, fuzzing))]
pub(crate) use acceptor::{MOST_AT_ONCE, MOST_PENDING, Reception};
#[cfg(any(test, fuzzing))]
pub(crate) use joiner::{Failure, Joining};

/// The ranks of a job that have found each other.
pub(crate) struct Met {
    pub(crate) members: Vec<Member>,
    /// By rank: of rank 0 to all others, of the others to rank 0. With what has been read too far.
    pub(crate) connections: Vec<Option<(TcpStream, Frames)>>,
    /// Where they met.
    pub(crate) address: String,
}

/// Finds all ranks of a job. Rank 0 may be listening already.
///
/// # Errors
/// When the deadline has come; the error names the missing ranks, or what was tried.
pub(crate) fn meet(place: &Place, options: &Options, listener: Option<TcpListener>) -> Result<Met, Error> {
    let local =
        place.local.and_then(|(rank, size)| Some((u32::try_from(rank).ok()?, u32::try_from(size).ok()?)));
    let member = Member { host: host(), local };
    let deadline = Instant::now() + options.timeout;
    if place.rank == 0 {
        let listener = listener.map_or_else(|| listen(place), Ok)?;
        acceptor::receive(place, &listener, member, options.timeout, deadline)
    } else {
        joiner::join(place, member, options, deadline, &address::resolve)
    }
}

#[cfg(test)]
mod tests;
