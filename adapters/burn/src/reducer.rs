//! Averages of a module's gradients.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use burn_core::module::{AutodiffModule, ModuleVisitor, Param, ParamId};
use burn_core::tensor::{DType, Tensor, TensorData, backend::AutodiffBackend};
use burn_optim::GradientsParams;
use collectives::train::{self, ReducerOptions};
use collectives::{Error, job::Group};

use crate::parameters::{Parameter, Path, trained};

/// Averages the gradients of a module over the ranks of a group.
///
/// The gradients are reduced in buckets, in the reverse of the module's order; a bucket is reduced while the
/// next one is filled. burn returns all gradients together, at the end of `backward`, so the exchange begins
/// only then.
pub struct Reducer {
    reducer: train::Reducer<Vec<f32>>,
    parameters: Vec<Parameter>,
}

impl Reducer {
    /// Creates a reducer for the parameters of `module` that require a gradient now. Collective: the ranks
    /// compare names and shapes of their parameters.
    ///
    /// # Errors
    /// If the parameters of the ranks differ: names the first difference. [`Error::Buffer`] for a group of
    /// GPUs. Otherwise the errors of [`train::Reducer::new`].
    pub fn new<B: AutodiffBackend, M: AutodiffModule<B>>(group: &Group, module: &M) -> Result<Self, Error> {
        Self::with_options(group, module, &ReducerOptions::default())
    }

    /// Like [`Reducer::new`], with options. They must be equal on all ranks.
    ///
    /// # Errors
    /// The errors of [`Reducer::new`].
    pub fn with_options<B: AutodiffBackend, M: AutodiffModule<B>>(
        group: &Group,
        module: &M,
        options: &ReducerOptions,
    ) -> Result<Self, Error> {
        let parameters = trained(module);
        let described = parameters.iter().map(described).collect::<Vec<_>>();
        Ok(Self { reducer: train::Reducer::new(group, &described, options)?, parameters })
    }

    /// Replaces the gradients of `module` by their average over the ranks, in step `step`. Its parameters
    /// must be the same as in [`Reducer::new`]. The program counts the steps, and the ranks compare their
    /// numbers ([`train::Reducer`]). Gradients of other modules in `gradients` stay as they are.
    ///
    /// # Errors
    /// [`Error::Job`] if a parameter has no gradient, one was added or unfrozen after [`Reducer::new`], or
    /// the last step had this number; [`Error::Buffer`] if a gradient is not `f32`. The other ranks get
    /// [`Error::RankFailed`] with this reason. Otherwise the errors of [`train::Step::wait`]. The gradients
    /// are lost after an error.
    pub fn average<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        step: u64,
        module: &M,
        mut gradients: GradientsParams,
    ) -> Result<GradientsParams, Error> {
        let places = self.parameters.iter().enumerate().map(|(index, each)| (each.id, index)).collect();
        let data = self.parameters.iter().map(|_| None).collect();
        let mut taken =
            Taken { places: &places, gradients: &mut gradients, data, path: Path::default(), unknown: None };
        module.visit(&mut taken);
        let data = checked(&self.parameters, taken).inspect_err(|error| {
            self.reducer.group().world().fail(collectives::world::Reason::from(error))
        })?;
        let group = self.reducer.group().clone();
        let begun = self.reducer.step(step);
        let mut step =
            begun.inspect_err(|error| group.world().fail(collectives::world::Reason::from(error)))?;
        for (index, data) in data.iter().enumerate().rev() {
            step.ready(index, data.as_slice::<f32>().map_err(|error| refused(&error))?)?;
        }
        drop(data);
        step.wait()?;
        let averages =
            (0..self.parameters.len()).map(|index| self.average_of(index)).collect::<Result<_, _>>()?;
        module.visit(&mut Returned { averages, gradients: &mut gradients });
        Ok(gradients)
    }

    fn average_of(&self, index: usize) -> Result<(ParamId, TensorData), Error> {
        let parameter = self
            .parameters
            .get(index)
            .ok_or_else(|| Error::Job(format!("parameter {index} does not exist")))?;
        let average = self.reducer.gradient(index)?;
        Ok((parameter.id, TensorData::new(average.to_vec(), parameter.shape.clone())))
    }

    /// Waiting time of the last [`Reducer::average`] until the reductions were complete.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.reducer.exposed()
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reducer").field("parameters", &self.parameters).finish_non_exhaustive()
    }
}

fn described(parameter: &Parameter) -> train::Parameter {
    train::Parameter::new(parameter.name.clone(), parameter.shape.clone())
}

fn refused(error: &dyn fmt::Debug) -> Error {
    Error::Buffer(format!("burn gives no access to a gradient's elements: {error:?}"))
}

/// All gradients, if each is there and can be averaged.
fn checked(parameters: &[Parameter], taken: Taken<'_>) -> Result<Vec<TensorData>, Error> {
    if let Some(name) = taken.unknown {
        return Err(Error::Job(format!(
            "the parameter {name} is trained or has a gradient, but is not in the Reducer: make a new \
             Reducer on all ranks when parameters are added, unfrozen or replaced"
        )));
    }
    let check = |(parameter, data): (&Parameter, Option<TensorData>)| {
        let name = &parameter.name;
        let data = data.ok_or_else(|| {
            Error::Job(format!(
                "the parameter {name} has no gradient: it must contribute to the loss in every step on \
                 every rank; for an untrained parameter, call set_require_grad(false) before Reducer::new"
            ))
        })?;
        if data.dtype != DType::F32 {
            let dtype = data.dtype;
            return Err(Error::Buffer(format!(
                "the gradient of {name} is {dtype:?}: gradients of f32 only can be averaged"
            )));
        }
        if data.num_elements() != parameter.len() {
            let (shape, expected) = (data.shape.to_vec(), &parameter.shape);
            return Err(Error::Buffer(format!(
                "the gradient of {name} has the shape {shape:?} instead of {expected:?}: make a new Reducer \
                 when the module changes"
            )));
        }
        Ok(data)
    };
    parameters.iter().zip(taken.data).map(check).collect()
}

/// Takes the gradients of a module.
struct Taken<'a> {
    places: &'a HashMap<ParamId, usize>,
    gradients: &'a mut GradientsParams,
    data: Vec<Option<TensorData>>,
    path: Path,
    /// Name of the first trained parameter without a place.
    unknown: Option<String>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Taken<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(data) = self.places.get(&param.id).and_then(|&index| self.data.get_mut(index)) {
            if let Some(gradient) = self.gradients.remove::<B::InnerBackend, D>(param.id) {
                *data = Some(gradient.into_data());
            }
            return;
        }
        let is_trained =
            || param.val().is_require_grad() || self.gradients.get::<B::InnerBackend, D>(param.id).is_some();
        if self.unknown.is_none() && is_trained() {
            self.unknown = Some(self.path.name());
        }
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }
}

/// Returns the averages to the gradients of a module.
struct Returned<'a> {
    /// Averages not yet returned.
    averages: HashMap<ParamId, TensorData>,
    gradients: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Returned<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(average) = self.averages.remove(&param.id) {
            let gradient =
                Tensor::<B::InnerBackend, D>::from_data(average, (&param.val().device(), DType::F32));
            self.gradients.register(param.id, gradient);
        }
    }
}
