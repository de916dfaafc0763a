//! Collective calls of a world: contributions, comparison and naming of ranks.

mod contribution;
mod log;
mod numbering;
mod pack;

pub(crate) use contribution::{Contribution, Late, agree, overdue};
pub(crate) use log::Ledger;
pub(crate) use numbering::Numbering;
pub(crate) use pack::{pack, unpack};
