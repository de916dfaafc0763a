//! Source and destination of a transfer, in host or GPU memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use anyhow::Context as _;
use collectives::fabric::Error;
use collectives::fabric::rdm::{DeviceMemory, Endpoint, Operation, Peer, RemoteRegion, Scope};
use collectives::nccl;
use cudarc::driver::{CudaContext, result, sys};

use super::options::Test;
use engine::supervision::Stop;

/// Tag of the measured messages.
const DATA: u64 = 1;

/// Data to send or write.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Host(&'a [u8]),
    Device(DeviceRange),
}

/// Memory to receive or read into.
#[derive(Clone, Copy)]
pub(super) enum Destination<'a> {
    Host(&'a [AtomicU8]),
    Device(DeviceRange),
}

/// A range of a GPU's memory.
#[derive(Clone, Copy)]
pub(super) struct DeviceRange {
    memory: DeviceMemory,
    start: usize,
    len: usize,
    /// Offset of the accessed part in the other rank's memory.
    target: u64,
}

impl<'env> Source<'env> {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Host(data) => data.len(),
            Self::Device(part) => part.len,
        }
    }

    /// Sends the data. An injected message is complete on return: `None`.
    pub(super) fn send(
        self,
        scope: &mut Scope<'env>,
        peer: Peer,
        injected: bool,
        plain: bool,
    ) -> Result<Option<Operation>, Error> {
        match (self, injected, plain) {
            (Self::Host(data), true, false) => scope.inject(peer, DATA, data).map(|()| None),
            (Self::Host(data), true, true) => scope.inject_untagged(peer, data).map(|()| None),
            (Self::Host(data), false, false) => scope.send(peer, DATA, data).map(Some),
            (Self::Host(data), false, true) => scope.send_untagged(peer, data).map(Some),
            (Self::Device(part), ..) => {
                let DeviceRange { memory, start, len, .. } = part;
                scope.send_device(peer, (!plain).then_some(DATA), &memory, start..start + len).map(Some)
            }
        }
    }

    /// Writes the data into the other rank's memory. An injected write is complete on return: `None`.
    pub(super) fn write(
        self,
        scope: &mut Scope<'env>,
        peer: Peer,
        remote: RemoteRegion,
        injected: bool,
    ) -> Result<Option<Operation>, Error> {
        match (self, injected) {
            (Self::Host(data), true) => scope.inject_write(peer, data, remote, 0).map(|()| None),
            (Self::Host(data), false) => scope.write(peer, data, remote, 0).map(Some),
            (Self::Device(DeviceRange { memory, start, len, target }), _) => {
                scope.write_device(peer, &memory, start..start + len, remote, target).map(Some)
            }
        }
    }

    /// The first byte; empty data stays empty.
    pub(super) fn first(self) -> Self {
        match self {
            Self::Host(data) => Self::Host(&data[..data.len().min(1)]),
            Self::Device(part) => Self::Device(DeviceRange { len: part.len.min(1), ..part }),
        }
    }
}

impl<'env> Destination<'env> {
    /// Posts a receive.
    pub(super) fn receive(
        self,
        scope: &mut Scope<'env>,
        peer: Peer,
        plain: bool,
    ) -> Result<Operation, Error> {
        match (self, plain) {
            (Self::Host(place), true) => scope.receive_untagged(place),
            (Self::Host(place), false) => scope.receive_shared(peer, DATA, place),
            (Self::Device(DeviceRange { memory, start, len, .. }), _) => {
                scope.receive_device(peer, (!plain).then_some(DATA), &memory, start..start + len)
            }
        }
    }

    /// Reads the other rank's memory.
    pub(super) fn read(
        self,
        scope: &mut Scope<'env>,
        peer: Peer,
        remote: RemoteRegion,
    ) -> Result<Operation, Error> {
        match self {
            Self::Host(place) => scope.read_shared(peer, place, remote, 0),
            Self::Device(DeviceRange { memory, start, len, target }) => {
                scope.read_device(peer, &memory, start..start + len, remote, target)
            }
        }
    }
}

/// Three consecutive parts of a GPU's memory: source, destination, and the target of the other rank's accesses.
pub(super) struct Gpu {
    context: Arc<CudaContext>,
    ordinal: usize,
    start: sys::CUdeviceptr,
    /// Bytes from one part to the next.
    stride: usize,
}

impl Gpu {
    /// Number of GPUs that this process can use.
    ///
    /// # Errors
    /// [`Stop::Refused`] without a GPU.
    pub(super) fn count() -> Result<usize, Stop> {
        nccl::device_count().map_err(|error| Stop::Refused(format!("--memory cuda: {error}")))
    }

    /// Allocates three parts of at least `len` bytes.
    pub(super) fn new(ordinal: usize, len: usize) -> Result<Self, Stop> {
        let stride = len.max(1).next_multiple_of(4096);
        let context = CudaContext::new(ordinal).with_context(|| format!("opening GPU {ordinal}"))?;
        // SAFETY: `new` has made the context current; the memory is freed once, when this is dropped.
        let start = unsafe { result::malloc_sync(3 * stride) }
            .with_context(|| format!("{} bytes of GPU {ordinal}'s memory", 3 * stride))?;
        let gpu = Self { context, ordinal, start, stride };
        let (yes, attribute) = (1_u32, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
        // SAFETY: the attribute is a 32-bit number, and the memory was just allocated.
        unsafe { sys::cuPointerSetAttribute((&raw const yes).cast(), attribute, start).result()? };
        Ok(gpu)
    }

    /// Registers the memory with an endpoint.
    ///
    /// # Safety
    /// The endpoint must be dropped before this is.
    pub(super) unsafe fn register(&self, endpoint: &mut Endpoint) -> Result<DeviceMemory, Error> {
        // SAFETY: the memory is freed when `self` is dropped, which the caller guarantees to be after the endpoint.
        unsafe { endpoint.register_cuda(self.ordinal as i32, self.start, 3 * self.stride) }
    }

    fn write(&self, part: usize, bytes: &[u8]) -> Result<(), Stop> {
        self.context.bind_to_thread()?;
        // SAFETY: the context is current; parts have `stride` bytes, at least those of the largest size.
        unsafe { result::memcpy_htod_sync(self.at(part), bytes)? };
        // A copy from pageable memory may return before it is complete.
        Ok(self.context.synchronize()?)
    }

    fn read(&self, part: usize, len: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; len];
        self.context.bind_to_thread()?;
        // SAFETY: as in `write`.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.at(part))? };
        Ok(bytes)
    }

    fn at(&self, part: usize) -> sys::CUdeviceptr {
        self.start + (part * self.stride) as u64
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let bound = self.context.bind_to_thread();
        // SAFETY: allocated in `new` and freed once, with its context current.
        let freed = bound.and_then(|()| unsafe { result::free_sync(self.start) });
        if let Err(error) = freed {
            tracing::warn!(%error, "the GPU's memory could not be freed");
        }
    }
}

/// A GPU's memory, registered with one endpoint.
#[derive(Clone)]
pub(super) struct Device {
    pub(super) gpu: Arc<Gpu>,
    pub(super) memory: DeviceMemory,
}

impl Device {
    const SOURCE: usize = 0;
    const DESTINATION: usize = 1;
    const TARGET: usize = 2;

    /// Source and destination.
    pub(super) fn parts(&self, len: usize) -> (Source<'static>, Destination<'static>) {
        let stride = self.gpu.stride;
        let part = |part: usize| DeviceRange {
            memory: self.memory,
            start: part * stride,
            len,
            target: (Self::TARGET * stride) as u64,
        };
        (Source::Device(part(Self::SOURCE)), Destination::Device(part(Self::DESTINATION)))
    }

    /// Makes the GPU's context current in the calling thread, in which libfabric may copy.
    pub(super) fn bind(&self) -> Result<(), Stop> {
        Ok(self.gpu.context.bind_to_thread()?)
    }

    /// Writes `data` to the part that is sent or read, and zeros to the parts that it will arrive in.
    pub(super) fn prepare(&self, test: Test, data: &[u8]) -> Result<(), Stop> {
        let other = vec![0; data.len()];
        self.gpu.write(Self::SOURCE, data)?;
        self.gpu.write(Self::DESTINATION, &other)?;
        self.gpu.write(Self::TARGET, if test == Test::Read { data } else { &other })
    }

    /// Reads the destination.
    pub(super) fn received(&self, len: usize) -> Result<Vec<u8>, Stop> {
        self.gpu.read(Self::DESTINATION, len)
    }

    /// Reads the target of the other rank's writes.
    pub(super) fn written(&self, len: usize) -> Result<Vec<u8>, Stop> {
        self.gpu.read(Self::TARGET, len)
    }
}
