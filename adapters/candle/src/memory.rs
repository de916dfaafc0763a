//! Memory of candle's tensors as buffers of collectives.

use std::cell::Cell;

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Shape, Storage, Tensor, WithDType};
use collectives::train::{Bucket, Gradient};
use half::{bf16, f16};

use crate::Error;
use crate::named::Named;

/// Runs an expression with the type of buffers for tensors of a device and a type of elements.
macro_rules! by_type {
    ($device:expr, $dtype:expr, $name:expr, $buffer:ident => $run:expr) => {{
        let (dtype, device): (DType, &Device) = ($dtype, $device);
        match (dtype, device) {
            (DType::F32, Device::Cpu) => {
                type $buffer = Vec<f32>;
                $run
            }
            (DType::F64, Device::Cpu) => {
                type $buffer = Vec<f64>;
                $run
            }
            (DType::BF16, Device::Cpu) => {
                type $buffer = Vec<bf16>;
                $run
            }
            (DType::F16, Device::Cpu) => {
                type $buffer = Vec<f16>;
                $run
            }
            #[cfg(feature = "cuda")]
            (DType::F32, Device::Cuda(_)) => {
                type $buffer = collectives::cudarc::driver::CudaSlice<f32>;
                $run
            }
            #[cfg(feature = "cuda")]
            (DType::F64, Device::Cuda(_)) => {
                type $buffer = collectives::cudarc::driver::CudaSlice<f64>;
                $run
            }
            #[cfg(feature = "cuda")]
            (DType::BF16, Device::Cuda(_)) => {
                type $buffer = collectives::cudarc::driver::CudaSlice<bf16>;
                $run
            }
            #[cfg(feature = "cuda")]
            (DType::F16, Device::Cuda(_)) => {
                type $buffer = collectives::cudarc::driver::CudaSlice<f16>;
                $run
            }
            (dtype, _) => Err(Error::DType { name: $name.to_string(), dtype }),
        }
    }};
}
pub(crate) use by_type;

/// A function that uses the elements of variables.
pub(crate) type Use<'r, B> =
    &'r mut dyn for<'v> FnMut(&mut [<B as Bucket>::ViewMut<'v>]) -> Result<(), Error>;

/// Buffers with the elements of a tensor.
pub(crate) trait Memory: Bucket {
    /// The elements of a contiguous tensor.
    fn elements<'a>(storage: &'a Storage, layout: &Layout) -> Result<Self::View<'a>, Error>;

    /// A copy of these elements as a tensor.
    fn tensor(view: &Self::View<'_>, shape: &Shape, device: &Device) -> candle_core::Result<Tensor>;

    /// A copy of a tensor's elements.
    fn copied(tensor: &Tensor) -> Result<Self, Error>;

    /// These elements as a tensor.
    fn into_tensor(self, shape: &Shape, device: &Device) -> candle_core::Result<Tensor>;

    /// Replaces these elements by a tensor's.
    fn assign(elements: Self::ViewMut<'_>, tensor: &Tensor) -> Result<(), Error>;

    /// Passes the elements of contiguous variables to `run`. The variables are locked meanwhile.
    fn lend(variables: &[Named], run: Use<'_, Self>) -> Result<(), Error>;
}

/// Offsets of a contiguous tensor's elements in its storage.
pub(crate) fn contiguous(layout: &Layout) -> Result<(usize, usize), Error> {
    layout
        .contiguous_offsets()
        .ok_or_else(|| Error::Tensor("a tensor is not contiguous: call contiguous() first".to_owned()))
}

/// A type of gradients on the CPU.
pub(crate) trait HostElement: Gradient + WithDType {
    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

macro_rules! host_element {
    ($($type:ty, $variant:ident;)*) => {$(
        impl HostElement for $type {
            fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
                match storage {
                    CpuStorage::$variant(elements) => Some(elements),
                    _ => None,
                }
            }
        }
    )*};
}

host_element! { f32, F32; f64, F64; bf16, BF16; f16, F16; }

impl<T: HostElement> Memory for Vec<T> {
    fn elements<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T], Error> {
        let (start, end) = contiguous(layout)?;
        match storage {
            Storage::Cpu(storage) => in_storage(storage.as_slice::<T>()?.get(start..end)),
            Storage::Cuda(_) | Storage::Metal(_) => {
                Err(Error::Tensor("a tensor is not on the CPU".to_owned()))
            }
        }
    }

    fn tensor(view: &&[T], shape: &Shape, device: &Device) -> candle_core::Result<Tensor> {
        Tensor::from_slice(view, shape, device)
    }

    fn copied(tensor: &Tensor) -> Result<Self, Error> {
        let tensor = tensor.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        Ok(Self::elements(&storage, layout)?.to_vec())
    }

    fn into_tensor(self, shape: &Shape, device: &Device) -> candle_core::Result<Tensor> {
        Tensor::from_vec(self, shape, device)
    }

    fn assign(elements: &mut [T], tensor: &Tensor) -> Result<(), Error> {
        let tensor = tensor.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let view = Self::elements(&storage, layout)?;
        if view.len() != elements.len() {
            return Err(Error::Tensor(format!("{} elements for a buffer of {}", view.len(), elements.len())));
        }
        elements.copy_from_slice(view);
        Ok(())
    }

    fn lend(variables: &[Named], run: Use<'_, Self>) -> Result<(), Error> {
        lend(variables, Vec::with_capacity(variables.len()), run)
    }
}

fn in_storage<T>(slice: Option<&[T]>) -> Result<&[T], Error> {
    slice.ok_or_else(|| Error::Tensor("a tensor's layout exceeds its storage".to_owned()))
}

/// Locks one variable after the other, since candle lends the elements of one at a time to a function.
fn lend<T: HostElement>(
    variables: &[Named],
    mut lent: Vec<&mut [T]>,
    run: Use<'_, Vec<T>>,
) -> Result<(), Error> {
    let Some((first, others)) = variables.split_first() else { return run(&mut lent) };
    let lend = Lend { others, lent: Cell::new(lent), run: Cell::new(Some(run)), result: Cell::new(Ok(())) };
    first.var.inplace_op1(&lend)?;
    lend.result.into_inner()
}

struct Lend<'a, T: HostElement> {
    others: &'a [Named],
    lent: Cell<Vec<&'a mut [T]>>,
    run: Cell<Option<Use<'a, Vec<T>>>>,
    result: Cell<Result<(), Error>>,
}

impl<T: HostElement> InplaceOp1 for Lend<'_, T> {
    fn name(&self) -> &'static str {
        "lend"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (start, end) = contiguous(layout).map_err(candle_core::Error::wrap)?;
        let elements = T::slice_mut(storage).and_then(|elements| elements.get_mut(start..end));
        let (Some(elements), Some(run)) = (elements, self.run.take()) else {
            candle_core::bail!("the variable has another type or layout")
        };
        let mut lent: Vec<&mut [T]> = self.lent.take();
        lent.push(elements);
        self.result.set(lend(self.others, lent, run));
        Ok(())
    }
}
