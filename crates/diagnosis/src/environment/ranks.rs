//! Differences between the environments of ranks.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::knowledge::{self, Ranks};
use super::names;
use super::setting::Setting;
use crate::examination::Examination;
use crate::finding::{Evidence, Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::words;

/// The environment of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// The variables in effect.
    pub settings: Vec<Setting>,
    /// The findings about them on this host.
    pub findings: Vec<RankFinding>,
}

/// Parts of a finding, for messages between ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankFinding {
    rule: String,
    severity: Severity,
    diagnosis: String,
    remedy: Option<String>,
    source: Option<String>,
}

impl Snapshot {
    /// Creates the environment of a rank, with the findings about it.
    pub fn new(rank: u32, host: String, settings: Vec<Setting>, examination: &Examination) -> Self {
        let fault = |finding: &Finding| RankFinding {
            rule: finding.rule.clone(),
            severity: finding.severity,
            diagnosis: finding.diagnosis.clone(),
            remedy: finding.remedy.clone(),
            source: finding.source.clone(),
        };
        Self { rank, host, settings, findings: examination.findings.iter().map(fault).collect() }
    }
}

/// Completes the examination of rank 0 with the differences between the ranks, and with findings that only
/// other ranks have.
pub fn compare_ranks(examination: &mut Examination, ranks: &[Snapshot]) {
    let all = ranks.iter().flat_map(|rank| &rank.settings);
    let names: BTreeSet<&str> = all.map(|setting| setting.name.as_str()).collect();
    let differences: Vec<Finding> =
        names.into_iter().filter_map(|name| find_difference(name, ranks)).collect();
    let hosts: BTreeSet<&str> = ranks.iter().map(|rank| rank.host.as_str()).collect();
    if differences.is_empty() && ranks.len() > 1 {
        examination.proof.push(format!(
            "the variables that must be equal are equal on all {} ranks ({} {})",
            ranks.len(),
            hosts.len(),
            words::plural(hosts.len(), "host", "hosts")
        ));
    }
    let others = findings_of_other_ranks(&examination.findings, ranks);
    examination.findings.extend(differences);
    examination.findings.extend(others);
    examination.sort_findings();
    if examination.findings.iter().any(|finding| finding.severity < Severity::Advice) {
        examination.proof.clear();
    }
    if let Some(facts) = examination.facts.as_object_mut() {
        facts.insert("ranks".to_owned(), json!(ranks.len()));
        facts.insert("hosts".to_owned(), json!(hosts));
    }
}

/// Returns the findings missing on rank 0.
fn findings_of_other_ranks(own: &[Finding], ranks: &[Snapshot]) -> Vec<Finding> {
    let mut found: BTreeMap<&RankFinding, Vec<&Snapshot>> = BTreeMap::new();
    for rank in ranks {
        for fault in &rank.findings {
            let is_known = own.iter().any(|one| one.rule == fault.rule && one.diagnosis == fault.diagnosis);
            if !is_known {
                found.entry(fault).or_default().push(rank);
            }
        }
    }
    let finding = |(fault, members): (&RankFinding, Vec<&Snapshot>)| {
        let numbers: Vec<u32> = members.iter().map(|rank| rank.rank).collect();
        let hosts: BTreeSet<String> = members.iter().map(|rank| rank.host.clone()).collect();
        let text = format!("on {}: {}", words::ranks_in_words(&numbers), fault.diagnosis);
        Finding {
            remedy: fault.remedy.clone(),
            source: fault.source.clone(),
            occurrences: numbers.len() as u64,
            ranks: numbers,
            hosts: hosts.into_iter().collect(),
            ..Finding::new(fault.rule.clone(), fault.severity, text)
        }
    };
    found.into_iter().map(finding).collect()
}

fn find_difference(name: &str, ranks: &[Snapshot]) -> Option<Finding> {
    let value = |rank: &Snapshot| {
        rank.settings.iter().find(|setting| setting.name == name).map(|setting| setting.value.clone())
    };
    let mut groups: BTreeMap<Option<String>, Vec<&Snapshot>> = BTreeMap::new();
    for rank in ranks {
        groups.entry(value(rank)).or_default().push(rank);
    }
    if groups.len() < 2 {
        return None;
    }
    let family = || knowledge::find_family(name).map(|family| family.ranks);
    let relation =
        knowledge::find_variable(name).map(|variable| variable.ranks).or_else(family).unwrap_or_default();
    let id = match relation {
        Ranks::MayDiffer => return None,
        Ranks::ByHost if is_equal_by_host(ranks, value) => return None,
        Ranks::ByHost => "variable-differs-between-ranks/host",
        Ranks::MustBeEqual => "variable-differs-between-ranks",
        Ranks::Equal if names::find_name(name).is_some() => "variable-differs-between-ranks/unchecked",
        Ranks::Equal => "variable-differs-between-ranks/unknown",
    };
    let mut groups: Vec<(Option<String>, Vec<&Snapshot>)> = groups.into_iter().collect();
    // The largest group is taken for the intended one.
    groups.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    let odd: Vec<&Snapshot> =
        groups.iter().skip(1).flat_map(|(_, members)| members.iter().copied()).collect();
    let described = groups.iter().map(|(value, members)| {
        let value = value.as_ref().map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
        let ranks: Vec<u32> = members.iter().map(|rank| rank.rank).collect();
        format!("{value} on {}", words::ranks_in_words(&ranks))
    });
    let described = described.collect::<Vec<_>>().join(", ");
    let mut numbers: Vec<u32> = odd.iter().map(|rank| rank.rank).collect();
    numbers.sort_unstable();
    let hosts: BTreeSet<String> = odd.iter().map(|rank| rank.host.clone()).collect();
    Some(Finding {
        occurrences: numbers.len() as u64,
        evidence: odd.first().map(|rank| cite_variable(name, rank, value(rank))).into_iter().collect(),
        ranks: numbers,
        hosts: hosts.into_iter().collect(),
        ..compose_finding(id, &[("name", &name), ("values", &described)])
    })
}

fn cite_variable(name: &str, rank: &Snapshot, value: Option<String>) -> Evidence {
    let place = rank.settings.iter().find(|setting| setting.name == name).map(|setting| &setting.place);
    Evidence {
        place: place.map_or_else(|| "environment".to_owned(), |place| place.name.clone()),
        line: place.and_then(|place| place.line),
        rank: Some(rank.rank),
        host: Some(rank.host.clone()),
        text: value.map_or_else(|| format!("{name} is not set"), |value| format!("{name}={value}")),
    }
}

fn is_equal_by_host(ranks: &[Snapshot], value: impl Fn(&Snapshot) -> Option<String>) -> bool {
    let mut by_host: BTreeMap<&str, Option<String>> = BTreeMap::new();
    ranks.iter().all(|rank| {
        let own = value(rank);
        *by_host.entry(&rank.host).or_insert_with(|| own.clone()) == own
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::setting::Location;

    fn rank(rank: u32, host: &str, settings: &[(&str, &str)]) -> Snapshot {
        let place = Location::without_line("environment");
        let settings =
            settings.iter().map(|(name, value)| Setting::new(*name, *value, place.clone())).collect();
        Snapshot { rank, host: host.to_owned(), settings, findings: Vec::new() }
    }

    fn compare(ranks: &[Snapshot]) -> Vec<Finding> {
        let mut examination = Examination::new("environment");
        super::compare_ranks(&mut examination, ranks);
        examination.findings
    }

    #[test]
    fn findings_of_other_hosts_are_told_with_their_ranks() {
        let mut all = [rank(0, "a", &[]), rank(1, "b", &[]), rank(2, "b", &[])];
        let mut examination = Examination::new("environment");
        examination.findings.push(Finding::new("x", Severity::Degraded, "everywhere"));
        all[0] = Snapshot::new(0, "a".to_owned(), Vec::new(), &examination);
        examination.findings.push(Finding::new("socket-interface-missing", Severity::Broken, "no eth0"));
        all[1] = Snapshot::new(1, "b".to_owned(), Vec::new(), &examination);
        all[2] = Snapshot::new(2, "b".to_owned(), Vec::new(), &examination);
        let mut own = Examination::new("environment");
        own.findings.push(Finding::new("x", Severity::Degraded, "everywhere"));
        super::compare_ranks(&mut own, &all);
        let texts: Vec<_> = own.findings.iter().map(|finding| finding.diagnosis.as_str()).collect();
        assert_eq!(texts, ["on ranks 1-2: no eth0", "everywhere"]);
        assert_eq!((own.findings[0].ranks.as_slice(), own.findings[0].hosts.len()), ([1, 2].as_slice(), 1));
        assert!(own.proof.is_empty());
    }

    #[test]
    fn equal_variables_are_proof() {
        for (other, hosts) in [("a", "1 host"), ("b", "2 hosts")] {
            let all = [rank(0, "a", &[("NCCL_ALGO", "Ring")]), rank(1, other, &[("NCCL_ALGO", "Ring")])];
            let mut own = Examination::new("environment");
            super::compare_ranks(&mut own, &all);
            let text = format!("the variables that must be equal are equal on all 2 ranks ({hosts})");
            assert_eq!(own.proof, [text]);
        }
    }

    #[test]
    fn the_odd_rank_is_named() {
        let all = [
            rank(0, "a", &[("NCCL_ALGO", "Ring")]),
            rank(1, "a", &[("NCCL_ALGO", "Ring")]),
            rank(2, "b", &[("NCCL_ALGO", "Ring")]),
            rank(3, "b", &[]),
        ];
        let findings = compare(&all);
        assert_eq!(findings.len(), 1);
        let finding = &findings[0];
        assert_eq!(finding.severity, Severity::Broken);
        assert_eq!(
            finding.diagnosis,
            "NCCL_ALGO differs between ranks: `Ring` on ranks 0-2, not set on rank 3"
        );
        assert_eq!(
            (finding.ranks.as_slice(), finding.hosts.as_slice()),
            ([3].as_slice(), ["b".to_owned()].as_slice())
        );
    }

    #[test]
    fn variables_that_must_differ_are_no_findings() {
        let all = [
            rank(
                0,
                "a",
                &[("CUDA_VISIBLE_DEVICES", "0"), ("NCCL_HOSTID", "x"), ("NCCL_SOCKET_IFNAME", "ens5")],
            ),
            rank(
                1,
                "b",
                &[("CUDA_VISIBLE_DEVICES", "1"), ("NCCL_HOSTID", "y"), ("NCCL_SOCKET_IFNAME", "eth0")],
            ),
        ];
        assert_eq!(compare(&all), []);
        for name in [
            "NCCL_BENCH_RANK",
            "NCCL_BENCH_LOCAL_RANK",
            "OMPI_COMM_WORLD_RANK",
            "PMIX_RANK",
            "SLURM_PROCID",
            "LOCAL_RANK",
            "RANK",
            "GROUP_RANK",
            "FLUX_TASK_RANK",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "NCCL_TESTS_DEVICE",
        ] {
            assert_eq!(compare(&[rank(0, "a", &[(name, "0")]), rank(1, "a", &[(name, "1")])]), [], "{name}");
        }
        let key = [rank(0, "a", &[("NCCL_BENCH_WORLD", "2")]), rank(1, "a", &[("NCCL_BENCH_WORLD", "3")])];
        assert_eq!(compare(&key).len(), 1);
        // On one host, two ranks with different interfaces are at least worth a look.
        let all = [rank(0, "a", &[("NCCL_IB_HCA", "mlx5_0")]), rank(1, "a", &[("NCCL_IB_HCA", "mlx5_1")])];
        assert_eq!(compare(&all)[0].severity, Severity::Advice);
    }

    #[test]
    fn other_differences_degrade() {
        let all = [rank(0, "a", &[("NCCL_IB_TC", "106")]), rank(1, "b", &[])];
        let findings = compare(&all);
        assert_eq!(findings[0].severity, Severity::Degraded);
        assert_eq!(compare(&all[..1]), []);
    }
}
