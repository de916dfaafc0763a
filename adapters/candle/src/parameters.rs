//! The variables of a model: their order, the same on all ranks, and their values.

use std::collections::HashMap;
use std::sync::TryLockError;

use candle_core::{DType, Device, Tensor, TensorId, Var};
use candle_nn::VarMap;
use collectives::job::{Backend, Group};
use half::{bf16, f16};

use crate::Error;
use crate::memory::{Memory, by_type};
use crate::named::Named;

/// The variables of a model, sorted by name.
///
/// # Errors
/// If there are none, one has two names, one is not contiguous, or their devices differ or do not fit the
/// group.
pub(crate) fn sorted(group: &Group, variables: &VarMap) -> Result<Vec<Named>, Error> {
    let Ok(data) = variables.data().lock() else { return Err(poisoned()) };
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

fn poisoned() -> Error {
    Error::Tensor("a thread has panicked while it changed the VarMap".to_owned())
}

/// A map, and the variables copied from it.
pub(crate) struct Watch {
    map: VarMap,
    ids: HashMap<String, TensorId>,
}

impl Watch {
    /// Watches `map` for variables other than the result of [`sorted`].
    pub(crate) fn new(map: &VarMap, variables: &[Named]) -> Self {
        let ids = variables.iter().map(|Named { name, var }| (name.clone(), var.id())).collect();
        Self { map: map.clone(), ids }
    }

    /// Checks that the map has the same variables.
    ///
    /// # Errors
    /// Names the first new variable by name, or else a missing one. `user` has the copy.
    pub(crate) fn check(&self, user: &str) -> Result<(), Error> {
        let data = match self.map.data().try_lock() {
            Ok(data) => data,
            // The next step checks it. The map can be locked by this thread: a wait would have no end.
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(_)) => return Err(poisoned()),
        };
        let is_new = |&(name, var): &(&String, &Var)| self.ids.get(name) != Some(&var.id());
        if let Some(name) = data.iter().filter(is_new).map(|(name, _)| name).min() {
            return Err(Error::Tensor(format!(
                "the variable {name} was added to the VarMap or replaced after the {user} was made: make a \
                 new {user}"
            )));
        }
        match self.ids.keys().filter(|name| !data.contains_key(*name)).min() {
            Some(name) => Err(Error::Tensor(format!(
                "the variable {name} of the {user} is no longer in the VarMap: make a new {user} when the \
                 VarMap has changed"
            ))),
            None => Ok(()),
        }
    }
}

/// Checks that a group's operations support tensors of this device.
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
            "the tensors are on GPU {}, but this rank's group on GPU {}: make the group with \
             collectives_candle::group",
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

/// Replaces every rank's variables by rank 0's.
pub(crate) fn broadcast(group: &Group, variables: &[Named]) -> Result<(), Error> {
    for Named { name, var } in variables {
        let values = broadcast_tensor(group, name, var.as_tensor(), 0)?;
        if var.elem_count() > 0 {
            var.set(&values)?;
        }
    }
    Ok(())
}

/// Returns the tensor of rank `root`.
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
