//! Source, destination and target of transfers in GPU memory.

use std::sync::Arc;

use anyhow::Context as _;
use collectives::fabric::Error;
use collectives::fabric::rdm::{Destination, DeviceMemory, Endpoint, Source};
use collectives::nccl;
use cudarc::driver::{CudaContext, result, sys};

use super::request::Test;
use crate::request::Names;
use crate::supervision::Stop;

/// A third of a GPU's memory.
#[derive(Clone, Copy)]
pub(super) enum GpuPart {
    Source,
    Destination,
    /// For the other rank's accesses.
    Target,
}

/// The three parts of a GPU's memory, one after the other.
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
    pub(super) fn count_gpus(names: Names) -> Result<usize, Stop> {
        let refuse = |error| Stop::Refused(format!("{}: {error}", names.with_value("memory", "cuda")));
        nccl::device_count().map_err(refuse)
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

    /// # Safety
    /// The endpoint must be dropped before this is.
    pub(super) unsafe fn register_endpoint(&self, endpoint: &mut Endpoint) -> Result<DeviceMemory, Error> {
        // SAFETY: the memory is freed when `self` is dropped, which the caller guarantees to be after the
        // endpoint.
        unsafe { endpoint.register_cuda(self.ordinal as i32, self.start, 3 * self.stride) }
    }

    fn write_part(&self, part: GpuPart, bytes: &[u8]) -> Result<(), Stop> {
        self.context.bind_to_thread()?;
        // SAFETY: the context is current; parts have `stride` bytes, at least those of the largest size.
        unsafe { result::memcpy_htod_sync(self.part_address(part), bytes)? };
        // A copy from pageable memory may return before it is complete, though the driver has read that
        // memory.
        #[expect(clippy::disallowed_methods, reason = "the caller stops after an error")]
        Ok(self.context.synchronize()?)
    }

    fn read_part(&self, part: GpuPart, len: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; len];
        self.context.bind_to_thread()?;
        // SAFETY: as in `write_part`.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.part_address(part))? };
        Ok(bytes)
    }

    fn part_address(&self, part: GpuPart) -> sys::CUdeviceptr {
        self.start + (part as usize * self.stride) as u64
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
pub(super) struct RegisteredGpu {
    pub(super) gpu: Arc<Gpu>,
    pub(super) memory: DeviceMemory,
}

impl RegisteredGpu {
    pub(super) fn transfer_parts(&self, len: usize) -> (Source<'static>, Destination<'static>) {
        let part = |part: GpuPart| {
            let start = part as usize * self.gpu.stride;
            self.memory.range(start..start + len)
        };
        (part(GpuPart::Source).into(), part(GpuPart::Destination).into())
    }

    /// Offset of the accessed part in the other rank's memory.
    pub(super) fn target_offset(&self) -> u64 {
        (GpuPart::Target as usize * self.gpu.stride) as u64
    }

    /// Makes the GPU's context current in the calling thread, in which libfabric may copy.
    pub(super) fn bind_context(&self) -> Result<(), Stop> {
        Ok(self.gpu.context.bind_to_thread()?)
    }

    /// Writes `data` to the part that is sent or read, and zeros to the parts that it will arrive in.
    pub(super) fn prepare_test(&self, test: Test, data: &[u8]) -> Result<(), Stop> {
        let other = vec![0; data.len()];
        self.gpu.write_part(GpuPart::Source, data)?;
        self.gpu.write_part(GpuPart::Destination, &other)?;
        self.gpu.write_part(GpuPart::Target, if test == Test::Read { data } else { &other })
    }

    /// Number and name of the GPU.
    pub(super) fn describe_gpu(&self) -> (usize, String) {
        let name = self.gpu.context.name().unwrap_or_else(|_| "unknown GPU".to_owned());
        (self.gpu.ordinal, name)
    }

    pub(super) fn read_gpu_part(&self, part: GpuPart, len: usize) -> Result<Vec<u8>, Stop> {
        self.gpu.read_part(part, len)
    }
}
