//! Conditions of rules, faults and conflicts that the rest of the log fulfils or refutes.

use std::collections::{BTreeMap, BTreeSet};

use super::job::Job;
use super::transport::{Way, Ways};
use crate::knowledge::rules::{Rule, Rules, Use};
use crate::log::digest::{Hit, Position, Transport};

/// Returns the uses that the log proves for all connections concerned. An incomplete log proves none.
pub(super) fn find_proven_uses<'a>(
    job: &Job<'_>,
    groups: impl Iterator<Item = &'a Ways<'a>> + Clone,
) -> BTreeSet<Use> {
    let is_whole = |ways: &Ways<'_>| ways.communicator.members.len() == ways.communicator.ranks as usize;
    if !job.digest.limits.is_empty() || !groups.clone().all(is_whole) {
        return BTreeSet::new();
    }
    let is_network = |way: &Way| matches!(way, Way::NetDirect(_) | Way::NetStaged(_) | Way::Socket);
    let of_network: Vec<&Way> =
        groups.clone().flat_map(|ways| ways.pairs.values()).filter(|way| is_network(way)).collect();
    let within: Vec<&Way> = groups.clone().flat_map(|ways| ways_within_hosts(job, ways)).collect();
    let all = |ways: &[&Way], is: fn(&Way) -> bool| !ways.is_empty() && ways.iter().all(|way| is(way));
    let has_neighbours = groups.clone().all(|ways| has_all_neighbours(job, ways));
    let is_nvlink = |way: &Way| matches!(way, Way::NvLink | Way::Mnnvl);
    let is_p2p = |way: &Way| matches!(way, Way::NvLink | Way::Mnnvl | Way::P2p | Way::Relayed);
    [
        (Use::P2p, has_neighbours && all(&within, is_p2p)),
        (Use::Nvlink, has_neighbours && all(&within, is_nvlink)),
        (Use::Gdr, all(&of_network, |way| matches!(way, Way::NetDirect(_)))),
    ]
    .into_iter()
    .filter_map(|(what, is_proven)| is_proven.then_some(what))
    .collect()
}

/// Returns true for two ranks of one host.
fn is_within_host(job: &Job<'_>, ways: &Ways<'_>, from: u32, to: u32) -> bool {
    let host = job.host_of_rank(ways.communicator, from);
    from != to && host.is_some() && host == job.host_of_rank(ways.communicator, to)
}

/// Returns the ways between ranks of one host.
fn ways_within_hosts<'a>(job: &Job<'_>, ways: &'a Ways<'_>) -> Vec<&'a Way> {
    let pairs = ways.pairs.iter().filter(|&(&(from, to), _)| is_within_host(job, ways, from, to));
    pairs.map(|(_, way)| way).collect()
}

/// Returns true if each rank with another rank on its host has a connection within the host.
fn has_all_neighbours(job: &Job<'_>, ways: &Ways<'_>) -> bool {
    let local = ways.pairs.keys().filter(|&&(from, to)| is_within_host(job, ways, from, to));
    let joined: BTreeSet<u32> = local.flat_map(|&(from, to)| [from, to]).collect();
    let mut by_host: BTreeMap<Option<&str>, Vec<u32>> = BTreeMap::new();
    for &rank in ways.communicator.members.keys() {
        by_host.entry(job.host_of_rank(ways.communicator, rank)).or_default().push(rank);
    }
    by_host.values().filter(|ranks| ranks.len() > 1).flatten().all(|rank| joined.contains(rank))
}

/// Returns the rule with the diagnosis of a hit: the first case that fits the log, else the rule itself.
/// Returns `None` if the log does not fit the rule.
pub(super) fn choose_case<'a>(job: &Job<'_>, rules: &'a Rules, rule: &'a Rule) -> Option<&'a Rule> {
    let mut all = rules.cases_of(&rule.id).chain([rule]);
    all.find(|case| {
        let has = |name: &String| name.split('|').any(|name| has_hit_or_fact(job, name));
        case.with.iter().all(has) && !case.without.iter().any(has)
    })
}

/// Returns true for a rule with a hit, a variable of the log, or another fact.
fn has_hit_or_fact(job: &Job<'_>, name: &str) -> bool {
    let mut connections = job.digest.communicators.iter().flat_map(|each| each.connections.values());
    let is_p2p = |way: &Transport| matches!(way, Transport::P2p { .. });
    match name {
        "connections" => connections.next().is_some(),
        "p2p" => connections.any(|connection| connection.transports.keys().any(is_p2p)),
        name if name.starts_with("NCCL_") => job.variables_named(name).next().is_some(),
        rule => job.digest.hits.iter().any(|hit| hit.rule == rule),
    }
}

/// Returns true if each process with this message goes on after it: a later line is about its network, a
/// communicator or a connection.
pub(super) fn goes_on(job: &Job<'_>, hit: &Hit) -> bool {
    let examples = || hit.examples.iter().chain(&hit.last);
    let is_passed = |writer: &usize| {
        let process = job.process_of(*writer);
        let own = examples().filter(|example| job.process_of_message(example) == process);
        // Some messages were not kept: the last one is the last of all.
        let message =
            own.map(|example| example.position).max().or(hit.last.as_ref().map(|last| last.position));
        let progress =
            job.digest.writers.iter().filter(|other| Some((other.host.as_str(), other.pid)) == process);
        let is_later = |at: Position, than: Position| at.input == than.input && at.line > than.line;
        message.is_some_and(|message| {
            progress.filter_map(|writer| writer.progress).any(|position| is_later(position, message))
        })
    };
    !hit.writers.is_empty()
        && examples().all(|example| example.writer.is_some())
        && hit.writers.iter().all(is_passed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::job::Job;
    use super::super::tests::{examine, pair};
    use super::super::transport::Ways;
    use crate::examination::{Examination, Health};
    use crate::knowledge::conflicts::Conflicts;
    use crate::knowledge::faults::Faults;
    use crate::knowledge::rules::{Rules, Use};
    use crate::log::Reader;

    fn rules_of(found: &Examination) -> Vec<&str> {
        found.findings.iter().map(|finding| finding.rule.as_str()).collect()
    }

    #[test]
    fn every_case_of_a_rule_is_chosen_in_its_own_logs_and_not_in_others() {
        let rules = Rules::built_in();
        for case in rules.iter().filter(|rule| !rule.case_of.is_empty()) {
            let has = |log: &String| rules_of(&examine(log)).contains(&case.id.as_str());
            assert!(case.matches.iter().all(has), "{}: matches", case.id);
            assert!(!case.not.iter().any(has), "{}: not", case.id);
        }
    }

    /// Returns the uses that a log proves.
    fn proven_by(text: &str) -> BTreeSet<Use> {
        let rules = Rules::built_in();
        let mut reader = Reader::new(&rules);
        reader.read_stream("job.log", text.as_bytes());
        let digest = reader.finish();
        let job = Job::new(&digest);
        let ways: Vec<Ways<'_>> =
            job.communicators_to_prove().0.into_iter().map(|each| Ways::new(&job, each)).collect();
        super::find_proven_uses(&job, ways.iter())
    }

    #[test]
    fn no_finding_and_no_listed_fault_denies_what_a_real_log_proves() {
        let rules = Rules::built_in();
        let denied_by = |id: &str| {
            let rule = rules.rule_by_id(id).and_then(|rule| rule.denies);
            let conflict = || Conflicts::built_in().iter().find(|each| each.id == id)?.denies;
            let fault = || Faults::built_in().iter().find(|each| each.id == id)?.denies;
            rule.or_else(conflict).or_else(fault)
        };
        let mut all = BTreeSet::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        for file in ["logs", "inputs"].iter().flat_map(|name| std::fs::read_dir(folder.join(name)).unwrap()) {
            let path = file.unwrap().path();
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            let proven = proven_by(&text);
            let found = examine(&text);
            for rule in rules_of(&found) {
                let denied = denied_by(rule);
                assert!(!denied.is_some_and(|denied| proven.contains(&denied)), "{}: {rule}", path.display());
            }
            let listed = format!("{:?}", found.sections);
            let faults = Faults::built_in()
                .iter()
                .filter(|fault| fault.denies.is_some_and(|what| proven.contains(&what)));
            for fault in faults {
                assert!(!listed.contains(&fault.effect), "{}: {}", path.display(), fault.id);
            }
            all.extend(proven);
        }
        assert_eq!(all, [Use::P2p, Use::Nvlink].into());
    }

    #[test]
    fn adapters_of_two_kinds_are_advice_while_nothing_fails() {
        let mut log = pair("IB", "NET/IB/0/GDRDMA");
        log.messages = vec![(0, "NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>")];
        let found = examine(&log.text());
        assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
        assert!(rules_of(&found).contains(&"ib-mixed-adapters"), "{:?}", found.findings);
    }

    #[test]
    fn a_use_is_proven_by_all_connections_of_a_whole_log() {
        let within = |via: &'static str| {
            let mut log = pair("IB", via);
            (log.hosts, log.nodes) = (vec!["a", "a"], 1);
            log.text()
        };
        assert_eq!(proven_by(&within("P2P/direct pointer")), [Use::P2p].into());
        assert_eq!(proven_by(&pair("IB", "NET/IB/0/GDRDMA").text()), [Use::Gdr].into());
        let half = within("P2P/CUMEM").replace("1[1] -> 0[0] [send] via P2P/CUMEM", "1[1] -> 0[0] via SHM");
        let absent: String = within("P2P/CUMEM")
            .lines()
            .filter(|line| !line.contains("101:101"))
            .map(|line| format!("{line}\n"))
            .collect();
        for text in [half, absent, within("SHM/direct"), pair("IB", "NET/IB/0").text()] {
            assert_eq!(proven_by(&text), BTreeSet::new(), "{text}");
        }
    }

    #[test]
    fn a_step_is_a_failure_unless_each_of_its_processes_goes_on() {
        let step = |process: &str| {
            format!("{process} misc/cudawrap.cc:179 NCCL WARN Failed to find CUDA library libcuda.so\n")
        };
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let [one, other] = ["a:100:7 [0]", "b:101:7 [1]"].map(step);
        let begun = text.find("Using network").unwrap();
        let begun = text[..begun].rfind('\n').unwrap() + 1;
        let early = [&text[..begun], &one, &text[begun..]].concat();
        assert_eq!(examine(&early).health(), Health::Healthy, "{:?}", examine(&early).findings);
        // The message is the last of its process, or is of a process without a communicator.
        for log in [
            text.clone() + &one,
            early + &other,
            step("a:100:100 [0]"),
            one.clone() + "b:101:8 [1] NCCL INFO Using network IB\n",
        ] {
            let found = examine(&log);
            assert_eq!(
                (found.health(), found.findings[0].rule.as_str()),
                (Health::CannotTell, "nccl-no-libcuda"),
                "{log}"
            );
        }
    }
}
