//! Parameters of a module in its own order, the same on all ranks. (Their ids are random, and differ.)

use std::collections::HashSet;

use burn_core::module::{Module, ModuleVisitor, Param, ParamId};
use burn_core::tensor::{Tensor, backend::Backend};

/// Fields from the module to the visited parameter.
#[derive(Default)]
pub(crate) struct Path(Vec<String>);

impl Path {
    pub(crate) fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }

    /// Name of the parameter: `encoder.layers.0.weight`.
    pub(crate) fn name(&self) -> String {
        self.0.join(".")
    }
}

/// A trained parameter.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) id: ParamId,
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
}

impl Parameter {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Lists the parameters that require a gradient. A parameter shared by several modules is listed once.
pub(crate) fn trained<B: Backend, M: Module<B>>(module: &M) -> Vec<Parameter> {
    let mut visitor = Trained::default();
    module.visit(&mut visitor);
    visitor.parameters
}

#[derive(Default)]
struct Trained {
    path: Path,
    seen: HashSet<ParamId>,
    parameters: Vec<Parameter>,
}

impl<B: Backend> ModuleVisitor<B> for Trained {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let tensor = param.val();
        if tensor.is_require_grad() && self.seen.insert(param.id) {
            let (id, name, shape) = (param.id, self.path.name(), tensor.dims().to_vec());
            self.parameters.push(Parameter { id, name, shape });
        }
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }
}
