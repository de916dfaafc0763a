//! all_to_all.

use super::super::{Place, Position, Round, Schedule, Split, scratch, source, target};
use super::{Levels, Packed};
use crate::fabric::selection::Algorithm;

/// Inside a host every rank gives each lane what goes to the lane's ranks on all hosts, and the ranks of each lane exchange
/// that between hosts, in one message to each: h-1 messages between hosts from each rank, where a flat exchange has q
/// (h-1), and as many bytes. With Bruck's algorithm parts for several hosts travel in one message, as often as the
/// distance between the hosts takes: lg h messages, rounded up.
///
/// It is for short messages: every part is copied into messages and out of them, and all pass through one rank more than
/// the two that they concern.
pub(crate) struct Hierarchical<'a> {
    pub(crate) levels: Levels<'a>,
    pub(crate) at: Position,
    /// Bytes of a part.
    pub(crate) part: usize,
    /// The most bytes of a segment of a part.
    pub(crate) segment: usize,
    /// Segments in flight together.
    pub(crate) in_flight: usize,
}

/// Rounds before those between hosts: the parts are put in order, and exchanged inside the host.
const BEFORE: usize = 2;

impl<'a> Hierarchical<'a> {
    fn segments(&self) -> Split {
        Split::into_segments(self.part, 1, self.segment)
    }

    /// The lane through which goes what comes to this rank.
    fn lane(&self) -> usize {
        self.levels.here.index % self.levels.here.hosts.lanes()
    }

    fn has_lane(&self) -> bool {
        self.levels.here.index == self.lane()
    }

    /// How many ranks of a host, or of its bundle in this lane, there are.
    fn ranks_of(&self, host: usize) -> usize {
        self.levels.here.hosts.ranks_of(host).len()
    }

    fn bundle_len(&self, host: usize) -> usize {
        self.levels.here.hosts.bundle_len(host, self.lane())
    }

    /// Rounds between hosts.
    fn steps(&self) -> usize {
        let hosts = self.levels.here.hosts.count();
        match self.levels.between {
            Algorithm::Pairwise => hosts - 1,
            Algorithm::Bruck => hosts.next_power_of_two().ilog2() as usize,
            // All at once, which serves every number of hosts.
            _ => 1,
        }
    }

    /// Room for the parts that go from one host to another in this lane, whichever these are.
    fn slot(&self, len: usize) -> usize {
        let hosts = 0..self.levels.here.hosts.count();
        let ranks = hosts.clone().map(|host| self.ranks_of(host)).max().unwrap_or(0);
        ranks * hosts.map(|host| self.bundle_len(host)).max().unwrap_or(0) * len
    }

    /// The scratch memory is in three parts. In the first is what goes to the lanes of this host, then what goes to each
    /// host, or, for a rank without a lane, what it gets in the end.
    fn first(&self, len: usize) -> usize {
        (self.at.ranks * len).max(self.levels.here.hosts.count() * self.slot(len))
    }

    /// In the second is what comes from the ranks of this host, then what comes from other hosts.
    fn second(&self, len: usize) -> usize {
        let from_here = self.levels.here.neighbours().len() * self.got(0, len).len();
        from_here.max(self.levels.here.hosts.count() * self.slot(len))
    }

    /// In the third is what goes to each rank of the bundle but this one.
    fn third(&self, len: usize) -> usize {
        (self.bundle_len(self.levels.here.host) - 1) * self.at.ranks * len
    }

    /// What goes to a lane of this host: parts for the lane's ranks on this host first, then those on the hosts above.
    fn given(&self, lane: usize, len: usize) -> Packed<'a> {
        let here = self.levels.here;
        let start = (0..lane).map(|lane| Packed::new(here, lane, 0, len).len()).sum();
        Packed::new(here, lane, start, len)
    }

    /// What comes from a rank of this host, in the same order.
    fn got(&self, index: usize, len: usize) -> Packed<'a> {
        let (here, lane) = (self.levels.here, self.lane());
        let before = index * Packed::new(here, lane, 0, len).len();
        Packed::new(here, lane, self.first(len) + before, len)
    }

    /// What goes to the host at `distance` above.
    fn leaving(&self, distance: usize, len: usize) -> usize {
        distance * self.slot(len)
    }

    /// What comes from the host at `distance` below.
    fn arrived(&self, distance: usize, len: usize) -> usize {
        self.first(len) + distance * self.slot(len)
    }

    /// Where the part of a rank for this one, or for another of its bundle, comes to be.
    fn result(&self, position: usize, rank: usize, (start, len): (usize, usize)) -> Place {
        if position == 0 {
            return target(rank * self.part + start);
        }
        let before = (position - 1) * self.at.ranks + rank;
        scratch(self.first(len) + self.second(len) + before * len)
    }

    /// The parts for each lane one after the other; for this rank's own where those of the others will be.
    fn put_in_order(&self, (start, len): (usize, usize), round: &mut Round) {
        let here = self.levels.here;
        for lane in 0..here.hosts.lanes() {
            let own = self.has_lane() && lane == here.index;
            let packed = if own { self.got(here.index, len) } else { self.given(lane, len) };
            for distance in 0..here.hosts.count() {
                for (position, rank) in here.hosts.bundle(here.above(distance), lane).enumerate() {
                    round.copy(source(rank * self.part + start), packed.place(distance, position), len);
                }
            }
        }
    }

    fn inside(&self, (start, len): (usize, usize), round: &mut Round) {
        let here = self.levels.here;
        let ranks = here.neighbours();
        for other in here.others() {
            if other < here.hosts.lanes() {
                let given = self.given(other, len);
                round.send(ranks[other], given.place(0, 0), given.len());
            }
            if self.has_lane() {
                let got = self.got(other, len);
                round.receive(ranks[other], got.place(0, 0), got.len());
            }
        }
        if !self.has_lane() {
            return;
        }
        for (index, &rank) in ranks.iter().enumerate() {
            let got = self.got(index, len);
            for position in 0..self.bundle_len(here.host) {
                round.copy(got.place(0, position), self.result(position, rank, (start, len)), len);
            }
            for distance in 1..here.hosts.count() {
                let parts = got.len_of(distance, 1);
                let to = scratch(self.leaving(distance, len) + index * parts);
                round.copy(got.place(distance, 0), to, parts);
            }
        }
        if self.levels.between == Algorithm::Bruck {
            self.pack(0, len, round);
        }
    }

    /// The parts from the host at `distance` below, which lie one after the other, come to where they belong.
    fn unpack(&self, from: usize, distance: usize, (start, len): (usize, usize), round: &mut Round) {
        let here = self.levels.here;
        let mut from = from;
        for &rank in here.hosts.ranks_of(here.below(distance)) {
            for position in 0..self.bundle_len(here.host) {
                round.copy(scratch(from), self.result(position, rank, (start, len)), len);
                from += len;
            }
        }
    }

    /// This lane's rank of another host.
    fn peer(&self, host: usize) -> usize {
        self.levels.here.hosts.ranks_of(host)[self.levels.here.index]
    }

    /// Each host's parts in a message of their own.
    fn exchange(&self, distance: usize, (start, len): (usize, usize), round: &mut Round) {
        let here = self.levels.here;
        let (above, below) = (here.above(distance), here.below(distance));
        let leaving = self.ranks_of(here.host) * self.bundle_len(above) * len;
        round.send(self.peer(above), scratch(self.leaving(distance, len)), leaving);
        let arrived = self.arrived(distance, len);
        let arriving = self.ranks_of(below) * self.bundle_len(here.host) * len;
        round.receive(self.peer(below), scratch(arrived), arriving);
        self.unpack(arrived, distance, (start, len), round);
    }

    /// The distances that have a step of Bruck's algorithm in them.
    fn travellers(&self, step: usize) -> impl Iterator<Item = usize> + use<> {
        (1..self.levels.here.hosts.count()).filter(move |distance| distance >> step & 1 == 1)
    }

    /// Bytes of what travels a distance from the host that is `back` below this one.
    fn travelling(&self, distance: usize, back: usize, len: usize) -> usize {
        let (from, hosts) = (self.levels.here.below(back), self.levels.here.hosts.count());
        self.ranks_of(from) * self.bundle_len((from + distance) % hosts) * len
    }

    /// Puts together what is sent in a step: what has gone the lower steps of its distance.
    fn pack(&self, step: usize, len: usize, round: &mut Round) {
        let mut packed = self.arrived(0, len);
        for distance in self.travellers(step) {
            let bytes = self.travelling(distance, distance % (1 << step), len);
            round.copy(scratch(self.leaving(distance, len)), scratch(packed), bytes);
            packed += bytes;
        }
    }

    fn round_of_bruck(&self, step: usize, part: (usize, usize), round: &mut Round) {
        let (here, (_, len)) = (self.levels.here, part);
        let sum = |back: &dyn Fn(usize) -> usize| {
            self.travellers(step).map(|distance| self.travelling(distance, back(distance), len)).sum()
        };
        let (gone, before) = (1 << (step + 1), 1 << step);
        round.send(
            self.peer(here.above(before)),
            scratch(self.arrived(0, len)),
            sum(&|distance| distance % before),
        );
        // At most half of the distances have a step in them.
        let mut arrived = self.arrived(here.hosts.count() / 2, len);
        round.receive(self.peer(here.below(before)), scratch(arrived), sum(&|distance| distance % gone));
        for distance in self.travellers(step) {
            let bytes = self.travelling(distance, distance % gone, len);
            round.copy(scratch(arrived), scratch(self.leaving(distance, len)), bytes);
            arrived += bytes;
        }
        if step + 1 < self.steps() {
            return self.pack(step + 1, len, round);
        }
        for distance in 1..here.hosts.count() {
            self.unpack(self.leaving(distance, len), distance, part, round);
        }
    }

    /// Ranks without a lane get their parts, in the order of the ranks.
    fn give(&self, (start, len): (usize, usize), round: &mut Round) {
        let (here, ranks) = (self.levels.here, self.at.ranks);
        if self.has_lane() {
            for (position, rank) in here.hosts.bundle(here.host, here.index).enumerate().skip(1) {
                round.send(rank, self.result(position, 0, (start, len)), ranks * len);
            }
            return;
        }
        round.receive(here.neighbours()[self.lane()], scratch(0), ranks * len);
        for rank in 0..ranks {
            round.copy(scratch(rank * len), target(rank * self.part + start), len);
        }
    }
}

// SAFETY: the source is read in the first round, which has no messages, and the target written after it. What is sent and
// what is received are in different parts of the scratch memory, or, with Bruck's algorithm, in different halves of one.
// Segments are disjoint.
unsafe impl Schedule for Hierarchical<'_> {
    fn segments(&self) -> usize {
        self.segments().parts()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn rounds(&self) -> usize {
        BEFORE + self.steps() + usize::from(self.levels.here.hosts.have_others())
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn scratch_len(&self) -> usize {
        let len = self.segments().largest();
        if self.has_lane() {
            self.first(len) + self.second(len) + self.third(len)
        } else {
            self.at.ranks * len
        }
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let part = self.segments().span(segment);
        match number.checked_sub(BEFORE) {
            None if number == 0 => self.put_in_order(part, round),
            None => self.inside(part, round),
            Some(step) if step == self.steps() => self.give(part, round),
            Some(_) if !self.has_lane() => {}
            Some(step) => match self.levels.between {
                Algorithm::Pairwise => self.exchange(step + 1, part, round),
                Algorithm::Bruck => self.round_of_bruck(step, part, round),
                _ => (1..self.levels.here.hosts.count())
                    .for_each(|distance| self.exchange(distance, part, round)),
            },
        }
    }
}
