//! The network in burn, on its backend for processors.

use anyhow::{Context as _, Result};
use burn_autodiff::Autodiff;
use burn_core as burn;
use burn_core::module::{Module, Param};
use burn_core::tensor::backend::Backend;
use burn_core::tensor::{Distribution, Tensor, activation};
use burn_ndarray::NdArray;
use burn_nn::{Linear, LinearConfig};
use burn_optim::adaptor::OptimizerAdaptor;
use burn_optim::{GradientsParams, Optimizer as _, Sgd, SgdConfig};

use crate::{Options, RATE};

/// The backend of burn.
pub type Cpu = NdArray;

/// The backend of burn with gradients.
pub type Backward = Autodiff<Cpu>;

/// Linear layers with ReLU between them.
#[derive(Module, Debug)]
pub struct Layers<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl Layers<Backward> {
    /// Random parameters.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let layer = |(inputs, outputs)| {
            let layer: Linear<Backward> = LinearConfig::new(inputs, outputs).init(&Default::default());
            // burn draws a parameter when it is first used: clones made before would differ.
            layer.weight.val();
            layer.bias.as_ref().map(Param::val);
            layer
        };
        Self { layers: options.shapes().into_iter().map(layer).collect() }
    }
}

/// A network with its optimizer and this rank's batch.
pub struct Net {
    /// Empty during an optimizer's step only.
    layers: Option<Layers<Backward>>,
    optimizer: OptimizerAdaptor<Sgd<Cpu>, Layers<Backward>, Backward>,
    inputs: Tensor<Backward, 2>,
    targets: Tensor<Backward, 2>,
}

impl Net {
    /// The given parameters, and a random batch.
    #[must_use]
    pub fn new(options: &Options, layers: Layers<Backward>) -> Self {
        let random = |columns, low, high| {
            let range = Distribution::Uniform(low, high);
            Tensor::random([options.batch, columns], range, &Default::default())
        };
        Self {
            layers: Some(layers),
            optimizer: SgdConfig::new().init(),
            inputs: random(options.inputs, -1.0, 1.0),
            targets: random(options.outputs, 0.0, 0.1),
        }
    }

    /// The parameters.
    ///
    /// # Errors
    /// If a step has failed.
    pub fn layers(&self) -> Result<&Layers<Backward>> {
        self.layers.as_ref().context("an earlier step has failed")
    }

    /// Forward and backward pass.
    ///
    /// # Errors
    /// If a step has failed.
    pub fn backward(&self) -> Result<GradientsParams> {
        let layers = self.layers()?;
        let mut value = self.inputs.clone();
        for (index, layer) in layers.layers.iter().enumerate() {
            value = layer.forward(if index == 0 { value } else { activation::relu(value) });
        }
        let loss = (value - self.targets.clone()).powi_scalar(2).mean();
        Ok(GradientsParams::from_grads(loss.backward(), layers))
    }

    /// The optimizer's step.
    ///
    /// # Errors
    /// If a step has failed.
    pub fn update(&mut self, gradients: GradientsParams) -> Result<()> {
        let layers = self.layers.take().context("an earlier step has failed")?;
        self.layers = Some(self.optimizer.step(RATE, layers, gradients));
        Ok(())
    }

    /// All parameters, in the order of the layers.
    ///
    /// # Errors
    /// If burn gives no access to them.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for layer in &self.layers()?.layers {
            let bias = layer.bias.as_ref().map(|bias| bias.val().into_data());
            for data in [Some(layer.weight.val().into_data()), bias].into_iter().flatten() {
                values
                    .extend_from_slice(data.as_slice::<f32>().map_err(|error| anyhow::anyhow!("{error:?}"))?);
            }
        }
        Ok(values)
    }
}
