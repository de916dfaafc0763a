//! Memory of devices, and the operations on it.

use std::ffi::c_void;
use std::ops::Range;

use super::{Operation, Peer, RemoteRegion, Scope};
use crate::fabric::Error;

/// Memory of a device that is registered with an endpoint, as long as that is open. What is in it when several operations
/// use a part at a time is not defined.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    endpoint: u64,
    start: *const u8,
    len: usize,
    descriptor: *mut c_void,
    remote: RemoteRegion,
}

// SAFETY: both pointers are only handed to the library, by the endpoint that registered the memory.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

/// A part of it, for the library.
struct Part {
    start: *const c_void,
    len: usize,
    descriptor: *mut c_void,
}

impl DeviceMemory {
    pub(super) fn new(
        endpoint: u64,
        start: *const u8,
        len: usize,
        descriptor: *mut c_void,
        remote: RemoteRegion,
    ) -> Self {
        Self { endpoint, start, len, descriptor, remote }
    }

    /// What a peer needs to read and write it, where the endpoint is one for remote memory.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }
}

impl Scope<'_> {
    /// As [`send`](Self::send) with a tag, or [`send_untagged`](Self::send_untagged), of a part of a device's memory.
    ///
    /// # Errors
    /// As [`Endpoint::scope`](super::Endpoint::scope); [`Error::Endpoint`] when the memory has no such part, or is registered with another
    /// endpoint.
    pub fn send_device(
        &mut self,
        peer: Peer,
        tag: Option<u64>,
        memory: &DeviceMemory,
        range: Range<usize>,
    ) -> Result<Operation, Error> {
        let name = if tag.is_some() { "fi_tsend" } else { "fi_send" };
        let Part { start, len, descriptor } = self.part(name, memory, range)?;
        self.endpoint.start(name, len, Some(peer), |objects, address, context| {
            // SAFETY: the endpoint is open, the address is one of its own, the memory is registered with it and there until it
            // is closed, and so lives the context until the operation is complete.
            unsafe {
                match tag {
                    Some(tag) => {
                        fabric_sys::fi_tsend(objects.ep, start, len, descriptor, address, tag, context)
                    }
                    None => fabric_sys::fi_send(objects.ep, start, len, descriptor, address, context),
                }
            }
        })
    }

    /// As [`receive`](Self::receive) with a tag, or [`receive_untagged`](Self::receive_untagged), whose ever it is then, into a
    /// part of a device's memory.
    ///
    /// # Errors
    /// As [`send_device`](Self::send_device).
    pub fn receive_device(
        &mut self,
        peer: Peer,
        tag: Option<u64>,
        memory: &DeviceMemory,
        range: Range<usize>,
    ) -> Result<Operation, Error> {
        let (name, from) = if tag.is_some() { ("fi_trecv", Some(peer)) } else { ("fi_recv", None) };
        let Part { start, len, descriptor } = self.part(name, memory, range)?;
        let start = start.cast_mut();
        self.endpoint.start(name, len, from, |objects, address, context| {
            // SAFETY: as in `send_device`; no reference to the memory exists.
            unsafe {
                match tag {
                    Some(tag) => {
                        fabric_sys::fi_trecv(objects.ep, start, len, descriptor, address, tag, 0, context)
                    }
                    None => fabric_sys::fi_recv(objects.ep, start, len, descriptor, address, context),
                }
            }
        })
    }

    /// As [`write`](Self::write), of a part of a device's memory.
    ///
    /// # Errors
    /// As [`send_device`](Self::send_device) and [`write`](Self::write).
    pub fn write_device(
        &mut self,
        peer: Peer,
        memory: &DeviceMemory,
        range: Range<usize>,
        region: RemoteRegion,
        offset: u64,
    ) -> Result<Operation, Error> {
        const NAME: &str = "fi_write";
        let Part { start, len, descriptor } = self.part(NAME, memory, range)?;
        let (to, key) = self.place(NAME, region, offset, len)?;
        self.endpoint.start(NAME, len, Some(peer), |objects, address, context| {
            // SAFETY: as in `send_device`.
            unsafe { fabric_sys::fi_write(objects.ep, start, len, descriptor, address, to, key, context) }
        })
    }

    /// As [`read`](Self::read), into a part of a device's memory.
    ///
    /// # Errors
    /// As [`write_device`](Self::write_device).
    pub fn read_device(
        &mut self,
        peer: Peer,
        memory: &DeviceMemory,
        range: Range<usize>,
        region: RemoteRegion,
        offset: u64,
    ) -> Result<Operation, Error> {
        const NAME: &str = "fi_read";
        let Part { start, len, descriptor } = self.part(NAME, memory, range)?;
        let start = start.cast_mut();
        let (from, key) = self.place(NAME, region, offset, len)?;
        self.endpoint.start(NAME, len, Some(peer), |objects, address, context| {
            // SAFETY: as in `receive_device`.
            unsafe { fabric_sys::fi_read(objects.ep, start, len, descriptor, address, from, key, context) }
        })
    }

    fn part(
        &self,
        operation: &'static str,
        memory: &DeviceMemory,
        range: Range<usize>,
    ) -> Result<Part, Error> {
        if memory.endpoint != self.endpoint.identity {
            let problem = "the memory is registered with another endpoint";
            return Err(self.endpoint.unusable(operation, problem.to_owned()));
        }
        if range.start > range.end || range.end > memory.len {
            let problem =
                format!("bytes {range:?} are not all within the {} that are registered", memory.len);
            return Err(self.endpoint.unusable(operation, problem));
        }
        let start = memory.start.wrapping_add(range.start).cast();
        Ok(Part { start, len: range.len(), descriptor: memory.descriptor })
    }
}
