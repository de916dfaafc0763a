//! AdamW with its state in shards.

use std::collections::{HashMap, HashSet};
use std::ptr;
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Shape, Storage, Tensor};
use candle_nn::{ParamsAdamW, VarMap};
use collectives::job::Group;
use collectives::train::{self, Parameter, ReducerOptions};
use half::{bf16, f16};

use crate::Error;
use crate::adamw::{FIRST, Moments, SECOND, STEPS, moment, next, steps_of, steps_tensor};
use crate::error::tell;
use crate::memory::{Memory, by_type};
use crate::named::Named;
use crate::parameters::{self, Watch};

/// AdamW with its state divided among the ranks: stage 1 of ZeRO ([`train::Zero1`]).
///
/// A rank has the moments of its shard of the parameters only. The shards of all ranks together are as large
/// as the state of [`AdamW`](crate::AdamW) on every rank. `Zero1` averages the gradients itself, so it also
/// replaces a [`Reducer`](crate::Reducer). All variables have one type.
pub struct Zero1 {
    group: Group,
    watch: Watch,
    typed: Box<dyn Sharded + Send>,
}

impl Zero1 {
    /// Prepares the steps, and replaces every rank's variables by rank 0's. Collective: returns when every
    /// rank has called it.
    ///
    /// # Errors
    /// The errors of [`Reducer::new`](crate::Reducer::new), and an error if variables have different types.
    pub fn new(group: &Group, variables: &VarMap, params: ParamsAdamW) -> Result<Self, Error> {
        Self::with_options(group, variables, params, &ReducerOptions::default())
    }

    /// The same with options. They must be equal on all ranks. Options of buckets have no effect.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn with_options(
        group: &Group,
        variables: &VarMap,
        params: ParamsAdamW,
        options: &ReducerOptions,
    ) -> Result<Self, Error> {
        let (all, first) = tell(group, Self::checked(group, variables))?;
        let (device, dtype) = (first.var.device().clone(), first.var.dtype());
        // All ranks refuse together, and can use the group afterwards.
        let typed = by_type!(&device, dtype, first.name, B => typed::<B>(group, &all, params, options))?;
        tell(group, parameters::broadcast(group, &all))?;
        Ok(Self { group: group.clone(), watch: Watch::new(variables, &all), typed })
    }

    /// The variables and the first of them, and checks of this rank alone.
    fn checked(group: &Group, variables: &VarMap) -> Result<(Vec<Named>, Named), Error> {
        let all = parameters::sorted(group, variables)?;
        let Some(first) = all.first().cloned() else { return Err(Error::Tensor("no variables".to_owned())) };
        let (device, data_type) = (first.var.device(), first.var.dtype());
        by_type!(device, data_type, first.name, B => { let _: Option<B> = None; Ok(()) })?;
        if let Some(other) = all.iter().find(|named| named.var.dtype() != first.var.dtype()) {
            return Err(Error::Tensor(format!(
                "{} is {:?} and {} is {:?}: an optimizer with shards needs one type for all",
                first.name,
                first.var.dtype(),
                other.name,
                other.var.dtype()
            )));
        }
        Ok((all, first))
    }

    /// Does step `step`: averages the gradients, updates this rank's shard of the variables, and gets the
    /// other shards. Collective: returns when every rank has called it. `gradients` are unchanged. The
    /// program counts the steps, and the ranks compare their numbers ([`train::Zero1`]).
    ///
    /// # Errors
    /// If another rank has failed, or is in another step. If a gradient is missing or does not fit its
    /// variable, the [`VarMap`] has other variables than in [`new`](Self::new), or the last step had this
    /// number; then all ranks fail. After an error, all steps fail.
    pub fn step(&mut self, step: u64, gradients: &GradStore) -> Result<(), Error> {
        let result = self.watch.check("Zero1").and_then(|()| self.typed.step(step, gradients));
        tell(&self.group, result)
    }

    /// Returns the state of all shards, to save: a tensor for each name, as
    /// [`AdamW::state`](crate::AdamW::state). Collective.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn state(&self) -> Result<HashMap<String, Tensor>, Error> {
        tell(&self.group, self.typed.state(&self.group))
    }

    /// Takes this rank's shard of a state from [`state`](Self::state), of any number of ranks, or from
    /// [`AdamW::state`](crate::AdamW::state).
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or type.
    pub fn load_state(&mut self, state: &HashMap<String, Tensor>) -> Result<(), Error> {
        self.typed.load_state(state)
    }

    /// Bytes of the moments on this rank.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.typed.state_bytes()
    }

    /// Time of the last [`step`](Self::step) without the update: communication, with its copies and the wait
    /// for other ranks. On GPUs, only the time of the calls, since streams wait there.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.typed.exposed()
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }
}

trait Sharded {
    fn step(&mut self, step: u64, gradients: &GradStore) -> Result<(), Error>;
    fn state(&self, group: &Group) -> Result<HashMap<String, Tensor>, Error>;
    fn load_state(&mut self, state: &HashMap<String, Tensor>) -> Result<(), Error>;
    fn state_bytes(&self) -> usize;
    fn exposed(&self) -> Duration;
}

struct Typed<B: Memory> {
    zero1: train::Zero1<B>,
    variables: Vec<Named>,
    device: Device,
    /// Moments of the own shard, with its padding.
    moments: Moments,
    steps: u32,
    params: ParamsAdamW,
    exposed: Duration,
}

fn typed<B: Memory>(
    group: &Group,
    variables: &[Named],
    params: ParamsAdamW,
    options: &ReducerOptions,
) -> Result<Box<dyn Sharded + Send>, Error>
where
    train::Zero1<B>: Send,
{
    let parameters: Vec<Parameter> = variables.iter().map(Named::parameter).collect();
    let zero1 = train::Zero1::<B>::new(group, &parameters, options)?;
    let Some(Named { var, .. }) = variables.first() else {
        return Err(Error::Tensor("no variables".to_owned()));
    };
    let (device, dtype) = (var.device().clone(), var.dtype());
    let moments = Moments::zeros(&Tensor::zeros(zero1.shard_len(), dtype, &device)?)?;
    let (variables, exposed) = (variables.to_vec(), Duration::ZERO);
    Ok(Box::new(Typed { zero1, variables, device, moments, steps: 0, params, exposed }))
}

/// Returns the address of a tensor's storage, equal for tensors of the same memory.
fn storage(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    ptr::from_ref::<Storage>(&storage).addr()
}

impl<B: Memory> Typed<B> {
    /// Returns contiguous gradients of all variables, in other memory than the variables: these are locked
    /// while the gradients are read.
    fn contiguous(&self, gradients: &GradStore) -> Result<Vec<Tensor>, Error> {
        let of_variables: HashSet<usize> = self.variables.iter().map(|named| storage(&named.var)).collect();
        let of = |named: &Named| match gradients.get(&named.var) {
            Some(gradient) => {
                let gradient = named.contiguous(gradient)?;
                let is_shared = of_variables.contains(&storage(&gradient));
                Ok(if is_shared { gradient.detach().copy()? } else { gradient })
            }
            None => Err(Error::Tensor(format!(
                "{} has no gradient, and would get the optimizer's decay: insert a gradient of zeros, or \
                 keep the variable out of the VarMap",
                named.name
            ))),
        };
        self.variables.iter().map(of).collect()
    }

    /// Returns the whole tensor, with padding, from the shards of all ranks. Collective.
    fn gather(&self, group: &Group, shard: &Tensor) -> Result<Tensor, Error> {
        let len = shard.elem_count() * group.size();
        let whole = Tensor::zeros(len, shard.dtype(), &self.device)?;
        let (part, whole) = (B::copied(shard)?, B::copied(&whole)?);
        self.device.synchronize()?;
        let (_, whole) = group.all_gather(part, whole).wait()?;
        Ok(whole.into_tensor(&Shape::from(len), &self.device)?)
    }

    /// The own shard of the moments of all variables.
    fn cut(&self, state: &HashMap<String, Tensor>, prefix: &str) -> Result<Tensor, Error> {
        let mut parts = Vec::new();
        for named in &self.variables {
            parts.push(moment(state, prefix, named)?.flatten_all()?);
        }
        let (shard, len) = (self.zero1.shard(), self.zero1.shard_len());
        let whole = Tensor::cat(&parts, 0)?;
        let own = if shard.is_empty() {
            whole.narrow(0, 0, 0)?
        } else {
            whole.narrow(0, shard.start, shard.len())?
        };
        Ok(own.pad_with_zeros(0, 0, len - shard.len())?)
    }
}

impl<B: Memory> Sharded for Typed<B> {
    fn step(&mut self, step: u64, gradients: &GradStore) -> Result<(), Error> {
        let began = Instant::now();
        let tensors = self.contiguous(gradients)?;
        let locked: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
        let views = locked.iter().map(|(storage, layout)| B::elements(storage, layout));
        let views: Vec<B::View<'_>> = views.collect::<Result<_, _>>()?;
        let steps = next(self.steps)?;
        let Self { zero1, variables, device, moments, params, .. } = self;
        let mut updating = Duration::ZERO;
        B::lend(variables, &mut |parameters| {
            Ok(zero1.step(step, &views, parameters, |values, gradients| {
                let began = Instant::now();
                let updated = update::<B>(device, moments, params, steps, values, &gradients);
                updating = began.elapsed();
                updated.map_err(|error| match error {
                    Error::Collectives(error) => error,
                    other => collectives::Error::Job(other.to_string()),
                })
            })?)
        })?;
        self.steps = steps;
        self.exposed = began.elapsed().saturating_sub(updating);
        Ok(())
    }

    fn state(&self, group: &Group) -> Result<HashMap<String, Tensor>, Error> {
        let mut state = HashMap::from([(STEPS.to_owned(), steps_tensor(self.steps)?)]);
        for (prefix, shard) in [(FIRST, &self.moments.first), (SECOND, &self.moments.second)] {
            let whole = self.gather(group, shard)?;
            let mut start = 0;
            for Named { name, var } in &self.variables {
                let part = whole.narrow(0, start, var.elem_count())?.reshape(var.shape())?;
                state.insert(format!("{prefix}{name}"), part);
                start += var.elem_count();
            }
        }
        Ok(state)
    }

    fn load_state(&mut self, state: &HashMap<String, Tensor>) -> Result<(), Error> {
        let moments = Moments { first: self.cut(state, FIRST)?, second: self.cut(state, SECOND)? };
        self.steps = steps_of(state)?;
        self.moments = moments;
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.moments.bytes()
    }

    fn exposed(&self) -> Duration {
        self.exposed
    }
}

fn update<B: Memory>(
    device: &Device,
    moments: &mut Moments,
    params: &ParamsAdamW,
    steps: u32,
    values: B::ViewMut<'_>,
    gradients: &B::View<'_>,
) -> Result<(), Error> {
    let shape = Shape::from(B::view_len(gradients));
    let gradients = B::tensor(gradients, &shape, device)?;
    let old = B::tensor(&B::read(&values), &shape, device)?;
    B::assign(values, &moments.update(params, steps, &old, &gradients)?)
}
