//! Averages of gradients.

use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarMap;
use collectives::ReduceOp;
use collectives::job::Group;
use collectives::train::{self, Parameter, ReducerOptions, Step};
use half::{bf16, f16};

use crate::Error;
use crate::error::tell;
use crate::memory::{Memory, by_type};
use crate::named::Named;
use crate::parameters::{self, Watch};

/// Averages the gradients of a model over all ranks of a group.
///
/// Its variables come from a [`VarMap`], sorted by name, with the same names and shapes on every rank, of the
/// types f32, f64, bf16 and f16. Gradients travel in their own type, or in bfloat16 ([`train::Wire::Bf16`]).
///
/// # Memory
/// Contiguous gradients are copied once into the reducer's buckets, and once back into the tensors that
/// replace them. Other gradients are made contiguous first.
pub struct Reducer {
    group: Group,
    watch: Watch,
    types: Vec<Box<dyn Average + Send>>,
}

impl Reducer {
    /// Prepares the averages, and replaces every rank's variables by rank 0's. Collective: returns when every
    /// rank has called it.
    ///
    /// # Errors
    /// On all ranks if names, shapes or types differ between ranks; the group can still be used. On this
    /// rank, if a variable has another type, or is on an unsuitable device for the group; the other ranks
    /// then get [`RankFailed`](collectives::Error::RankFailed).
    pub fn new(group: &Group, variables: &VarMap) -> Result<Self, Error> {
        Self::with_options(group, variables, &ReducerOptions::default())
    }

    /// The same with options. They must be equal on all ranks. `op` is [`ReduceOp::Avg`] or
    /// [`ReduceOp::Sum`].
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), and an error for another `op`; the other ranks then get
    /// [`RankFailed`](collectives::Error::RankFailed).
    pub fn with_options(group: &Group, variables: &VarMap, options: &ReducerOptions) -> Result<Self, Error> {
        let all = tell(group, Self::checked(group, variables, options))?;
        let mut types: Vec<Box<dyn Average + Send>> = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let of_type: Vec<Named> =
                all.iter().filter(|named| named.var.dtype() == dtype).cloned().collect();
            // Ranks without variables of this type also compare their lists.
            let device = all.first().map_or(Device::Cpu, |named| named.var.device().clone());
            let lists = group.all_gather_bytes(&[u8::from(!of_type.is_empty())])?;
            if lists.iter().all(|list| list == &[0]) {
                continue;
            }
            // All ranks refuse together, and can use the group afterwards.
            types.push(by_type!(&device, dtype, "a parameter", B => typed::<B>(group, of_type, options))?);
        }
        tell(group, parameters::broadcast(group, &all))?;
        Ok(Self { group: group.clone(), watch: Watch::new(variables, &all), types })
    }

    /// The variables, and checks of this rank alone.
    fn checked(group: &Group, variables: &VarMap, options: &ReducerOptions) -> Result<Vec<Named>, Error> {
        // The mask of present gradients is reduced with the same operator: for others, it would not show the
        // gradients present on any rank.
        if !matches!(options.op, ReduceOp::Avg | ReduceOp::Sum) {
            return Err(Error::Tensor(format!(
                "the option op is {}: gradients are averaged (avg) or added (sum)",
                options.op
            )));
        }
        let all = parameters::sorted(group, variables)?;
        // Variables of a type that cannot be reduced are refused before the first operation.
        for Named { name, var } in &all {
            by_type!(var.device(), var.dtype(), name, B => { let _: Option<B> = None; Ok(()) })?;
        }
        Ok(all)
    }

    /// Replaces the gradients of the variables by their averages over all ranks, in step `step`. Collective:
    /// returns when every rank has called it. The program counts the steps, and the ranks compare their
    /// numbers ([`train::Reducer`]).
    ///
    /// A variable with a gradient on some ranks only counts as zero on the other ranks, and gets the average
    /// on all. A variable without a gradient on any rank gets none.
    ///
    /// # Errors
    /// If another rank has failed, or is in another step. If a gradient does not fit its variable, the
    /// [`VarMap`] has other variables than in [`new`](Self::new), or the last step had this number; then all
    /// ranks fail.
    pub fn average(&mut self, step: u64, gradients: &mut GradStore) -> Result<(), Error> {
        let result = self.run(step, gradients);
        tell(&self.group, result)
    }

    fn run(&mut self, step: u64, gradients: &mut GradStore) -> Result<(), Error> {
        self.watch.check("Reducer")?;
        for of_type in &mut self.types {
            of_type.start(step, gradients)?;
        }
        self.types.iter_mut().try_for_each(|of_type| of_type.finish(step, gradients))
    }

    /// Waiting time of the last [`average`](Self::average) until the reductions were complete. On GPUs, only
    /// the time of the calls, since streams wait there.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.types.iter().map(|of_type| of_type.exposed()).sum()
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }
}

/// The variables of one type of elements.
trait Average {
    fn start(&mut self, step: u64, gradients: &GradStore) -> Result<(), Error>;
    fn finish(&mut self, step: u64, gradients: &mut GradStore) -> Result<(), Error>;
    fn exposed(&self) -> Duration;
}

struct Typed<B: Memory> {
    /// Its parameters are the variables, and a last one with the gradients present on this rank: 1 for each
    /// variable with a gradient, 0 for the others.
    reducer: train::Reducer<B>,
    variables: Vec<Named>,
}

fn typed<B: Memory>(
    group: &Group,
    variables: Vec<Named>,
    options: &ReducerOptions,
) -> Result<Box<dyn Average + Send>, Error>
where
    train::Reducer<B>: Send,
{
    let mut parameters: Vec<Parameter> = variables.iter().map(Named::parameter).collect();
    parameters.push(Parameter::new("(the set of gradients)", [variables.len()]));
    let reducer = train::Reducer::<B>::new(group, &parameters, options)?;
    Ok(Box::new(Typed { reducer, variables }))
}

fn ready<B: Memory>(step: &mut Step<'_, B>, index: usize, gradient: &Tensor) -> Result<(), Error> {
    let (storage, layout) = gradient.storage_and_layout();
    Ok(step.ready(index, B::elements(&storage, layout)?)?)
}

impl<B: Memory> Average for Typed<B> {
    fn start(&mut self, step: u64, gradients: &GradStore) -> Result<(), Error> {
        let of_variable =
            |named: &Named| gradients.get(&named.var).map(|gradient| named.contiguous(gradient)).transpose();
        let gradients: Vec<Option<Tensor>> =
            self.variables.iter().map(of_variable).collect::<Result<_, _>>()?;
        let mut step = self.reducer.step(step)?;
        if let Some(Named { var, .. }) = self.variables.first() {
            let present: Vec<f32> =
                gradients.iter().map(|gradient| f32::from(u8::from(gradient.is_some()))).collect();
            let count = present.len();
            let present = Tensor::from_vec(present, count, &Device::Cpu)?.to_dtype(var.dtype())?;
            ready(&mut step, count, &present.to_device(var.device())?)?;
        } else {
            step.ready_zero(0)?;
        }
        for (index, gradient) in gradients.iter().enumerate().rev() {
            match gradient {
                Some(gradient) => ready(&mut step, index, gradient)?,
                None => step.ready_zero(index)?,
            }
        }
        Ok(())
    }

    fn finish(&mut self, step: u64, gradients: &mut GradStore) -> Result<(), Error> {
        self.reducer.step(step)?.wait()?;
        let mut elsewhere = Vec::new();
        if let Some(missing) = self.variables.iter().find(|named| gradients.get(&named.var).is_none()) {
            let count = self.variables.len();
            let present = self.reducer.gradient(count)?;
            let present = B::tensor(&present, &Shape::from(count), missing.var.device())?;
            elsewhere = present.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        }
        for (index, Named { var, .. }) in self.variables.iter().enumerate() {
            let somewhere = elsewhere.get(index).is_some_and(|&ranks| ranks != 0.0);
            if gradients.get(var).is_some() || somewhere {
                let average = B::tensor(&self.reducer.gradient(index)?, var.shape(), var.device())?;
                gradients.insert(var, average);
            }
        }
        Ok(())
    }

    fn exposed(&self) -> Duration {
        self.reducer.exposed()
    }
}
