//! Collective calls of a world: contributions, comparison and naming of ranks.

mod contribution;
mod difference;
mod log;
mod numbering;
mod pack;

pub(crate) use contribution::{Contribution, LateRank, combine, late_error};
pub(crate) use difference::Difference;
pub(crate) use log::CallLog;
pub(crate) use numbering::Numbering;
pub(crate) use pack::{pack, unpack};
