//! Operations: collectives, point-to-point and one-sided operations, their checks, and their submission.

pub(crate) mod agreement;
pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod call;
mod call_config;
mod collectives;
mod functions;
mod group;
mod kind;
mod prepared;
mod reduction;
mod submit;

pub use call::{Call, Immediate, Launch};
pub use call_config::CallConfig;
pub use collectives::Collectives;
pub use group::{Group, group, simulate};
pub use prepared::{Preparation, Prepared};
pub use reduction::{Reduction, ScaledSum};
