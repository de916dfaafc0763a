//! AdamW, with a state to save.

use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use candle_nn::{ParamsAdamW, VarMap};
use collectives::job::Group;

use crate::Error;
use crate::error::tell;
use crate::named::Named;
use crate::parameters::{self, Watch};

/// Name of the number of steps in an optimizer's state.
pub(crate) const STEPS: &str = "optimizer.steps";
/// Prefix of the names of first moments in an optimizer's state, before the name of the variable.
pub(crate) const FIRST: &str = "optimizer.first_moment.";
/// The same for second moments.
pub(crate) const SECOND: &str = "optimizer.second_moment.";

/// AdamW (Loshchilov and Hutter, 2019), as [`candle_nn::AdamW`], with a state to save.
///
/// Every rank has all of the state; the gradients are averaged before. [`Zero1`](crate::Zero1) divides it.
pub struct AdamW {
    variables: Vec<Named>,
    watch: Watch,
    moments: Vec<Moments>,
    steps: u32,
    params: ParamsAdamW,
}

/// First and second moments of some elements.
pub(crate) struct Moments {
    pub(crate) first: Tensor,
    pub(crate) second: Tensor,
}

impl Moments {
    pub(crate) fn zeros(like: &Tensor) -> candle_core::Result<Self> {
        Ok(Self { first: like.zeros_like()?, second: like.zeros_like()? })
    }

    /// Their size.
    pub(crate) fn bytes(&self) -> usize {
        [&self.first, &self.second]
            .map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes())
            .into_iter()
            .sum()
    }

    /// Updates the moments in step `steps`, counted from 1, and returns the new parameters.
    pub(crate) fn update(
        &mut self,
        params: &ParamsAdamW,
        steps: u32,
        values: &Tensor,
        gradients: &Tensor,
    ) -> candle_core::Result<Tensor> {
        let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = *params;
        let power = |beta: f64| beta.powf(f64::from(steps));
        self.first = ((&self.first * beta1)? + (gradients * (1.0 - beta1))?)?;
        self.second = ((&self.second * beta2)? + (gradients.sqr()? * (1.0 - beta2))?)?;
        let first = (&self.first * (1.0 / (1.0 - power(beta1))))?;
        let second = (&self.second * (1.0 / (1.0 - power(beta2))))?;
        let change = (first / (second.sqrt()? + eps)?)?;
        (values * (1.0 - lr * weight_decay))? - (change * lr)?
    }
}

impl AdamW {
    /// Prepares the optimizer of all variables of a model. They must be on the group's device.
    ///
    /// # Errors
    /// If there are no variables, they do not fit the group, or there is too little memory.
    pub fn new(group: &Group, variables: &VarMap, params: ParamsAdamW) -> Result<Self, Error> {
        let map = variables;
        let variables = parameters::sorted(group, map)?;
        let moments = variables.iter().map(|named| Moments::zeros(&named.var)).collect::<Result<_, _>>()?;
        Ok(Self { watch: Watch::new(map, &variables), variables, moments, steps: 0, params })
    }

    /// Updates the variables with gradients.
    ///
    /// # Errors
    /// [`Error::Candle`], and if the [`VarMap`] has other variables than in [`new`](Self::new).
    pub fn step(&mut self, gradients: &GradStore) -> Result<(), Error> {
        self.watch.check("AdamW")?;
        let steps = next(self.steps)?;
        for (Named { var, .. }, moments) in self.variables.iter().zip(&mut self.moments) {
            if let Some(gradient) = gradients.get(var) {
                // Without a detached value, the moments would keep the graphs of all steps.
                let values = var.as_detached_tensor();
                var.set(&moments.update(&self.params, steps, &values, &gradient.detach())?)?;
            }
        }
        self.steps = steps;
        Ok(())
    }

    /// Replaces every rank's state by the state of rank `root`. Collective.
    ///
    /// # Errors
    /// Errors of the group: see [`collectives::Error`].
    pub fn broadcast(&mut self, group: &Group, root: usize) -> Result<(), Error> {
        let result = self.run_broadcast(group, root);
        tell(group, result)
    }

    fn run_broadcast(&mut self, group: &Group, root: usize) -> Result<(), Error> {
        let mut steps = [self.steps];
        group.broadcast_in_place(&mut steps, root)?;
        [self.steps] = steps;
        for (Named { name, .. }, Moments { first, second }) in self.variables.iter().zip(&mut self.moments) {
            *first = parameters::broadcast_tensor(group, name, first, root)?;
            *second = parameters::broadcast_tensor(group, name, second, root)?;
        }
        Ok(())
    }

    /// Returns the state, to save: a tensor for each name.
    ///
    /// # Errors
    /// [`Error::Candle`].
    pub fn state(&self) -> Result<HashMap<String, Tensor>, Error> {
        let mut state = HashMap::from([(STEPS.to_owned(), steps_tensor(self.steps)?)]);
        for (Named { name, .. }, Moments { first, second }) in self.variables.iter().zip(&self.moments) {
            state.insert(format!("{FIRST}{name}"), first.clone());
            state.insert(format!("{SECOND}{name}"), second.clone());
        }
        Ok(state)
    }

    /// Takes a state from [`state`](Self::state) or [`Zero1::state`](crate::Zero1::state).
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or type.
    pub fn load_state(&mut self, state: &HashMap<String, Tensor>) -> Result<(), Error> {
        let mut moments = Vec::new();
        for named in &self.variables {
            moments
                .push(Moments { first: moment(state, FIRST, named)?, second: moment(state, SECOND, named)? });
        }
        self.steps = steps_of(state)?;
        self.moments = moments;
        Ok(())
    }

    /// Bytes of the moments on this rank.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.moments.iter().map(Moments::bytes).sum()
    }
}

/// The number of a step after `steps`.
pub(crate) fn next(steps: u32) -> Result<u32, Error> {
    steps.checked_add(1).ok_or_else(|| {
        Error::Tensor(format!("no step can be counted after {steps}: load a state with fewer steps"))
    })
}

pub(crate) fn steps_tensor(steps: u32) -> candle_core::Result<Tensor> {
    Tensor::new(steps, &Device::Cpu)
}

pub(crate) fn steps_of(state: &HashMap<String, Tensor>) -> Result<u32, Error> {
    Ok(of_name(state, STEPS)?.to_device(&Device::Cpu)?.to_dtype(DType::U32)?.to_scalar()?)
}

fn of_name<'a>(state: &'a HashMap<String, Tensor>, name: &str) -> Result<&'a Tensor, Error> {
    state
        .get(name)
        .ok_or_else(|| Error::Tensor(format!("the state has no tensor {name}: it belongs to another model")))
}

/// A moment of one variable.
pub(crate) fn moment(state: &HashMap<String, Tensor>, prefix: &str, named: &Named) -> Result<Tensor, Error> {
    let Named { name, var } = named;
    let tensor = of_name(state, &format!("{prefix}{name}"))?;
    if tensor.shape() != var.shape() || tensor.dtype() != var.dtype() {
        return Err(Error::Tensor(format!(
            "{prefix}{name} is {:?} of {:?} in the state, but the variable is {:?} of {:?}",
            tensor.shape(),
            tensor.dtype(),
            var.shape(),
            var.dtype()
        )));
    }
    Ok(tensor.to_device(var.device())?)
}
