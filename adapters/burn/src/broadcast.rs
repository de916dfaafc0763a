//! Equal parameters on all ranks.

use burn_core::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn_core::tensor::{Bool, Int, Tensor, TensorData, backend::Backend};
use collectives::{Error, job::Group};

use crate::parameters::Path;

/// Gives all ranks the parameters of rank `root`: of any element type, also untrained ones, and the running
/// averages of normalisations (burn keeps them as parameters). Collective; call it once, before the
/// optimizer's first step.
///
/// # Errors
/// [`Error::Job`] if the ranks' parameters differ in number, names, shapes or types: names the first
/// difference, the same on all ranks. Otherwise the errors of [`Group::broadcast_in_place`].
pub fn broadcast<B: Backend, M: Module<B>>(group: &Group, module: M, root: usize) -> Result<M, Error> {
    let mut collected = Collected::default();
    module.visit(&mut collected);
    let Collected { mut data, names, .. } = collected;
    compare(group, &names)?;
    let mut bytes = data.iter().flat_map(|each| each.as_bytes()).copied().collect::<Vec<u8>>();
    group.broadcast_in_place(&mut bytes, root)?;
    if group.rank() == root {
        return Ok(module);
    }
    let mut rest = bytes.as_slice();
    for each in &mut data {
        let Some((mine, after)) = rest.split_at_checked(each.as_bytes().len()) else { break };
        each.bytes.copy_from_slice(mine);
        rest = after;
    }
    Ok(module.map(&mut Replaced(data.into_iter())))
}

/// Compares the descriptions of the parameters of all ranks.
fn compare(group: &Group, names: &[String]) -> Result<(), Error> {
    let ranks = group.all_gather_bytes(names.join("\n").as_bytes())?;
    let ranks = ranks.iter().map(|each| String::from_utf8_lossy(each)).collect::<Vec<_>>();
    let Some(first) = ranks.first() else { return Ok(()) };
    let Some((rank, other)) = ranks.iter().enumerate().find(|(_, other)| *other != first) else {
        return Ok(());
    };
    let mut pair = (first.lines(), other.lines());
    let difference = std::iter::from_fn(|| match (pair.0.next(), pair.1.next()) {
        (None, None) => None,
        both => Some(both),
    });
    let (left, right) = difference.into_iter().find(|(left, right)| left != right).unwrap_or_default();
    let (left, right) = (left.unwrap_or("no further parameter"), right.unwrap_or("no further parameter"));
    Err(Error::Job(format!(
        "the modules of the ranks differ: rank 0 has the parameter {left}, but rank {rank} has {right}; \
         make the same module on all ranks"
    )))
}

/// Values of all parameters, with their descriptions.
#[derive(Default)]
struct Collected {
    path: Path,
    names: Vec<String>,
    data: Vec<TensorData>,
}

impl Collected {
    fn push(&mut self, data: TensorData) {
        self.names.push(format!("{} of {:?}, {:?}", self.path.name(), data.shape.to_vec(), data.dtype));
        self.data.push(data);
    }
}

impl<B: Backend> ModuleVisitor<B> for Collected {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.push(param.val().into_data());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.push(param.val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.push(param.val().into_data());
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }
}

/// Replaces the values of all parameters, in the order of [`Collected`].
struct Replaced(std::vec::IntoIter<TensorData>);

impl<B: Backend> ModuleMapper<B> for Replaced {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(data) = self.0.next() else { return param };
        let (id, old, mapper) = param.consume();
        let new =
            Tensor::from_data(data, (&old.device(), old.dtype())).set_require_grad(old.is_require_grad());
        Param::from_mapped_value(id, new, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<B, D, Int>>) -> Param<Tensor<B, D, Int>> {
        let Some(data) = self.0.next() else { return param };
        let (id, old, mapper) = param.consume();
        Param::from_mapped_value(id, Tensor::from_data(data, (&old.device(), old.dtype())), mapper)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<B, D, Bool>>) -> Param<Tensor<B, D, Bool>> {
        let Some(data) = self.0.next() else { return param };
        let (id, old, mapper) = param.consume();
        Param::from_mapped_value(id, Tensor::from_data(data, &old.device()), mapper)
    }
}
