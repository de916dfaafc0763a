//! A variable of a model.

use candle_core::{Tensor, Var};
use collectives::train::Parameter;

use crate::Error;

/// A variable and its name.
#[derive(Clone)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) var: Var,
}

impl Named {
    pub(crate) fn parameter(&self) -> Parameter {
        Parameter::new(self.name.as_str(), self.var.dims())
    }

    /// The gradient as contiguous elements.
    pub(crate) fn contiguous(&self, gradient: &Tensor) -> Result<Tensor, Error> {
        let (name, var) = (&self.name, &self.var);
        if gradient.dtype() != var.dtype() || gradient.shape() != var.shape() {
            return Err(Error::Tensor(format!(
                "the gradient of {name} is {:?} of {:?}, but the parameter is {:?} of {:?}",
                gradient.shape(),
                gradient.dtype(),
                var.shape(),
                var.dtype()
            )));
        }
        if !gradient.device().same_device(var.device()) {
            return Err(Error::Tensor(format!(
                "the gradient of {name} is on another device than the parameter"
            )));
        }
        Ok(gradient.contiguous()?)
    }
}
