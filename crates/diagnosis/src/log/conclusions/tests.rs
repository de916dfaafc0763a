use super::*;
use crate::examination::{Body, Grade, Health};
use crate::finding::{Finding, Severity};
use crate::log::Reader;

pub(super) fn examine(log: &str) -> Examination {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    reader.read("job.log", log.as_bytes());
    conclude(&reader.finish(), &rules)
}

/// A job: ranks with their hosts, connections, and more messages of each rank.
pub(super) struct Log {
    hosts: Vec<&'static str>,
    nodes: u32,
    network: &'static str,
    /// Sender, receiver, transport.
    connections: Vec<(u32, u32, &'static str)>,
    /// Rank and message, before the communicator starts.
    messages: Vec<(u32, &'static str)>,
}

impl Log {
    pub(super) fn text(&self) -> String {
        let ranks = self.hosts.len();
        let mut lines = Vec::new();
        let source = |rank: u32| {
            format!("{}:{}:{} [{rank}] NCCL INFO", self.hosts[rank as usize], 100 + rank, 100 + rank)
        };
        for rank in 0..ranks as u32 {
            let name = source(rank);
            lines.push(format!("{name} NCCL version 2.28.9+cuda13.0"));
            let own = self.messages.iter().filter(|(of, _)| *of == rank);
            lines.extend(own.map(|(_, message)| format!("{name} {message}")));
            lines.push(format!("{name} Using network {}", self.network));
            let bus = 0x60 + 0x10 * rank;
            let numbers = format!(
                "comm 0x{rank}1 rank {rank} nranks {ranks} cudaDev {rank} nvmlDev {rank} busId {bus:x}"
            );
            lines.push(format!("{name} ncclCommInitRankConfig {numbers} commId 0x77 - Init START"));
            lines.push(format!(
                "{name} comm 0x{rank}1 rank {rank} nRanks {ranks} nNodes {} localRanks 1 localRank 0 MNNVL 0",
                self.nodes
            ));
            lines.push(format!("{name} ncclCommInitRankConfig {numbers} commId 0x77 - Init COMPLETE"));
        }
        for (from, to, via) in &self.connections {
            lines.push(format!(
                "{} Channel 00/0 : {from}[{from}] -> {to}[{to}] [send] via {via}",
                source(*from)
            ));
        }
        for rank in 0..ranks as u32 {
            lines.push(format!("{} Connected all rings, use ring PXN 0 GDR 1", source(rank)));
        }
        lines.join("\n") + "\n"
    }

    fn examine(&self) -> Examination {
        examine(&self.text())
    }
}

/// Two ranks on two hosts.
pub(super) fn pair(network: &'static str, via: &'static str) -> Log {
    let connections = vec![(0, 1, via), (1, 0, via)];
    Log { hosts: vec!["a", "b"], nodes: 2, network, connections, messages: Vec::new() }
}

fn finding<'a>(found: &'a Examination, rule: &str) -> &'a Finding {
    found
        .findings
        .iter()
        .find(|finding| finding.rule == rule)
        .unwrap_or_else(|| panic!("{:?}", found.findings))
}

#[test]
fn a_log_with_a_gap_proves_nothing() {
    let whole = pair("Libfabric", "NET/Libfabric/0/GDRDMA").text();
    assert_eq!(examine(&whole).health(), Health::Healthy);
    let without = |words: &str| -> String {
        whole.lines().filter(|line| !line.contains(words)).map(|line| format!("{line}\n")).collect()
    };
    let ring = "a:100:100 [0] NCCL INFO Channel 00/02 : 0 1\n";
    for (text, says) in [
        (without("Connected all rings"), "did not log that the connections are complete"),
        (without("1[1] -> 0[0]") + ring, "no connection from rank 1 to rank 0"),
        (whole.replace("NET/Libfabric/0/GDRDMA", "FOO/9"), "via FOO/9, a transport that is not known"),
        (whole.replace("NET/Libfabric/0/GDRDMA", "P2P/CUMEM"), "are these two names of one host"),
    ] {
        let found = examine(&text);
        assert_eq!(found.proof, Vec::<String>::new(), "{says}");
        assert!(found.unseen.iter().any(|line| line.contains(says)), "{says}: {:?}", found.unseen);
    }
}

#[test]
fn a_log_without_lines_of_nccl_cannot_tell() {
    for log in ["", "hello\n", "\u{0}\u{ff}"] {
        let found = examine(log);
        assert_eq!(found.health(), Health::CannotTell);
        assert!(
            found.unseen[0].contains("no line of NCCL: run the job with NCCL_DEBUG=INFO"),
            "{:?}",
            found.unseen
        );
    }
}

#[test]
fn a_file_of_which_nothing_was_read_has_no_rest() {
    let found = examine("\u{7f}ELF\u{2}\u{1}\n");
    assert!(found.unseen[0].starts_with("job.log: it is no log, but a program"), "{:?}", found.unseen);
}

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
    // Images have the plugin on hosts without EFA too.
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
        [
            "NVLink between all 6 pairs of 3 ranks by the topology; P2P over it on the 3 connections of the log"
        ]
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
fn ranks_that_do_not_complete_are_named() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let cut: String = text
        .lines()
        .filter(|line| !line.contains("101:101 [1]") || !line.contains("COMPLETE"))
        .map(|line| format!("{line}\n"))
        .collect();
    // The log can be cut there.
    let found = examine(&cut);
    assert_eq!(found.health(), Health::CannotTell, "{:?}", found.findings);
    let ends = finding(&found, "log-ends-in-start");
    assert!(ends.diagnosis.starts_with("The log ends during the start: rank 1 of 2 started"), "{ends:?}");
    assert_eq!(ends.evidence[0].text, "Connected all rings, use ring PXN 0 GDR 1");
    assert_eq!(ends.evidence[0].line, Some(13));
    // It goes on, or the launcher reports the end.
    let exit = "mpirun noticed that process rank 1 with PID 0 on node b exited on signal 9 (Killed).\n";
    for (more, place) in [("another program\n".repeat(1001).as_str(), 0), (exit, 1)] {
        let found = examine(&(cut.clone() + more));
        assert_eq!(found.health(), Health::Broken);
        if place > 0 {
            assert_eq!(found.findings[0].rule, "mpirun-killed");
            continue;
        }
        let stuck = finding(&found, "start-never-complete");
        assert!(stuck.diagnosis.starts_with("rank 1 of 2 started communicator"), "{}", stuck.diagnosis);
        assert_eq!(stuck.ranks, [1]);
        assert_eq!(stuck.cause.as_deref(), Some("rank 0 completed; the others failed or wait."));
        assert_eq!(found.unseen, ["rank 1 did not finish the start"]);
        assert_eq!(found.proof, [""; 0]);
    }
}

#[test]
fn an_absent_rank_is_unseen_and_not_broken() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let half: String =
        text.lines().filter(|line| line.starts_with("a:")).map(|line| format!("{line}\n")).collect();
    let found = examine(&half);
    assert_eq!(found.health(), Health::CannotTell);
    assert_eq!(
        found.unseen,
        [
            "the logs of rank 1 are not here; proven is only: NET/IB with GPUDirect RDMA on 1 connection between 2 ranks"
        ]
    );
}

#[test]
fn a_job_without_connections_proves_nothing() {
    let mut log = pair("IB", "");
    log.connections = Vec::new();
    let found = log.examine();
    assert_eq!(found.health(), Health::CannotTell);
    assert!(found.unseen[0].contains("no connection of ranks 0-1"), "{:?}", found.unseen);
}

#[test]
fn late_ranks_are_named() {
    let mut log = pair("IB", "NET/IB/0/GDRDMA");
    let timings = "Bootstrap timings total 62.1 (create 0.1, send 0.1, recv 61.9, ring 0.0, delay 0.0)";
    let text = log.text();
    let with = |waits: &[(&str, &str)]| -> String {
        let lines = text.lines().flat_map(|line| {
            let wait = waits.iter().find(|(start, _)| line.starts_with(start) && line.contains("nNodes"));
            let source = line.split(" comm").next().unwrap_or_default();
            std::iter::once(line.to_owned()).chain(wait.map(|(_, text)| format!("{source} {text}")))
        });
        lines.map(|line| line + "\n").collect()
    };
    let short = "Bootstrap timings total 0.1 (create 0.1, send 0.1, recv 0.001, ring 0.0, delay 0.0)";
    let found = examine(&with(&[("a:", timings), ("b:", short)]));
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    let late = finding(&found, "late-ranks");
    assert_eq!(late.diagnosis, "The start waited: rank 0 waited 61.9 s for rank 1, which came last");
    assert_eq!(late.ranks, [1]);
    log.messages = Vec::new();
}

#[test]
fn networks_and_versions_that_differ_are_named() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let mixed = text
        .replace("b:101:101 [1] NCCL INFO Using network IB", "b:101:101 [1] NCCL INFO Using network Socket");
    let found = examine(&mixed);
    assert_eq!(
        finding(&found, "networks-differ").diagnosis,
        "The ranks chose different networks: IB on rank 0; Socket on rank 1"
    );
    let builds = text.replace(
        "b:101:101 [1] NCCL INFO NCCL version 2.28.9+cuda13.0",
        "b:101:101 [1] NCCL INFO NCCL version 2.28.9+cuda12.9",
    );
    let found = examine(&builds);
    assert_eq!(finding(&found, "nccl-builds-differ").severity, Severity::Degraded);
    let versions = text.replace(
        "b:101:101 [1] NCCL INFO NCCL version 2.28.9",
        "b:101:101 [1] NCCL INFO NCCL version 2.27.3",
    );
    assert_eq!(finding(&examine(&versions), "nccl-versions-differ").severity, Severity::Broken);
}

#[test]
fn unknown_warnings_are_shown_and_leave_the_health_open() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text()
        + "\n[2026-11-24 13:40:53] a:100:100 [0] some/file.cc:379 NCCL WARN The flux capacitor is cold\n";
    let found = examine(&text);
    assert_eq!(found.health(), Health::CannotTell);
    assert_eq!(found.findings[0].diagnosis, "NCCL warns: The flux capacitor is cold");
    assert_eq!(found.findings[0].cause, None);
    assert_eq!(found.findings[0].evidence[0].line, Some(16));
}

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
fn a_variable_counts_for_all_devices_of_its_process() {
    let mut log = pair("Socket", "P2P/CUMEM/read");
    log.hosts = vec!["a"; 4];
    log.nodes = 1;
    log.connections =
        vec![(0, 1, "P2P/CUMEM"), (1, 2, "P2P/CUMEM"), (2, 3, "P2P/CUMEM"), (3, 0, "P2P/CUMEM")];
    log.messages = vec![(0, "NCCL_P2P_DISABLE set by environment to 0.")];
    // One process of each device, then one process of two devices, then one of all.
    let several = log.text();
    let differs = |found: &Examination| found.findings.iter().any(|each| each.rule == "variable-differs");
    let found = examine(&several);
    assert_eq!(
        finding(&found, "variable-differs").diagnosis,
        "NCCL_P2P_DISABLE differs between ranks: 0 on rank 0; not set on ranks 1-3"
    );
    let two = several.replace("a:101:", "a:100:");
    let found = examine(&two);
    assert_eq!(
        finding(&found, "variable-differs").diagnosis,
        "NCCL_P2P_DISABLE differs between ranks: 0 on ranks 0-1; not set on ranks 2-3"
    );
    let one = two.replace("a:102:", "a:100:").replace("a:103:", "a:100:");
    assert!(!differs(&examine(&one)), "{:?}", examine(&one).findings);
}

#[test]
fn networks_may_differ_between_jobs() {
    let first = pair("IB", "NET/IB/0/GDRDMA").text();
    let second = pair("Socket", "NET/Socket/0").text();
    let second =
        second.replace("a:100:100", "c:200:200").replace("b:101:101", "d:201:201").replace("0x77", "0x78");
    let found = examine(&(first + &second));
    assert!(found.findings.iter().all(|each| each.rule != "networks-differ"), "{:?}", found.findings);
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
fn old_plugins_name_their_version_in_other_words() {
    let mut log = pair("Socket", "NET/Socket/0");
    log.messages = vec![(0, "NET/OFI Using aws-ofi-nccl 1.5.0aws")];
    let found = log.examine();
    let fallback = finding(&found, "network-fell-back-to-tcp");
    assert_eq!(fallback.evidence[0].text, "aws-ofi-nccl 1.5.0 was loaded; then: Using network Socket");
}

#[test]
fn harmful_variables_are_told_for_the_version_of_the_log() {
    let mut log = pair("IB", "NET/IB/0/GDRDMA");
    let with = |log: &mut Log, line: &'static str| {
        log.messages = vec![(0, line), (1, line)];
        log.examine()
    };
    let found = with(&mut log, "NCCL_ALGO set by environment to Tree");
    let algorithm = finding(&found, "algo-without-ring");
    assert_eq!((algorithm.severity, &algorithm.ranks[..]), (Severity::Degraded, &[0, 1][..]));
    assert_eq!(algorithm.evidence[0].line, Some(2));
    let old = examine(&log.text().replace("2.28.9", "2.23.4"));
    assert!(old.findings.iter().all(|each| each.rule != "algo-without-ring"), "{:?}", old.findings);
    let unknown = examine(&log.text().replace("NCCL version 2.28.9+cuda13.0", "hello"));
    assert!(unknown.findings.iter().all(|each| each.rule != "algo-without-ring"), "{:?}", unknown.findings);
    let found = with(&mut log, "NCCL_PROTO set by environment to Simpel");
    assert_eq!(finding(&found, "variable-value").severity, Severity::Degraded);
    // The log shows the transport; the network has nothing to do with P2P.
    let found = with(&mut log, "NCCL_P2P_DISABLE set by environment to 1.");
    assert_eq!(finding(&found, "p2p-disabled").severity, Severity::Advice);
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    for harmless in ["NCCL_DEBUG set by environment to INFO", "NCCL_SOCKET_IFNAME set by environment to eth0"]
    {
        let found = with(&mut log, harmless);
        assert!(found.findings.iter().all(|each| each.rule == "known-faults"), "{:?}", found.findings);
    }
}

#[test]
fn reports_of_nccls_own_diagnostics_are_findings() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let with = |lines: &str| examine(&(text.clone() + lines));
    let found = with(
        "a:100 NCCL DIAG === NCCL Diagnostics ===\n\
         a:100 NCCL DIAG [OK]   p2p: all 2 directed GPU P2P edges verified\n\
         a:100 NCCL DIAG [OK] net bw: skipped (single host or no network transport)\n",
    );
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    let found = with(
        "a:100 NCCL DIAG [INFO] p2p: transfer failed srcRank=0 srcCudaDev=0 dstRank=1 dstCudaDev=1 path=NVL reason=mismatch\n\
         a:100 NCCL DIAG [INFO] p2p: only 1/2 GPU-to-GPU peer accesses passed verification\n",
    );
    let failed = finding(&found, "nccl-diagnostics-p2p");
    assert_eq!((failed.severity, &failed.ranks[..], failed.occurrences), (Severity::Broken, &[0, 1][..], 2));
    assert_eq!(failed.hosts, ["a", "b"]);
    assert!(
        failed.diagnosis.ends_with(
            "transfer failed srcRank=0 srcCudaDev=0 dstRank=1 dstCudaDev=1 path=NVL reason=mismatch"
        )
    );
    let found = with("a:100 NCCL DIAG [INFO] ECC: unavailable via NVML across 2 ranks in comm 0x77\n");
    assert_eq!(finding(&found, "nccl-diagnostics").severity, Severity::Advice);
    for (line, severity) in [
        ("[INFO] p2p: active check returned 3", Severity::Advice),
        ("[INFO] rdma_topo check: not usable on 2/2 ranks in comm 0x77 (unavailable)", Severity::Advice),
        ("[INFO] ATS state: unable to identify relevant NICs on 2/2 ranks in comm 0x77", Severity::Advice),
        (
            "[INFO] NCCL environment: mismatch across 2 ranks in comm 0x77 for NCCL_PROFILER_PLUGIN",
            Severity::Advice,
        ),
        ("[FAIL] new: words", Severity::Unknown),
    ] {
        let found = with(&format!("a:100 NCCL DIAG {line}\n"));
        let told = finding(&found, "nccl-diagnostics");
        assert_eq!(told.severity, severity, "{line}");
        assert!(line.ends_with(told.diagnosis.rsplit("report: ").next().unwrap()), "{}", told.diagnosis);
        let health = if severity == Severity::Advice { Health::Healthy } else { Health::CannotTell };
        assert_eq!(found.health(), health, "{line}");
    }
}

#[test]
fn a_build_with_and_without_its_commit_is_one() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let commit = |text: &str, rank: u32, commit: &str| {
        let host = ["a", "b"][rank as usize];
        let line = format!("{host}:10{rank}:10{rank} [{rank}] NCCL INFO");
        text.replacen(
            &format!("{line} Using network"),
            &format!("{line} NCCL git version {commit}\n{line} Using network"),
            1,
        )
    };
    let differs = |text: &str| examine(text).findings.iter().any(|each| each.rule == "nccl-builds-differ");
    let one = commit(&text, 0, "HEAD 1933fdd");
    assert!(!differs(&one));
    assert!(!differs(&commit(&one, 1, "HEAD 1933fdd")));
    assert!(differs(&commit(&one, 1, "HEAD 0000001")));
}

#[test]
fn ranks_that_share_a_gpu_are_remarked() {
    let mut log = pair("Socket", "P2P/CUMEM/read");
    (log.hosts, log.nodes) = (vec!["a", "a"], 1);
    let shared = log.text().replace("busId 70", "busId 60");
    let found = examine(&shared);
    let finding = finding(&found, "ranks-share-gpu");
    assert_eq!((finding.severity, &finding.ranks[..]), (Severity::Advice, &[0, 1][..]));
    assert!(log.examine().findings.iter().all(|each| each.rule != "ranks-share-gpu"));
    // GPUs of two hosts can have one number.
    log.hosts = vec!["a", "b"];
    let apart = examine(&log.text().replace("busId 70", "busId 60"));
    assert!(apart.findings.iter().all(|each| each.rule != "ranks-share-gpu"), "{:?}", apart.findings);
}

#[test]
fn a_network_without_gdr_does_not_degrade_a_job_of_one_node() {
    let disabled = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'";
    let mut log = pair("IB", "P2P/CUMEM/read");
    (log.hosts, log.nodes, log.messages) = (vec!["a", "a"], 1, vec![(0, disabled)]);
    let found = log.examine();
    assert_eq!(finding(&found, "gdr-disabled").severity, Severity::Advice);
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    let mut log = pair("IB", "NET/IB/0/GDRDMA");
    log.messages = vec![(0, disabled)];
    assert_eq!(finding(&log.examine(), "gdr-disabled").severity, Severity::Degraded);
}

#[test]
fn jobs_one_after_another_are_judged_each_by_itself() {
    let first = pair("IB", "NET/IB/0/GDRDMA").text();
    let second = |text: &str| {
        text.replace("a:100:100", "a:200:200").replace("b:101:101", "b:201:201").replace("0x77", "0x78")
    };
    let found = examine(&(first.clone() + &second(&first)));
    assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    assert_eq!(
        finding(&found, "several-jobs").diagnosis,
        "The log has 2 jobs on the same GPUs, one after another: lines 1 to 14; lines 15 to 28"
    );
    assert_eq!(
        found.proof,
        [1, 2].map(|job| format!("Job {job}: NET/IB with GPUDirect RDMA between the 2 ranks"))
    );
    // A healthy job does not hide one before or after it.
    let slow = pair("Socket", "NET/Socket/0").text();
    let found = examine(&(slow.clone() + &second(&first)));
    assert!(finding(&found, "nodes-over-tcp").diagnosis.starts_with("Job 1: "), "{:?}", found.findings);
    let found = examine(&(first.clone() + &second(&slow)));
    assert!(finding(&found, "nodes-over-tcp").diagnosis.starts_with("Job 2: "), "{:?}", found.findings);
    assert_eq!(found.health(), Health::Degraded);
    let cut: String =
        slow.lines().filter(|line| !line.contains("Connected")).map(|line| format!("{line}\n")).collect();
    let silent =
        cut.replace("NET/Socket/0", "NET/IB/0/GDRDMA").replace("Using network Socket", "Using network IB");
    let found = examine(&(silent + &second(&first)));
    assert_eq!((found.health(), found.proof.len()), (Health::CannotTell, 0));
    assert!(found.unseen.iter().any(|text| text.starts_with("Job 1: ")), "{:?}", found.unseen);
    // A failure of the first job is not that of the second one's ranks.
    let killed =
        "a:100:100 [0] misc/socket.cc:59 NCCL WARN socketProgress: Connection closed by remote peer b<1>\n";
    let found = examine(&(first.clone() + killed + &second(&first)));
    assert!(found.findings[0].diagnosis.starts_with("Job 1: The job failed"), "{:?}", found.findings[0]);
    // The last 16 of many jobs are judged, under their own numbers.
    let many: String = (0..20)
        .map(|job| {
            let text = if job == 4 { &slow } else { &first };
            let text = text.replace("a:100:100", &format!("a:{0}:{0}", 1000 + job));
            text.replace("b:101:101", &format!("b:{0}:{0}", 2000 + job))
                .replace("0x77", &format!("0x{:x}", 0x77 + job))
        })
        .collect();
    let found = examine(&many);
    let notice = &finding(&found, "several-jobs").diagnosis;
    assert!(
        notice.starts_with("The log has 20 jobs") && notice.contains("judged are the last 16"),
        "{notice}"
    );
    assert!(finding(&found, "nodes-over-tcp").diagnosis.starts_with("Job 5: "), "{:?}", found.findings);
    // Groups of one job run at the same time.
    let mixed: String =
        first.lines().zip(second(&first).lines()).map(|(one, other)| format!("{one}\n{other}\n")).collect();
    assert!(examine(&mixed).findings.iter().all(|each| each.rule != "several-jobs"));
}

#[test]
fn groups_of_one_job_one_after_another_are_one_job() {
    let first = pair("IB", "NET/IB/0/GDRDMA").text();
    let group = |text: &str, first: &str, second: &str| {
        text.replace("a:100:100", first).replace("b:101:101", second).replace("0x77", "0x78")
    };
    // Tensor parallel groups of the same size: of other pods, and of other GPUs of the same hosts.
    let pods = group(&first, "c:100:100", "d:101:101");
    let gpus = group(&first, "a:200:200", "b:201:201")
        .replace("busId 60", "busId 80")
        .replace("busId 70", "busId 90");
    for second in [&pods, &gpus] {
        let found = examine(&(first.clone() + second));
        assert!(found.findings.iter().all(|each| each.rule != "several-jobs"), "{:?}", found.findings);
        assert_eq!(found.proof, ["2 communicators: NET/IB with GPUDirect RDMA between the 2 ranks"]);
    }
    // The first group proves nothing about the second one.
    let slow = pods.replace("NET/IB/0/GDRDMA", "NET/IB/0");
    assert_eq!(
        finding(&examine(&(first.clone() + &slow)), "network-without-gdr").severity,
        Severity::Degraded
    );
    let open = pods.replace("Connected all rings", "Hello");
    let found = examine(&(first.clone() + &open));
    assert_eq!((found.health(), found.proof.len()), (Health::CannotTell, 0));
    assert!(found.unseen.iter().any(|text| text.starts_with("communicator 0x78: ")), "{:?}", found.unseen);
    // A failure of one group is the cause of what the other one reports.
    let lost =
        "a:100:100 [0] misc/socket.cc:59 NCCL WARN socketProgress: Connection closed by remote peer d<1>\n";
    let full = "d:101:101 [1] include/alloc.h:1 NCCL WARN Cuda failure 2 'out of memory'\n";
    let found = examine(&(first.clone() + lost + &pods + full));
    let cause = &found.findings[0];
    assert!(cause.rule != "nccl-peer-closed" && !cause.consequences.is_empty(), "{:?}", found.findings);
    // The next run of both groups is another job.
    let again = |text: &str| text.replace(":10", ":50").replace("0x7", "0x9");
    let found = examine(&(first.clone() + &pods + &again(&first) + &again(&pods)));
    assert_eq!(
        finding(&found, "several-jobs").diagnosis,
        "The log has 2 jobs on the same GPUs, one after another: lines 1 to 28; lines 29 to 56"
    );
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
fn a_log_that_is_cut_in_the_start_cannot_tell() {
    // A rank without lines is told in the singular.
    let alone: String =
        pair("IB", "NET/IB/0/GDRDMA").text().lines().take(4).map(|line| format!("{line}\n")).collect();
    let ended = alone.clone() + &"another program\n".repeat(1001);
    let cause = |log: &str, rule: &str| finding(&examine(log), rule).cause.clone().unwrap();
    assert_eq!(
        cause(&ended, "start-never-complete"),
        "The log has no line of rank 1: it did not start, or cannot reach rank 0, or its log is not here."
    );
    assert!(cause(&alone, "log-ends-in-start").ends_with(" The log has no line of rank 1."));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/logs/h200x8.log");
    let whole = std::fs::read_to_string(path).unwrap();
    for line in whole.lines().position(|line| line.contains("Init START")).into_iter().chain([100, 300, 500])
    {
        let cut: String = whole.lines().take(line + 1).map(|line| format!("{line}\n")).collect();
        let found = examine(&cut);
        assert_eq!(found.health(), Health::CannotTell, "{line}: {:?}", found.findings);
    }
    assert_eq!(examine(&whole).health(), Health::Healthy);
}
