//! Reliable endpoints (`FI_EP_RDM`): tagged messages to any number of peers, and remote memory access.
//!
//! An [`Endpoint`] has a domain, an address vector and a completion queue of its own, and is used by one
//! thread at a time, without locks. The program exchanges the peers' addresses as bytes.
//!
//! Buffers are borrowed during their use by the library. [`Endpoint::scope`] delimits this time, as
//! [`std::thread::scope`] does for threads: operations are started inside the closure, and none is in flight
//! when it has returned. If the closure fails or panics with operations in flight, the endpoint is closed,
//! and the library releases the buffers. Over `shm`, a peer may still read the memory of such a message
//! afterwards: see [`Scope::receive`].
//!
//! ```no_run
//! # use collectives::fabric::{Error, rdm::{Endpoint, Options}};
//! # fn example(exchange: impl Fn(&[u8]) -> Vec<u8>) -> Result<(), Error> {
//! let mut endpoint = Endpoint::open(&Options::new("tcp"))?;
//! let peer = endpoint.insert(&exchange(endpoint.address()))?;
//! let (outgoing, mut incoming) = ([7_u8; 1024], [0_u8; 1024]);
//! endpoint.scope(|scope| {
//!     let received = scope.receive(peer, 1, &mut incoming)?;
//!     scope.send(peer, 1, &outgoing)?;
//!     let message = scope.wait(received)?;
//!     println!("{} bytes", message.len);
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! A buffer with too short a lifetime is rejected, and a buffer in flight cannot be used:
//! ```compile_fail,E0597
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer}};
//! # fn example(endpoint: &mut Endpoint, peer: Peer) -> Result<(), Error> {
//! endpoint.scope(|scope| {
//!     let mut short_lived = [0; 8];
//!     scope.receive(peer, 1, &mut short_lived)?;
//!     Ok(())
//! })
//! # }
//! ```
//! ```compile_fail,E0506
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer}};
//! # fn example(endpoint: &mut Endpoint, peer: Peer) -> Result<(), Error> {
//! let mut incoming = [0; 8];
//! endpoint.scope(|scope| {
//!     let received = scope.receive(peer, 1, &mut incoming)?;
//!     incoming[0] = 1;
//!     scope.wait(received).map(drop)
//! })
//! # }
//! ```
//! ```compile_fail,E0502
//! # use collectives::fabric::{Error, rdm::{Endpoint, RemoteRegion}};
//! # fn example(endpoint: &mut Endpoint, there: RemoteRegion) -> Result<(), Error> {
//! let mut data = [0; 8];
//! endpoint.scope(|scope| {
//!     let sent = scope.write(&data, there, 0)?;
//!     let read = scope.read(&mut data, there, 0)?;
//!     scope.wait(sent)?;
//!     scope.wait(read).map(drop)
//! })
//! # }
//! ```
//!
//! A scope can be used by another thread. Memory that several operations may write, while any thread reads
//! it, consists of atomic bytes ([`shared`]); cells would be written by one thread and read by another:
//! ```no_run
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer, shared}};
//! # use std::sync::atomic::Ordering;
//! # fn example(endpoint: &mut Endpoint, peer: Peer) -> Result<(), Error> {
//! let mut incoming = [0; 8];
//! let incoming = shared(&mut incoming);
//! endpoint.scope(|scope| {
//!     let received = scope.receive(peer, 1, incoming)?;
//!     std::thread::scope(|threads| {
//!         threads.spawn(move || scope.wait(received));
//!         while incoming[0].load(Ordering::Relaxed) == 0 {}
//!     });
//!     Ok(())
//! })
//! # }
//! ```
//! ```compile_fail,E0277
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer}};
//! # use std::cell::Cell;
//! # fn example(endpoint: &mut Endpoint, peer: Peer) -> Result<(), Error> {
//! let mut incoming = [0; 8];
//! let incoming = Cell::from_mut(&mut incoming[..]).as_slice_of_cells();
//! endpoint.scope(|scope| scope.receive(peer, 1, incoming).map(drop))
//! # }
//! ```
//!
//! # Remote memory
//! A [`Region`] is memory of this process that peers read and write. They need its description, in bytes, and
//! bind it to the sending peer:
//! ```no_run
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer, RemoteRegion}};
//! # type Bytes = [u8; RemoteRegion::BYTES];
//! # fn example(endpoint: &mut Endpoint, peer: Peer, exchange: fn(Bytes) -> Bytes) -> Result<(), Error> {
//! let own = endpoint.region(1 << 20)?;
//! let description = exchange(own.description());
//! // SAFETY: the peer has sent it for the region of the endpoint that has this address.
//! let there = unsafe { RemoteRegion::from_bytes(description, peer) };
//! endpoint.scope(|scope| scope.write(&[7; 1024], there, 0).map(drop))?;
//! # Ok(())
//! # }
//! ```
//! The description of an own region is not memory of a peer:
//! ```compile_fail,E0308
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer}};
//! # fn example(endpoint: &mut Endpoint, peer: Peer) -> Result<(), Error> {
//! let own = endpoint.region(1 << 20)?;
//! endpoint.scope(|scope| scope.write(&[7; 1024], own.description(), 0).map(drop))
//! # }
//! ```
//!
//! # Progress
//! Only calls of the endpoint move data: a peer whose memory is read or written has to call
//! [`Endpoint::progress`] (or wait for an operation of its own) meanwhile, unless its provider makes progress
//! by itself.
//!
//! # Completion
//! When a send or a write is complete, its buffer can be reused; the data may still be in flight, or in
//! memory of the library, and closing the endpoint loses it. The same holds for [injected](Scope::inject)
//! messages. Delivery is certain when both endpoints stay open and are used until the peer's answer has
//! arrived, or [`Endpoint::farewell`] has returned.

use std::ffi::c_int;
use std::time::Instant;

use fabric_sys::{Fabric, fi_addr_t};

use crate::fabric::error::{Error, Failure};
use crate::fabric::libfabric::objects::EndpointObjects;
use crate::fabric::shared_memory::shm;
use slots::OperationSlots;

/// A peer in the address vector of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    address: fi_addr_t,
    endpoint: u64,
}

/// A completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Bytes received; for other operations the bytes requested.
    pub len: usize,
    /// The tag of a receive.
    pub tag: u64,
}

/// An operation in flight, to wait for.
#[derive(Debug)]
#[must_use = "the end of the scope waits for all operations, but their results are lost"]
pub struct Operation {
    /// [`Endpoint::id`].
    endpoint: u64,
    slot: u32,
    generation: u32,
}

/// A reliable endpoint. Used by one thread at a time.
pub struct Endpoint {
    // Closed before the memory of the slots is freed.
    objects: Option<EndpointObjects>,
    slots: OperationSlots,
    library: &'static Fabric,
    options: Options,
    provider: String,
    address: Vec<u8>,
    longest_inject: usize,
    longest_message: usize,
    /// Largest number of receives in flight.
    most_receives: usize,
    /// True when messages carry completion data.
    completion_data: bool,
    virtual_addresses: bool,
    domain: String,
    id: u64,
    in_flight: usize,
    /// Polls without a completion, and the time of the first check since the last one, during waits for
    /// operations.
    idle: u32,
    idle_since: Option<Instant>,
    /// The failure that closed the endpoint.
    last_failure: Option<Failure>,
    /// True when a peer may be gone: an operation has failed or timed out.
    peer_lost: bool,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close_endpoint();
    }
}

// SAFETY: the library's objects are bound to no thread (FI_THREAD_DOMAIN asks for one thread at a time within
// a domain, and this type is not Sync and has the domain's only handle); the slots' memory is its own.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// The address for the peers, in the provider's format.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The address as a text: `fi_sockaddr_in://127.0.0.1:40123`.
    #[must_use]
    pub fn address_text(&self) -> String {
        self.objects.as_ref().map(|objects| objects.address_text(&self.address)).unwrap_or_default()
    }

    /// The provider's name, as in the options.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// libfabric's name of the domain: a network interface, or a device.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Bytes of the longest message for [`Scope::inject`] and [`Scope::inject_write`].
    #[must_use]
    pub fn longest_inject(&self) -> usize {
        self.longest_inject
    }

    /// Largest number of receives in flight. More wait for space, or are an error, depending on the provider.
    #[must_use]
    pub fn most_receives(&self) -> usize {
        self.most_receives
    }

    /// Inserts a peer's address (`fi_av_insert`). Over `shm` the peer must be an [`Endpoint`] of another
    /// process: the provider maps the file named by the address, and trusts its content.
    ///
    /// # Errors
    /// [`Error::Call`] when the provider rejects it; [`Error::Endpoint`] when the endpoint was closed, or
    /// when over `shm` the address is not from an [`Endpoint`], or from one of this process.
    pub fn insert(&mut self, address: &[u8]) -> Result<Peer, Error> {
        let id = self.id;
        // Within a process the provider shares the peer's memory without a mapping, and the memory is gone
        // when the peer is closed; from 2.5 on it also crashes when one sends before the other has read the
        // location of its memory.
        if self.provider == "shm" && shm::is_of_this_process(address) {
            let problem = "two endpoints of one process crash over shm; use tcp, or separate processes";
            return Err(self.endpoint_error("fi_av_insert", problem.to_owned()));
        }
        if self.provider == "shm" && !shm::is_address(address) {
            let problem = "over shm, this is not an address of an endpoint of this library";
            return Err(self.endpoint_error("fi_av_insert", problem.to_owned()));
        }
        let inserted = self.objects_mut("fi_av_insert")?.insert_address(address);
        let address = inserted.map_err(|code| self.call_failure("fi_av_insert", code, None))?;
        Ok(Peer { address, endpoint: id })
    }

    /// Starts operations, and returns when none is in flight: the closure's result, or the error of the first
    /// failed operation. Operations may borrow everything that outlives this call.
    ///
    /// # Errors
    /// The closure's; [`Error::Call`] when an operation fails; [`Error::World`] when a rank of the world has
    /// failed; [`Error::TimedOut`] after the timeout; [`Error::Endpoint`] when the endpoint was closed by an
    /// earlier error. If operations are in flight then, the endpoint is closed.
    pub fn scope<'env, T>(
        &'env mut self,
        body: impl FnOnce(&mut Scope<'env>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.reset_wait();
        let mut scope = Scope::new(self);
        let value = body(&mut scope)?;
        scope.wait_all()?;
        Ok(value)
    }

    /// Completes all communication with these peers; they have to call it as well. When it returns, all
    /// earlier messages to them, injected or not, have been received or can be, and this endpoint can be
    /// closed. `tag` must be used for nothing else.
    ///
    /// Each side sends a message and answers the other's.
    ///
    /// # Errors
    /// The errors of [`Endpoint::scope`].
    pub fn farewell(&mut self, peers: &[Peer], tag: u64) -> Result<(), Error> {
        // An answer implies the arrival of the first message, and of all messages before. Nothing can delay
        // the answers.
        for _ in ["farewell", "answer"] {
            self.scope(|scope| {
                for &peer in peers {
                    let _received = scope.receive(peer, tag, &mut [])?;
                    let _sent = scope.send(peer, tag, &[])?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes the library release all buffers. If closing could crash after the loss of a peer, the objects
    /// are left open and never polled again.
    fn close_endpoint(&mut self) {
        let Some(mut objects) = self.objects.take() else { return };
        // A rank may have ended in the middle of an unexpected message.
        let gone = || self.options.world.as_ref().is_some_and(|world| world.check().is_err());
        if objects.must_stay_open() && (self.peer_lost || gone()) {
            objects.leave_open();
        }
    }

    #[inline]
    fn objects_mut(&mut self, operation: &'static str) -> Result<&mut EndpointObjects, Error> {
        match &mut self.objects {
            Some(objects) => Ok(objects),
            None => Err(closed_error(operation, &self.provider)),
        }
    }

    #[cold]
    fn call_failure(&self, operation: &'static str, code: c_int, own: Option<String>) -> Error {
        Failure::of_call(self.library, &self.provider, operation, None, code, own)
    }

    /// Rejects operations that the endpoint was not opened for: providers may lack them, or do something
    /// else.
    #[inline]
    fn require_option(&self, asked: bool, operation: &'static str, option: &str) -> Result<(), Error> {
        match asked {
            true => Ok(()),
            false => {
                Err(self
                    .endpoint_error(operation, format!("the endpoint was opened without Options::{option}")))
            }
        }
    }

    #[cold]
    fn endpoint_error(&self, operation: &'static str, problem: String) -> Error {
        Error::Endpoint { operation, provider: self.provider.clone(), problem }
    }
}

#[cold]
fn closed_error(operation: &'static str, provider: &str) -> Error {
    Error::Endpoint {
        operation,
        provider: provider.to_owned(),
        problem: "the endpoint was closed after a failed operation, so that nothing writes to its buffers; \
                  open a new endpoint"
            .to_owned(),
    }
}

mod memory;
mod opening;
mod progress;
mod region;
mod scope;
mod slots;
#[cfg(test)]
mod tests;

pub use memory::{Destination, DeviceMemory, DeviceRange, Source, shared};
pub use opening::Options;
pub use region::{Region, RemoteRegion};
pub use scope::Scope;
