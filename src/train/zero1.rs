//! Optimizer state in shards.

use std::ops::Range;

use super::bucket::Bucket;
use super::failure::{tell_failure, together};
use super::options::Wire;
use super::parameter::agree;
use super::shards::Shards;
use super::{Parameter, ReducerOptions};
use crate::job::Group;
use crate::purpose::Purpose;
use crate::{Element as _, Error};

/// An optimizer whose state is divided among the ranks: stage 1 of ZeRO (Rajbhandari and others, 2020).
///
/// All parameters follow each other in their order, and are cut into a shard of equal length for each rank, the last ones with
/// padding. In a step, every rank receives the average of its shard of the gradients (reduce_scatter), updates its shard of the
/// parameters, for which it alone has the optimizer's state, and receives the other shards (all_gather). This moves as many bytes
/// as an all_reduce of the gradients.
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
/// optimizer.step(&[&[0.5; 4], &[0.5; 2]], &mut [&mut weight, &mut bias], |parameters, gradients| {
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
/// Buffers that do not fit are refused ([`Error::Buffer`]), with nothing sent: the step can be tried again. If an update fails, the
/// step fails on all ranks: the others return [`Error::RankFailed`] with its reason. After that, and after any error of the group,
/// all steps return the same error.
///
/// # Memory
/// Besides the optimizer's state, a rank holds memory for all parameters and for two shards. With
/// [`Wire::Bf16`](super::Wire::Bf16), which concerns the gradients only, it also holds all gradients and one shard in bfloat16.
///
/// # GPUs
/// Queue the work of `update` on the stream of a gradient or parameter. These streams wait for the shards' values before `update` is
/// called, and the all_gather waits for what `update` has queued on them. The shards' memory belongs to the group's stream.
pub struct Zero1<#[cfg(feature = "fabric")] B: Bucket = Vec<f32>, #[cfg(not(feature = "fabric"))] B: Bucket> {
    group: Group,
    parameters: Vec<Parameter>,
    shards: Shards,
    options: ReducerOptions,
    /// Dropped before the memory.
    streams: B::Streams,
    memory: Option<Memory<B>>,
    failed: Option<Error>,
}

struct Memory<B: Bucket> {
    /// All gradients, then all parameters.
    whole: B,
    /// The own shard of the parameters.
    values: B,
    /// The own shard of the gradients.
    gradients: B,
    /// All gradients and the own shard of them, as they travel.
    wire: Option<(B::Wire, B::Wire)>,
}

/// Tells the other ranks, which wait in the all_gather, when the update panics.
struct Unwinding<'a>(&'a Group);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.0.world().fail("the update of its shard panicked");
    }
}

impl<B: Bucket> Zero1<B> {
    /// Prepares steps for these parameters. Collective: returns when every rank of the group has called it. Options of buckets have
    /// no effect.
    ///
    /// # Errors
    /// Those of [`Reducer::new`](super::Reducer::new).
    pub fn new(group: &Group, parameters: &[Parameter], options: &ReducerOptions) -> Result<Self, Error> {
        let steps = group.with_purpose(Purpose::Step { optimizer: group.next_reducer() });
        let exchange = group.with_purpose(Purpose::NewZero1);
        agree(&exchange, parameters, B::Element::DATA_TYPE, options)?;
        together(&exchange, Self::prepare(&steps, parameters, options))
    }

    fn prepare(group: &Group, parameters: &[Parameter], options: &ReducerOptions) -> Result<Self, Error> {
        let shards = Shards::new(parameters.iter().map(Parameter::len), group.rank(), group.size());
        let mut streams = B::streams(group)?;
        let memory = Memory {
            whole: B::zeros(&mut streams, shards.padded())?,
            values: B::zeros(&mut streams, shards.len())?,
            gradients: B::zeros(&mut streams, shards.len())?,
            wire: match options.wire.of(B::Element::DATA_TYPE) {
                Wire::Same => None,
                Wire::Bf16 => Some((
                    B::wire_zeros(&mut streams, shards.padded())?,
                    B::wire_zeros(&mut streams, shards.len())?,
                )),
            },
        };
        Ok(Self {
            group: group.clone(),
            parameters: parameters.to_vec(),
            shards,
            options: options.clone(),
            streams,
            memory: Some(memory),
            failed: None,
        })
    }

    /// The elements of this rank's shard, by their position among those of all parameters; without padding, and so empty on ranks
    /// that have padding only.
    #[must_use]
    pub fn shard(&self) -> Range<usize> {
        self.shards.own()
    }

    /// Elements of every rank's shard, with padding at its end: the number of elements of all parameters divided by that of the
    /// ranks, rounded up.
    #[must_use]
    pub fn shard_len(&self) -> usize {
        self.shards.len()
    }

    /// The parameters.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Does a step. `gradients` and `parameters` are in the order of the parameters. `update` gets this rank's shards of the
    /// parameters and of the averaged gradients, of [`shard_len`](Self::shard_len) elements each, and updates the parameters. The
    /// parameters of the padding have no meaning, and its gradients are 0. All ranks' `parameters` must be equal before the step,
    /// and are equal after it.
    ///
    /// # Errors
    /// See [`Zero1`].
    pub fn step(
        &mut self,
        gradients: &[B::View<'_>],
        parameters: &mut [B::ViewMut<'_>],
        update: impl FnOnce(&mut B, &B) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.expect("gradients", gradients.iter().map(B::view_len))?;
        self.expect("parameters", parameters.iter().map(B::view_mut_len))?;
        for gradient in gradients {
            B::register(&mut self.streams, gradient)?;
        }
        for parameter in &*parameters {
            B::register(&mut self.streams, &B::read(parameter))?;
        }
        let result = self.run(gradients, parameters, update);
        if let Err(error) = &result {
            // The others wait for this rank's shard.
            tell_failure(&self.group, error);
            self.failed = Some(error.clone());
        }
        result
    }

    fn run(
        &mut self,
        gradients: &[B::View<'_>],
        parameters: &mut [B::ViewMut<'_>],
        update: impl FnOnce(&mut B, &B) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // After an error the memory is not put back.
        let memory = self.memory.take();
        let memory = memory.ok_or_else(|| Error::Job("a step of this optimizer has panicked".to_owned()))?;
        if self.shards.total() == 0 {
            self.memory = Some(memory);
            return Ok(());
        }
        // One stream may still read parameters where another one writes gradients.
        B::join_streams(&mut self.streams)?;
        let mut memory = self.reduce(memory, gradients)?;
        self.cut(&mut memory.values, parameters)?;
        // The update may be on another stream than these copies.
        B::make_group_wait(&mut self.streams)?;
        B::make_program_wait(&mut self.streams)?;
        let len = memory.values.len();
        let unwinding = Unwinding(&self.group);
        let updated = update(&mut memory.values, &memory.gradients);
        std::mem::forget(unwinding);
        let updated = updated.and_then(|()| {
            if memory.values.len() == len {
                return Ok(());
            }
            Err(Error::Buffer(format!(
                "the update has replaced the shard of {len} elements by one of {}: update its elements",
                memory.values.len()
            )))
        });
        if let Err(error) = &updated {
            // The others wait in the all_gather.
            self.group.world().fail(&format!("the update of its shard: {error}"));
        }
        updated?;
        B::make_group_wait(&mut self.streams)?;
        let Memory { whole, values, gradients, wire } = memory;
        let (values, whole) = B::collect(&mut self.streams, self.group.all_gather(values, whole))?;
        B::make_program_wait(&mut self.streams)?;
        for (index, target) in parameters.iter_mut().enumerate() {
            B::copy(&whole.view(self.shards.parameter(index))?, target)?;
        }
        self.memory = Some(Memory { whole, values, gradients, wire });
        Ok(())
    }

    /// Averages the own shard of the gradients.
    fn reduce(&mut self, memory: Memory<B>, gradients: &[B::View<'_>]) -> Result<Memory<B>, Error> {
        let Memory { mut whole, values, gradients: mut own, mut wire } = memory;
        let padding = self.shards.total()..self.shards.padded();
        for (index, gradient) in gradients.iter().enumerate() {
            let start = self.shards.parameter(index).start;
            match &mut wire {
                None => whole.put(start, gradient)?,
                Some((wire, _)) => B::wire_put(wire, &mut self.streams, start, gradient)?,
            }
        }
        let op = self.options.op;
        match wire.take() {
            None => {
                // The last step's all_gather left parameters there.
                whole.clear(&mut self.streams, padding)?;
                B::make_group_wait(&mut self.streams)?;
                (whole, own) = B::collect(&mut self.streams, self.group.reduce_scatter(whole, own, op))?;
            }
            Some((all, part)) => {
                B::make_group_wait(&mut self.streams)?;
                let work = self.group.reduce_scatter(all, part, op);
                let (all, part) = B::collect(&mut self.streams, work)?;
                own.wire_get(&mut self.streams, &part)?;
                wire = Some((all, part));
            }
        }
        Ok(Memory { whole, values, gradients: own, wire })
    }

    /// Copies the own shard of the parameters.
    fn cut(&mut self, values: &mut B, parameters: &[B::ViewMut<'_>]) -> Result<(), Error> {
        for (index, parameter) in parameters.iter().enumerate() {
            let Some((elements, start)) = self.shards.part(index) else { continue };
            let parameter = B::read(parameter);
            values.put(start, &B::part(&parameter, elements)?)?;
        }
        Ok(())
    }

    /// Checks the lengths of one buffer for each parameter.
    fn expect(&self, kind: &str, lens: impl ExactSizeIterator<Item = usize>) -> Result<(), Error> {
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
        write!(formatter, "Zero1(shard {:?} of {}, {:?})", self.shard(), self.shards.total(), self.group)
    }
}
