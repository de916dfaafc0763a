//! The state of one communicator while a log is read.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::super::digest::Communicator;

/// The identity of a communicator across its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CommunicatorKey {
    Id(u64),
    /// A split: the parent's index, its number, the color.
    Split(Option<usize>, u32, i64),
    /// The last communicator without commId: its first lines are not in the log, or the version does not
    /// write it.
    Unnamed,
}

/// The channels from one rank to another.
#[derive(Debug, Default)]
pub(super) struct PairChannels {
    /// Channels seen, by kind of line: sender or receiver, collective or not.
    pub(super) seen: [u128; 4],
    /// Channels by transport.
    pub(super) transports: Vec<(u16, u128)>,
}

#[derive(Debug, Default)]
pub(super) struct CommunicatorState {
    pub(super) digest: Communicator,
    /// Members with a line about their rank and the size, if the communicator has no commId.
    pub(super) named: BTreeSet<u32>,
    pub(super) pairs: HashMap<(u32, u32), PairChannels>,
}
