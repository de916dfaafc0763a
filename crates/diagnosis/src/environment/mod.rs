//! The variables of NCCL, its plugins and libfabric: collected from an environment and from NCCL's files,
//! judged for the versions and the platform in use, and compared between ranks.

mod bad_value;
mod collection;
mod conf;
mod examine;
mod files;
mod json;
mod judge;
mod knowledge;
mod list;
mod names;
mod network;
mod number;
mod pairs;
mod parse;
mod process;
mod ranks;
mod setting;
mod situation;
mod submission;
mod value;
mod words;

#[cfg(test)]
mod tests;

pub use collection::Collection;
pub use examine::{Answer, examine_variables, find_harm};
pub use judge::{Judged, Verdict};
pub(crate) use knowledge::must_be_equal;
pub use knowledge::{Reading, VerdictKind, look_up_own_variable};
pub use network::Network;
pub use process::Process;
pub use ranks::{RankFinding, Snapshot, compare_ranks};
pub use semver::Version;
pub use setting::{Location, Setting, is_collected};
pub use situation::{NEWEST_LIBFABRIC, NEWEST_NCCL, NEWEST_PLUGIN, Platform, Situation, parse_version};
