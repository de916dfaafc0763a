//! Rendezvous over TCP: rank 0 listens, all others connect to it.
//!
//! Rank 0 serves all connections from one thread without blocking on any of them. Every connection has five
//! seconds to send a [`Hello`](super::wire::Frame::Hello) of this job; otherwise it is rejected and counted.
//! The other ranks retry until the deadline, also while the name of rank 0's host cannot be resolved, as with
//! a later start of its pod.

mod acceptor;
mod address;
mod joiner;

use super::wire::{FrameDecoder, JobMember};
use crate::world::host::host;
use crate::world::{Error, Options, RendezvousConfig};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

pub(crate) use acceptor::listen_on_port;
#[cfg(any(test, fuzzing))]
pub(crate) use acceptor::{Acceptor, MAX_ACCEPTS, MAX_PENDING};
pub(crate) use joiner::read_some;
#[cfg(any(test, fuzzing))]
pub(crate) use joiner::{Handshake, JoinError};

pub(crate) struct Connected {
    pub(crate) members: Vec<JobMember>,
    /// Connections by rank, with bytes read beyond the rendezvous: rank 0 has one to every other rank, the
    /// others have one to rank 0.
    pub(crate) connections: Vec<Option<(TcpStream, FrameDecoder)>>,
    pub(crate) address: String,
}

/// Connects all ranks of a job. Rank 0 may pass a listener.
///
/// # Errors
/// If the deadline has passed: the error names the missing ranks, or the attempted addresses.
pub(crate) fn connect_ranks(
    config: &RendezvousConfig,
    options: &Options,
    listener: Option<TcpListener>,
) -> Result<Connected, Error> {
    let local =
        config.local.and_then(|(rank, size)| Some((u32::try_from(rank).ok()?, u32::try_from(size).ok()?)));
    let member = JobMember { host: host(), local };
    let deadline = Instant::now() + options.timeout;
    if config.rank == 0 {
        let listener = listener.map_or_else(|| listen_on_port(config), Ok)?;
        acceptor::accept_ranks(config, &listener, member, options.timeout, deadline)
    } else {
        joiner::join_rendezvous(config, member, options, deadline, &address::resolve_host)
    }
}

#[cfg(test)]
mod tests;
