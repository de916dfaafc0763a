//! Known faults and conflicts of versions.

use super::{Log, examine, finding, pair};
use crate::examination::Body;

#[test]
fn known_faults_are_one_advice_with_a_list() {
    let found = pair("IB", "NET/IB/0/GDRDMA").examine();
    let advice = finding(&found, "known-faults");
    assert!(advice.diagnosis.contains("of NCCL 2.28.9"), "{}", advice.diagnosis);
    let section = found.sections.iter().find(|section| section.title == "Known faults").unwrap();
    let Body::Lines(lines) = &section.body else { panic!("{section:?}") };
    assert!(
        lines.iter().any(|line| line.starts_with("NCCL 2.28.9: ")
            && line.contains("symmetric windows")
            && line.contains(" If: ")),
        "{lines:?}"
    );
}

#[test]
fn a_conflict_of_versions_is_the_cause_of_a_fall_back() {
    let mut log = pair("Socket", "NET/Socket/0");
    log.messages =
        vec![(0, "NET/OFI Initializing aws-ofi-nccl 1.14.0"), (0, "NET/OFI Using Libfabric version 1.20")];
    let found = log.examine();
    let fallback = finding(&found, "network-fell-back-to-tcp");
    assert!(fallback.cause.as_ref().unwrap().contains("libfabric before 1.22"), "{fallback:?}");
    assert!(fallback.remedy.as_ref().unwrap().contains("LD_LIBRARY_PATH"));
}

#[test]
fn faults_of_nccl_are_not_told_for_rccl() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let is_told = |text: &str| examine(text).findings.iter().any(|finding| finding.rule == "known-faults");
    assert!(is_told(&text));
    assert!(!is_told(&text.replace("2.28.9+cuda13.0", "2.28.9+hip6.4")));
}

#[test]
fn a_known_fault_of_another_network_is_not_told() {
    let told = |network: &'static str, messages: Vec<(u32, &'static str)>| {
        let log = Log { messages, ..pair(network, "NET/X/0/GDRDMA") };
        let found = examine(&log.text().replace("2.28.9", "2.28.3"));
        let section = found.sections.into_iter().find(|section| section.title == "Known faults").unwrap();
        let Body::Lines(lines) = section.body else { panic!("{:?}", section.body) };
        lines.iter().any(|line| line.contains("Slingshot"))
    };
    let efa = "NET/OFI Plugin selected platform: AWS";
    assert!(told("AWS Libfabric", Vec::new()));
    // An unknown network may have it.
    assert!(told("UCX", Vec::new()));
    assert!(!told("AWS Libfabric", vec![(0, efa), (1, efa)]));
    assert!(!told("IB", Vec::new()));
}

/// Returns the list of known faults.
fn listed(log: &str) -> Vec<String> {
    let section = examine(log).sections.into_iter().find(|section| section.title == "Known faults").unwrap();
    let Body::Lines(lines) = section.body else { panic!("{:?}", section.body) };
    lines
}

#[test]
fn faults_that_a_job_cannot_have_are_counted_with_what_it_lacks() {
    let mut log = pair("Socket", "P2P/CUMEM/read");
    (log.hosts, log.nodes) = (vec!["a", "a"], 1);
    let text = log.text();
    let last = |log: &str| listed(log).pop().unwrap();
    assert_eq!(
        last(&text),
        "Not listed: 7 known faults for which the job lacks: InfiniBand or RoCE, a communicator of one rank, \
         hosts with one GPU, libfabric, several nodes."
    );
    let has =
        |log: &str, word: &str| listed(log).iter().any(|line| line.contains(" If: ") && line.contains(word));
    // Faults are listed if the log cannot exclude them: by variables, or by a rank without a log here.
    assert!(has(&text, "NCCL_CHUNK_SIZE") && !has(&text, "average over one rank"));
    let half: String =
        text.lines().filter(|line| line.starts_with("a:100:")).map(|line| format!("{line}\n")).collect();
    assert!(has(&half, "average over one rank") && !has(&half, "network ports"));
    log.messages = vec![(0, "NCCL_DEBUG set by environment to INFO")];
    assert!(!has(&log.text(), "NCCL_CHUNK_SIZE") && last(&log.text()).contains("8 known faults"));
    log.messages = vec![(0, "NCCL_CHUNK_SIZE set by environment to 1048576.")];
    assert!(has(&log.text(), "NCCL_CHUNK_SIZE"));
    // Several nodes, with a GPU each.
    (log.hosts, log.nodes) = (vec!["a", "b"], 2);
    assert!(has(&log.text(), "network ports") && has(&log.text(), "DGX Spark"));
}

#[test]
fn faults_of_multicast_and_of_split_communicators_need_them() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text().replace("2.28.9", "2.26.5");
    let channels = |nvls: u32| {
        let line = format!("2 coll channels, 2 collnet channels, {nvls} nvls channels, 4 p2p channels");
        text.clone() + &format!("a:100:100 [0] NCCL INFO {line}\n")
    };
    let has =
        |log: &str, word: &str| listed(log).iter().any(|line| line.contains(" If: ") && line.contains(word));
    let multicast = "multicast objects";
    assert!(has(&text, multicast) && has(&channels(16), multicast) && !has(&channels(0), multicast));
    let split = text.replace("ncclCommInitRankConfig", "ncclCommSplit");
    assert!(!has(&text, "ncclCommSplit") && has(&split, "ncclCommSplit"));
    assert!(!has(&text, "80 ranks"));
}

#[test]
fn a_job_on_eight_gpus_of_a_host_has_few_of_the_faults_of_its_version() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/logs/h200x8.log");
    let mut lines = listed(&std::fs::read_to_string(path).unwrap());
    let last = lines.pop().unwrap();
    assert_eq!(
        last,
        "Not listed: 10 known faults for which the job lacks: InfiniBand or RoCE, NCCL_CHUNK_SIZE, NVLink \
         multicast (NVLS), a communicator of one rank, hosts with one GPU, libfabric, several nodes."
    );
    assert_eq!(lines.len(), 7, "{lines:?}");
}
