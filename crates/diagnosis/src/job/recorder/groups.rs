//! The collectives of a process group in all dumps.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::{CollectiveEntry, Dump, EntryState, parse_ranks};

/// The collectives of a process group.
#[derive(Debug)]
pub(super) struct GroupRecord<'a> {
    /// Name of the group.
    pub name: String,
    /// Description of the group.
    pub description: String,
    /// Ranks of the group, or the ranks with a dump if the dumps do not name them.
    pub ranks: BTreeSet<u32>,
    /// The records of each rank with a dump.
    pub records: BTreeMap<u32, RankRecord<'a>>,
}

/// The collectives of a rank in a group.
#[derive(Debug, Default)]
pub(super) struct RankRecord<'a> {
    /// The operations by sequence number. Coalesced ones have the same number.
    pub collectives: BTreeMap<i64, Vec<&'a CollectiveEntry>>,
    /// Sequence number of the program's last call of a collective, or `None` if the dump does not contain it.
    pub last: Option<i64>,
}

impl GroupRecord<'_> {
    /// Returns `group default_pg (0)`.
    pub(super) fn title(&self) -> String {
        match self.description.as_str() {
            "" => format!("group {}", self.name),
            description if description == self.name => format!("group {}", self.name),
            description => format!("group {} ({description})", self.name),
        }
    }

    /// Returns the ranks of the group without a dump.
    pub(super) fn without_dump(&self) -> Vec<u32> {
        self.ranks.iter().filter(|rank| !self.records.contains_key(rank)).copied().collect()
    }
}

impl RankRecord<'_> {
    /// Returns sequence number and operation of the first incomplete collective.
    pub(super) fn first_open(&self) -> Option<(i64, &CollectiveEntry)> {
        self.collectives.iter().find_map(|(sequence, entries)| {
            let open = entries.iter().find(|entry| entry.state != EntryState::Completed)?;
            Some((*sequence, *open))
        })
    }

    /// Checks that a collective is recorded and incomplete.
    pub(super) fn is_open(&self, sequence: i64) -> bool {
        self.collectives
            .get(&sequence)
            .is_some_and(|entries| entries.iter().any(|entry| entry.state != EntryState::Completed))
    }
}

/// Sorts the operations of all dumps by process group.
pub(super) fn collect_groups(dumps: &BTreeMap<u32, Dump>) -> Vec<GroupRecord<'_>> {
    let mut groups: BTreeMap<(String, String), GroupRecord<'_>> = BTreeMap::new();
    for (&rank, dump) in dumps {
        for (name, group) in &dump.pg_config {
            let members: BTreeSet<u32> = parse_ranks(&group.ranks).into_iter().collect();
            // A rank also lists groups without itself as a member.
            if !members.is_empty() && !members.contains(&rank) {
                continue;
            }
            let key = (name.clone(), group.ranks.clone());
            let record = groups.entry(key).or_insert_with(|| new(name, &group.desc));
            record.ranks.extend(members);
            record.records.insert(rank, RankRecord::default());
        }
        let mut numbers: BTreeMap<String, i64> = BTreeMap::new();
        for entry in &dump.entries {
            let name = entry.process_group.first().cloned().unwrap_or_default();
            let description = entry.process_group.get(1).map_or("", String::as_str);
            let members = dump.pg_config.get(&name).map(|group| group.ranks.clone()).unwrap_or_default();
            let record = groups.entry((name.clone(), members)).or_insert_with(|| new(&name, description));
            record.ranks.insert(rank);
            let mine = record.records.entry(rank).or_default();
            if !entry.is_p2p {
                mine.collectives.entry(entry.collective_seq_id).or_default().push(entry);
            }
            numbers.insert(name, entry.pg_id);
        }
        let is_whole = dump.entries.iter().all(|entry| entry.record_id < dump.entries.len() as u64);
        for record in groups.values_mut() {
            let Some(mine) = record.records.get_mut(&rank) else { continue };
            let progress =
                numbers.get(&record.name).and_then(|number| dump.pg_status.get(&number.to_string()));
            let recorded = mine.collectives.last_key_value().map(|(sequence, _)| *sequence);
            let enqueued = progress.map(|progress| progress.last_enqueued_collective);
            // A group without a record was not used, unless old records were overwritten.
            mine.last = recorded.max(enqueued).or(is_whole.then_some(0));
        }
    }
    groups.into_values().collect()
}

fn new<'a>(name: &str, description: &str) -> GroupRecord<'a> {
    GroupRecord {
        name: name.to_owned(),
        description: description.to_owned(),
        ranks: BTreeSet::new(),
        records: BTreeMap::new(),
    }
}
