//! Conclusions about ranks: absent, late and incomplete ranks, and differences between ranks.

use super::{examine, finding, pair};
use crate::examination::{Examination, Health};
use crate::finding::Severity;

#[test]
fn ranks_that_do_not_complete_are_named() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let cut: String = text
        .lines()
        .filter(|line| !line.contains("101:101 [1]") || !line.contains("COMPLETE") && !line.contains("Conn"))
        .map(|line| format!("{line}\n"))
        .collect();
    // The log can be cut there.
    let found = examine(&cut);
    assert_eq!(found.health(), Health::CannotTell, "{:?}", found.findings);
    let ends = finding(&found, "log-ends-in-start");
    assert!(ends.diagnosis.starts_with("The log ends during the start: rank 1 of 2 started"), "{ends:?}");
    assert_eq!(ends.evidence[0].text, "Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA");
    assert_eq!(ends.evidence[0].line, Some(11));
    // It continues, or the launcher reports the end.
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
        assert_eq!(stuck.cause.as_deref(), Some("rank 0 completed; the other ranks failed or wait."));
        assert_eq!(found.unseen[0], "rank 1 did not finish the start");
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
        ["the logs of rank 1 are not here; proven is only: NET/IB with GPUDirect RDMA on 1 connection \
          between 2 ranks"]
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
    // Only versions from 2.30 on allow it within a node.
    for (version, nodes, severity) in
        [("2.30.7", 1, Severity::Advice), ("2.28.9", 1, Severity::Unknown), ("2.28.9", 2, Severity::Advice)]
    {
        let text = shared.replace("2.28.9", version).replace("nNodes 1", &format!("nNodes {nodes}"));
        let found = examine(&text);
        let told = finding(&found, "ranks-share-gpu");
        assert_eq!((told.severity, &told.ranks[..]), (severity, &[0, 1][..]), "{version} {nodes}");
        assert_eq!(found.health() == Health::CannotTell, severity == Severity::Unknown, "{version} {nodes}");
    }
    assert!(log.examine().findings.iter().all(|each| each.rule != "ranks-share-gpu"));
    // GPUs of two hosts can have one number.
    log.hosts = vec!["a", "b"];
    let apart = examine(&log.text().replace("busId 70", "busId 60"));
    assert!(apart.findings.iter().all(|each| each.rule != "ranks-share-gpu"), "{:?}", apart.findings);
}

#[test]
fn a_log_that_is_cut_in_the_start_cannot_tell() {
    // A single rank without lines is reported in the singular.
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

#[test]
fn a_communicator_without_an_id_has_no_empty_name() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    // Connections of other processes, without their start in the log.
    let line = "c:300:300 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA\n";
    let found = examine(&(text + line));
    assert_eq!(found.health(), Health::CannotTell, "{:?}", found.findings);
    let says = "a communicator without an id: no line has the number of ranks: there are at least 2 ranks, and \
                the log has lines of rank 1; proven is only: ";
    assert!(found.unseen.iter().any(|line| line.starts_with(says)), "{:?}", found.unseen);
    let empty = |line: &&String| line.contains("communicator :") || line.contains("communicator  ");
    assert_eq!(found.unseen.iter().find(empty), None);
}

#[test]
fn ranks_that_name_different_sizes_are_broken_in_any_order() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/logs/g2.log");
    let real = std::fs::read_to_string(path).unwrap();
    assert_eq!((examine(&text).health(), examine(&real).health()), (Health::Healthy, Health::Healthy));
    for text in [&text, &real] {
        for (name, other) in [("nranks 2", "nranks 8"), ("nranks 2", "nranks 3")] {
            let change = |line: &str| match line.contains("cudaDev 1") {
                true => format!("{}\n", line.replace(name, other)),
                false => format!("{line}\n"),
            };
            let lines: Vec<String> = text.lines().map(change).collect();
            let is_of_one = |line: &&String| line.contains("[1] NCCL");
            let (one, zero): (Vec<&String>, Vec<&String>) = lines.iter().partition(is_of_one);
            let joined = |first: &[&String], second: &[&String]| -> String {
                first.iter().chain(second).map(|line| line.as_str()).collect()
            };
            for log in [lines.concat(), joined(&zero, &one), joined(&one, &zero)] {
                let found = examine(&log);
                let told = finding(&found, "rank-counts-differ");
                let says = format!("name different numbers of ranks: 2 on rank 0; {} on rank 1", &other[7..]);
                assert!(told.diagnosis.ends_with(&says), "{}", told.diagnosis);
                assert_eq!((found.health(), found.proof.len()), (Health::Broken, 0), "{log}");
                assert_eq!(told.ranks, [0, 1]);
            }
        }
    }
}

#[test]
fn a_rank_that_logs_no_connection_of_its_own_is_not_seen() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/logs/g2.log");
    let real = std::fs::read_to_string(path).unwrap();
    let made = pair("IB", "NET/IB/0/GDRDMA").text();
    let without = |text: &str, is_dropped: &dyn Fn(&str) -> bool| -> String {
        text.lines().filter(|line| !is_dropped(line)).map(|line| format!("{line}\n")).collect()
    };
    let is_channel = |line: &str| line.contains("NCCL INFO Channel ") && line.contains(" via ");
    for text in [&real, &made] {
        let found = examine(&without(text, &|line| is_channel(line) && line.contains("[1] NCCL INFO")));
        assert_eq!((found.health(), found.proof.len()), (Health::CannotTell, 0), "{:?}", found.findings);
        let says = "the lines of rank 1 show no connection, but the lines of other ranks do";
        assert!(found.unseen.iter().any(|line| line.starts_with(says)), "{:?}", found.unseen);
    }
    // A rank with some logged connection, here as the receiver alone, is seen.
    let received = made.replace(
        "[1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send]",
        "[1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [receive]",
    );
    assert_eq!(examine(&received).health(), Health::Healthy);
    // A rank without lines, and without connections from others, is reported once.
    let mut log = pair("IB", "NET/IB/0/GDRDMA");
    log.hosts = vec!["a", "b", "c"];
    let found = log.examine();
    let of_third = found.unseen.iter().filter(|line| line.contains("rank 2")).count();
    assert_eq!((found.health(), of_third), (Health::CannotTell, 1), "{:?}", found.unseen);
}

/// `tail`, `kubectl logs --tail` and the rotation of logs cut it.
#[test]
fn a_log_without_its_beginning_is_neither_healthy_nor_compared() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/logs/g2.log");
    let real = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = real.lines().collect();
    let start = lines.iter().position(|line| line.contains("Init START")).unwrap();
    for first in 0..lines.len() {
        let found = examine(&lines[first..].join("\n"));
        let whole = first <= start;
        assert_eq!(found.health() == Health::Healthy, whole, "from line {first}: {:?}", found.unseen);
        let is_compared = found.findings.iter().any(|each| each.rule == "variable-differs");
        assert!(!is_compared, "from line {first}: {:?}", found.findings);
    }
}

/// Returns the log of eight ranks with its lines. All ranks completed and destroyed their communicator.
fn eight_ranks() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/logs/h200x8.log");
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_rank_whose_later_lines_prove_its_start_has_a_log_with_a_gap() {
    let lines = eight_ranks();
    let examine_without = |is_lost: &dyn Fn(&str) -> bool| {
        let kept: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !is_lost(line)).collect();
        examine(&kept.join("\n"))
    };
    assert_eq!(examine_without(&|_| false).health(), Health::Healthy);
    let is_complete = |line: &str| line.contains("Init COMPLETE");
    let of_third = |line: &str| line.contains(" rank 3 ");
    let is_destroy = |line: &str| line.contains("Destroy COMPLETE");
    for (is_lost, whose) in [
        (&is_complete as &dyn Fn(&str) -> bool, "ranks 0-7"),
        (&|line: &str| is_complete(line) && of_third(line), "rank 3"),
        // The other ranks prove that connections follow the start.
        (&|line: &str| (is_complete(line) || is_destroy(line)) && of_third(line), "rank 3"),
    ] {
        let found = examine_without(is_lost);
        assert_eq!(found.health(), Health::CannotTell, "{whose}: {:?}", found.findings);
        assert!(
            found.findings.iter().all(|each| each.rule != "start-never-complete"),
            "{:?}",
            found.findings
        );
        let says = format!("the log lacks the line `Init COMPLETE` of {whose}, but has lines that follow it");
        assert!(found.unseen.iter().any(|line| line.starts_with(&says)), "{:?}", found.unseen);
    }
    // A rank without such lines did not complete.
    let connects = |line: &str| line.contains("[3] NCCL INFO Conn");
    let found =
        examine_without(&|line| connects(line) || (is_complete(line) || is_destroy(line)) && of_third(line));
    assert_eq!(finding(&found, "start-never-complete").ranks, [3]);
}

/// Versions that connect while they start log `Connected all rings` before `Init COMPLETE`.
#[test]
fn connections_within_the_start_do_not_prove_its_end() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text();
    let (mut connected, mut lines): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.contains("Connected all rings"));
    connected.append(&mut lines.extract_if(.., |line| line.contains("Init COMPLETE")).collect());
    let lines = [lines, connected].concat().join("\n");
    assert_eq!(examine(&lines).health(), Health::Healthy);
    let died = lines.replace("rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 70 commId 0x77 - Init COMPLETE", "")
        + "\na:100:100 [0] NCCL INFO comm 0x01 rank 0 nranks 2 cudaDev 0 busId 60 - Destroy COMPLETE\n";
    assert_eq!(finding(&examine(&died), "start-never-complete").ranks, [1]);
}

#[test]
fn a_variable_whose_line_a_gap_took_is_not_judged() {
    let mut lines = eight_ranks();
    let start = |lines: &[String], rank: u32| {
        let words = format!(" rank {rank} nranks 8 ");
        lines.iter().position(|line| line.contains(&words) && line.contains("Init START")).unwrap()
    };
    for rank in 0..8 {
        let place = start(&lines, rank) + 1;
        let source = lines[place - 1].split(" ncclComm").next().unwrap().to_owned();
        lines.insert(place, format!("{source} NCCL_P2P_LEVEL set by environment to SYS"));
    }
    let is_of = |line: &str, rank: u32| line.contains(&format!(" [{rank}] NCCL INFO NCCL_P2P_LEVEL"));
    let without = |lost: &dyn Fn(usize) -> bool| {
        let kept = lines.iter().enumerate().filter(|(number, _)| !lost(*number));
        examine(&kept.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n"))
    };
    let place = lines.iter().position(|line| is_of(line, 5)).unwrap();
    // The line alone, and lines of the start around it.
    let found = without(&|number| number == place);
    let told = finding(&found, "variable-differs");
    assert!(told.diagnosis.ends_with("SYS on ranks 0-4, 6-7; not set on rank 5"), "{told:?}");
    let found =
        without(&|number| (place..place + 40).contains(&number) && lines[number].contains("[5] NCCL INFO"));
    assert_eq!(found.health(), Health::CannotTell, "{:?}", found.findings);
    let told = finding(&found, "variable-unseen");
    assert_eq!(
        told.diagnosis,
        "NCCL_P2P_LEVEL is SYS on ranks 0-4, 6-7; the log does not show whether it is set on rank 5"
    );
}

#[test]
fn jobs_with_one_comm_id_may_have_different_sizes() {
    let mut log = pair("IB", "NET/IB/0/GDRDMA");
    let first = log.text();
    log.hosts = vec!["c", "d", "e"];
    let via = "NET/IB/0/GDRDMA";
    log.connections = vec![(0, 1, via), (1, 2, via), (2, 0, via)];
    let found = examine(&(first + &log.text()));
    assert!(found.findings.iter().all(|each| each.rule != "rank-counts-differ"), "{:?}", found.findings);
}

#[test]
fn a_rank_beyond_the_size_that_another_rank_logs_makes_room_for_itself() {
    let start = |rank: u32, ranks: u32| {
        format!(
            "vm:{rank}:1 [{rank}] NCCL INFO ncclCommInitRank comm 0x{rank}1 rank {rank} nranks {ranks} cudaDev \
             {rank} nvmlDev {rank} busId {rank}000 commId 0x7 - Init START\n"
        )
    };
    let found = examine(&(start(0, 1) + &start(1, 2)));
    let sizes = found.findings.iter().find(|each| each.diagnosis.contains("different numbers of ranks"));
    assert!(sizes.is_some_and(|finding| finding.ranks == [0, 1]), "{:?}", found.findings);
    // A line that contradicts itself is not read.
    assert_eq!(examine(&(start(0, 1) + &start(2, 2))).facts["communicators"][0]["ranks"], 1);
}
