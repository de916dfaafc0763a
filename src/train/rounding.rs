//! Gradients in GPU memory to bfloat16 and back.

use std::sync::{Arc, Mutex};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, CudaView, CudaViewMut, DeviceSlice as _, LaunchConfig,
    PushKernelArg as _,
};
use cudarc::nvrtc::Ptx;
use half::bf16;

use crate::lock::lock;
use crate::nccl::{begin_write, cuda, queue_read};
use crate::{DataType, Element, Error};

const THREADS: u32 = 512;
/// Threads take several elements of larger gradients.
const MAX_BLOCKS: u64 = 1024;

/// Contexts and their modules. These are never unloaded: kernels may be queued when the last reducer is
/// dropped, and CUDA does not promise that `cuModuleUnload` waits for them.
static LOADED: Mutex<Vec<(Arc<CudaContext>, Arc<CudaModule>)>> = Mutex::new(Vec::new());

/// The module of a context. At the first call the driver compiles it, unless its cache has the result.
fn context_module(context: &Arc<CudaContext>) -> Result<Arc<CudaModule>, Error> {
    let mut loaded = lock(&LOADED);
    if let Some((_, module)) = loaded.iter().find(|(known, _)| known == context) {
        return Ok(Arc::clone(module));
    }
    let load = || context.load_module(Ptx::from_src(include_str!("rounding.ptx")));
    let module = cuda::own_result(context, load)?;
    loaded.push((Arc::clone(context), Arc::clone(&module)));
    Ok(module)
}

/// The kernels for gradients of one type.
pub(super) struct Rounding {
    gradients: DataType,
    encode: CudaFunction,
    decode: CudaFunction,
}

impl Rounding {
    /// Returns the kernels for gradients of this type.
    pub(super) fn load_kernels(context: &Arc<CudaContext>, gradients: DataType) -> Result<Self, Error> {
        let module = context_module(context)?;
        let name = gradients.rust_name();
        Ok(Self {
            gradients,
            encode: module.load_function(&format!("encode_{name}"))?,
            decode: module.load_function(&format!("decode_{name}"))?,
        })
    }

    fn expect_type<T: Element>(&self) -> Result<(), Error> {
        if T::DATA_TYPE == self.gradients {
            return Ok(());
        }
        Err(Error::Job(format!(
            "the kernels for {} were loaded, not the kernels for {}",
            self.gradients,
            T::DATA_TYPE
        )))
    }

    /// Rounds a gradient to the elements of `wire`, on the gradient's stream.
    pub(super) fn encode_gradient<T: Element>(
        &self,
        gradient: &CudaView<'_, T>,
        wire: &mut CudaViewMut<'_, bf16>,
    ) -> Result<(), Error> {
        self.expect_type::<T>()?;
        let count = gradient.len().min(wire.len()) as u64;
        let Some(shape) = launch_shape(count) else { return Ok(()) };
        let (stream, target) = (gradient.stream(), Arc::clone(wire.stream().context()));
        let _writing = cuda::own_result_among([stream.context(), &target], || begin_write(wire, stream))?;
        let mut launch = stream.launch_builder(&self.encode);
        launch.arg(gradient).arg(wire).arg(&count);
        // SAFETY: the arguments are those of `encode` in rounding.cu for gradients of `T`. It reads `count`
        // elements of `gradient`, and writes as many of `wire`. The reducer orders the streams as for a copy.
        let mut encode = || unsafe { launch.launch(shape) };
        cuda::queue_work(stream, &target, || queue_read(gradient, stream, &mut encode))?;
        Ok(())
    }

    /// Converts `wire` to the elements of `values`, on `stream`.
    pub(super) fn decode_gradient<T: Element>(
        &self,
        stream: &CudaStream,
        wire: &CudaView<'_, bf16>,
        values: &mut CudaViewMut<'_, T>,
    ) -> Result<(), Error> {
        self.expect_type::<T>()?;
        let count = wire.len().min(values.len()) as u64;
        let Some(shape) = launch_shape(count) else { return Ok(()) };
        let mut launch = stream.launch_builder(&self.decode);
        launch.arg(wire).arg(values).arg(&count);
        // SAFETY: as above, with `decode`.
        cuda::own_result(stream.context(), || unsafe { launch.launch(shape) })?;
        Ok(())
    }
}

/// Blocks and threads for so many elements; none for no elements, for which CUDA launches no kernel.
fn launch_shape(count: u64) -> Option<LaunchConfig> {
    let blocks = u32::try_from(count.div_ceil(u64::from(THREADS)).min(MAX_BLOCKS)).ok()?;
    (blocks > 0).then_some(LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    })
}
