//! Data-parallel training with burn: every rank of a job has the same module and data of its own, and the
//! gradients of a step are averaged over the ranks before the optimizer takes them.
//!
//! - [`broadcast`] gives all ranks the parameters of one, once at the start.
//! - [`Reducer`] averages the gradients of a module.
//!
//! ```no_run
//! use burn_core::module::AutodiffModule;
//! use burn_core::tensor::{Tensor, backend::AutodiffBackend};
//! use burn_optim::{GradientsParams, Optimizer};
//! use collectives::Error;
//! use collectives::job::{Backend, Job};
//! use collectives_burn::{Reducer, broadcast};
//!
//! fn train<B: AutodiffBackend, M: AutodiffModule<B>>(
//!     module: M,
//!     mut optimizer: impl Optimizer<M, B>,
//!     loss_of_step: impl Fn(&M, u64) -> Tensor<B, 1>,
//! ) -> Result<M, Error> {
//!     let group = Job::from_environment()?.group(Backend::Host)?;
//!     let mut module = broadcast(&group, module, 0)?;
//!     let mut reducer = Reducer::new(&group, &module)?;
//!     for step in 0..1000 {
//!         let gradients = GradientsParams::from_grads(loss_of_step(&module, step).backward(), &module);
//!         let gradients = reducer.average(step, &module, gradients)?;
//!         module = optimizer.step(1e-3, module, gradients);
//!     }
//!     Ok(module)
//! }
//! ```
//!
//! # Backends
//! Any backend of burn with `f32` gradients, with a group of hosts. Gradients pass through burn's
//! `TensorData`: they are copied out of the backend, into the reducer's buckets, and back. On GPUs this is a
//! transfer to host memory and back, so this crate is meant for CPU backends.

mod broadcast;
mod parameters;
mod reducer;

pub use broadcast::broadcast;
pub use reducer::Reducer;
