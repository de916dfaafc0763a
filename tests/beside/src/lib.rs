//! The mean of a tensor of candle over all ranks, in a program that has burn with CUDA, too. `make beside`
//! checks that it builds.

use burn_cuda::CudaDevice;
use candle_core::{CpuStorage, CudaStorage, Error, InplaceOp1, Layout, Result, Tensor};
use collectives::ReduceOp;
use collectives::nccl::{self, Collectives as _, Communicator};

/// Replaces a contiguous tensor of `f32` by the mean of the tensors of all ranks.
pub fn mean(communicator: &Communicator, tensor: &Tensor) -> Result<()> {
    tensor.inplace_op1(&Mean(communicator))
}

struct Mean<'a>(&'a Communicator);

impl InplaceOp1 for Mean<'_> {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle_core::bail!("NCCL reduces tensors of a CUDA device only")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("NCCL reduces contiguous tensors only");
        };
        let mut part = storage.as_cuda_slice_mut::<f32>()?.slice_mut(start..end);
        self.0.all_reduce_in_place(&mut part, ReduceOp::Avg).map_err(Error::wrap)
    }
}

/// A communicator on the stream of candle's device, so that NCCL waits for candle's work and candle for
/// NCCL's.
pub fn communicator(
    device: &candle_core::CudaDevice,
    rank: usize,
    ranks: usize,
    id: &nccl::UniqueId,
) -> std::result::Result<Communicator, nccl::Error> {
    let library = nccl::Library::load()?;
    Communicator::builder(library, &device.cuda_stream()).rank(rank, ranks).id(id).init()
}

/// The same GPU as a device of burn.
pub fn burn_device(device: &candle_core::CudaDevice) -> CudaDevice {
    CudaDevice { index: device.cuda_stream().context().ordinal() }
}
