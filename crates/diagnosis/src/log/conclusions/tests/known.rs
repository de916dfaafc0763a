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
    // A network that is not known may have it.
    assert!(told("UCX", Vec::new()));
    assert!(!told("AWS Libfabric", vec![(0, efa), (1, efa)]));
    assert!(!told("IB", Vec::new()));
}
