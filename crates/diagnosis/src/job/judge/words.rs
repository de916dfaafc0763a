//! Names of ranks in sentences.

use std::collections::BTreeMap;

use crate::job::status::{Identity, JobCommunicator, RankPlace, Status};

/// Numbers of the ranks in the largest communicator, used as names of the ranks in all communicators.
#[derive(Debug)]
pub(super) struct RankNames<'a> {
    /// The largest communicator.
    pub largest: Option<&'a JobCommunicator>,
    numbers: BTreeMap<&'a RankPlace, u32>,
    has_several: bool,
}

impl<'a> RankNames<'a> {
    pub(super) fn new(status: &'a Status) -> Self {
        // The first one of equal size, so both answers have the same.
        let largest = status.communicators.iter().rev().max_by_key(|each| each.size);
        let present = largest.into_iter().flat_map(|each| &each.ranks);
        let absent = largest.into_iter().flat_map(|each| &each.missing);
        let present = present.filter_map(|rank| Some((rank.place.as_ref()?, rank.rank)));
        let absent = absent.filter_map(|rank| Some((rank.place.as_ref()?, rank.rank)));
        let numbers = present.chain(absent).filter(|(place, _)| place.pid >= 0).collect();
        Self { largest, numbers, has_several: status.communicator_count() > 1 }
    }

    /// Returns the number of a rank in the largest communicator.
    pub(super) fn number_in_largest(
        &self,
        communicator: &JobCommunicator,
        rank: u32,
        place: Option<&RankPlace>,
    ) -> Option<u32> {
        let is_largest = self.largest.is_some_and(|largest| largest.identity == communicator.identity);
        if is_largest { Some(rank) } else { self.numbers.get(place?).copied() }
    }

    /// Returns `rank 1 (GPU 0, process 4858 on 192.0.2.2)`.
    pub(super) fn name(
        &self,
        communicator: &JobCommunicator,
        rank: u32,
        place: Option<&RankPlace>,
    ) -> String {
        let number = self.number_in_largest(communicator, rank, place);
        let name = match number {
            Some(number) => format!("rank {number}"),
            None => format!("rank {rank} of communicator {}", communicator.identity),
        };
        match place {
            Some(place) => format!("{name} ({place})"),
            None => name,
        }
    }

    /// Returns ` in communicator 0x12 of 4 ranks`, or nothing for a single communicator.
    pub(super) fn within_communicator(&self, identity: &Identity, size: u32) -> String {
        if self.has_several { format!(" in communicator {identity} of {size} ranks") } else { String::new() }
    }
}
