//! The state of one communicator while a log is read.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::super::digest::{Communicator, Connection, Transport, Writer};

/// Numbers of dropped lines.
#[derive(Debug, Default)]
pub(in crate::log) struct LostLines {
    pub(in crate::log) members: u64,
    pub(in crate::log) timings: u64,
    pub(in crate::log) pairs: u64,
    pub(in crate::log) rings: u64,
    pub(in crate::log) choices: u64,
}

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
    /// Ranks with their writers, by lines about connections before the communicator is known.
    pub(super) claims: BTreeSet<(u32, usize)>,
    pub(super) pairs: HashMap<(u32, u32), PairChannels>,
}

impl CommunicatorState {
    /// Raises the number of ranks to `ranks` if `rank` is beyond the number that other ranks log. Returns
    /// `None` if `rank` is not below `ranks`.
    pub(super) fn raise_rank_count(&mut self, rank: u32, ranks: u32) -> Option<()> {
        let own = self.digest.ranks;
        if rank < own {
            return Some(());
        }
        if rank >= ranks {
            return None;
        }
        self.digest.ranks = ranks;
        for member in self.digest.members.values_mut() {
            member.other_size = member.other_size.or(Some(own));
        }
        Some(())
    }

    /// Returns the communicator with its connections. `places` has the final index of each writer.
    pub(super) fn into_digest(
        self,
        transports: &[Transport],
        places: &[usize],
        writers: &[Writer],
    ) -> Communicator {
        let Self { mut digest, pairs, claims, .. } = self;
        let name = |place: usize| writers.get(place).map(|writer| (&writer.host, writer.pid, writer.device));
        for member in digest.members.values_mut() {
            member.writer = places[member.writer];
        }
        for (rank, writer) in claims {
            let (Some(member), place) = (digest.members.get_mut(&rank), places[writer]) else { continue };
            if member.writer != place {
                digest.shared_ranks.insert(rank);
                // The order of the lines does not matter.
                member.writer = std::cmp::min_by_key(member.writer, place, |place| name(*place));
            }
        }
        for (pair, PairChannels { transports: used, seen }) in pairs {
            for (rank, channels) in [(pair.0, seen[0] | seen[1]), (pair.1, seen[2] | seen[3])] {
                if let Some(member) = digest.members.get_mut(&rank).filter(|_| channels != 0) {
                    member.logs_connections = true;
                }
            }
            let transport = |index: u16| transports[usize::from(index)].clone();
            let used = used.into_iter().map(|(index, channels)| (transport(index), channels.count_ones()));
            digest.connections.insert(pair, Connection { transports: used.collect() });
        }
        digest
    }
}
