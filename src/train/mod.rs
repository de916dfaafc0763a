//! Collectives of a training loop: averages of gradients ([`Reducer`]), and optimizer state in shards
//! ([`Zero1`]).
//!
//! Gradients are in host memory (`Vec<f32>`) or GPU memory (cudarc's `CudaSlice<f32>`). Five lines make a
//! loop data-parallel:
//!
//! ```
//! use collectives::job::{Backend, Job};
//! use collectives::train::{Parameter, Reducer, ReducerOptions};
//! # use collectives::world;
//!
//! # let job = Job::new(world::single()); /*
//! let job = Job::from_environment()?;
//! # */
//! let group = job.group(Backend::Host)?;
//! let parameters = [Parameter::new("weight", [3, 2]), Parameter::new("bias", [3])];
//! let mut reducer = Reducer::<Vec<f32>>::new(&group, &parameters, &ReducerOptions::default())?;
//!
//! let (mut weight, mut bias) = ([0.5; 6], [0.25; 3]); // the gradients of a backward pass
//! reducer.average(0, &mut [&mut weight, &mut bias])?; // of step 0, then the optimizer's step
//! # assert_eq!((weight, bias), ([0.5; 6], [0.25; 3]));
//!
//! // The same during the backward pass: each gradient as soon as it is computed.
//! let mut step = reducer.step(1)?;
//! step.ready(1, &bias)?;
//! step.ready(0, &weight)?;
//! step.wait()?;
//! assert_eq!(reducer.gradient(1)?, &[0.25; 3]);
//! # Ok::<(), collectives::Error>(())
//! ```

mod bucket;
#[cfg(feature = "nccl")]
mod cuda;
mod failure;
#[cfg(feature = "fabric")]
mod host;
mod layout;
mod options;
mod ordered;
mod parameter;
mod reducer;
#[cfg(feature = "nccl")]
mod rounding;
mod schedule;
mod shards;
mod slot;
mod streams;
mod zero1;

pub use bucket::{Bucket, Gradient};
pub use options::{ReducerOptions, Wire};
pub use parameter::Parameter;
pub use reducer::{Reducer, Step};
pub use zero1::Zero1;
