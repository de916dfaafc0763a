//! Initial weights: they depend on the seed only.

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_nn::VarMap;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// Sets all weights: matrices to random numbers, the weights of norms to 1, biases to 0. (candle's generator
/// on CPUs has no seed.)
pub(crate) fn set(variables: &VarMap, seed: u64) -> Result<()> {
    let data = variables.data().lock().ok().context("a thread has panicked")?;
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    let mut random = StdRng::seed_from_u64(seed);
    for name in names {
        let Some(var) = data.get(name) else { continue };
        let count = var.elem_count();
        let values: Vec<f32> = match var.dims() {
            [_, inputs] => {
                let limit = 1.0 / (*inputs as f32).sqrt();
                (0..count).map(|_| random.random_range(-limit..limit)).collect()
            }
            _ if name.ends_with("bias") => vec![0.0; count],
            _ => vec![1.0; count],
        };
        let values = Tensor::from_vec(values, var.shape(), &Device::Cpu)?;
        var.set(&values.to_dtype(var.dtype())?.to_device(var.device())?)?;
    }
    Ok(())
}
