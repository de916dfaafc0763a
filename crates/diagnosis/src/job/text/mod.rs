//! Answers of RAS as text (NCCL 2.24 and later).
//!
//! The text lists only differences: ranks without data, with errors, or with a state or counts unlike other
//! ranks'. In NCCL 2.24 and 2.25 one count covers all collectives. Later versions have a count per
//! collective.

mod groups;
mod line;

use std::collections::{BTreeMap, BTreeSet};

use groups::{Budget, RankGroup};
use line::{AnswerLine, Heading, RankFact, Topic};

use super::malformed::Malformed;
use super::status::{
    Absence, Format, Identity, JobCommunicator, MissingRank, Processes, Rank, RankPlace, State, Status,
};

/// Reads a text answer.
///
/// # Errors
/// [`Malformed`] if the text is not an answer of RAS, or ends early.
pub fn parse_text(text: &str) -> Result<Status, Malformed> {
    let mut reader = AnswerReader::new();
    for line in text.lines() {
        if let Some(line) = line::read_line(line) {
            reader.take_line(line);
        }
    }
    reader.into_status()
}

/// State of the reading.
struct AnswerReader {
    status: Status,
    drafts: Vec<Draft>,
    /// Indices of the drafts by kind and hash.
    indices: BTreeMap<(usize, u64), usize>,
    /// Index of the lines' communicator.
    current: Option<usize>,
    part: Option<Heading>,
    topic: Option<Topic>,
    fact: Option<RankFact>,
    is_complete: bool,
}

/// A communicator with incomplete groups.
struct Draft {
    communicator: JobCommunicator,
    kind: usize,
    ranks: BTreeMap<u32, Rank>,
    counts: BTreeMap<String, Vec<RankGroup<u64>>>,
    states: Vec<RankGroup<State>>,
}

impl AnswerReader {
    fn new() -> Self {
        let status = Status {
            nccl_version: String::new(),
            cuda_runtime: None,
            cuda_driver: None,
            timestamp: None,
            format: Format::Text,
            repaired: false,
            communicators: Vec::new(),
            kinds: Vec::new(),
            silent: Processes::default(),
            dead: Processes::default(),
            collection_s: None,
            timeouts: 0,
        };
        Self {
            status,
            drafts: Vec::new(),
            indices: BTreeMap::new(),
            current: None,
            part: None,
            topic: None,
            fact: None,
            is_complete: false,
        }
    }

    fn take_line(&mut self, line: AnswerLine) {
        match line {
            AnswerLine::Version(version) => self.status.nccl_version = version,
            AnswerLine::Cuda(runtime, driver) => {
                self.status.cuda_runtime = Some(runtime);
                self.status.cuda_driver = Some(driver);
            }
            AnswerLine::Collected(seconds) => self.status.collection_s = seconds.parse().ok(),
            AnswerLine::Kind(kind) => self.status.kinds.push(kind),
            AnswerLine::Heading(heading) => {
                self.is_complete |= heading == Heading::Warnings;
                (self.part, self.current, self.topic, self.fact) = (Some(heading), None, None, None);
            }
            AnswerLine::Communicator { kind, hash } => self.start_communicator(kind, hash),
            AnswerLine::Topic(topic) => (self.topic, self.fact) = (Some(topic), None),
            AnswerLine::Process(process) => match self.part {
                Some(Heading::Silent) => self.status.silent.named.push(process),
                Some(Heading::Dead) => self.status.dead.named.push(process),
                _ => {}
            },
            AnswerLine::DeadProcesses(count) => self.status.dead.count = count,
            AnswerLine::SilentProcesses(count) => self.status.silent.count = count,
            AnswerLine::MissingRanks(count) => {
                self.topic = Some(Topic::Incomplete);
                if let Some(draft) = self.current_draft() {
                    draft.communicator.missing_count = count;
                }
            }
            AnswerLine::MissingList(ranks) => self.note_missing_ranks(ranks),
            AnswerLine::Group(size, fact) => self.add_group(size, fact),
            AnswerLine::Rank(rank, fact, place) => self.add_rank(rank, fact, place),
            AnswerLine::Timeouts(count) => self.status.timeouts = count,
        }
    }

    fn current_draft(&mut self) -> Option<&mut Draft> {
        self.drafts.get_mut(self.current?)
    }

    fn start_communicator(&mut self, kind: usize, hash: u64) {
        let index = *self.indices.entry((kind, hash)).or_insert_with(|| {
            let size = self.status.kinds.get(kind).map_or(0, |kind| kind.size);
            let identity = Identity { hash, secondary: String::new() };
            self.drafts.push(Draft {
                communicator: JobCommunicator::new(identity, size),
                kind,
                ranks: BTreeMap::new(),
                counts: BTreeMap::new(),
                states: Vec::new(),
            });
            self.drafts.len() - 1
        });
        (self.current, self.topic, self.fact) = (Some(index), None, None);
    }

    fn add_group(&mut self, size: u32, fact: RankFact) {
        self.fact = Some(fact.clone());
        let Some(Topic::Counts(collective)) = self.topic.clone() else {
            if let (RankFact::State(state), Some(draft)) = (fact, self.current_draft()) {
                draft.states.push(RankGroup { value: state, size, named: Vec::new() });
            }
            return;
        };
        if let (RankFact::Launched(count), Some(draft)) = (fact, self.current_draft()) {
            let groups = draft.counts.entry(collective).or_default();
            groups.push(RankGroup { value: count, size, named: Vec::new() });
        }
    }

    fn note_missing_ranks(&mut self, ranks: Vec<u32>) {
        let not_members = matches!(self.topic, Some(Topic::States));
        let absence = if not_members { Absence::NotAMember } else { Absence::Unresponsive };
        if let Some(draft) = self.current_draft() {
            for rank in ranks {
                draft.communicator.missing.push(MissingRank { rank, place: None, absence });
            }
        }
    }

    fn add_rank(&mut self, number: u32, own: Option<RankFact>, place: Option<RankPlace>) {
        let is_single = own.is_some();
        let fact = own.or_else(|| self.fact.clone());
        let topic = self.topic.clone();
        let Some(draft) = self.current_draft() else { return };
        if topic == Some(Topic::Incomplete) {
            let absence = Absence::Unresponsive;
            draft.communicator.missing.push(MissingRank { rank: number, place, absence });
            return;
        }
        match (fact, topic) {
            (Some(RankFact::NotAMember), _) => {
                let absence = Absence::NotAMember;
                draft.communicator.missing.push(MissingRank { rank: number, place, absence });
            }
            (Some(RankFact::Launched(count)), Some(Topic::Counts(collective))) => {
                draft.rank_of_number(number, place);
                add_named_rank(draft.counts.entry(collective).or_default(), count, number, is_single);
            }
            (Some(RankFact::State(state)), Some(Topic::States)) => {
                draft.rank_of_number(number, place);
                add_named_rank(&mut draft.states, state, number, is_single);
            }
            (Some(RankFact::Error(error)), Some(Topic::InitErrors)) => {
                draft.rank_of_number(number, place).init_error = Some(error);
            }
            (Some(RankFact::Error(error)), Some(Topic::AsyncErrors)) => {
                draft.rank_of_number(number, place).async_error = Some(error);
            }
            _ => {}
        }
    }

    fn into_status(mut self) -> Result<Status, Malformed> {
        if self.status.nccl_version.is_empty() {
            return Err(Malformed::new("no line `NCCL version`"));
        }
        if !self.is_complete {
            return Err(Malformed::new("it ends before its last part, `Warnings`"));
        }
        let mut budget = Budget::new();
        for mut draft in std::mem::take(&mut self.drafts) {
            self.resolve_absence(&mut draft.communicator);
            let state = self.status.kinds.get(draft.kind).map(|kind| kind.state);
            self.status.communicators.push(draft.into_communicator(state, &mut budget));
        }
        self.status.communicators.sort_by(|one, other| one.identity.cmp(&other.identity));
        Ok(self.status)
    }

    /// Separates ranks of dead processes from ranks of silent ones.
    fn resolve_absence(&self, communicator: &mut JobCommunicator) {
        let only_dead = self.status.dead.count > 0 && self.status.silent.count == 0;
        for rank in &mut communicator.missing {
            let is_dead = match &rank.place {
                Some(place) => self
                    .status
                    .dead
                    .named
                    .iter()
                    .any(|process| process.pid == place.pid && process.host == place.host),
                None => only_dead,
            };
            if is_dead && rank.absence == Absence::Unresponsive {
                rank.absence = Absence::Dead;
            }
        }
    }
}

impl Draft {
    /// Returns the rank of this number, with its place.
    fn rank_of_number(&mut self, number: u32, place: Option<RankPlace>) -> &mut Rank {
        let rank = self.ranks.entry(number).or_insert_with(|| Rank::new(number));
        if place.is_some() {
            rank.place = place;
        }
        rank
    }

    fn into_communicator(mut self, common: Option<State>, budget: &mut Budget) -> JobCommunicator {
        let absent: BTreeSet<u32> = self.communicator.missing.iter().map(|rank| rank.rank).collect();
        let mut ranks = std::mem::take(&mut self.ranks);
        let size = self.communicator.size;
        let mut find = |number: u32, change: &dyn Fn(&mut Rank)| {
            change(ranks.entry(number).or_insert_with(|| Rank::new(number)));
        };
        if groups::complete_groups(&mut self.states, size, &absent, budget) {
            for group in &self.states {
                group.named.iter().for_each(|&number| find(number, &|rank| rank.state = Some(group.value)));
            }
        } else {
            let unnamed = self.states.iter().map(|group| format!("{} ranks: {}", group.size, group.value));
            self.communicator.unnamed_states = unnamed.collect();
        }
        for (collective, groups) in &mut self.counts {
            if !groups::complete_groups(groups, size, &absent, budget) {
                let counts = groups.iter().map(|group| format!("{} ranks: {}", group.size, group.value));
                let counts: Vec<String> = counts.collect();
                self.communicator.unnamed_differences.push(format!("{collective} ({})", counts.join(", ")));
                continue;
            }
            for group in groups.iter() {
                for &number in &group.named {
                    find(number, &|rank| {
                        rank.counts.insert(collective.clone(), group.value);
                    });
                }
            }
        }
        self.communicator.ranks = ranks.into_values().collect();
        if self.states.is_empty() {
            self.communicator.ranks.iter_mut().for_each(|rank| rank.state = common);
        }
        let missing = &mut self.communicator.missing;
        missing.sort_by_key(|rank| rank.rank);
        missing.dedup_by_key(|rank| rank.rank);
        let named = u32::try_from(missing.len()).unwrap_or(u32::MAX);
        self.communicator.missing_count = self.communicator.missing_count.max(named);
        self.communicator
    }
}

/// Adds a named rank: to the group before it, or as a group of its own.
fn add_named_rank<T: PartialEq>(groups: &mut Vec<RankGroup<T>>, value: T, rank: u32, is_single: bool) {
    match groups.last_mut() {
        Some(group) if !is_single && group.value == value => group.named.push(rank),
        _ => groups.push(RankGroup { value, size: 1, named: vec![rank] }),
    }
}
