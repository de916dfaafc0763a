//! Logs whose words have different causes in different contexts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use diagnosis::examination::{Examination, Health};
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::conclusions::conclude;
use diagnosis::log::read_files;

use Health::{Broken, Healthy};

/// Log, health, rule of the first finding, words of the report, words that it must not have.
type Case = (&'static str, Health, &'static str, &'static [&'static str], &'static [&'static str]);

const EXPECTED: &[Case] = &[
    (
        "ibtest",
        Broken,
        "ib-retry-exceeded",
        &["never acknowledged", "Got CQE with error"],
        &["A network adapter reports a failed transfer"],
    ),
    ("libcuda", Broken, "nccl-shm-full", &["the process went on", "--shm-size"], &[]),
    ("libcudahealthy", Healthy, "nccl-no-libcuda", &["A step failed, and the process went on"], &[]),
    (
        "illegalp2p",
        Broken,
        "cuda-illegal-access-p2p",
        &["P2P", "IOMMU", "patched driver", "NCCL_P2P_DISABLE=1"],
        &["fault in a kernel of the program", "compute-sanitizer"],
    ),
    (
        "mixed",
        Broken,
        "ib-qp-mixed-adapters",
        &["InfiniBand and of RoCE", "NCCL_IB_HCA"],
        &["NCCL uses adapters of InfiniBand and of RoCE together"],
    ),
    (
        "torchlast",
        Broken,
        "nccl-topology-attribute",
        &["Either NCCL_TOPO_FILE", "USB", "does not show which"],
        &[],
    ),
    ("hm", Healthy, "known-faults", &["P2P"], &["without direct access", "GB200", "network ports"]),
    (
        "b3b",
        Broken,
        "torch-rank-late",
        &["Rank 1 did not call ALLREDUCE (SeqNum 42)", "finished collective #41"],
        &["the cause is not in this log"],
    ),
    ("sigsegv1", Broken, "process-crashed", &["in NCCL: ncclLocalOpAppend"], &[]),
];

fn examine(name: &str) -> Examination {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/inputs/{name}.log"));
    let rules = Rules::built_in();
    conclude(&read_files(&[path], &rules).unwrap(), &rules)
}

#[test]
fn the_context_of_a_message_decides_about_its_cause() {
    let mut wrong = Vec::new();
    for (name, health, rule, present, absent) in EXPECTED {
        let found = examine(name);
        let first = found.findings.first().map_or("", |finding| finding.rule.as_str());
        if found.health() != *health || first != *rule {
            wrong.push(format!(
                "{name}: {:?} {first}, not {health:?} {rule}: {:#?}",
                found.health(),
                found.findings
            ));
        }
        let report = format!("{:?} {:?} {:?}", found.findings, found.proof, found.sections);
        wrong.extend(
            present
                .iter()
                .filter(|words| !report.contains(**words))
                .map(|words| format!("{name} lacks: {words}")),
        );
        wrong.extend(
            absent
                .iter()
                .filter(|words| report.contains(**words))
                .map(|words| format!("{name} has: {words}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
