//! Files of parameters and optimizer state.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor, safetensors};
use candle_nn::VarMap;

/// Name of the step in a file.
const STEP: &str = "step";

/// A state of the training, after this many steps.
pub(crate) struct Checkpoint {
    pub(crate) step: u64,
    tensors: HashMap<String, Tensor>,
}

impl Checkpoint {
    pub(crate) fn new(step: u64, variables: &VarMap, mut state: HashMap<String, Tensor>) -> Result<Self> {
        let data = variables.data().lock().ok().context("a thread has panicked")?;
        state.extend(data.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())));
        state.insert(STEP.to_owned(), Tensor::new(i64::try_from(step)?, &Device::Cpu)?);
        Ok(Self { step, tensors: state })
    }

    /// Writes to another file beside `path`, and renames it when it is complete.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let save = || -> Result<()> {
            safetensors::save(&self.tensors, &partial)?;
            File::open(&partial)?.sync_all()?;
            Ok(fs::rename(&partial, path)?)
        };
        save().with_context(|| format!("cannot save the checkpoint {}", path.display()))
    }

    pub(crate) fn load(path: &Path, device: &Device) -> Result<Self> {
        let load = || -> Result<Self> {
            let tensors = safetensors::load(path, device)?;
            let step = tensors.get(STEP).context("it has no step: it is not a checkpoint of this program")?;
            let step = step.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.to_scalar::<i64>()?;
            Ok(Self { step: u64::try_from(step)?, tensors })
        };
        load().with_context(|| format!("cannot read the checkpoint {}", path.display()))
    }

    /// The optimizer's state, among others.
    pub(crate) fn tensors(&self) -> &HashMap<String, Tensor> {
        &self.tensors
    }

    /// Sets the parameters.
    pub(crate) fn restore(&self, variables: &VarMap) -> Result<()> {
        let data = variables.data().lock().ok().context("a thread has panicked")?;
        for (name, var) in data.iter() {
            let saved = self.tensors.get(name).with_context(|| {
                format!("the checkpoint has no parameter {name}: it belongs to another model")
            })?;
            var.set(saved).with_context(|| format!("parameter {name} of the checkpoint"))?;
        }
        Ok(())
    }
}
