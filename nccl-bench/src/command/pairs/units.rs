//! The hosts or ranks that are compared.

use std::collections::BTreeMap;

use judge::pairs::{Pair, Statistic};
use serde::{Deserialize, Serialize};

use super::Unit;

/// A host of the job, by process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::command) struct ProcessHost {
    pub(in crate::command) name: String,
    pub(in crate::command) id: String,
}

/// The hosts or ranks that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::command) struct Units {
    pub(in crate::command) unit: Unit,
    /// In the order of their first ranks.
    pub(in crate::command) units: Vec<NamedUnit>,
}

/// A host or rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::command) struct NamedUnit {
    /// Name in the matrix: `node7`, `13`.
    pub(in crate::command) label: String,
    /// Name of the host.
    pub(in crate::command) host: String,
    /// Number of the host.
    #[serde(skip)]
    pub(in crate::command) host_number: usize,
    /// Its ranks, in order.
    pub(in crate::command) ranks: Vec<usize>,
}

impl Units {
    /// Makes the units of `ranks` ranks in processes on these hosts.
    ///
    /// # Errors
    /// A message for units that cannot be compared.
    pub(in crate::command) fn new(
        asked: Option<Unit>,
        processes: &[ProcessHost],
        ranks: usize,
    ) -> Result<Self, String> {
        if ranks < 2 {
            return Err("at least 2 ranks are needed, and there is 1: start more (mpirun -np 2), or make \
                        several in this process (-t 2)"
                .to_owned());
        }
        let per_process = ranks / processes.len().max(1);
        let hosts = list_hosts(processes, per_process);
        let unit = asked.unwrap_or(if hosts.len() > 1 { Unit::Host } else { Unit::Rank });
        if unit == Unit::Rank {
            let ranks = hosts.iter().flat_map(|host| {
                host.ranks.iter().map(|&rank| NamedUnit {
                    label: rank.to_string(),
                    ranks: vec![rank],
                    ..host.clone()
                })
            });
            let mut units: Vec<NamedUnit> = ranks.collect();
            units.sort_by_key(|unit| unit.ranks[0]);
            return Ok(Self { unit, units });
        }
        if let [host] = &hosts[..] {
            return Err(format!("all ranks are on host {}: compare them with --per rank", host.label));
        }
        let different = hosts.iter().find(|host| host.ranks.len() != hosts[0].ranks.len());
        if let Some(other) = different {
            return Err(format!(
                "host {} has {} ranks, and host {} has {}: start as many on each host, or use --per rank",
                hosts[0].label,
                hosts[0].ranks.len(),
                other.label,
                other.ranks.len()
            ));
        }
        Ok(Self { unit, units: hosts })
    }

    /// The groups of ranks of a round: of each pair of units, the first ranks, the second ranks, and so on.
    pub(in crate::command) fn list_groups(&self, pairs: &[Pair]) -> Vec<Vec<usize>> {
        let of_pair = |&[one, other]: &Pair| {
            let ranks = self.units[one].ranks.iter().zip(&self.units[other].ranks);
            ranks.map(|(&one, &other)| vec![one.min(other), one.max(other)])
        };
        pairs.iter().flat_map(of_pair).collect()
    }

    /// Number of groups of a pair.
    pub(in crate::command) fn groups_per_pair(&self) -> usize {
        self.units.first().map_or(1, |unit| unit.ranks.len())
    }

    /// The host of each unit, where units share hosts; otherwise empty.
    pub(in crate::command) fn shared_hosts(&self) -> Vec<usize> {
        let hosts: Vec<usize> = self.units.iter().map(|unit| unit.host_number).collect();
        let first = hosts.first().copied();
        let is_shared = self.unit == Unit::Rank && hosts.iter().any(|&host| Some(host) != first);
        if is_shared { hosts } else { Vec::new() }
    }

    /// The bandwidth of a pair from its repeats: ranks of one host may share its link to other hosts.
    pub(super) fn choose_statistic(&self) -> Statistic {
        let hosts = self.shared_hosts();
        if hosts.is_empty() { Statistic::UpperQuartile } else { Statistic::Median }
    }
}

/// The hosts with all their ranks. Different hosts with one name are distinguished by their identity.
fn list_hosts(processes: &[ProcessHost], per_process: usize) -> Vec<NamedUnit> {
    let mut hosts: Vec<(&ProcessHost, Vec<usize>)> = Vec::new();
    for (number, process) in processes.iter().enumerate() {
        let ranks = number * per_process..(number + 1) * per_process;
        match hosts.iter_mut().find(|(host, _)| host.id == process.id) {
            Some((_, own)) => own.extend(ranks),
            None => hosts.push((process, ranks.collect())),
        }
    }
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (host, _) in &hosts {
        *names.entry(&host.name).or_default() += 1;
    }
    let named = hosts.iter().enumerate().map(|(host_number, (host, ranks))| {
        let is_unique = names.get(host.name.as_str()) == Some(&1);
        let label = if is_unique { host.name.clone() } else { host.id.clone() };
        NamedUnit { label: label.clone(), host: label, host_number, ranks: ranks.clone() }
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(hosts: &[(&str, &str)]) -> Vec<ProcessHost> {
        let host = |(name, id): &(&str, &str)| ProcessHost { name: (*name).to_owned(), id: (*id).to_owned() };
        hosts.iter().map(host).collect()
    }

    #[test]
    fn hosts_have_the_ranks_of_all_their_processes() {
        let four = processes(&[("a", "1"), ("b", "2"), ("a", "1"), ("b", "2")]);
        let units = Units::new(None, &four, 8).unwrap();
        assert_eq!(units.unit, Unit::Host);
        assert_eq!(units.units[0].ranks, [0, 1, 4, 5]);
        assert_eq!(units.list_groups(&[[0, 1]]), [[0, 2], [1, 3], [4, 6], [5, 7]]);
        assert_eq!((units.groups_per_pair(), units.shared_hosts()), (4, vec![]));
    }

    #[test]
    fn ranks_know_their_hosts() {
        let four = processes(&[("a", "1"), ("a", "1"), ("b", "2"), ("b", "2")]);
        let units = Units::new(Some(Unit::Rank), &four, 4).unwrap();
        let labels: Vec<&str> = units.units.iter().map(|unit| unit.label.as_str()).collect();
        assert_eq!((labels, units.shared_hosts()), (vec!["0", "1", "2", "3"], vec![0, 0, 1, 1]));
        assert_eq!(units.list_groups(&[[0, 3], [1, 2]]), [[0, 3], [1, 2]]);
        let alone = Units::new(None, &processes(&[("a", "1")]), 4).unwrap();
        assert_eq!((alone.unit, alone.shared_hosts()), (Unit::Rank, vec![]));
    }

    #[test]
    fn hosts_of_one_name_are_distinguished() {
        let units = Units::new(None, &processes(&[("vm", "h0"), ("vm", "h1"), ("c", "x")]), 3).unwrap();
        let labels: Vec<&str> = units.units.iter().map(|unit| unit.label.as_str()).collect();
        assert_eq!(labels, ["h0", "h1", "c"]);
    }

    #[test]
    fn units_that_cannot_be_compared_are_refused() {
        let two = processes(&[("a", "1"), ("b", "2"), ("b", "2")]);
        let refused = |unit, hosts: &[ProcessHost], ranks| Units::new(unit, hosts, ranks).unwrap_err();
        assert!(refused(None, &two, 3).contains("host a has 1 ranks, and host b has 2"));
        assert!(refused(Some(Unit::Host), &two[1..], 2).contains("all ranks are on host b"));
        assert!(refused(None, &two[..1], 1).contains("at least 2 ranks"));
    }
}
