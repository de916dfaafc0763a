//! Memory of candle's tensors on CUDA devices.
//!
//! candle's work is on the stream of its device, and collectives are on the group's stream. Each waits for
//! the other by events, and the host for neither: `collectives::train` makes the group's stream wait for
//! gradients, and candle's stream for averages.

use std::cell::Cell;

use candle_core::cuda::CudaDType;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaStorage, Device, InplaceOp1, Layout, Shape, Storage, Tensor, WithDType};
use collectives::cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DeviceRepr, ValidAsZeroBits};
use collectives::train::Gradient;

use crate::Error;
use crate::memory::{Memory, Use, contiguous};
use crate::named::Named;

/// A type of gradients on CUDA devices.
pub(crate) trait DeviceElement:
    Gradient + WithDType + CudaDType + DeviceRepr + ValidAsZeroBits
{
}

impl<T: Gradient + WithDType + CudaDType + DeviceRepr + ValidAsZeroBits> DeviceElement for T {}

impl<T: DeviceElement> Memory for CudaSlice<T> {
    fn elements<'a>(storage: &'a Storage, layout: &Layout) -> Result<CudaView<'a, T>, Error> {
        let (start, end) = contiguous(layout)?;
        let Storage::Cuda(storage) = storage else {
            return Err(Error::Tensor("a tensor is not on a CUDA device".to_owned()));
        };
        storage.as_cuda_slice::<T>()?.try_slice(start..end).ok_or_else(outside)
    }

    fn tensor(view: &CudaView<'_, T>, shape: &Shape, device: &Device) -> candle_core::Result<Tensor> {
        if view.is_empty() {
            return Tensor::zeros(shape, T::DTYPE, device);
        }
        let copy = device.as_cuda_device()?.cuda_stream().clone_dtod(view);
        copy.map_err(candle_core::Error::wrap)?.into_tensor(shape, device)
    }

    fn copied(tensor: &Tensor) -> Result<Self, Error> {
        let tensor = tensor.contiguous()?;
        let stream = tensor.device().as_cuda_device()?.cuda_stream();
        let (storage, layout) = tensor.storage_and_layout();
        Ok(stream.clone_dtod(&Self::elements(&storage, layout)?).map_err(collectives::Error::from)?)
    }

    fn into_tensor(self, shape: &Shape, device: &Device) -> candle_core::Result<Tensor> {
        let storage = CudaStorage::wrap_cuda_slice(self, device.as_cuda_device()?.clone());
        Ok(Tensor::from_storage(Storage::Cuda(storage), shape.clone(), BackpropOp::none(), false))
    }

    fn assign(mut elements: CudaViewMut<'_, T>, tensor: &Tensor) -> Result<(), Error> {
        let tensor = tensor.contiguous()?;
        let stream = tensor.device().as_cuda_device()?.cuda_stream();
        let (storage, layout) = tensor.storage_and_layout();
        let view = Self::elements(&storage, layout)?;
        let mut target = elements.try_slice_mut(0..view.len()).ok_or_else(outside)?;
        Ok(stream.memcpy_dtod(&view, &mut target).map_err(collectives::Error::from)?)
    }

    fn lend(variables: &[Named], run: Use<'_, Self>) -> Result<(), Error> {
        lend(variables, Vec::with_capacity(variables.len()), run)
    }
}

fn outside() -> Error {
    Error::Tensor("a tensor's layout exceeds its storage".to_owned())
}

/// Locks one variable after the other, since candle lends the elements of one at a time to a function.
fn lend<T: DeviceElement>(
    variables: &[Named],
    mut lent: Vec<CudaViewMut<'_, T>>,
    run: Use<'_, CudaSlice<T>>,
) -> Result<(), Error> {
    let Some((first, others)) = variables.split_first() else { return run(&mut lent) };
    let lend = Lend { others, lent: Cell::new(lent), run: Cell::new(Some(run)), result: Cell::new(Ok(())) };
    first.var.inplace_op1(&lend)?;
    lend.result.into_inner()
}

struct Lend<'a, T: DeviceElement> {
    others: &'a [Named],
    lent: Cell<Vec<CudaViewMut<'a, T>>>,
    run: Cell<Option<Use<'a, CudaSlice<T>>>>,
    result: Cell<Result<(), Error>>,
}

impl<T: DeviceElement> InplaceOp1 for Lend<'_, T> {
    fn name(&self) -> &'static str {
        "lend"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("the variable is not on a CUDA device")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let (start, end) = contiguous(layout).map_err(candle_core::Error::wrap)?;
        let elements = storage.as_cuda_slice_mut::<T>()?.try_slice_mut(start..end);
        let (Some(elements), Some(run)) = (elements, self.run.take()) else {
            candle_core::bail!("the variable has another layout")
        };
        let mut lent: Vec<CudaViewMut<'_, T>> = self.lent.take();
        lent.push(elements);
        self.result.set(lend(self.others, lent, run));
        Ok(())
    }
}
