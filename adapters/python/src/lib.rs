//! The Python module `nccl_collectives`: collectives of a job over numpy arrays and tensors of torch, without
//! copies. Its README.md is the documentation; `nccl_collectives.pyi` has the types.

mod device;
mod error;
mod group;
mod operation;
mod process;
mod tensor;
mod work;

use pyo3::prelude::*;

#[pymodule]
fn nccl_collectives(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<group::Job>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<work::Work>()?;
    module.add_function(pyo3::wrap_pyfunction!(group::init, module)?)?;
    error::register(module)
}
