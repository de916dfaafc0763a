//! Data-parallel training with candle: averages of gradients ([`Reducer`]), and AdamW with its state in
//! shards ([`Zero1`]).
//!
//! Every rank computes the gradients of its part of the batch. Five lines make a training loop data-parallel,
//! under mpirun, torchrun, Slurm or Kubernetes, on CPUs, and on GPUs with the feature `cuda`:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{AdamW, Module, Optimizer, VarBuilder, VarMap};
//! use collectives::job::Job;
//! use collectives_candle::Reducer;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let job = Job::from_environment()?; // 1
//! let device = collectives_candle::device(&job, false)?; // 2
//! let variables = VarMap::new();
//! let model = candle_nn::linear(4, 1, VarBuilder::from_varmap(&variables, DType::F32, &device))?;
//! let mut optimizer = AdamW::new_lr(variables.all_vars(), 0.1)?;
//!
//! let group = collectives_candle::group(&job, &device)?; // 3
//! let mut reducer = Reducer::new(&group, &variables)?; // 4
//! for step in 0..10 {
//!     // This rank's part of the batch.
//!     let batch = Tensor::full(step as f32 + job.rank() as f32, (8, 4), &device)?;
//!     let loss = (model.forward(&batch)? - 1.0)?.sqr()?.mean_all()?;
//!     let mut gradients = loss.backward()?;
//!     reducer.average(step, &mut gradients)?; // 5
//!     optimizer.step(&gradients)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Order of gradients
//! candle returns the gradients of a backward pass all at once, so communication begins after it.
//!
//! # GPUs
//! See [`group`].

mod adamw;
mod error;
#[cfg(feature = "cuda")]
mod gpu;
mod memory;
mod named;
mod parameters;
mod reducer;
mod tensors;
mod zero1;

pub use adamw::AdamW;
pub use error::Error;
pub use reducer::Reducer;
pub use tensors::{all_reduce, device, group};
pub use zero1::Zero1;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
