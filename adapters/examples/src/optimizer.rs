//! Averages and steps: every rank with all of the optimizer's state, or with a shard.

use std::collections::HashMap;
use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor};
use candle_nn::{ParamsAdamW, VarMap};
use collectives::job::Group;
use collectives_candle::{AdamW, Error, Reducer, Zero1};

pub(crate) enum Optimizer {
    Replicated(Reducer, AdamW),
    Sharded(Zero1),
}

impl Optimizer {
    /// Gives all ranks the variables of rank 0. Collective.
    pub(crate) fn new(
        group: &Group,
        variables: &VarMap,
        learning_rate: f64,
        shard: bool,
    ) -> Result<Self, Error> {
        let params = ParamsAdamW { lr: learning_rate, ..ParamsAdamW::default() };
        if shard {
            return Ok(Self::Sharded(Zero1::new(group, variables, params)?));
        }
        Ok(Self::Replicated(Reducer::new(group, variables)?, AdamW::new(group, variables, params)?))
    }

    /// Updates the variables. Without shards they change only when the averages are complete: they are whole
    /// after a failure of another rank.
    pub(crate) fn step(
        &mut self,
        step: u64,
        gradients: &mut GradStore,
        device: &Device,
    ) -> Result<(), Error> {
        match self {
            Self::Replicated(reducer, adamw) => {
                reducer.average(step, gradients)?;
                settle(reducer.group(), device)?;
                adamw.step(gradients)
            }
            Self::Sharded(zero1) => zero1.step(step, gradients),
        }
    }

    /// Time of communication in the last step.
    pub(crate) fn exposed(&self) -> Duration {
        match self {
            Self::Replicated(reducer, _) => reducer.exposed(),
            Self::Sharded(zero1) => zero1.exposed(),
        }
    }

    /// Returns the whole state. Collective.
    pub(crate) fn state(&self) -> Result<HashMap<String, Tensor>, Error> {
        match self {
            Self::Replicated(_, adamw) => adamw.state(),
            Self::Sharded(zero1) => zero1.state(),
        }
    }

    pub(crate) fn load_state(&mut self, state: &HashMap<String, Tensor>) -> Result<(), Error> {
        match self {
            Self::Replicated(_, adamw) => adamw.load_state(state),
            Self::Sharded(zero1) => zero1.load_state(state),
        }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        match self {
            Self::Replicated(_, adamw) => adamw.state_bytes(),
            Self::Sharded(zero1) => zero1.state_bytes(),
        }
    }
}

/// Waits for the work of the device, and returns the failure of another rank. On GPUs, calls return earlier,
/// and the results of a step with a failed rank are undefined.
pub(crate) fn settle(group: &Group, device: &Device) -> Result<(), Error> {
    if !device.is_cpu() {
        device.synchronize()?;
        group.check()?;
    }
    Ok(())
}
