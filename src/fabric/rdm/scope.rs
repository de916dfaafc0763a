//! Scopes of operations in flight.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::memory::{Block, Destination, Source};
use super::{Completion, Endpoint, Operation, Peer, RemoteRegion};
use crate::fabric::Error;

/// The lifetime of operations in flight.
pub struct Scope<'env> {
    endpoint: &'env mut Endpoint,
    /// Invariant: buffers are borrowed for exactly `'env`.
    environment: PhantomData<&'env mut &'env ()>,
}

impl<'env> Scope<'env> {
    pub(super) fn new(endpoint: &'env mut Endpoint) -> Self {
        Self { endpoint, environment: PhantomData }
    }

    /// Starts to send a message (`fi_tsend`, over TCP `fi_tsenddata`; without a tag `fi_send`). `tag` is a
    /// `u64` or `None`. Messages without a tag need [`Options::untagged`](super::Options), and match only
    /// receives without a tag. The first message to a peer waits for the connection; the peer also has to
    /// make progress for it.
    ///
    /// # Errors
    /// The errors of [`Endpoint::scope`]; [`Error::Endpoint`] without a tag on an endpoint opened without
    /// [`Options::untagged`](super::Options), for device memory registered with another endpoint, and for a
    /// range outside the device memory.
    pub fn send(
        &mut self,
        peer: Peer,
        tag: impl Into<Option<u64>>,
        data: impl Into<Source<'env>>,
    ) -> Result<Operation, Error> {
        let (tag, with_data) = (tag.into(), self.endpoint.completion_data);
        let name = match tag {
            // TCP's header has a favourable length without a tag, and needs no completion data.
            None => "fi_send",
            Some(_) if with_data => "fi_tsenddata",
            Some(_) => "fi_tsend",
        };
        self.check_tag(name, tag)?;
        let Block { start, len, descriptor } = data.into().source_block(self.endpoint, name)?;
        self.endpoint.start_operation(name, len, Some(peer), |objects, address, context| {
            // SAFETY: the endpoint is open, the address is one of its own, the data is borrowed, or
            // registered with the endpoint, until the operation is complete or the endpoint closed, and so
            // lives the context.
            unsafe {
                match tag {
                    None => fabric_sys::fi_send(objects.ep, start, len, descriptor, address, context),
                    Some(tag) if with_data => {
                        fabric_sys::fi_tsenddata(objects.ep, start, len, descriptor, 0, address, tag, context)
                    }
                    Some(tag) => {
                        fabric_sys::fi_tsend(objects.ep, start, len, descriptor, address, tag, context)
                    }
                }
            }
        })
    }

    /// Sends a short message (`fi_tinject`, `fi_inject`) of up to [`Endpoint::longest_inject`] bytes: they
    /// are copied, so nothing is in flight or waited for after the call. If the provider cannot send it
    /// immediately, later calls of the endpoint do; see [completion](super#completion).
    ///
    /// # Errors
    /// The errors of [`Scope::send`]; [`Error::Endpoint`] also when the message is too long.
    pub fn inject(&mut self, peer: Peer, tag: impl Into<Option<u64>>, data: &[u8]) -> Result<(), Error> {
        let tag = tag.into();
        let name = if tag.is_some() { "fi_tinject" } else { "fi_inject" };
        self.check_tag(name, tag)?;
        let (start, len) = (data.as_ptr().cast::<c_void>(), data.len());
        self.endpoint.inject_message(name, len, peer, |objects, address| {
            // SAFETY: the endpoint is open, the address is one of its own, and the data is there during the
            // call.
            unsafe {
                match tag {
                    None => fabric_sys::fi_inject(objects.ep, start, len, address),
                    Some(tag) => fabric_sys::fi_tinject(objects.ep, start, len, address, tag),
                }
            }
        })
    }

    /// Starts to receive the next message of this peer with this tag (`fi_trecv`). With `None` for a tag it
    /// receives the next message without a tag from any peer (`fi_recv`), and `peer` is not used. A message
    /// longer than the memory is an error of the operation, `FI_ETRUNC`; over TCP nothing more arrives from
    /// its sender then.
    ///
    /// Over `shm` this process copies a long message out of the sender's memory. If the sender's scope failed
    /// before the copy, the copy has the present content of the memory. Treat the message as valid only after
    /// a further message of the sender confirms it.
    ///
    /// # Errors
    /// The errors of [`Scope::send`].
    pub fn receive(
        &mut self,
        peer: Peer,
        tag: impl Into<Option<u64>>,
        data: impl Into<Destination<'env>>,
    ) -> Result<Operation, Error> {
        let tag = tag.into();
        let (name, from) = if tag.is_some() { ("fi_trecv", Some(peer)) } else { ("fi_recv", None) };
        self.check_tag(name, tag)?;
        let Block { start, len, descriptor } = data.into().target_block(self.endpoint, name)?;
        self.endpoint.start_operation(name, len, from, |objects, address, context| {
            // SAFETY: the endpoint is open; host memory may be written through shared references while any
            // thread reads it, and no reference to device memory exists. It is borrowed, or registered with
            // the endpoint, until the operation is complete or the endpoint closed, and so lives the context.
            unsafe {
                match tag {
                    None => fabric_sys::fi_recv(objects.ep, start, len, descriptor, address, context),
                    Some(tag) => {
                        fabric_sys::fi_trecv(objects.ep, start, len, descriptor, address, tag, 0, context)
                    }
                }
            }
        })
    }

    /// Starts to write to a peer's memory, from its byte `offset` on (`fi_write`). With most providers it
    /// completes once the data has arrived, or is certain to arrive before later messages.
    ///
    /// # Errors
    /// The errors of [`Endpoint::scope`]; [`Error::Endpoint`] when the data reaches beyond the end of the
    /// region, for a region with a peer of another endpoint, on an endpoint opened without
    /// [`Options::remote_memory`](super::Options), and for device memory as in [`send`](Self::send).
    pub fn write(
        &mut self,
        data: impl Into<Source<'env>>,
        region: RemoteRegion,
        offset: u64,
    ) -> Result<Operation, Error> {
        const NAME: &str = "fi_write";
        let Block { start, len, descriptor } = data.into().source_block(self.endpoint, NAME)?;
        let (to, key) = self.remote_address(NAME, region, offset, len)?;
        self.endpoint.start_operation(NAME, len, Some(region.peer), |objects, address, context| {
            // SAFETY: as in `send`.
            unsafe { fabric_sys::fi_write(objects.ep, start, len, descriptor, address, to, key, context) }
        })
    }

    /// Writes a few bytes to a peer's memory (`fi_inject_write`), as [`inject`](Self::inject) sends them.
    ///
    /// # Errors
    /// The errors of [`Scope::write`]; [`Error::Endpoint`] also when the data is longer than
    /// [`Endpoint::longest_inject`].
    pub fn inject_write(&mut self, data: &[u8], region: RemoteRegion, offset: u64) -> Result<(), Error> {
        const NAME: &str = "fi_inject_write";
        let (start, len) = (data.as_ptr().cast::<c_void>(), data.len());
        let (to, key) = self.remote_address(NAME, region, offset, len)?;
        self.endpoint.inject_message(NAME, len, region.peer, |objects, address| {
            // SAFETY: as in `inject`.
            unsafe { fabric_sys::fi_inject_write(objects.ep, start, len, address, to, key) }
        })
    }

    /// Starts to read a peer's memory, from its byte `offset` on (`fi_read`).
    ///
    /// # Errors
    /// The errors of [`Scope::write`].
    pub fn read(
        &mut self,
        data: impl Into<Destination<'env>>,
        region: RemoteRegion,
        offset: u64,
    ) -> Result<Operation, Error> {
        const NAME: &str = "fi_read";
        let Block { start, len, descriptor } = data.into().target_block(self.endpoint, NAME)?;
        let (from, key) = self.remote_address(NAME, region, offset, len)?;
        self.endpoint.start_operation(NAME, len, Some(region.peer), |objects, address, context| {
            // SAFETY: as in `receive`.
            unsafe { fabric_sys::fi_read(objects.ep, start, len, descriptor, address, from, key, context) }
        })
    }

    /// Waits for an operation.
    ///
    /// # Errors
    /// The errors of [`Endpoint::scope`].
    pub fn wait(&mut self, operation: Operation) -> Result<Completion, Error> {
        self.endpoint.wait_for(&operation)
    }

    /// Waits for all operations.
    ///
    /// # Errors
    /// The errors of [`Endpoint::scope`].
    pub fn wait_all(&mut self) -> Result<(), Error> {
        self.endpoint.wait_for_all()
    }

    /// Makes progress, as [`Endpoint::progress`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::scope`].
    pub fn progress(&mut self) -> Result<bool, Error> {
        self.endpoint.progress()
    }

    /// Rejects messages without a tag where the endpoint has none.
    fn check_tag(&self, operation: &'static str, tag: Option<u64>) -> Result<(), Error> {
        let allowed = tag.is_some() || self.endpoint.options.untagged;
        self.endpoint.require_option(allowed, operation, "untagged")
    }

    /// Remote address and key of an access.
    fn remote_address(
        &self,
        operation: &'static str,
        region: RemoteRegion,
        offset: u64,
        len: usize,
    ) -> Result<(u64, u64), Error> {
        self.endpoint.require_option(self.endpoint.options.remote_memory, operation, "remote_memory")?;
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > region.len()) {
            let problem =
                format!("{len} bytes at offset {offset} exceed the region's {} bytes", region.len());
            return Err(self.endpoint.endpoint_error(operation, problem));
        }
        Ok(region.address_of(offset))
    }
}

impl Drop for Scope<'_> {
    /// The borrows end here: closes the endpoint if the library still uses buffers.
    fn drop(&mut self) {
        if self.endpoint.in_flight > 0 {
            self.endpoint.close_endpoint();
            self.endpoint.in_flight = 0;
        }
        // The errors were reported, or not waited for.
        let _told_already = self.endpoint.wait_for_all();
    }
}
