//! Groups and collectives of candle's tensors.

use candle_core::{DType, Device, Tensor};
use collectives::ReduceOp;
use collectives::job::{Backend, Group, Job};
use half::{bf16, f16};

use crate::error::tell;
use crate::memory::{Memory, by_type};
use crate::{Error, parameters};

/// Returns the CPU, or this rank's GPU: the GPU with this rank's number on its host.
///
/// # Errors
/// If there is no such GPU, or this crate was built without the feature `cuda`.
pub fn device(job: &Job, gpu: bool) -> Result<Device, Error> {
    if !gpu {
        return Ok(Device::Cpu);
    }
    if !cfg!(feature = "cuda") {
        return Err(Error::Tensor(
            "this program was built without GPUs: build it with the feature `cuda`".to_owned(),
        ));
    }
    Ok(Device::new_cuda_with_stream(job.local_rank())?)
}

/// Creates the group of all ranks of a job, for tensors of this device. Collective: returns when every rank
/// has called it.
///
/// On a GPU, its collectives run on a stream of the group's own, on candle's device. This stream and candle's
/// wait for each other by events, and the thread waits for neither. [`device`] makes a device with one stream
/// for all threads. Tensors of a device of `Device::new_cuda` are refused: its stream is another one in every
/// thread.
///
/// # Errors
/// If a rank cannot be connected, or NCCL cannot be loaded.
pub fn group(job: &Job, device: &Device) -> Result<Group, Error> {
    match device {
        Device::Cpu => Ok(job.group(Backend::Host)?),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => on_gpu(job, device),
        _ => Err(Error::Tensor("tensors of this device are not supported: use the CPU".to_owned())),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(job: &Job, device: &candle_core::CudaDevice) -> Result<Group, Error> {
    let group = collectives::nccl::Library::load()
        .map_err(collectives::Error::from)
        .and_then(|library| job.group_on_gpu(library, device.cuda_stream().context()));
    if let Err(error) = &group {
        job.fail(&error.to_string());
    }
    Ok(group?)
}

/// Returns the reduction of all ranks' tensors. They have the same shape and type on every rank. Collective.
/// The result has no gradient.
///
/// # Errors
/// If another rank has failed, or the tensor has another type than f32, f64, bf16 and f16.
pub fn all_reduce(group: &Group, tensor: &Tensor, op: ReduceOp) -> Result<Tensor, Error> {
    tell(group, parameters::check_device(group, tensor.device()))?;
    let (device, dtype) = (tensor.device(), tensor.dtype());
    let result = by_type!(device, dtype, "all_reduce", B => reduce::<B>(group, tensor, op));
    tell(group, result)
}

fn reduce<B: Memory>(group: &Group, tensor: &Tensor, op: ReduceOp) -> Result<Tensor, Error> {
    let reduced = group.all_reduce(B::copied(tensor)?, op).wait()?;
    Ok(reduced.into_tensor(tensor.shape(), tensor.device())?)
}
