//! Memory of devices, and operations on it.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

use fabric_sys::fi_hmem_iface;

use super::{Endpoint, Operation, Peer, RemoteRegion, Scope};
use crate::fabric::Error;

/// Memory of a device that is registered with an endpoint, as long as that is open. Its content is undefined where
/// several operations use a part at a time.
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

/// A range of it, for the library.
struct DeviceRange {
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

    /// The description for a peer that reads and writes it, if the endpoint has remote memory access.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }
}

impl Endpoint {
    /// Registers memory of a CUDA device (`fi_mr_regattr` with `FI_HMEM_CUDA` and `FI_HMEM_DEVICE_ONLY`), from
    /// `address` on, for operations of this endpoint and its peers, as long as it is open. The endpoint needs
    /// [`Options::cuda`](super::Options).
    ///
    /// Set `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` on it first: otherwise a provider's copy from device to device (shm's by
    /// CUDA's IPC) may still run when the operation is complete.
    ///
    /// # Safety
    /// The memory must exist until the endpoint and all that share its domain are dropped or closed by an error, and
    /// until no peer accesses it any more: over `shm` one may be late. It must be device memory, as of `cudaMalloc` and
    /// `cuMemAlloc`, not managed or host memory.
    ///
    /// # Errors
    /// [`Error::Endpoint`] when libfabric has no CUDA, or the endpoint was opened without
    /// [`Options::cuda`](super::Options) or was closed; [`Error::Call`] when the provider does not register it.
    pub unsafe fn register_cuda(
        &mut self,
        device: i32,
        address: u64,
        len: usize,
    ) -> Result<DeviceMemory, Error> {
        // SAFETY: the caller guarantees the memory.
        unsafe { self.register_device((fabric_sys::FI_HMEM_CUDA, device), address, len) }
    }

    /// # Safety
    /// As [`register_cuda`](Self::register_cuda), for a device of another kind.
    pub(super) unsafe fn register_device(
        &mut self,
        device: (fi_hmem_iface, c_int),
        address: u64,
        len: usize,
    ) -> Result<DeviceMemory, Error> {
        const NAME: &str = "fi_mr_regattr";
        if !self.devices {
            let problem = "the endpoint was opened for memory of the host alone";
            return Err(self.endpoint_error(NAME, problem.to_owned()));
        }
        let mut access = fabric_sys::FI_SEND | fabric_sys::FI_RECV;
        if self.remote_memory {
            access |= fabric_sys::FI_READ
                | fabric_sys::FI_WRITE
                | fabric_sys::FI_REMOTE_READ
                | fabric_sys::FI_REMOTE_WRITE;
        }
        let start = ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the caller guarantees the memory, which no reference is ever made to.
        let registered = unsafe { self.objects_mut(NAME)?.register(start, len, access, device) };
        let (key, descriptor) = registered.map_err(|code| match code {
            fabric_sys::FI_ENOSYS => {
                let (version, path) = (self.library.version(), self.library.path().display());
                let problem = format!(
                    "libfabric {version} ({path}) has no CUDA: it was built without it, or found no driver"
                );
                self.endpoint_error(NAME, problem)
            }
            code => self.failure(NAME, code, None),
        })?;
        let base = if self.virtual_addresses { address } else { 0 };
        let remote = RemoteRegion::new(base, key, len as u64);
        Ok(DeviceMemory::new(self.id, start, len, descriptor, remote))
    }

    /// True when the provider has promised to move device memory directly (`FI_HMEM_P2P_REQUIRED`), without a copy in
    /// host memory. Others may do so, too, or copy.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.objects.as_ref().is_some_and(|objects| objects.direct)
    }
}

impl Scope<'_> {
    /// [`send`](Self::send), or without a tag [`send_untagged`](Self::send_untagged), from a range of device memory.
    ///
    /// # Errors
    /// As [`Endpoint::scope`](super::Endpoint::scope); [`Error::Endpoint`] when the memory has no such part, or is
    /// registered with another endpoint.
    pub fn send_device(
        &mut self,
        peer: Peer,
        tag: Option<u64>,
        memory: &DeviceMemory,
        range: Range<usize>,
    ) -> Result<Operation, Error> {
        let name = if tag.is_some() { "fi_tsend" } else { "fi_send" };
        if tag.is_none() {
            self.untagged(name)?;
        }
        let DeviceRange { start, len, descriptor } = self.part(name, memory, range)?;
        self.endpoint.start(name, len, Some(peer), |objects, address, context| {
            // SAFETY: the endpoint is open, the address is one of its own, the memory is registered with it and there
            // until it is closed, and so lives the context until the operation is complete.
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

    /// [`receive`](Self::receive), or without a tag [`receive_untagged`](Self::receive_untagged) from any peer, into a
    /// range of device memory.
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
        if tag.is_none() {
            self.untagged(name)?;
        }
        let DeviceRange { start, len, descriptor } = self.part(name, memory, range)?;
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

    /// [`write`](Self::write) from a range of device memory.
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
        let DeviceRange { start, len, descriptor } = self.part(NAME, memory, range)?;
        let (to, key) = self.remote_address(NAME, region, offset, len)?;
        self.endpoint.start(NAME, len, Some(peer), |objects, address, context| {
            // SAFETY: as in `send_device`.
            unsafe { fabric_sys::fi_write(objects.ep, start, len, descriptor, address, to, key, context) }
        })
    }

    /// [`read`](Self::read) into a range of device memory.
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
        let DeviceRange { start, len, descriptor } = self.part(NAME, memory, range)?;
        let start = start.cast_mut();
        let (from, key) = self.remote_address(NAME, region, offset, len)?;
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
    ) -> Result<DeviceRange, Error> {
        if memory.endpoint != self.endpoint.id {
            let problem = "the memory is registered with another endpoint";
            return Err(self.endpoint.endpoint_error(operation, problem.to_owned()));
        }
        if range.start > range.end || range.end > memory.len {
            let problem =
                format!("bytes {range:?} are not all within the {} that are registered", memory.len);
            return Err(self.endpoint.endpoint_error(operation, problem));
        }
        let start = memory.start.wrapping_add(range.start).cast();
        Ok(DeviceRange { start, len: range.len(), descriptor: memory.descriptor })
    }
}
