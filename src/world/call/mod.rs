//! Collective calls of a world: contributions, comparison and naming of ranks.

mod contribution;
mod log;
mod mismatch;
mod numbering;
mod pack;
mod timeout;

pub(crate) use contribution::{Contribution, LateRank, combine_contributions, late_error};
pub(crate) use log::CallLog;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) use mismatch::LEFT;
pub use mismatch::Mismatch;
pub(crate) use numbering::Numbering;
pub(crate) use pack::{pack_messages, unpack_messages};
pub(crate) use timeout::MAX_NAMED;
pub use timeout::{Awaited, Timeout, Wait};
