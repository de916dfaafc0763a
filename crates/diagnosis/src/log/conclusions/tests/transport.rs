//! Conclusions about networks, NVLink, P2P and their table.

use super::{examine, finding, pair};
use crate::examination::{Body, Grade, Health};
use crate::finding::Severity;

#[test]
fn a_network_with_gpudirect_is_healthy() {
    let found = pair("Libfabric", "NET/Libfabric/0/GDRDMA").examine();
    assert!(
        found.findings.iter().all(|finding| finding.severity == Severity::Advice),
        "{:?}",
        found.findings
    );
    assert_eq!(found.proof, ["NET/Libfabric with GPUDirect RDMA between the 2 ranks"]);
    assert_eq!(found.health(), Health::Healthy);
}

#[test]
fn a_network_without_gpudirect_is_degraded() {
    let found = pair("IB", "NET/IB/0").examine();
    assert_eq!(found.health(), Health::Degraded);
    let diagnosis = &finding(&found, "network-without-gdr").diagnosis;
    assert_eq!(diagnosis, "Data is staged through the host's memory: NET/IB without GPUDirect RDMA");
    // GB10 has one memory for CPU and GPU.
    let mut spark = pair("IB", "NET/IB/0");
    let devices = "NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB eth0:192.0.2.2<0>";
    spark.messages = vec![(0, devices), (1, devices)];
    let found = spark.examine();
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    assert_eq!(finding(&found, "network-without-gdr").severity, Severity::Advice);
}

#[test]
fn sockets_between_hosts_are_degraded_and_name_the_variable_that_asks_for_them() {
    let found = pair("Socket", "NET/Socket/0").examine();
    assert_eq!(found.health(), Health::Degraded);
    assert!(finding(&found, "nodes-over-tcp").cause.as_ref().unwrap().contains("neither"));
    let mut forced = pair("Socket", "NET/Socket/0");
    forced.messages = vec![(0, "NCCL_IB_DISABLE set by environment to 1.")];
    let found = forced.examine();
    assert_eq!(finding(&found, "nodes-over-tcp").cause.as_deref(), Some("NCCL_IB_DISABLE=1 asks for it."));
    assert_eq!(finding(&found, "nodes-over-tcp").remedy.as_deref(), Some("unset NCCL_IB_DISABLE"));
}

#[test]
fn a_plugin_that_is_not_used_is_broken_only_where_a_network_is_needed() {
    let mut log = pair("Socket", "NET/Socket/0");
    let loaded = (0, "NET/OFI Initializing aws-ofi-nccl 1.16.2");
    log.messages = vec![loaded];
    // Images also have the plugin on hosts without EFA.
    let found = log.examine();
    let plugin = finding(&found, "network-fell-back-to-tcp");
    assert_eq!(plugin.severity, Severity::Degraded);
    assert_eq!(plugin.diagnosis, "The plugin aws-ofi-nccl was loaded, and NCCL uses TCP");
    for efa in [
        "NET/OFI Setting provider_filter to efa",
        "NET/OFI Configuring AWS-specific options",
        "NET/OFI Plugin selected platform: AWS",
        "FI_PROVIDER set by environment to efa",
    ] {
        log.messages = vec![loaded, (0, efa)];
        let found = log.examine();
        let fallback = finding(&found, "network-fell-back-to-tcp");
        assert_eq!(fallback.diagnosis, "EFA was asked for but you are on TCP", "{efa}");
    }
    assert_eq!(finding(&log.examine(), "network-fell-back-to-tcp").severity, Severity::Broken);
    let mut single = log;
    single.nodes = 1;
    single.hosts = vec!["a", "a"];
    single.connections = vec![(0, 1, "P2P/CUMEM/read"), (1, 0, "P2P/CUMEM/read")];
    let found = single.examine();
    let advice = finding(&found, "network-fell-back-to-tcp");
    assert_eq!(advice.severity, Severity::Advice);
    assert_eq!(advice.diagnosis, "EFA was asked for but several nodes would use TCP");
    assert_eq!(found.proof, ["NVLink P2P between the 2 ranks"]);
    // Old versions do not write the number of nodes.
    let old = |text: &str| -> String {
        text.lines().filter(|line| !line.contains("nNodes")).map(|line| format!("{line}\n")).collect()
    };
    let found = examine(&old(&single.text()));
    assert_eq!(finding(&found, "network-fell-back-to-tcp").severity, Severity::Advice);
    single.hosts = vec!["a", "b"];
    let found = examine(&old(&single.text()));
    assert_eq!(finding(&found, "network-fell-back-to-tcp").severity, Severity::Unknown);
}

#[test]
fn a_connection_through_another_gpu_is_not_called_direct() {
    for via in ["P2P/indirect/2[2]", "P2P/indirect/2[2]/read"] {
        let mut log = pair("Socket", via);
        (log.hosts, log.nodes) = (vec!["a", "a"], 1);
        // Also if the topology has links of both.
        let path = "a:100:100 [0] NCCL INFO GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL)\n";
        let other = "a:101:101 [1] NCCL INFO GPU/0-70 :GPU/0-60 (2/370.8/NVL) GPU/0-70 (0/5000.0/LOC)\n";
        for text in [log.text(), log.text() + path + other] {
            let found = examine(&text);
            assert_eq!(
                found.proof,
                ["NVLink through another GPU (P2P/indirect) between the 2 ranks"],
                "{via}"
            );
        }
    }
}

#[test]
fn a_plugin_that_cannot_start_is_advice_where_infiniband_is_used() {
    let messages = vec![
        (0, "NET/OFI Unable to find a protocol that worked.  Failing initialization."),
        (0, "NET/OFI aws-ofi-nccl initialization failed"),
    ];
    let mut log = pair("IB", "NET/IB/0/GDRDMA");
    log.messages.clone_from(&messages);
    let found = log.examine();
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    assert_eq!(finding(&found, "efa-not-found").severity, Severity::Advice);
    let mut sockets = pair("Socket", "NET/Socket/0");
    sockets.messages = messages;
    assert_ne!(sockets.examine().health(), Health::Healthy);
}

#[test]
fn gpus_of_one_host_without_p2p_are_degraded_where_they_could_have_it() {
    let mut log = pair("Socket", "SHM/direct/direct");
    log.hosts = vec!["a", "a"];
    log.nodes = 1;
    let found = log.examine();
    // Many kinds of GPU have no P2P.
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    assert_eq!(finding(&found, "no-p2p-within-node").severity, Severity::Advice);
    assert!(finding(&found, "no-p2p-within-node").cause.as_ref().unwrap().contains("A10G"));
    for (level, severity) in [
        ("NCCL_P2P_LEVEL set by environment to SYS", Severity::Advice),
        ("NCCL_P2P_LEVEL set by environment to NVL", Severity::Degraded),
    ] {
        log.messages = vec![(0, level), (1, level)];
        assert_eq!(finding(&log.examine(), "no-p2p-within-node").severity, severity, "{level}");
    }
    log.messages = vec![(0, "NCCL_P2P_DISABLE set by environment to 1.")];
    let found = log.examine();
    assert_eq!(found.health(), Health::Degraded);
    assert_eq!(finding(&found, "no-p2p-within-node").remedy.as_deref(), Some("unset NCCL_P2P_DISABLE"));
    log.messages = vec![(0, "GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL)")];
    let found = log.examine();
    assert_eq!(finding(&found, "no-p2p-within-node").severity, Severity::Degraded);
    assert!(
        finding(&found, "no-p2p-within-node").cause.as_ref().unwrap().contains("NVLink connects these GPUs")
    );
}

#[test]
fn nvlink_needs_proof_for_each_pair() {
    let mut log = pair("Socket", "P2P/CUMEM");
    log.hosts = vec!["a", "a", "a"];
    log.nodes = 1;
    log.connections = vec![(0, 1, "P2P/CUMEM"), (1, 2, "P2P/CUMEM"), (2, 0, "P2P/CUMEM")];
    assert_eq!(log.examine().proof, ["P2P on 3 connections between 3 ranks"]);
    let all = [
        "GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL) GPU/0-80 (2/370.8/NVL)",
        "GPU/0-70 :GPU/0-60 (2/370.8/NVL) GPU/0-70 (0/5000.0/LOC) GPU/0-80 (2/370.8/NVL)",
        "GPU/0-80 :GPU/0-60 (2/370.8/NVL) GPU/0-70 (2/370.8/NVL) GPU/0-80 (0/5000.0/LOC)",
    ];
    log.messages = all.iter().map(|&line| (0, line)).collect();
    let found = log.examine();
    assert_eq!(
        found.proof,
        ["NVLink between all 6 pairs of 3 ranks by the topology; P2P over it on the 3 connections of the \
             log"]
    );
    let matrix = found.sections.iter().find_map(|section| match &section.body {
        Body::Matrix(matrix) => Some(matrix),
        _ => None,
    });
    let cells = &matrix.unwrap().cells;
    assert_eq!((cells[0][1].text.as_str(), cells[1][0].text.as_str()), ("NVL", "nvl"));
    assert_eq!((cells[1][0].grade, cells[1][1].grade), (Grade::Fastest, Grade::None));
    // Another rank sees one of the paths over PCIe.
    log.messages.push((1, "GPU/0-60 :GPU/0-80 (3/24.0/PHB)"));
    let proof = log.examine().proof;
    assert!(proof.iter().all(|sentence| !sentence.contains("all 6")), "{proof:?}");
}

#[test]
fn reading_that_was_asked_for_does_not_prove_nvlink() {
    let mut log = pair("Socket", "P2P/CUMEM/read");
    log.hosts = vec!["a", "a"];
    log.nodes = 1;
    assert_eq!(log.examine().proof, ["NVLink P2P between the 2 ranks"]);
    let set = "NCCL_P2P_READ_ENABLE set by environment to 1.";
    log.messages = vec![(0, set), (1, set)];
    assert_eq!(log.examine().proof, ["P2P between the 2 ranks"]);
}

#[test]
fn a_network_without_gdr_does_not_degrade_a_job_of_one_node() {
    let disabled = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'";
    let mut log = pair("IB", "P2P/CUMEM/read");
    (log.hosts, log.nodes, log.messages) = (vec!["a", "a"], 1, vec![(0, disabled)]);
    let found = log.examine();
    assert_eq!(finding(&found, "gdr-disabled").severity, Severity::Advice);
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    let mut log = pair("IB", "NET/IB/0");
    log.messages = vec![(0, disabled)];
    assert_eq!(finding(&log.examine(), "gdr-disabled").severity, Severity::Degraded);
    // The connections refute the message.
    let mut log = pair("IB", "NET/IB/0/GDRDMA");
    log.messages = vec![(0, disabled)];
    let found = log.examine();
    assert!(found.findings.iter().all(|each| each.rule != "gdr-disabled"), "{:?}", found.findings);
}

#[test]
fn a_rank_of_many_thousands_in_one_line_makes_no_table_of_all_ranks() {
    let line =
        |to: u32| format!("a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> {to}[1] [send] via NET/IB/0/GDRDMA\n");
    let matrix = |log: &str| {
        let found = examine(log);
        assert_eq!(found.health(), Health::CannotTell);
        let section = found.sections.into_iter().find(|section| section.title.starts_with("Transport"));
        section.unwrap().body
    };
    let Body::Matrix(few) = matrix(&line(90_000)) else { panic!("no matrix") };
    assert_eq!(few.labels, ["0", "90000"]);
    assert_eq!(few.cells[0][1].text, "GDR");
    let many: String = (1..400).map(line).collect();
    let Body::Lines(lines) = matrix(&many) else { panic!("a matrix") };
    assert!(lines[0].contains("more than 256 ranks") && lines[0].contains("399 pairs"), "{lines:?}");
    // The line says the number of its ranks.
    let broken = line(90_000).replace("GDRDMA", "GDRDMA comm 0xf3 nRanks 08");
    assert!(examine(&broken).unseen.iter().any(|text| text.contains("1 channels were not kept")));
}

#[test]
fn old_plugins_name_their_version_in_other_words() {
    let mut log = pair("Socket", "NET/Socket/0");
    log.messages = vec![(0, "NET/OFI Using aws-ofi-nccl 1.5.0aws")];
    let found = log.examine();
    let fallback = finding(&found, "network-fell-back-to-tcp");
    assert_eq!(fallback.evidence[0].text, "aws-ofi-nccl 1.5.0 was loaded; then: Using network Socket");
}
