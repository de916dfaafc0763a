//! Conclusions from real logs, compared with the events in their jobs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use diagnosis::examination::{Examination, Health};
use diagnosis::finding::Severity;
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::conclusions::conclude;
use diagnosis::log::{Reader, read_files};

use Health::{Broken, CannotTell, Degraded, Healthy};

fn examine(names: &[&str]) -> Examination {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs");
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(format!("{name}.log"))).collect();
    let rules = Rules::built_in();
    conclude(&read_files(&paths, &rules).unwrap(), &rules)
}

/// Returns the names of the rules of all findings except advice, worst first.
fn rules(examination: &Examination) -> Vec<&str> {
    let findings = examination.findings.iter().filter(|finding| finding.severity != Severity::Advice);
    findings.map(|finding| finding.rule.as_str()).collect()
}

/// Log, health, and findings but advice.
const EXPECTED: &[(&str, Health, &[&str])] = &[
    ("h200x8", Healthy, &[]),
    ("seed-001", Broken, &["network-fell-back-to-tcp"]),
    // A single rank proves no transport.
    ("one", CannotTell, &[]),
    ("one-all", CannotTell, &[]),
    ("one-conf", CannotTell, &[]),
    ("one-misspelt", CannotTell, &[]),
    ("one-stamps", CannotTell, &[]),
    ("one-trace", CannotTell, &[]),
    ("one-warn", CannotTell, &[]),
    // It runs without the requested plugin.
    ("one-plugin", Degraded, &["net-plugin-missing"]),
    ("one-commid", Broken, &["nccl-comm-id-unreachable"]),
    ("one-net-ib", Broken, &["nccl-no-network-plugin"]),
    ("one-net-ofi", Broken, &["nccl-no-network-plugin"]),
    ("one-nogpu", Broken, &["cuda-no-device"]),
    ("one-wrong-if", Broken, &["nccl-no-interface"]),
    ("two-differ", Degraded, &["variable-differs"]),
    ("two-dup", Broken, &["nccl-duplicate-gpu"]),
    ("two-dup28", Broken, &["nccl-duplicate-gpu"]),
    // One rank of two.
    ("two-files.vm.4239", CannotTell, &[]),
    ("two-files.vm.4240", CannotTell, &[]),
    // NCCL_HOSTID makes two nodes of one host.
    ("two-hosts", Degraded, &["host-counted-as-nodes"]),
    ("two-hosts-lo", Degraded, &["host-counted-as-nodes"]),
    ("two-hosts-graph", Degraded, &["host-counted-as-nodes"]),
    // mpirun did not report the killed rank.
    ("two-killed", Broken, &["nccl-peer-closed", "host-counted-as-nodes"]),
    ("two-stopped", Broken, &["mpirun-killed", "host-counted-as-nodes"]),
    // The rank was late for MPI, before it called NCCL.
    ("two-late", Healthy, &[]),
    // Two variables slow it down.
    ("two-ll128", Degraded, &["buffsize-halved", "proto-simple"]),
    ("two-mixed", Broken, &["nccl-versions-differ", "nccl-bootstrap-mismatch"]),
    // P2P=0 and SHM=0 have no effect between two ranks of one GPU.
    ("two-net", Healthy, &[]),
    ("two-p2p-off", Healthy, &[]),
    ("two-nofile", Broken, &["cuda-busy"]),
    // It ran up to its time limit, and was terminated.
    ("two-ok", Broken, &["mpirun-exit", "host-counted-as-nodes"]),
    // 1 MiB of /dev/shm, but not used.
    ("two-shm-full1", Healthy, &[]),
    ("two-shm-full2", Broken, &["nccl-shm-full"]),
    ("two-split", Healthy, &[]),
    ("g2", Healthy, &[]),
    ("g1of2", Healthy, &[]),
    ("g2-algo", Broken, &["nccl-algorithm-syntax", "variable-value"]),
    ("g2-differ", Degraded, &["variable-differs"]),
    ("g2-dup", Broken, &["nccl-duplicate-gpu"]),
    ("g2-hosts", Degraded, &["host-counted-as-nodes"]),
    ("g2-late", Healthy, &[]),
    ("g2-level", Degraded, &["no-p2p-within-node"]),
    ("g2-mixed", Broken, &["nccl-versions-differ", "nccl-bootstrap-truncated"]),
    ("g2-net", Degraded, &["network-within-host"]),
    ("g2-nogpu", Broken, &["nccl-tests-too-few-gpus"]),
    ("g2-p2p-off", Degraded, &["no-p2p-within-node"]),
    // P2P does not need shared memory.
    ("g2-shm-off", Healthy, &[]),
    ("g2-shm-full", Broken, &["nccl-shm-full"]),
    ("g2-tagged", Healthy, &[]),
    ("g2-wrong-if1", Broken, &["nccl-no-interface"]),
    // Their end is not in the log.
    ("torch-ok", CannotTell, &[]),
    ("torchrun", CannotTell, &[]),
    ("torch-absent", Broken, &["torch-rank-late"]),
    ("torch-order", Broken, &["torch-rank-late"]),
    ("torch-shape", Broken, &["torch-sizes-differ"]),
];

#[test]
fn logs_have_the_health_and_the_findings_of_what_was_done() {
    let mut wrong = Vec::new();
    for (name, health, expected) in EXPECTED {
        let found = examine(&[name]);
        if found.health() != *health || rules(&found) != *expected {
            wrong.push(format!(
                "{name}: {:?} {:?}, not {health:?} {expected:?}",
                found.health(),
                rules(&found)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the lines of each process one after another, lines of other programs first: `cat rank*.log`.
fn by_process(log: &str) -> String {
    let process = |line: &str| line.split(' ').find(|word| word.starts_with("vm:")).map(str::to_owned);
    let process = |line: &str| process(line).and_then(|word| word.split(':').nth(1).map(str::to_owned));
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_by_key(|line| process(line));
    lines.join("\n") + "\n"
}

#[test]
fn files_of_ranks_put_together_are_one_job() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs");
    let known = Rules::built_in();
    for (name, health, _) in EXPECTED {
        let text = std::fs::read(folder.join(format!("{name}.log"))).unwrap();
        let text = by_process(&String::from_utf8_lossy(&text));
        let mut reader = Reader::new(&known);
        reader.read_stream("all.log", text.as_bytes());
        let found = conclude(&reader.finish(), &known);
        assert_eq!(found.health(), *health, "{name}: {:?}", found.findings);
        assert!(!found.findings.iter().any(|finding| finding.rule == "several-jobs"), "{name}");
    }
    // With the log of another pod, and with the log of a later run in the same one.
    let text = std::fs::read_to_string(folder.join("seed-001.log")).unwrap();
    let of = |host: &str, pid: &str| {
        text.replace("vm:152:", &format!("{host}:{pid}:")).replace("commId 0xbc42", "commId 0xbc43")
    };
    for (second, jobs) in [(of("vm2", "152"), false), (of("vm", "999"), true)] {
        let mut reader = Reader::new(&known);
        reader.read_stream("all.log", (text.clone() + &second).as_bytes());
        let found = conclude(&reader.finish(), &known);
        assert_eq!(found.health(), Broken);
        let is_told = found.findings.iter().any(|finding| finding.rule == "several-jobs");
        assert_eq!(is_told, jobs, "{:?}", found.findings);
    }
}

#[test]
fn every_log_of_the_test_data_is_judged() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(stem) = name.strip_suffix(".log") {
            assert!(EXPECTED.iter().any(|(log, ..)| *log == stem), "{name} has no expectation");
        }
    }
}

#[test]
fn eight_gpus_over_nvlink_are_proven() {
    let found = examine(&["h200x8"]);
    assert_eq!(
        found.proof,
        ["NVLink between all 56 pairs of 8 ranks by the topology; P2P over it on the 8 connections of the \
             log"]
    );
    // Plugins that are not installed, and missing InfiniBand, are not errors.
    assert_eq!(rules(&found), [""; 0]);
    assert_eq!(found.unseen, [""; 0]);
}

#[test]
fn the_fall_back_to_sockets_is_told_with_cause_and_remedy() {
    let found = examine(&["seed-001"]);
    let finding = &found.findings[0];
    assert_eq!(finding.diagnosis, "EFA was asked for but you are on TCP");
    let lines: Vec<u64> = finding.evidence.iter().filter_map(|evidence| evidence.line).collect();
    assert_eq!(lines[0], 22, "{:?}", finding.evidence);
    assert!(finding.evidence[0].text.contains("No eligible providers were found"));
    assert!(finding.cause.as_ref().unwrap().contains("/dev/infiniband"));
    assert!(finding.remedy.as_ref().unwrap().contains("vpc.amazonaws.com/efa"));
    // The log has rank 0 alone.
    assert!(found.proof.is_empty());
    assert!(found.unseen[0].contains("ranks 1-3"), "{:?}", found.unseen);
    let late = found.findings.iter().find(|finding| finding.rule == "late-ranks").unwrap();
    assert_eq!(late.severity, Severity::Advice);
    assert!(late.diagnosis.contains("rank 0 waited 59.8 s for ranks that came late"), "{}", late.diagnosis);
}

#[test]
fn the_logs_of_both_ranks_together_prove_what_one_does_not() {
    let found = examine(&["two-files.vm.4239", "two-files.vm.4240"]);
    assert_eq!(found.health(), Healthy);
    let proven = "P2P between the 2 ranks; the log does not show that an operation finished";
    assert_eq!(found.proof, [proven]);
    // The program's output, with its end, is not here.
    assert!(found.findings.iter().any(|finding| finding.rule == "end-not-shown"), "{:?}", found.findings);
    let one = examine(&["two-files.vm.4239"]);
    assert!(
        one.unseen[0].contains("rank 1") && one.unseen[0].contains("P2P on 1 connection"),
        "{:?}",
        one.unseen
    );
}

#[test]
fn a_lost_peer_is_a_consequence_of_a_killed_process() {
    let found = examine(&["two-stopped"]);
    let consequences: Vec<&str> =
        found.findings[0].consequences.iter().map(|each| each.text.as_str()).collect();
    assert!(consequences[0].contains("Connection closed by remote peer"), "{consequences:?}");
}

#[test]
fn the_silent_rank_is_named() {
    let diagnosis = &examine(&["two-killed"]).findings[0].diagnosis;
    assert!(diagnosis.contains("the cause is not in this log; look first at rank 1"), "{diagnosis}");
}

#[test]
fn the_watchdogs_of_pytorch_tell_which_rank_called_what() {
    for (name, diagnosis, ranks) in [
        (
            "torch-shape",
            "The ranks called ALLREDUCE with different sizes at SeqNum 6 of group default_pg: 1048576 \
             elements on rank 0; 262144 elements on rank 1",
            &[0, 1][..],
        ),
        (
            "torch-absent",
            "Rank 1 did not call ALLREDUCE of 1048576 elements (SeqNum 6 of group default_pg), for which \
             rank 0 waited until the timeout; the last call there was SeqNum 5",
            &[1],
        ),
        (
            "torch-order",
            "Rank 1 ended before ALLREDUCE of 1048576 elements (SeqNum 6 of group default_pg), for which \
             rank 0 waited until the timeout",
            &[1],
        ),
    ] {
        let finding = &examine(&[name]).findings[0];
        assert_eq!((finding.diagnosis.as_str(), &finding.ranks[..]), (diagnosis, ranks), "{name}");
        assert!(finding.consequences[0].text.contains("Watchdog caught"), "{name}: {finding:?}");
    }
}

#[test]
fn errors_after_a_root_are_its_consequences() {
    let found = examine(&["two-shm-full2"]);
    assert_eq!(found.findings[0].rule, "nccl-shm-full");
    assert!(found.findings[0].consequences.iter().any(|each| each.text.contains("unhandled system error")));
    let mixed = examine(&["two-mixed"]);
    assert!(mixed.findings[0].diagnosis.contains("2.28.9 on rank 1; 2.30.7 on rank 0"));
}
