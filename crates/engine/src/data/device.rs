//! Test data in device memory: launches the kernels of kernels.cu and invert.cu.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use collectives::DataType;
use cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
    result,
};
use cudarc::nvrtc::Ptx;

use super::format::FormatTag;
use super::recipe::Recipe;
use super::{
    DataSpec, ElementSource, ExpectedSegment, Mismatches, Tally, WrongElement, expected_bits, require_length,
    whole_elements,
};

// SAFETY: `#[repr(C)]`, only integers, and the layout of `Recipe` in kernels.cu.
unsafe impl DeviceRepr for Recipe {}

const THREADS: u32 = 256;

/// Number of blocks sufficient to fill a multiprocessor of any generation with threads (2048 threads at
/// most).
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Lowest compute capability for kernels that trigger programmatic launch, like [`DeviceData::invert_bits`].
pub const EARLY_CAPABILITY: (u32, u32) = (9, 0);

#[derive(Clone, Debug)]
struct Kernels {
    fill: CudaFunction,
    check: CudaFunction,
}

/// Fills and checks buffers of one device, with the values of [`fill_input`](super::fill_input) and
/// [`check`](super::check).
///
/// The kernels of a type are compiled by the driver at the type's first use, or when it is
/// [loaded](DeviceData::load_kernels). Methods fail when the driver does.
#[derive(Debug)]
pub struct DeviceData {
    context: Arc<CudaContext>,
    multiprocessors: u32,
    /// True when kernels of this device can trigger programmatic launch, as
    /// [`invert_bits`](Self::invert_bits) requires.
    pub triggers_early: bool,
    kernels: HashMap<FormatTag, Kernels>,
    invert: Option<CudaFunction>,
    /// `Report` of kernels.cu: number of wrong elements, inverted index of the first. It is an address,
    /// because a launch with a slice of cudarc may wait for events. That is an error while a graph is
    /// captured. The report is never freed, since kernels of a failed stream may still write it.
    report: CUdeviceptr,
}

const REPORT_BYTES: usize = 16;

impl DeviceData {
    /// Prepares the checks of one device.
    pub fn new(context: &Arc<CudaContext>) -> anyhow::Result<Self> {
        let multiprocessors = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(driver_error("cuDeviceGetAttribute"))?;
        let capability = context.compute_capability().map_err(driver_error("cuDeviceGetAttribute"))?;
        let stream = context.new_stream().map_err(driver_error("cuStreamCreate"))?;
        let memory: CudaSlice<u64> = stream
            .alloc_zeros(REPORT_BYTES / 8)
            .map_err(driver_error("allocating the report of the check"))?;
        synchronize_stream(&stream).map_err(driver_error("cuStreamSynchronize"))?;
        Ok(Self {
            context: Arc::clone(context),
            multiprocessors: u32::try_from(multiprocessors).unwrap_or(1).max(1),
            triggers_early: capability >= (EARLY_CAPABILITY.0 as i32, EARLY_CAPABILITY.1 as i32),
            kernels: HashMap::new(),
            invert: None,
            report: memory.leak(),
        })
    }

    /// Loads the kernels for elements of this type. The driver compiles them, unless its cache has the
    /// result.
    pub fn load_kernels(&mut self, data_type: DataType) -> anyhow::Result<()> {
        let format = FormatTag::from_data_type(data_type)?;
        self.format_kernels(format).map(drop)
    }

    fn format_kernels(&mut self, format: FormatTag) -> anyhow::Result<Kernels> {
        if let Some(kernels) = self.kernels.get(&format) {
            return Ok(kernels.clone());
        }
        let module = self
            .context
            .load_module(Ptx::from_src(format.ptx()))
            .map_err(driver_error("loading the kernels (cuModuleLoadData)"))?;
        let function = |name| module.load_function(name).map_err(driver_error("cuModuleGetFunction"));
        let kernels = Kernels { fill: function("fill")?, check: function("check")? };
        self.kernels.insert(format, kernels.clone());
        Ok(kernels)
    }

    /// Enqueues on `stream`: fill the `bytes` bytes at `buffer` with the input of `rank`, from the element
    /// with global index `first_index` on.
    ///
    /// # Errors
    /// If the data is not defined, `bytes` ends within an element, the buffer is not aligned to its elements,
    /// or the driver fails.
    ///
    /// # Safety
    /// Until the work is done, `buffer` must be the address of `bytes` bytes of memory writable by the device
    /// of `stream`, and nothing else may access it. `stream` must belong to the context of this object.
    pub unsafe fn fill_buffer(
        &mut self,
        stream: &Arc<CudaStream>,
        spec: &DataSpec,
        rank: u32,
        first_index: u64,
        buffer: CUdeviceptr,
        bytes: u64,
    ) -> anyhow::Result<()> {
        let (recipe, format) = Recipe::new(spec, ElementSource::Rank(rank))?;
        let count = whole_elements(spec, bytes)?;
        require_alignment(buffer, spec.data_type.size())?;
        if count == 0 {
            return Ok(());
        }
        let kernels = self.format_kernels(format)?;
        let mut launch = stream.launch_builder(&kernels.fill);
        launch.arg(&buffer).arg(&count).arg(&first_index).arg(&recipe);
        // SAFETY: the arguments are those of `fill` in kernels.cu. It writes only the `count` elements at
        // `buffer`, for which the caller vouches.
        unsafe { launch.launch(self.launch_shape(bytes)) }
            .map_err(driver_error("launching the kernel 'fill'"))?;
        Ok(())
    }

    /// Compares the `bytes` bytes at `buffer` with the elements of the segments, one segment after the other,
    /// after all earlier work on `stream`. Waits for the result.
    ///
    /// # Errors
    /// The errors of [`check`](super::check); also if the buffer is not aligned to its elements, or the
    /// driver fails.
    ///
    /// # Safety
    /// `buffer` must be the address of `bytes` bytes of initialised memory readable by the device of
    /// `stream`. Nothing may write them until this returns, except work already on `stream`. `stream` must
    /// belong to the context of this object.
    pub unsafe fn check_buffer(
        &mut self,
        stream: &Arc<CudaStream>,
        spec: &DataSpec,
        segments: &[ExpectedSegment],
        buffer: CUdeviceptr,
        bytes: u64,
    ) -> anyhow::Result<Mismatches> {
        self.clear_findings(stream)?;
        // SAFETY: by the contract above.
        unsafe { self.count_wrong(stream, spec, segments, buffer, bytes) }?;
        let Some(Tally { wrong, lowest: index }) = self.read_tally(stream)? else {
            return Ok(Mismatches::default());
        };
        let size = spec.data_type.size();
        let expected_bits = expected_bits(spec, segments, index)?.unwrap_or_default();
        let mut element = [0_u8; 8];
        let address = buffer + index * size as u64;
        // SAFETY: the kernel found this element inside the buffer; `element` outlives the copy, as the stream
        // is synchronised below before it goes out of scope, even if the copy was not enqueued.
        let copied = unsafe { result::memcpy_dtoh_async(&mut element[..size], address, stream.cu_stream()) };
        let done = synchronize_stream(stream);
        copied.and(done).map_err(driver_error("reading the first wrong element"))?;
        let found_bits = u64::from_le_bytes(element);
        let first = WrongElement { index, expected_bits, found_bits, data_type: spec.data_type };
        Ok(Mismatches { wrong, first: Some(first) })
    }

    /// Enqueues on `stream`: clear the findings of [`count_wrong`](Self::count_wrong).
    pub fn clear_findings(&mut self, stream: &Arc<CudaStream>) -> anyhow::Result<()> {
        stream.context().bind_to_thread().map_err(driver_error("cuCtxSetCurrent"))?;
        // SAFETY: the report has so many bytes, and every stream that uses it belongs to its context.
        unsafe { result::memset_d8_async(self.report, 0, REPORT_BYTES, stream.cu_stream()) }
            .map_err(driver_error("clearing the report of the check"))
    }

    /// Enqueues on `stream`: compare in the same way as [`check_buffer`](Self::check_buffer), and add the
    /// findings to the previous ones. May be captured into a graph once the type is
    /// [loaded](Self::load_kernels).
    ///
    /// # Safety
    /// The same as for [`check_buffer`](Self::check_buffer), until the work is done.
    pub unsafe fn count_wrong(
        &mut self,
        stream: &Arc<CudaStream>,
        spec: &DataSpec,
        segments: &[ExpectedSegment],
        buffer: CUdeviceptr,
        bytes: u64,
    ) -> anyhow::Result<()> {
        let size = spec.data_type.size();
        require_length(segments, size, bytes)?;
        require_alignment(buffer, size)?;
        let mut base = 0_u64;
        for &ExpectedSegment { source, count, first_index } in segments {
            let (recipe, format) = Recipe::new(spec, source)?;
            if count != 0 {
                let kernels = self.format_kernels(format)?;
                let shape = self.launch_shape(count * size as u64);
                let part = buffer + base * size as u64;
                let mut launch = stream.launch_builder(&kernels.check);
                launch.arg(&part).arg(&count).arg(&first_index).arg(&base).arg(&recipe).arg(&self.report);
                // SAFETY: the arguments are those of `check` in kernels.cu. It reads the `count` elements at
                // `part`, inside the buffer for which the caller vouches, and writes the two words of the
                // report.
                unsafe { launch.launch(shape) }.map_err(driver_error("launching the kernel 'check'"))?;
            }
            base += count;
        }
        Ok(())
    }

    /// Waits for `stream`, and returns the findings of [`count_wrong`](Self::count_wrong) since
    /// [`clear_findings`](Self::clear_findings), if any.
    pub fn read_tally(&mut self, stream: &Arc<CudaStream>) -> anyhow::Result<Option<Tally>> {
        // The copy would wait with the context locked, while another rank may have to launch work in it.
        synchronize_stream(stream).map_err(driver_error("the check"))?;
        let mut report = [0_u64; REPORT_BYTES / 8];
        // SAFETY: the report has so many bytes; `report` outlives the copy, as the stream is synchronised
        // below.
        let copied = unsafe { result::memcpy_dtoh_async(&mut report, self.report, stream.cu_stream()) };
        let done = synchronize_stream(stream);
        copied.and(done).map_err(driver_error("the check"))?;
        let [wrong, inverted_first] = report;
        Ok((wrong > 0).then_some(Tally { wrong, lowest: !inverted_first }))
    }

    /// Loads the kernel of [`invert_bits`](Self::invert_bits).
    pub fn load_invert(&mut self) -> anyhow::Result<()> {
        self.invert_kernel().map(drop)
    }

    fn invert_kernel(&mut self) -> anyhow::Result<CudaFunction> {
        if let Some(function) = &self.invert {
            return Ok(function.clone());
        }
        let module = self
            .context
            .load_module(Ptx::from_src(include_str!("ptx/Invert.ptx")))
            .map_err(driver_error("loading the kernel 'invert' (cuModuleLoadData)"))?;
        let function = module.load_function("invert").map_err(driver_error("cuModuleGetFunction"))?;
        Ok(self.invert.insert(function).clone())
    }

    /// Enqueues on `stream`: invert all bits of the `bytes` bytes at `buffer`. With `early` the kernel first
    /// triggers programmatic launch, so a following kernel that allows it may start. The inverting kernel
    /// then waits for this long, and writes after that. May be captured into a graph once the kernel is
    /// [loaded](Self::load_invert).
    ///
    /// # Safety
    /// The conditions of [`fill_buffer`](Self::fill_buffer).
    pub unsafe fn invert_bits(
        &mut self,
        stream: &Arc<CudaStream>,
        buffer: CUdeviceptr,
        bytes: u64,
        early: Option<Duration>,
    ) -> anyhow::Result<()> {
        let function = self.invert_kernel()?;
        let delay = u64::try_from(early.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
        let triggers = u32::from(early.is_some());
        let shape = self.launch_shape(bytes);
        // Half of the multiprocessors stay free for the kernel that starts early.
        let most = (self.multiprocessors / 2).max(1);
        let shape = LaunchConfig { grid_dim: (shape.grid_dim.0.min(most), 1, 1), ..shape };
        let mut launch = stream.launch_builder(&function);
        launch.arg(&buffer).arg(&bytes).arg(&delay).arg(&triggers);
        // SAFETY: the arguments are those of `invert` in invert.cu. It writes only the `bytes` bytes at
        // `buffer`, for which the caller vouches.
        unsafe { launch.launch(shape) }.map_err(driver_error("launching the kernel 'invert'"))?;
        Ok(())
    }

    /// Returns blocks and threads for a buffer of `bytes` bytes: one 8-byte word per thread, or more for many
    /// words.
    fn launch_shape(&self, bytes: u64) -> LaunchConfig {
        let blocks = (bytes / 8 + 2).div_ceil(u64::from(THREADS));
        let most = self.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).min(most);
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }
}

fn require_alignment(address: CUdeviceptr, size: usize) -> anyhow::Result<()> {
    anyhow::ensure!(
        address.is_multiple_of(size as u64),
        "test data: the device buffer at 0x{address:x} is not aligned to its elements of {size} bytes"
    );
    Ok(())
}

/// Waits for a stream with a current context, also while cudarc has noted an error.
fn synchronize_stream(stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: the stream is alive: cudarc's object holds it.
    unsafe { result::stream::synchronize(stream.cu_stream()) }
}

fn driver_error(call: &'static str) -> impl Fn(DriverError) -> anyhow::Error {
    move |error| anyhow::anyhow!("test data on the device: {call} failed: {error}")
}
