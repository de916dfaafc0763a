//! Memory of the host or a device, in operations.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU8;

use fabric_sys::fi_hmem_iface;

use super::region::describe_region;
use super::{Endpoint, RemoteRegion};
use crate::fabric::Error;

/// Memory to send or write, made by `into` from anything with bytes (`&[u8]`, `&Vec<u8>`, `&[u8; 8]`) or from
/// a [`DeviceRange`].
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Bytes of the host.
    Host(&'a [u8]),
    /// Memory of a device.
    Device(DeviceRange),
}

/// Memory to receive or read into, made by `into` from anything with mutable bytes (`&mut [u8]`,
/// `&mut Vec<u8>`), from the bytes of [`shared`], or from a [`DeviceRange`]. If several operations in flight
/// have the same shared bytes, their final content is undefined.
#[derive(Clone, Copy, Debug)]
pub enum Destination<'a> {
    /// Bytes of the host.
    Host(&'a [AtomicU8]),
    /// Memory of a device.
    Device(DeviceRange),
}

/// Returns the bytes as atomic ones, to be shared by several operations and threads. They may change during
/// any call: a scope can move to another thread, and where endpoints share a domain, any of them moves the
/// data of all.
pub fn shared(data: &mut [u8]) -> &[AtomicU8] {
    // SAFETY: an `AtomicU8` is laid out as a `u8`; the reference borrows the bytes exclusively, so nobody has
    // them in another way while it lives.
    unsafe { &*(ptr::from_mut(data) as *const [AtomicU8]) }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Source<'a> {
    fn from(data: &'a T) -> Self {
        Self::Host(data.as_ref())
    }
}

impl From<DeviceRange> for Source<'_> {
    fn from(range: DeviceRange) -> Self {
        Self::Device(range)
    }
}

impl<'a, T: AsMut<[u8]> + ?Sized> From<&'a mut T> for Destination<'a> {
    fn from(data: &'a mut T) -> Self {
        Self::Host(shared(data.as_mut()))
    }
}

impl<'a> From<&'a [AtomicU8]> for Destination<'a> {
    fn from(data: &'a [AtomicU8]) -> Self {
        Self::Host(data)
    }
}

impl From<DeviceRange> for Destination<'_> {
    fn from(range: DeviceRange) -> Self {
        Self::Device(range)
    }
}

pub(super) struct Block {
    pub(super) start: *mut c_void,
    pub(super) len: usize,
    pub(super) descriptor: *mut c_void,
}

impl Source<'_> {
    pub(super) fn source_block(self, endpoint: &Endpoint, operation: &'static str) -> Result<Block, Error> {
        match self {
            Self::Host(data) => Ok(Block::of_host(data.as_ptr(), data.len())),
            Self::Device(range) => range.device_block(endpoint, operation),
        }
    }
}

impl Destination<'_> {
    pub(super) fn target_block(self, endpoint: &Endpoint, operation: &'static str) -> Result<Block, Error> {
        match self {
            Self::Host(data) => Ok(Block::of_host(data.as_ptr().cast(), data.len())),
            Self::Device(range) => range.device_block(endpoint, operation),
        }
    }
}

impl Block {
    fn of_host(start: *const u8, len: usize) -> Self {
        Self { start: start.cast_mut().cast(), len, descriptor: ptr::null_mut() }
    }
}

/// Memory of a device, registered with an endpoint as long as the endpoint is open. The content of a part is
/// undefined while an operation in flight writes it, and after several simultaneous writes.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    endpoint: u64,
    start: *const u8,
    len: usize,
    descriptor: *mut c_void,
    description: [u8; RemoteRegion::BYTES],
}

// SAFETY: both pointers are only handed to the library, by the endpoint of the registration.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Returns the description to send to peers, if the endpoint has remote memory access: see
    /// [`RemoteRegion::from_bytes`].
    #[must_use]
    pub fn description(&self) -> [u8; RemoteRegion::BYTES] {
        self.description
    }

    /// Returns a part, in bytes from the start of the memory. Operations check its bounds.
    #[must_use]
    pub fn range(&self, range: Range<usize>) -> DeviceRange {
        DeviceRange { memory: *self, start: range.start, end: range.end }
    }
}

/// A part of [`DeviceMemory`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange {
    memory: DeviceMemory,
    start: usize,
    end: usize,
}

impl DeviceRange {
    fn device_block(self, endpoint: &Endpoint, operation: &'static str) -> Result<Block, Error> {
        let Self { memory, start, end } = self;
        if memory.endpoint != endpoint.id {
            let problem = "the memory is registered with another endpoint";
            return Err(endpoint.endpoint_error(operation, problem.to_owned()));
        }
        if start > end || end > memory.len {
            let problem =
                format!("bytes {start}..{end} are not all within the {} registered bytes", memory.len);
            return Err(endpoint.endpoint_error(operation, problem));
        }
        let start = memory.start.wrapping_add(start).cast_mut().cast();
        Ok(Block { start, len: end - self.start, descriptor: memory.descriptor })
    }
}

impl Endpoint {
    /// Registers memory of a CUDA device (`fi_mr_regattr` with `FI_HMEM_CUDA` and `FI_HMEM_DEVICE_ONLY`),
    /// from `address` on, for operations of this endpoint and its peers, as long as it is open. The endpoint
    /// needs [`Options::cuda`](super::Options).
    ///
    /// Set `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` on it first: otherwise a provider's copy from device to device
    /// (shm's by CUDA's IPC) may still run when the operation is complete.
    ///
    /// # Safety
    /// The memory must exist until the endpoint and all others of its domain are dropped or closed by an
    /// error, and until no peer accesses it any more: over `shm` an access may be late. It must be device
    /// memory, as of `cudaMalloc` and `cuMemAlloc`, not managed or host memory.
    ///
    /// # Errors
    /// [`Error::Endpoint`] when libfabric has no CUDA, or the endpoint was opened without
    /// [`Options::cuda`](super::Options) or was closed; [`Error::Call`] when the provider does not register
    /// it.
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
        if !self.options.cuda {
            let problem = "the endpoint was opened for host memory only";
            return Err(self.endpoint_error(NAME, problem.to_owned()));
        }
        let mut access = fabric_sys::FI_SEND | fabric_sys::FI_RECV;
        if self.options.remote_memory {
            access |= fabric_sys::FI_READ
                | fabric_sys::FI_WRITE
                | fabric_sys::FI_REMOTE_READ
                | fabric_sys::FI_REMOTE_WRITE;
        }
        let start = ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the caller guarantees the memory; no reference is ever made to it.
        let registered = unsafe { self.objects_mut(NAME)?.register_memory(start, len, access, device) };
        let (key, descriptor) = registered.map_err(|code| match code {
            fabric_sys::FI_ENOSYS => {
                let (version, path) = (self.library.version(), self.library.path().display());
                let problem = format!(
                    "libfabric {version} ({path}) does not support CUDA: it was built without CUDA, or \
                     found no driver"
                );
                self.endpoint_error(NAME, problem)
            }
            code => self.call_failure(NAME, code, None),
        })?;
        let base = if self.virtual_addresses { address } else { 0 };
        let description = describe_region(base, key, len as u64);
        Ok(DeviceMemory { endpoint: self.id, start, len, descriptor, description })
    }

    /// True when the provider has promised to move device memory directly (`FI_HMEM_P2P_REQUIRED`), without a
    /// copy in host memory. Other providers may also do so, or copy.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.objects.as_ref().is_some_and(|objects| objects.direct)
    }
}
