//! Communicators, their members, and the connections between them.

mod state;

use std::collections::BTreeSet;

use state::{CommunicatorKey, CommunicatorState, LostLines};

use super::channel::{MOST_RANKS, RankChannel};
use super::digest::{Communicator, Member, Position, Transport, Writer};
use super::message::{self, Event, Life};
use super::text;
use super::writers::{Membership, ThreadLine};
use foldhash::HashMap;

/// Largest number of communicators.
const COMMUNICATORS: usize = 4096;
/// Number of recent communicators in the search for the communicator of a line.
const LAST: usize = 64;
/// Largest number of members of all communicators.
const MEMBERS: usize = 16_384;
/// Largest number of members with kept timings.
const TIMINGS: usize = 4096;
/// Largest number of pairs of ranks of all communicators.
const PAIRS: usize = 24_576;
/// Largest number of transports.
const TRANSPORTS: usize = 1024;
/// Name of all transports beyond the limit.
const MANY: &str = "one beyond the first 1024 transports";
/// Largest number of ranks in all orders of rings.
const RINGS: usize = 262_144;
/// Largest number of phases of a rank.
const PHASES: usize = 12;
/// Largest number of algorithms with protocols of all communicators.
const CHOICES: usize = 16_384;

/// Name of a communicator, if its ranks log its size and no commId.
const UNNAMED: &str = "without commId";

/// All communicators.
#[derive(Debug, Default)]
pub(super) struct Communicators {
    all: Vec<CommunicatorState>,
    keys: HashMap<CommunicatorKey, usize>,
    /// Communicators by process and address.
    addresses: HashMap<(usize, u64), Membership>,
    /// Number of splits of a parent with a color, by writer, for versions without numbers of splits.
    splits: HashMap<(usize, usize, i64), u32>,
    transports: Vec<Transport>,
    members: usize,
    timings: usize,
    pairs: usize,
    rings: usize,
    choices: usize,
    /// Lines dropped at a limit.
    pub(super) lost: LostLines,
}

impl Communicators {
    /// Returns the number of ranks of a communicator.
    pub(super) fn number_of_ranks(&self, communicator: usize) -> u32 {
        self.all.get(communicator).map_or(0, |state| state.digest.ranks)
    }

    /// Returns true for the communicator's number of ranks, and for the other number in this member's lines.
    fn has_size(&self, membership: Membership, ranks: u32) -> bool {
        let Some(Communicator { ranks: own, members, .. }) =
            self.all.get(membership.communicator).map(|state| &state.digest)
        else {
            return false;
        };
        let told = || members.get(&membership.rank).and_then(|member| member.other_size);
        *own == ranks || told() == Some(ranks)
    }

    /// Notes an event of a communicator, and returns its member.
    pub(super) fn note_event(
        &mut self,
        process: usize,
        writer: usize,
        life: &Life<'_>,
        line: ThreadLine,
    ) -> Option<Membership> {
        let position = line.position;
        let known = self.addresses.get(&(process, life.address)).copied();
        let known = known.filter(|known| known.rank == life.rank && self.has_size(*known, life.ranks));
        let membership = match (life.event, known) {
            // The address of a destroyed communicator is used again.
            (Event::Start, _) | (Event::Complete, None) => self
                .find_begun(writer, life, position)
                .or_else(|| self.identify_communicator(process, writer, life, position))
                .or_else(|| self.find_unnamed(writer, life, position)),
            (Event::Shape, None) => self.find_unnamed(writer, life, position),
            (_, Some(known)) => Some(self.name_communicator(known, life)),
            (Event::Aborted, None) => self.last_of(writer, life),
            (_, None) => None,
        }?;
        if self.addresses.len() < MEMBERS {
            self.addresses.insert((process, life.address), membership);
        }
        let state = &mut self.all[membership.communicator];
        state.digest.last = position;
        state.raise_rank_count(membership.rank, life.ranks)?;
        if state.digest.made_by.is_empty() && !life.made_by.is_empty() {
            state.digest.made_by = text::name(life.made_by);
        }
        state.digest.nodes = life.nodes.or(state.digest.nodes);
        // Only the commId proves that two sizes are of one communicator.
        let is_other = life.id.is_some() && life.ranks != state.digest.ranks;
        let member = self.add_member(membership, writer)?;
        member.other_size = is_other.then_some(life.ranks).or(member.other_size);
        member.nvml = life.nvml.or(member.nvml);
        member.mnnvl = life.mnnvl.or(member.mnnvl);
        if let Some(bus) = life.bus
            && member.bus_id.is_none()
        {
            member.bus_id = Some(message::bus_id(bus));
        }
        match life.event {
            Event::Start => {
                member.started = true;
                member.start = Some((line.thread, line.number));
            }
            Event::Complete => {
                member.complete = true;
                let start = member.start.filter(|(thread, _)| *thread == line.thread);
                member.start_lines = start.map(|(_, number)| line.number.saturating_sub(number));
            }
            Event::Destroyed => member.destroyed = true,
            Event::Aborted => member.aborted = true,
            Event::Shape => {}
        }
        if matches!(life.event, Event::Destroyed | Event::Aborted) {
            self.addresses.remove(&(process, life.address));
        }
        Some(membership)
    }

    /// Returns the writer's membership with this rank and size in one of the last communicators, for a line
    /// of an unknown communicator.
    fn last_of(&self, writer: usize, life: &Life<'_>) -> Option<Membership> {
        let is_own = |state: &CommunicatorState| {
            let member = state.digest.members.get(&life.rank);
            state.digest.ranks == life.ranks && member.is_some_and(|member| member.writer == writer)
        };
        let mut last = self.all.iter().enumerate().rev().take(LAST);
        let (communicator, _) = last.find(|(_, state)| is_own(state))?;
        Some(Membership { communicator, rank: life.rank })
    }

    /// Returns the communicator of a line without commId: the last one, unless it has this rank, or another
    /// size.
    fn find_unnamed(&mut self, writer: usize, life: &Life<'_>, position: Position) -> Option<Membership> {
        let fits = |state: &CommunicatorState| {
            let Communicator { ranks, members, .. } = &state.digest;
            let is_size = if state.named.is_empty() { *ranks <= life.ranks } else { *ranks == life.ranks };
            let is_writer = members.get(&life.rank).is_none_or(|member| member.writer == writer);
            is_size && is_writer && !state.named.contains(&life.rank)
        };
        if self.keys.get(&CommunicatorKey::Unnamed).is_some_and(|index| !fits(&self.all[*index])) {
            self.keys.remove(&CommunicatorKey::Unnamed);
        }
        let communicator =
            self.add_communicator(CommunicatorKey::Unnamed, String::new(), life.ranks, position)?;
        let has_room = self.members < MEMBERS;
        let state = &mut self.all[communicator];
        if has_room || state.named.is_empty() {
            state.named.insert(life.rank);
        }
        (state.digest.id, state.digest.ranks) = (UNNAMED.to_owned(), life.ranks);
        state.digest.is_size_guessed = false;
        Some(Membership { communicator, rank: life.rank })
    }

    /// Returns the communicator of the connections of this rank before the commId, if START is not in the
    /// log.
    fn find_begun(&mut self, writer: usize, life: &Life<'_>, position: Position) -> Option<Membership> {
        let is_known = life.event == Event::Start
            || life.id.is_none_or(|id| self.keys.contains_key(&CommunicatorKey::Id(id)));
        let last = &self.all[*self.keys.get(&CommunicatorKey::Unnamed)?].digest;
        if is_known || last.members.get(&life.rank)?.writer != writer {
            return None;
        }
        let begun = self.find_unnamed(writer, life, position)?;
        Some(self.name_communicator(begun, life))
    }

    /// Gives a communicator the commId of a later line.
    fn name_communicator(&mut self, known: Membership, life: &Life<'_>) -> Membership {
        let digest = &mut self.all[known.communicator].digest;
        let Some(id) = life.id.filter(|_| digest.id == UNNAMED) else { return known };
        if let Some(communicator) = self.keys.get(&CommunicatorKey::Id(id)) {
            return Membership { communicator: *communicator, ..known };
        }
        digest.id = format!("{id:#x}");
        self.keys.insert(CommunicatorKey::Id(id), known.communicator);
        if self.keys.get(&CommunicatorKey::Unnamed) == Some(&known.communicator) {
            self.keys.remove(&CommunicatorKey::Unnamed);
        }
        known
    }

    fn identify_communicator(
        &mut self,
        process: usize,
        writer: usize,
        life: &Life<'_>,
        position: Position,
    ) -> Option<Membership> {
        let parent = life.parent.and_then(|parent| self.addresses.get(&(process, parent)));
        let parent = parent.map(|parent| parent.communicator);
        let key = match (life.id, life.color) {
            (Some(id), _) => CommunicatorKey::Id(id),
            (None, Some(color)) => {
                let split = life.split.unwrap_or_else(|| {
                    let place = (writer, parent.unwrap_or(usize::MAX), color);
                    let count = self.splits.get(&place).copied().unwrap_or(0);
                    // A line COMPLETE without its START counts as the same split.
                    let count = count + u32::from(life.event == Event::Start || count == 0);
                    if self.splits.len() < MEMBERS {
                        self.splits.insert(place, count);
                    }
                    count
                });
                CommunicatorKey::Split(parent, split, color)
            }
            (None, None) => return None,
        };
        self.forget_whole(&key, life);
        let id = match &key {
            key if self.keys.contains_key(key) => String::new(),
            CommunicatorKey::Id(id) => format!("{id:#x}"),
            CommunicatorKey::Split(parent, split, color) => {
                let parent = parent.map_or("?", |parent| &self.all[parent].digest.id);
                text::shorten_message(format!("{parent}/{split}.{color}").as_bytes())
            }
            CommunicatorKey::Unnamed => UNNAMED.to_owned(),
        };
        let communicator = self.add_communicator(key, id, life.ranks, position)?;
        Some(Membership { communicator, rank: life.rank })
    }

    /// Lets a communicator of another size begin after all ranks completed the previous one with this commId:
    /// jobs with the same NCCL_COMM_ID have the same commId.
    fn forget_whole(&mut self, key: &CommunicatorKey, life: &Life<'_>) {
        let is_whole = |index: &usize| {
            let Communicator { ranks, members, .. } = &self.all[*index].digest;
            let complete = members.values().filter(|member| member.complete && member.other_size.is_none());
            *ranks != life.ranks && complete.count() == *ranks as usize
        };
        if life.event == Event::Start && self.keys.get(key).is_some_and(is_whole) {
            self.keys.remove(key);
        }
    }

    fn add_communicator(
        &mut self,
        key: CommunicatorKey,
        id: String,
        ranks: u32,
        first: Position,
    ) -> Option<usize> {
        if let Some(index) = self.keys.get(&key) {
            return Some(*index);
        }
        if self.all.len() == COMMUNICATORS {
            self.lost.members += 1;
            return None;
        }
        self.all.push(CommunicatorState {
            digest: Communicator { id, ranks, first, last: first, ..Communicator::default() },
            ..CommunicatorState::default()
        });
        self.keys.insert(key, self.all.len() - 1);
        Some(self.all.len() - 1)
    }

    fn add_member(&mut self, membership: Membership, writer: usize) -> Option<&mut Member> {
        let members = &mut self.all[membership.communicator].digest.members;
        if !members.contains_key(&membership.rank) {
            if self.members == MEMBERS {
                self.lost.members += 1;
                return None;
            }
            self.members += 1;
        }
        Some(members.entry(membership.rank).or_insert_with(|| Member { writer, ..Member::default() }))
    }

    /// Notes a channel of a member of the communicator. Returns true if the line can be a line of this
    /// member. A repeated line is refused unless `again` is true.
    pub(super) fn connect_member(
        &mut self,
        member: Membership,
        channel: &RankChannel<'_>,
        again: bool,
    ) -> bool {
        let (own, peer) = own_and_peer(channel);
        let Some(state) = self.all.get_mut(member.communicator) else { return false };
        if own != member.rank || peer >= state.digest.ranks {
            return false;
        }
        let pair = match state.pairs.get_mut(&(channel.from, channel.to)) {
            Some(pair) => pair,
            None if self.pairs == PAIRS => {
                self.lost.pairs += 1;
                return true;
            }
            None => {
                self.pairs += 1;
                state.pairs.entry((channel.from, channel.to)).or_default()
            }
        };
        let kind = usize::from(channel.is_receive) * 2 + usize::from(channel.index > 0);
        let bit = 1 << channel.number.min(127);
        if pair.seen[kind] & bit != 0 && !again {
            return false;
        }
        pair.seen[kind] |= bit;
        let transports = &mut self.transports;
        let known = pair
            .transports
            .iter_mut()
            .find(|(index, _)| channel.via.matches_transport(&transports[usize::from(*index)]));
        if let Some((_, channels)) = known {
            *channels |= bit;
        } else if self.pairs == PAIRS && !pair.transports.is_empty() {
            self.lost.pairs += 1;
        } else {
            self.pairs += usize::from(!pair.transports.is_empty());
            let index = transports
                .iter()
                .position(|transport| channel.via.matches_transport(transport))
                .unwrap_or_else(|| {
                    if transports.len() < TRANSPORTS {
                        transports.push(channel.via.to_transport());
                        return transports.len() - 1;
                    }
                    self.lost.pairs += 1;
                    if transports.len() == TRANSPORTS {
                        transports.push(Transport::Other(MANY.to_owned()));
                    }
                    TRANSPORTS
                });
            pair.transports.push((index as u16, bit));
        }
        true
    }

    /// Notes a channel of a communicator without an initialisation in the log, and returns the member.
    pub(super) fn connect_unseen(
        &mut self,
        writer: usize,
        channel: &RankChannel<'_>,
        position: Position,
    ) -> Option<Membership> {
        let (own, peer) = own_and_peer(channel);
        let least = own.max(peer).checked_add(1)?;
        if channel.ranks.is_some_and(|ranks| ranks < least) {
            // The line contradicts itself: two were written into one another.
            self.lost.pairs += 1;
            return None;
        }
        let is_guessed = channel.ranks.is_none();
        let least = channel.ranks.unwrap_or(least);
        // Another communicator begins if the last one has a size, and is smaller, or has this rank.
        let is_other = |state: &CommunicatorState| {
            let is_taken = || {
                let member = state.digest.members.get(&own);
                state.named.contains(&own) && member.is_some_and(|member| member.writer != writer)
            };
            !state.named.is_empty() && (state.digest.ranks < least || is_taken())
        };
        if self.keys.get(&CommunicatorKey::Unnamed).is_some_and(|index| is_other(&self.all[*index])) {
            self.keys.remove(&CommunicatorKey::Unnamed);
        }
        let communicator = self.add_communicator(CommunicatorKey::Unnamed, String::new(), 0, position)?;
        let state = &mut self.all[communicator];
        let digest = &mut state.digest;
        digest.is_size_guessed |= is_guessed && digest.ranks == 0;
        digest.is_size_guessed &= is_guessed;
        digest.ranks = digest.ranks.max(least);
        if state.claims.len() < MEMBERS {
            state.claims.insert((own, writer));
        }
        let membership = Membership { communicator, rank: own };
        self.add_member(membership, writer);
        self.connect_member(membership, channel, true);
        Some(membership)
    }

    /// Returns true if the log has no start of this communicator, and no commId.
    pub(super) fn is_without_start(&self, membership: Membership) -> bool {
        let state = self.all.get(membership.communicator);
        state.is_some_and(|state| state.digest.id.is_empty() || state.digest.id == UNNAMED)
    }

    /// Notes the number of ranks in a line of a rank, for a communicator without one.
    pub(super) fn note_size(&mut self, membership: Membership, rank: u32, ranks: u32) {
        let digest = self.all.get_mut(membership.communicator).map(|state| &mut state.digest);
        if let Some(digest) = digest.filter(|digest| digest.is_size_guessed)
            && (digest.ranks..=MOST_RANKS).contains(&ranks)
            && rank == membership.rank
        {
            (digest.ranks, digest.is_size_guessed) = (ranks, false);
        }
    }

    /// Notes the number of ranks of a ring with all of them.
    fn note_size_of_ring(&mut self, membership: Membership, order: &[u32]) {
        let is_guessed =
            self.all.get(membership.communicator).is_some_and(|state| state.digest.is_size_guessed);
        if is_guessed && let Ok(ranks) = u32::try_from(order.len()) {
            let ring: BTreeSet<u32> = order.iter().copied().filter(|rank| *rank < ranks).collect();
            if ring.len() == order.len() {
                self.note_size(membership, membership.rank, ranks);
            }
        }
    }

    /// Returns the member, if the digest has it.
    pub(super) fn member_mut(&mut self, membership: Membership) -> Option<&mut Member> {
        self.all.get_mut(membership.communicator)?.digest.members.get_mut(&membership.rank)
    }

    /// Returns the communicator.
    pub(super) fn communicator_mut(&mut self, membership: Membership) -> Option<&mut Communicator> {
        self.all.get_mut(membership.communicator).map(|state| &mut state.digest)
    }

    /// Notes the order of a ring, if it has all ranks of the communicator.
    pub(super) fn note_ring(&mut self, membership: Membership, mut order: Vec<u32>) {
        self.note_size_of_ring(membership, &order);
        let Some(state) = self.all.get_mut(membership.communicator) else { return };
        if order.len() != state.digest.ranks as usize || state.digest.rings.contains(&order) {
            return;
        }
        if self.rings + order.len() > RINGS {
            self.lost.rings += 1;
            return;
        }
        order.shrink_to_fit();
        self.rings += order.len();
        state.digest.rings.insert(order);
    }

    /// Notes the algorithm and protocol of an operation.
    pub(super) fn note_choice(&mut self, membership: Membership, algorithm: &[u8], protocol: &[u8]) {
        let Some(state) = self.all.get_mut(membership.communicator) else { return };
        let choices = &mut state.digest.choices;
        let is = |name: &str| {
            let (first, second) = name.as_bytes().split_at(algorithm.len().min(name.len()));
            first == algorithm && second.strip_prefix(b" ") == Some(protocol)
        };
        if let Some((_, count)) = choices.iter_mut().find(|(name, _)| is(name)) {
            *count += 1;
            return;
        }
        // The name as it is kept can be shorter.
        let name = text::name(&[algorithm, b" ", protocol].concat());
        if let Some(count) = choices.get_mut(&name) {
            *count += 1;
        } else if self.choices < CHOICES {
            self.choices += 1;
            choices.insert(name, 1);
        } else {
            self.lost.choices += 1;
        }
    }

    /// Notes the seconds of the phases of the initialisation, or of the bootstrap.
    pub(super) fn note_phases(&mut self, membership: Membership, phases: &[u8], is_bootstrap: bool) {
        if self.timings >= TIMINGS * 2 {
            self.lost.timings += 1;
            return;
        }
        let Some(member) = self.member_mut(membership) else { return };
        let timings = if is_bootstrap { &mut member.bootstrap } else { &mut member.timings };
        let is_first = timings.is_empty();
        for (phase, seconds) in message::parse_phases(phases) {
            if timings.len() < PHASES {
                timings.insert(phase.to_owned(), seconds);
            }
        }
        self.timings += usize::from(is_first);
    }

    /// Returns the communicators with their connections. `places` has the final index of each writer.
    pub(super) fn into_communicators(self, places: &[usize], writers: &[Writer]) -> Vec<Communicator> {
        let transports = self.transports;
        self.all.into_iter().map(|state| state.into_digest(&transports, places, writers)).collect()
    }
}

/// Returns the rank of the line's writer, and its peer.
fn own_and_peer(channel: &RankChannel<'_>) -> (u32, u32) {
    if channel.is_receive { (channel.to, channel.from) } else { (channel.from, channel.to) }
}
