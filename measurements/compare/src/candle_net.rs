//! The network in candle.

use anyhow::Result;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{Linear, Optimizer, SGD, VarBuilder, VarMap};

use crate::{Options, RATE};

/// A network with its optimizer and this rank's batch.
pub struct Net {
    /// The parameters.
    pub variables: VarMap,
    layers: Vec<Linear>,
    optimizer: SGD,
    inputs: Tensor,
    targets: Tensor,
}

impl Net {
    /// Random parameters, and a random batch.
    ///
    /// # Errors
    /// If candle fails.
    pub fn new(options: &Options) -> Result<Self> {
        let device = Device::Cpu;
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, &device);
        let layer = |(index, (inputs, outputs))| {
            candle_nn::linear(inputs, outputs, builder.pp(format!("layer{index}")))
        };
        let layers = options.shapes().into_iter().enumerate().map(layer).collect::<Result<_, _>>()?;
        let optimizer = SGD::new(variables.all_vars(), RATE)?;
        let inputs = Tensor::rand(-1f32, 1f32, (options.batch, options.inputs), &device)?;
        let targets = Tensor::rand(0f32, 0.1f32, (options.batch, options.outputs), &device)?;
        Ok(Self { variables, layers, optimizer, inputs, targets })
    }

    /// Forward and backward pass.
    ///
    /// # Errors
    /// If candle fails.
    pub fn backward(&self) -> Result<GradStore> {
        let mut value = self.inputs.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            value = if index == 0 { layer.forward(&value)? } else { layer.forward(&value.relu()?)? };
        }
        Ok((value - &self.targets)?.sqr()?.mean_all()?.backward()?)
    }

    /// The optimizer's step.
    ///
    /// # Errors
    /// If candle fails.
    pub fn update(&mut self, gradients: &GradStore) -> Result<()> {
        Ok(self.optimizer.step(gradients)?)
    }

    /// The variables, sorted by name.
    ///
    /// # Errors
    /// If another thread has panicked with the variables.
    pub fn sorted(&self) -> Result<Vec<Var>> {
        let data = self.variables.data().lock().map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
        let mut sorted: Vec<_> = data.iter().collect();
        sorted.sort_by_key(|(name, _)| *name);
        Ok(sorted.into_iter().map(|(_, var)| var.clone()).collect())
    }

    /// All parameters, in order of their names.
    ///
    /// # Errors
    /// If candle fails.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for var in self.sorted()? {
            values.extend(var.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(values)
    }
}
