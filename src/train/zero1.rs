//! Optimizer state in shards.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use super::bucket::Bucket;
use super::failure::{check_step_number, succeed_together, tell_failure};
use super::options::Wire;
use super::ordered::{Ordered, Releasable};
use super::parameter::agree_on_parameters;
use super::shards::Shards;
use super::streams::Streams as _;
use super::{Parameter, ReducerOptions};
use crate::job::{Group, GroupMemory as _, pair_memory};
use crate::purpose::Purpose;
use crate::{Element as _, Error, world};

/// An optimizer whose state is divided among the ranks: stage 1 of ZeRO (Rajbhandari and others, 2020).
///
/// All parameters follow each other in their order, and are cut into a shard of equal length for each rank,
/// the last ones with padding. In a step, every rank receives the average of its shard of the gradients
/// (reduce_scatter), updates its shard of the parameters, for which it alone has the optimizer's state, and
/// receives the other shards (all_gather). This moves as many bytes as an all_reduce of the gradients.
///
/// ```
/// use collectives::job::{Backend, Job};
/// use collectives::train::{Parameter, ReducerOptions, Zero1};
/// use collectives::world;
///
/// let group = Job::new(world::single()).group(Backend::Host)?;
/// let parameters = [Parameter::new("weight", [2, 2]), Parameter::new("bias", [2])];
/// let mut optimizer = Zero1::<Vec<f32>>::new(&group, &parameters, &ReducerOptions::default())?;
/// let mut momentum = vec![0.0; optimizer.shard_len()];
///
/// let (mut weight, mut bias) = ([1.0; 4], [0.0; 2]);
/// optimizer.step(0, &[&[0.5; 4], &[0.5; 2]], &mut [&mut weight, &mut bias], |parameters, gradients| {
///     for ((value, gradient), momentum) in parameters.iter_mut().zip(gradients).zip(&mut momentum) {
///         *momentum = 0.9 * *momentum + gradient;
///         *value -= 0.1 * *momentum;
///     }
///     Ok(())
/// })?;
/// assert_eq!((weight, bias), ([0.95; 4], [-0.05; 2]));
/// # Ok::<(), collectives::Error>(())
/// ```
///
/// # Errors
/// Buffers that do not fit are refused ([`Error::Buffer`]), with nothing sent: the step can be tried again.
/// If an update fails, the step fails on all ranks: the others return [`Error::RankFailed`] with its reason.
/// After that, and after any error of the group, all steps return the same error. [`Error::Job`] if the last
/// step had the same number, or the number is 2^44 or more, with nothing changed. The ranks compare the
/// numbers of their steps, as the ranks of a [`Reducer`](super::Reducer#steps) do; a rank that has no samples
/// passes gradients of zeros.
///
/// # Memory
/// Besides the optimizer's state, a rank holds memory for all parameters and for two shards. With
/// [`Wire::Bf16`](super::Wire::Bf16), which concerns the gradients only, it also holds all gradients and one
/// shard in bfloat16.
///
/// # GPUs
/// Queue the work of `update` on the stream of a gradient or parameter. These streams wait for the shards'
/// values before `update` is called, and the all_gather waits for what `update` has queued on them. The
/// shards' memory belongs to the group's stream. What a [`Reducer`](super::Reducer) refuses is refused here,
/// too; a capture that `update` begins fails the step.
pub struct Zero1<#[cfg(feature = "fabric")] B: Bucket = Vec<f32>, #[cfg(not(feature = "fabric"))] B: Bucket> {
    /// Number among the reducers of the group.
    number: u32,
    parameters: Vec<Parameter>,
    shards: Shards,
    options: ReducerOptions,
    memory: Ordered<B, OptimizerMemory<B>>,
    /// The step that is under way, or was the last.
    step: u64,
    /// The last step that is complete.
    last: Option<u64>,
    /// The error of all steps after one that has failed, or has not returned.
    failed: Option<Error>,
}

/// Memory of a step; `None` while an operation owns it, and after one that has failed.
struct OptimizerMemory<B: Bucket> {
    /// All gradients, then all parameters.
    whole: Option<B>,
    /// The own shard of the parameters.
    values: Option<B>,
    /// The own shard of the gradients.
    gradients: Option<B>,
    /// All gradients and the own shard of them, as they travel; `None` also if they travel as they are.
    wire: Option<(B::Wire, B::Wire)>,
}

impl<B: Bucket> Default for OptimizerMemory<B> {
    fn default() -> Self {
        Self { whole: None, values: None, gradients: None, wire: None }
    }
}

impl<B: Bucket> Releasable for OptimizerMemory<B> {
    fn release(self) {
        [self.whole, self.values, self.gradients].into_iter().flatten().for_each(B::release);
        if let Some((whole, part)) = self.wire {
            whole.release();
            part.release();
        }
    }
}

fn lost_error() -> Error {
    Error::Job("the memory of this optimizer was lost in a step that failed".to_owned())
}

/// Tells the other ranks, which wait in the all_gather, when the update panics.
struct Unwinding<'a>(&'a world::Handle);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.0.fail("the update of its shard panicked".into());
    }
}

impl<B: Bucket> Zero1<B> {
    /// Prepares steps for these parameters. Collective: returns when every rank of the group has called it.
    /// Options of buckets have no effect.
    ///
    /// # Errors
    /// Those of [`Reducer::new`](super::Reducer::new).
    pub fn new(group: &Group, parameters: &[Parameter], options: &ReducerOptions) -> Result<Self, Error> {
        let number = group.next_reducer();
        let exchange = group.with_purpose(Purpose::NewZero1);
        agree_on_parameters(&exchange, parameters, B::Element::DATA_TYPE, options)?;
        succeed_together(&exchange, Self::prepare_optimizer(group, number, parameters, options))
    }

    fn prepare_optimizer(
        group: &Group,
        number: u32,
        parameters: &[Parameter],
        options: &ReducerOptions,
    ) -> Result<Self, Error> {
        let shards = Shards::new(parameters.iter().map(Parameter::len), group.rank(), group.size());
        let memory = Ordered::new(group, "an optimizer", |side, memory: &mut OptimizerMemory<B>| {
            memory.whole = Some(B::zeros(side, shards.padded_len())?);
            memory.values = Some(B::zeros(side, shards.shard_len())?);
            memory.gradients = Some(B::zeros(side, shards.shard_len())?);
            if matches!(options.wire.for_gradients(B::Element::DATA_TYPE), Wire::Bf16) {
                let whole = B::wire_zeros(side, shards.padded_len())?;
                memory.wire = Some(pair_memory(whole, B::wire_zeros(side, shards.shard_len()))?);
            }
            Ok(())
        })?;
        Ok(Self {
            number,
            parameters: parameters.to_vec(),
            shards,
            options: options.clone(),
            memory,
            step: 0,
            last: None,
            failed: None,
        })
    }

    /// The elements of this rank's shard, by their position among those of all parameters; without padding,
    /// and so empty on ranks that have padding only.
    #[must_use]
    pub fn shard(&self) -> Range<usize> {
        self.shards.own_range()
    }

    /// Elements of every rank's shard, with padding at its end: the number of elements of all parameters
    /// divided by that of the ranks, rounded up.
    #[must_use]
    pub fn shard_len(&self) -> usize {
        self.shards.shard_len()
    }

    /// The parameters.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Does step `number`, as [the program counts them](super::Reducer#steps): below 2^44, and another one
    /// than the step before. `gradients` and `parameters` are in the order of the parameters. `update` gets
    /// this rank's shards of the parameters and of the averaged gradients, of [`shard_len`](Self::shard_len)
    /// elements each, and updates the parameters in their memory. The parameters of the padding have no
    /// meaning, and its gradients are 0. All ranks' `parameters` must be equal before the step, and are equal
    /// after it.
    ///
    /// # Errors
    /// See [`Zero1`].
    pub fn step(
        &mut self,
        number: u64,
        gradients: &[B::View<'_>],
        parameters: &mut [B::ViewMut<'_>],
        update: impl FnOnce(B::ViewMut<'_>, B::View<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        check_step_number(number, self.last)?;
        self.expect_lens("gradients", gradients.iter().map(B::view_len))?;
        self.expect_lens("parameters", parameters.iter().map(|each| B::view_len(&B::read(each))))?;
        let registered =
            self.memory.check_callable().and_then(|()| self.register_memory(gradients, parameters));
        if registered.as_ref().is_err_and(Error::is_refusal) {
            return registered;
        }
        self.step = number;
        self.failed = Some(Error::Job("a step of this optimizer has panicked".to_owned()));
        let result = registered.and_then(|()| self.run_step(gradients, parameters, update));
        self.failed = result.as_ref().err().cloned();
        self.last = Some(number);
        // The others wait for this rank's shard.
        result.inspect_err(|error| tell_failure(self.memory.as_group(), error))
    }

    fn register_memory(
        &mut self,
        gradients: &[B::View<'_>],
        parameters: &[B::ViewMut<'_>],
    ) -> Result<(), Error> {
        gradients.iter().try_for_each(|gradient| self.memory.register_view(gradient))?;
        parameters.iter().try_for_each(|parameter| self.memory.register_view(&B::read(parameter)))
    }

    fn run_step(
        &mut self,
        gradients: &[B::View<'_>],
        parameters: &mut [B::ViewMut<'_>],
        update: impl FnOnce(B::ViewMut<'_>, B::View<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.shards.total_len() == 0 {
            return Ok(());
        }
        // One stream may still read parameters where another one writes gradients.
        self.memory.join_streams()?;
        // All copies come before the first operation, after which the update may be on any stream.
        self.fill_gradients(gradients)?;
        self.cut_parameters(parameters)?;
        self.reduce_gradients()?;
        self.update_shard(update)?;
        self.gather_parameters()?;
        let (_, memory) = self.memory.on_program()?;
        let whole = memory.whole.as_ref().ok_or_else(lost_error)?;
        for (index, target) in parameters.iter_mut().enumerate() {
            B::copy(&whole.view(self.shards.parameter_range(index))?, target)?;
        }
        Ok(())
    }

    /// The purpose of an operation of the step.
    fn step_purpose(&self, is_first: bool) -> Purpose {
        Purpose::Step { optimizer: self.number, step: self.step, is_first }
    }

    /// Copies all gradients.
    fn fill_gradients(&mut self, gradients: &[B::View<'_>]) -> Result<(), Error> {
        let (side, memory) = self.memory.on_program()?;
        let mut starts = (0..).map(|index| self.shards.parameter_range(index).start).zip(gradients);
        match &mut memory.wire {
            None => {
                let filled = memory.whole.as_mut().ok_or_else(lost_error)?;
                starts.try_for_each(|(start, gradient)| filled.put(&side, start, gradient))?;
                // The last step's all_gather left parameters there.
                filled.clear(&side, self.shards.total_len()..self.shards.padded_len())
            }
            // Its padding is always zero.
            Some((filled, _)) => {
                starts.try_for_each(|(start, gradient)| B::wire_put(filled, &side, start, gradient))
            }
        }
    }

    /// Copies the own shard of the parameters.
    fn cut_parameters(&mut self, parameters: &[B::ViewMut<'_>]) -> Result<(), Error> {
        let (side, memory) = self.memory.on_program()?;
        let values = memory.values.as_mut().ok_or_else(lost_error)?;
        for (index, parameter) in parameters.iter().enumerate() {
            let Some((elements, start)) = self.shards.parameter_part(index) else { continue };
            let parameter = B::read(parameter);
            values.put(&side, start, &B::part(&parameter, elements)?)?;
        }
        Ok(())
    }

    /// Averages the own shard of the gradients.
    fn reduce_gradients(&mut self) -> Result<(), Error> {
        let (group, memory) = self.memory.start_operation(self.step_purpose(true))?;
        if let Some((all, part)) = memory.wire.take() {
            let work = group.reduce_scatter(all, part, self.options.op);
            let (mut side, memory) = self.memory.on_group();
            let (_, part) = memory.wire.insert(side.streams.collect_buffers(work)?);
            return memory.gradients.as_mut().ok_or_else(lost_error)?.wire_get(&mut side, part);
        }
        let (all, part) =
            (memory.whole.take().ok_or_else(lost_error)?, memory.gradients.take().ok_or_else(lost_error)?);
        let work = group.reduce_scatter(all, part, self.options.op);
        let (side, memory) = self.memory.on_group();
        let (all, part) = side.streams.collect_buffers(work)?;
        (memory.whole, memory.gradients) = (Some(all), Some(part));
        Ok(())
    }

    /// Gathers all ranks' shards of the parameters.
    fn gather_parameters(&mut self) -> Result<(), Error> {
        let (group, memory) = self.memory.start_operation(self.step_purpose(false))?;
        let (values, whole) =
            (memory.values.take().ok_or_else(lost_error)?, memory.whole.take().ok_or_else(lost_error)?);
        let work = group.all_gather(values, whole);
        let (side, memory) = self.memory.on_group();
        let (values, whole) = side.streams.collect_buffers(work)?;
        (memory.values, memory.whole) = (Some(values), Some(whole));
        Ok(())
    }

    /// Calls the program's update of the own shard. Tells the other ranks, which wait in the all_gather, if
    /// it fails.
    fn update_shard(
        &mut self,
        update: impl FnOnce(B::ViewMut<'_>, B::View<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (len, world) = (self.shards.shard_len(), Arc::clone(self.memory.as_group().world()));
        self.memory.call_program(|memory| {
            let OptimizerMemory { values: Some(values), gradients: Some(gradients), .. } = memory else {
                return Err(lost_error());
            };
            let gradients = gradients.view(0..len)?;
            let unwinding = Unwinding(&world);
            let updated = update(values.view_mut(), gradients);
            mem::forget(unwinding);
            updated.inspect_err(|error| world.fail(format!("the update of its shard: {error}").into()))
        })
    }

    /// Checks the lengths of one buffer for each parameter.
    fn expect_lens(&self, kind: &str, lens: impl ExactSizeIterator<Item = usize>) -> Result<(), Error> {
        if lens.len() != self.parameters.len() {
            return Err(Error::Buffer(format!(
                "{} {kind} for a model of {} parameters: pass one for each",
                lens.len(),
                self.parameters.len()
            )));
        }
        match self.parameters.iter().zip(lens).find(|(parameter, len)| parameter.len() != *len) {
            None => Ok(()),
            Some((parameter, len)) => Err(Error::Buffer(format!(
                "one of the {kind} has {len} elements, but the shape of parameter {:?} is {:?}",
                parameter.name, parameter.shape
            ))),
        }
    }
}

impl<B: Bucket> std::fmt::Debug for Zero1<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let group = self.memory.as_group();
        write!(formatter, "Zero1(shard {:?} of {}, {group:?})", self.shard(), self.shards.total_len())
    }
}
