//! Test data in device memory: launches the kernels of kernels.cu.

use std::collections::HashMap;
use std::sync::Arc;

use collectives::DataType;
use cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
    result,
};
use cudarc::nvrtc::Ptx;

use super::format::FormatTag;
use super::recipe::Recipe;
use super::{DataError, Mismatch, Mismatches, Problem, Segment, Source, bits_at, require_length};

// SAFETY: `#[repr(C)]`, only integers, and the layout of `Recipe` in kernels.cu.
unsafe impl DeviceRepr for Recipe {}

const THREADS: u32 = 256;

/// Enough blocks to fill a multiprocessor with threads, whatever its generation (2048 threads at most).
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

impl FormatTag {
    /// The kernels for the format, compiled from kernels.cu by `cargo xtask kernels`.
    const fn ptx(self) -> &'static str {
        match self {
            Self::Int8 => include_str!("ptx/Int8.ptx"),
            Self::Int32 => include_str!("ptx/Int32.ptx"),
            Self::Int64 => include_str!("ptx/Int64.ptx"),
            Self::Float16 => include_str!("ptx/Float16.ptx"),
            Self::Bfloat16 => include_str!("ptx/Bfloat16.ptx"),
            Self::Float32 => include_str!("ptx/Float32.ptx"),
            Self::Float64 => include_str!("ptx/Float64.ptx"),
            Self::Float8E4M3 => include_str!("ptx/Float8E4M3.ptx"),
            Self::Float8E5M2 => include_str!("ptx/Float8E5M2.ptx"),
        }
    }
}

/// The kernels of one format.
#[derive(Clone, Debug)]
struct Kernels {
    fill: CudaFunction,
    check: CudaFunction,
}

/// Fills and checks buffers of one device, with the values of [`fill_input`](super::fill_input) and
/// [`check`](super::check).
///
/// The kernels of a type are compiled by the driver when the type is first used, or [loaded](DeviceData::load).
#[derive(Debug)]
pub struct DeviceData {
    context: Arc<CudaContext>,
    blocks: u32,
    kernels: HashMap<FormatTag, Kernels>,
    /// `Report` of kernels.cu: number of wrong elements, inverted index of the first.
    report: CudaSlice<u64>,
}

impl DeviceData {
    /// Prepares the checks of one device.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, DataError> {
        let multiprocessors = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(failed("cuDeviceGetAttribute"))?;
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        let report = stream.alloc_zeros(2).map_err(failed("allocating the report of the check"))?;
        stream.synchronize().map_err(failed("cuStreamSynchronize"))?;
        Ok(Self {
            context: Arc::clone(context),
            blocks: u32::try_from(multiprocessors).unwrap_or(1).max(1) * BLOCKS_PER_MULTIPROCESSOR,
            kernels: HashMap::new(),
            report,
        })
    }

    /// Loads what elements of this type need. The driver compiles it, unless its own cache has the result.
    ///
    /// # Errors
    /// If there is no test data of this type, or the driver fails.
    pub fn load(&mut self, data_type: DataType) -> Result<(), DataError> {
        let format = FormatTag::of(data_type).ok_or(DataError::DataType { data_type })?;
        self.kernels(format).map(drop)
    }

    fn kernels(&mut self, format: FormatTag) -> Result<Kernels, DataError> {
        if let Some(kernels) = self.kernels.get(&format) {
            return Ok(kernels.clone());
        }
        let module = self
            .context
            .load_module(Ptx::from_src(format.ptx()))
            .map_err(failed("loading the kernels (cuModuleLoadData)"))?;
        let function = |name| module.load_function(name).map_err(failed("cuModuleGetFunction"));
        let kernels = Kernels { fill: function("fill")?, check: function("check")? };
        self.kernels.insert(format, kernels.clone());
        Ok(kernels)
    }

    /// Enqueues on `stream`: fill the `bytes` bytes at `buffer` with the input of `rank`, from the element with global
    /// index `first_index` on.
    ///
    /// # Errors
    /// If the problem is not defined, `bytes` ends within an element, the buffer is not aligned to its elements, or
    /// the driver fails.
    ///
    /// # Safety
    /// Until the work is done, `buffer` must be the address of `bytes` bytes of memory that the device of `stream` can
    /// write, and nothing else may access it. `stream` must belong to the context of this object.
    pub unsafe fn fill(
        &mut self,
        stream: &Arc<CudaStream>,
        problem: &Problem,
        rank: u32,
        first_index: u64,
        buffer: CUdeviceptr,
        bytes: u64,
    ) -> Result<(), DataError> {
        let (recipe, format) = Recipe::new(problem, Source::Rank(rank))?;
        let size = problem.data_type.size();
        if !bytes.is_multiple_of(size as u64) {
            return Err(DataError::Length { expected: bytes - bytes % size as u64, found: bytes });
        }
        require_alignment(buffer, size)?;
        let count = bytes / size as u64;
        if count == 0 {
            return Ok(());
        }
        let kernels = self.kernels(format)?;
        let mut launch = stream.launch_builder(&kernels.fill);
        launch.arg(&buffer).arg(&count).arg(&first_index).arg(&recipe);
        // SAFETY: the arguments are those of `fill` in kernels.cu; it writes only the `count` elements at `buffer`,
        // which the caller vouches for.
        unsafe { launch.launch(self.shape(bytes)) }.map_err(failed("launching the kernel 'fill'"))?;
        Ok(())
    }

    /// Compares the `bytes` bytes at `buffer` with the elements of the segments, one segment after the other, once
    /// everything before it on `stream` is done; waits for the result.
    ///
    /// # Errors
    /// As for [`check`](super::check); also if the buffer is not aligned to its elements, or the driver fails.
    ///
    /// # Safety
    /// `buffer` must be the address of `bytes` bytes of initialised memory that the device of `stream` can read, and
    /// nothing may write them until this returns, except work that is already on `stream`. `stream` must belong to the
    /// context of this object.
    pub unsafe fn check(
        &mut self,
        stream: &Arc<CudaStream>,
        problem: &Problem,
        segments: &[Segment],
        buffer: CUdeviceptr,
        bytes: u64,
    ) -> Result<Mismatches, DataError> {
        let size = problem.data_type.size();
        require_length(segments, size, bytes)?;
        require_alignment(buffer, size)?;
        let recipes = segments
            .iter()
            .map(|segment| Recipe::new(problem, segment.source))
            .collect::<Result<Vec<_>, _>>()?;
        stream.memset_zeros(&mut self.report).map_err(failed("clearing the report of the check"))?;
        let mut base = 0_u64;
        for (segment, (recipe, format)) in segments.iter().zip(&recipes) {
            let Segment { count, first_index, .. } = *segment;
            if count != 0 {
                let kernels = self.kernels(*format)?;
                let shape = self.shape(count * size as u64);
                let part = buffer + base * size as u64;
                let mut launch = stream.launch_builder(&kernels.check);
                launch.arg(&part).arg(&count).arg(&first_index).arg(&base).arg(recipe).arg(&mut self.report);
                // SAFETY: the arguments are those of `check` in kernels.cu; it reads the `count` elements at `part`,
                // which lie in the buffer that the caller vouches for, and writes the two words of the report.
                unsafe { launch.launch(shape) }.map_err(failed("launching the kernel 'check'"))?;
            }
            base += count;
        }
        let report = stream.clone_dtoh(&self.report).map_err(failed("the check"))?;
        stream.synchronize().map_err(failed("the check"))?;
        let [wrong, inverted_first] = report[..] else { return Ok(Mismatches::default()) };
        if wrong == 0 {
            return Ok(Mismatches::default());
        }
        let index = !inverted_first;
        let mut base = 0;
        let mut expected_bits = 0;
        for (segment, (recipe, format)) in segments.iter().zip(&recipes) {
            if index - base < segment.count {
                expected_bits = bits_at(recipe, *format, segment.first_index.wrapping_add(index - base));
                break;
            }
            base += segment.count;
        }
        let mut element = [0_u8; 8];
        let address = buffer + index * size as u64;
        // SAFETY: the kernel found this element inside the buffer; `element` outlives the copy, as the stream is
        // synchronised below before it goes out of scope, whether or not the copy was enqueued.
        let copied = unsafe { result::memcpy_dtoh_async(&mut element[..size], address, stream.cu_stream()) };
        let done = stream.synchronize();
        copied.and(done).map_err(failed("reading the first wrong element"))?;
        let found_bits = u64::from_le_bytes(element);
        let first = Mismatch { index, expected_bits, found_bits, data_type: problem.data_type };
        Ok(Mismatches { wrong, first: Some(first) })
    }

    /// Blocks and threads for a buffer of `bytes` bytes: one 8-byte word per thread, or more where there are many.
    fn shape(&self, bytes: u64) -> LaunchConfig {
        let blocks = (bytes / 8 + 2).div_ceil(u64::from(THREADS));
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).min(self.blocks);
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }
}

fn require_alignment(address: CUdeviceptr, size: usize) -> Result<(), DataError> {
    if address.is_multiple_of(size as u64) { Ok(()) } else { Err(DataError::Unaligned { address, size }) }
}

fn failed(call: &'static str) -> impl Fn(DriverError) -> DataError {
    move |error| DataError::Driver { call, error }
}
