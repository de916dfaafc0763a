//! The time in which operations are in flight.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::AtomicU8;

use super::{Completion, Counts, Endpoint, Operation, Peer, RemoteRegion};
use crate::fabric::Error;

/// Bytes that several operations and threads may share: a scope can move to another thread, and where endpoints share a
/// domain, any of them moves the data of all, so the bytes may change during any call. They are read atomically.
pub fn shared(data: &mut [u8]) -> &[AtomicU8] {
    // SAFETY: an `AtomicU8` is laid out as a `u8`, and while the reference lives, which borrows the bytes exclusively,
    // nobody has them in another way.
    unsafe { &*(ptr::from_mut(data) as *const [AtomicU8]) }
}

/// The time in which operations are in flight.
pub struct Scope<'env> {
    pub(super) endpoint: &'env mut Endpoint,
    /// Invariant: buffers are borrowed for exactly `'env`.
    environment: PhantomData<&'env mut &'env ()>,
}

impl<'env> Scope<'env> {
    pub(super) fn new(endpoint: &'env mut Endpoint) -> Self {
        Self { endpoint, environment: PhantomData }
    }

    /// Starts to send a message (`fi_tsend`; over TCP `fi_tsenddata`). The first to a peer waits for the connection,
    /// for which the peer has to make progress, too.
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn send(&mut self, peer: Peer, tag: u64, data: &'env [u8]) -> Result<Operation, Error> {
        let (pointer, len) = (data.as_ptr().cast::<c_void>(), data.len());
        let none = ptr::null_mut();
        if self.endpoint.completion_data {
            return self.endpoint.start("fi_tsenddata", len, Some(peer), |objects, address, context| {
                // SAFETY: the endpoint is open, the address is one of its own, the data is borrowed until the operation
                // is complete or the endpoint closed, and so lives the context.
                unsafe { fabric_sys::fi_tsenddata(objects.ep, pointer, len, none, 0, address, tag, context) }
            });
        }
        self.endpoint.start("fi_tsend", len, Some(peer), |objects, address, context| {
            // SAFETY: as above.
            unsafe { fabric_sys::fi_tsend(objects.ep, pointer, len, none, address, tag, context) }
        })
    }

    /// Sends a short message (`fi_tinject`) of up to [`Endpoint::longest_inject`] bytes: they are copied, so nothing is
    /// in flight or waited for after the call. If the provider cannot send it immediately, later calls of the endpoint
    /// do; see [completion](super#completion).
    ///
    /// # Errors
    /// As [`Endpoint::scope`]; [`Error::Endpoint`] when the message is too long.
    pub fn inject(&mut self, peer: Peer, tag: u64, data: &[u8]) -> Result<(), Error> {
        let (pointer, len) = (data.as_ptr().cast::<c_void>(), data.len());
        self.endpoint.inject("fi_tinject", len, peer, |objects, address| {
            // SAFETY: the endpoint is open, the address is one of its own, and the data is there during the call.
            unsafe { fabric_sys::fi_tinject(objects.ep, pointer, len, address, tag) }
        })
    }

    /// Starts to receive the next message of this peer with this tag (`fi_trecv`). A longer message is an error of the
    /// operation, `FI_ETRUNC`; over TCP nothing more arrives from this peer then.
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn receive(&mut self, peer: Peer, tag: u64, data: &'env mut [u8]) -> Result<Operation, Error> {
        self.receive_shared(peer, tag, shared(data))
    }

    /// [`receive`](Self::receive) into memory that several receives may share, whose final content is then undefined.
    /// For measurements. See [`shared`].
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn receive_shared(
        &mut self,
        peer: Peer,
        tag: u64,
        data: &'env [AtomicU8],
    ) -> Result<Operation, Error> {
        let (pointer, len) = (data.as_ptr().cast_mut().cast::<c_void>(), data.len());
        self.endpoint.start("fi_trecv", len, Some(peer), |objects, address, context| {
            // SAFETY: the endpoint is open; the memory may be written through shared references while any thread reads
            // it, is borrowed until the operation is complete or the endpoint closed, and so lives the context.
            unsafe {
                fabric_sys::fi_trecv(objects.ep, pointer, len, ptr::null_mut(), address, tag, 0, context)
            }
        })
    }

    /// Starts to send a message without a tag (`fi_send`). Needs [`Options::untagged`](super::Options); tagged and
    /// untagged messages never match.
    ///
    /// # Errors
    /// As [`Endpoint::scope`]; [`Error::Endpoint`] when the endpoint was opened without.
    pub fn send_untagged(&mut self, peer: Peer, data: &'env [u8]) -> Result<Operation, Error> {
        const NAME: &str = "fi_send";
        self.untagged(NAME)?;
        let (pointer, len) = (data.as_ptr().cast::<c_void>(), data.len());
        // Without a tag TCP's header has a favourable length, and needs no completion data.
        self.endpoint.start(NAME, len, Some(peer), |objects, address, context| {
            // SAFETY: as in `send`.
            unsafe { fabric_sys::fi_send(objects.ep, pointer, len, ptr::null_mut(), address, context) }
        })
    }

    /// [`inject`](Self::inject) without a tag (`fi_inject`).
    ///
    /// # Errors
    /// As [`inject`](Self::inject) and [`send_untagged`](Self::send_untagged).
    pub fn inject_untagged(&mut self, peer: Peer, data: &[u8]) -> Result<(), Error> {
        const NAME: &str = "fi_inject";
        self.untagged(NAME)?;
        let (pointer, len) = (data.as_ptr().cast::<c_void>(), data.len());
        self.endpoint.inject(NAME, len, peer, |objects, address| {
            // SAFETY: as in `inject`.
            unsafe { fabric_sys::fi_inject(objects.ep, pointer, len, address) }
        })
    }

    /// Starts to receive the next message without a tag, from any peer (`fi_recv`), into memory that several receives
    /// may share, as in [`receive_shared`](Self::receive_shared).
    ///
    /// # Errors
    /// As [`send_untagged`](Self::send_untagged).
    pub fn receive_untagged(&mut self, data: &'env [AtomicU8]) -> Result<Operation, Error> {
        const NAME: &str = "fi_recv";
        self.untagged(NAME)?;
        let (pointer, len) = (data.as_ptr().cast_mut().cast::<c_void>(), data.len());
        self.endpoint.start(NAME, len, None, |objects, address, context| {
            // SAFETY: as in `receive_shared`.
            unsafe { fabric_sys::fi_recv(objects.ep, pointer, len, ptr::null_mut(), address, context) }
        })
    }

    /// Starts to write to a peer's memory, from its byte `offset` on (`fi_write`). With most providers it completes
    /// once the data has arrived, or is certain to arrive before later messages.
    ///
    /// # Errors
    /// As [`Endpoint::scope`]; [`Error::Endpoint`] when the region ends before the data does, or the endpoint was
    /// opened without [`Options::remote_memory`](super::Options).
    pub fn write(
        &mut self,
        peer: Peer,
        data: &'env [u8],
        region: RemoteRegion,
        offset: u64,
    ) -> Result<Operation, Error> {
        const NAME: &str = "fi_write";
        let (pointer, len) = (data.as_ptr().cast::<c_void>(), data.len());
        let (to, key) = self.remote_address(NAME, region, offset, len)?;
        self.endpoint.start(NAME, len, Some(peer), |objects, address, context| {
            // SAFETY: as in `send`.
            unsafe {
                fabric_sys::fi_write(objects.ep, pointer, len, ptr::null_mut(), address, to, key, context)
            }
        })
    }

    /// Writes a few bytes to a peer's memory (`fi_inject_write`), as [`inject`](Self::inject) sends them.
    ///
    /// # Errors
    /// As [`Scope::write`]; [`Error::Endpoint`] also when the data is longer than [`Endpoint::longest_inject`].
    pub fn inject_write(
        &mut self,
        peer: Peer,
        data: &[u8],
        region: RemoteRegion,
        offset: u64,
    ) -> Result<(), Error> {
        const NAME: &str = "fi_inject_write";
        let (pointer, len) = (data.as_ptr().cast::<c_void>(), data.len());
        let (to, key) = self.remote_address(NAME, region, offset, len)?;
        self.endpoint.inject(NAME, len, peer, |objects, address| {
            // SAFETY: as in `inject`.
            unsafe { fabric_sys::fi_inject_write(objects.ep, pointer, len, address, to, key) }
        })
    }

    /// Starts to read a peer's memory, from its byte `offset` on (`fi_read`).
    ///
    /// # Errors
    /// As [`Scope::write`].
    pub fn read(
        &mut self,
        peer: Peer,
        data: &'env mut [u8],
        region: RemoteRegion,
        offset: u64,
    ) -> Result<Operation, Error> {
        self.read_shared(peer, shared(data), region, offset)
    }

    /// [`read`](Self::read) into memory that several reads may share. For measurements.
    ///
    /// # Errors
    /// As [`Scope::write`].
    pub fn read_shared(
        &mut self,
        peer: Peer,
        data: &'env [AtomicU8],
        region: RemoteRegion,
        offset: u64,
    ) -> Result<Operation, Error> {
        const NAME: &str = "fi_read";
        let (pointer, len) = (data.as_ptr().cast_mut().cast::<c_void>(), data.len());
        let (from, key) = self.remote_address(NAME, region, offset, len)?;
        self.endpoint.start(NAME, len, Some(peer), |objects, address, context| {
            // SAFETY: as in `receive_shared`.
            unsafe {
                fabric_sys::fi_read(objects.ep, pointer, len, ptr::null_mut(), address, from, key, context)
            }
        })
    }

    /// Waits for an operation.
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn wait(&mut self, operation: Operation) -> Result<Completion, Error> {
        self.endpoint.wait(&operation)
    }

    /// Waits for all operations.
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn wait_all(&mut self) -> Result<(), Error> {
        self.endpoint.wait_for_all()
    }

    /// Waits until at least `count` operations have completed, and returns [`Endpoint::counts`]. Injected ones have
    /// then left the library's memory, as others that are complete.
    ///
    /// # Errors
    /// As [`Endpoint::counts`] and [`Endpoint::scope`].
    pub fn wait_for_count(&mut self, count: u64) -> Result<Counts, Error> {
        self.endpoint.wait_for_count(count)
    }

    /// Makes progress, as [`Endpoint::progress`].
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn progress(&mut self) -> Result<bool, Error> {
        self.endpoint.progress()
    }

    /// Rejects messages without a tag where the endpoint has none.
    pub(super) fn untagged(&self, operation: &'static str) -> Result<(), Error> {
        self.endpoint.require_option(self.endpoint.untagged, operation, "untagged")
    }

    /// Remote address and key of an access.
    pub(super) fn remote_address(
        &self,
        operation: &'static str,
        region: RemoteRegion,
        offset: u64,
        len: usize,
    ) -> Result<(u64, u64), Error> {
        self.endpoint.require_option(self.endpoint.remote_memory, operation, "remote_memory")?;
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > region.len()) {
            let problem = format!(
                "{len} bytes from byte {offset} on are more than the region's {} bytes",
                region.len()
            );
            return Err(self.endpoint.endpoint_error(operation, problem));
        }
        Ok(region.address_of(offset))
    }
}

impl Drop for Scope<'_> {
    /// The borrows end here: closes the endpoint if the library still uses buffers.
    fn drop(&mut self) {
        if self.endpoint.in_flight > 0 {
            self.endpoint.close();
            self.endpoint.in_flight = 0;
        }
        // The errors were reported, or not waited for.
        let _told_already = self.endpoint.wait_for_all();
    }
}
