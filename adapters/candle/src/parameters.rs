//! The variables of a model: their order, which all ranks share, and their values.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, TensorId};
use candle_nn::VarMap;
use collectives::job::{Backend, Group};
use half::{bf16, f16};

use crate::Error;
use crate::memory::{Memory, by_type};
use crate::named::Named;

/// The variables of a model, sorted by name.
///
/// # Errors
/// If there are none, one has two names, one is not contiguous, or their devices differ or do not fit the group.
pub(crate) fn sorted(group: &Group, variables: &VarMap) -> Result<Vec<Named>, Error> {
    let Ok(data) = variables.data().lock() else {
        return Err(Error::Tensor("a thread has panicked while it changed the VarMap".to_owned()));
    };
    let mut all: Vec<Named> =
        data.iter().map(|(name, var)| Named { name: name.clone(), var: var.clone() }).collect();
    drop(data);
    all.sort_by(|one, other| one.name.cmp(&other.name));
    let Some(first) = all.first() else {
        return Err(Error::Tensor("the VarMap is empty: create the model first".to_owned()));
    };
    check_device(group, first.var.device())?;
    let mut ids: HashMap<TensorId, &str> = HashMap::new();
    for Named { name, var } in &all {
        if let Some(other) = ids.insert(var.id(), name) {
            return Err(Error::Tensor(format!(
                "{other} and {name} are one variable: keep it under one name"
            )));
        }
        if !var.device().same_device(first.var.device()) {
            return Err(Error::Tensor(format!("{} and {name} are on different devices", first.name)));
        }
        if !var.is_contiguous() {
            return Err(Error::Tensor(format!(
                "{name} is not contiguous: make the variable of a contiguous tensor"
            )));
        }
    }
    Ok(all)
}

/// Checks that a group's operations can take tensors of this device.
pub(crate) fn check_device(group: &Group, device: &Device) -> Result<(), Error> {
    let (of_tensors, backend) = match device {
        Device::Cpu => ("the CPU", Backend::Host),
        Device::Cuda(_) => ("a GPU", Backend::Gpu),
        Device::Metal(_) => {
            return Err(Error::Tensor(
                "tensors of Metal devices cannot be reduced: move them to the CPU".to_owned(),
            ));
        }
    };
    #[cfg(feature = "cuda")]
    if let (Device::Cuda(device), Some(own)) = (device, group.context())
        && device.cuda_stream().context().ordinal() != own.ordinal()
    {
        return Err(Error::Tensor(format!(
            "the tensors are on GPU {}, but this rank's group on GPU {}: make the group with collectives_candle::group",
            device.cuda_stream().context().ordinal(),
            own.ordinal()
        )));
    }
    if group.backend() == backend {
        return Ok(());
    }
    Err(Error::Tensor(format!(
        "the tensors are on {of_tensors}, but the group is over {}: make it with collectives_candle::group",
        group.backend().name()
    )))
}

/// Every rank's variables become those of rank 0.
pub(crate) fn broadcast(group: &Group, variables: &[Named]) -> Result<(), Error> {
    for Named { name, var } in variables {
        let values = broadcast_tensor(group, name, var.as_tensor(), 0)?;
        if var.elem_count() > 0 {
            var.set(&values)?;
        }
    }
    Ok(())
}

/// The tensor of rank `root`.
pub(crate) fn broadcast_tensor(
    group: &Group,
    name: &str,
    tensor: &Tensor,
    root: usize,
) -> Result<Tensor, Error> {
    fn typed<B: Memory>(group: &Group, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        let values = group.broadcast(B::copied(tensor)?, root).wait()?;
        Ok(B::into_tensor(values, tensor.shape(), tensor.device())?)
    }
    if tensor.elem_count() == 0 {
        return Ok(tensor.clone());
    }
    by_type!(tensor.device(), tensor.dtype(), name, B => typed::<B>(group, tensor, root))
}
