//! Conclusions from logs as users pass them: blanked, cut, with the labels of launchers and collectors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use proptest::prelude::*;

use diagnosis::examination::{Body, Examination, Health};
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::conclusions::conclude;
use diagnosis::log::{Reader, read_files};

use Health::{Broken, CannotTell, Degraded, Healthy};

/// An input, and what its report says.
struct Expected {
    /// Name of the file.
    name: &'static str,
    health: Health,
    /// Rule of the first finding, or nothing.
    rule: &'static str,
    /// Texts of the report.
    has: &'static [&'static str],
    /// Texts that the report must not have.
    lacks: &'static [&'static str],
}

const EXPECTED: &[Expected] = &[
    Expected {
        name: "redacted",
        health: Degraded,
        rule: "nodes-over-tcp",
        has: &["the host names are blanked or missing", "at least 11 ranks", "9 <cluster_name> 920"],
        lacks: &["the start of a communicator", "the logs of ranks"],
    },
    Expected {
        name: "shortprefix",
        health: CannotTell,
        rule: "known-faults",
        has: &["the host names and process ids are blanked or missing", "ranks 2 in the log of at least 2"],
        lacks: &["the start of a communicator", "9223372036854775808"],
    },
    Expected {
        name: "repeated",
        health: CannotTell,
        rule: "",
        has: &[
            "Ray dropped 30 repeated lines of other processes: run with RAY_DEDUP_LOGS=0",
            "NCCL_P2P_LEVEL NVL environment rank 6",
        ],
        lacks: &["across cluster", "did not complete"],
    },
    Expected {
        name: "rayver",
        health: CannotTell,
        rule: "log-ends-in-start",
        has: &["NCCL 2.21.5", "ranks 1 in the log of 4"],
        lacks: &[],
    },
    Expected {
        name: "srunlabel",
        health: Health::Broken,
        rule: "nccl-bootstrap-truncated",
        has: &["python-traceback", "rank 12"],
        lacks: &["rank 1,", "rank 1;", "rank 1:"],
    },
    Expected {
        name: "guess",
        health: CannotTell,
        rule: "",
        has: &["there are at least 7 ranks, and the log has lines of rank 6", "1 in the log of at least 7"],
        lacks: &["ranks 0-5", "between 7 ranks"],
    },
    Expected {
        name: "dashheader",
        health: CannotTell,
        rule: "",
        has: &[
            "ranks 1 in the log of 4",
            "hosts hosta, hostb",
            "3 hostb 201",
            "the logs of ranks 1-3 are not here",
        ],
        lacks: &["between 3 ranks"],
    },
    Expected {
        name: "order",
        health: CannotTell,
        rule: "",
        has: &["7 hosta 1 connected", "at least 8 ranks"],
        lacks: &["starting"],
    },
    Expected {
        name: "order2",
        health: CannotTell,
        rule: "",
        has: &["7 hosta 1 connected", "at least 8 ranks"],
        lacks: &["starting"],
    },
    Expected {
        name: "ibtest",
        health: Broken,
        rule: "ib-retry-exceeded",
        has: &["never acknowledged", "Got CQE with error"],
        lacks: &["A network adapter reports a failed transfer"],
    },
    Expected {
        name: "libcuda",
        health: Broken,
        rule: "nccl-shm-full",
        has: &["the process went on", "--shm-size"],
        lacks: &[],
    },
    Expected {
        name: "libcudahealthy",
        health: Healthy,
        rule: "end-not-shown",
        has: &["A step failed, and the process went on"],
        lacks: &[],
    },
    Expected {
        name: "illegalp2p",
        health: Broken,
        rule: "cuda-illegal-access-p2p",
        has: &["P2P", "IOMMU", "patched driver", "NCCL_P2P_DISABLE=1"],
        lacks: &["fault in a kernel of the program", "compute-sanitizer"],
    },
    Expected {
        name: "mixed",
        health: Broken,
        rule: "ib-qp-mixed-adapters",
        has: &["InfiniBand and of RoCE", "NCCL_IB_HCA"],
        lacks: &["NCCL uses adapters of InfiniBand and of RoCE together"],
    },
    Expected {
        name: "torchlast",
        health: Broken,
        rule: "nccl-topology-attribute",
        has: &["Either NCCL_TOPO_FILE", "USB", "does not show which"],
        lacks: &[],
    },
    Expected {
        name: "hm",
        health: Healthy,
        rule: "end-not-shown",
        has: &["P2P"],
        lacks: &["without direct access", "GB200", "network ports"],
    },
    Expected {
        name: "b3b",
        health: Broken,
        rule: "torch-rank-late",
        has: &["Rank 1 did not call ALLREDUCE (SeqNum 42)", "finished collective #41"],
        lacks: &["the cause is not in this log"],
    },
    Expected {
        name: "sigsegv1",
        health: Broken,
        rule: "process-crashed",
        has: &["crashed. A frame of a stack is in NCCL: ncclLocalOpAppend"],
        lacks: &[],
    },
    Expected {
        name: "hang",
        health: CannotTell,
        rule: "known-faults",
        has: &["no row, and the end (`# Avg bus bandwidth`) is not in the log"],
        lacks: &[],
    },
    Expected {
        name: "a2",
        health: CannotTell,
        rule: "known-faults",
        has: &["no row, and the end (`# Avg bus bandwidth`) is not in the log"],
        lacks: &[],
    },
    Expected {
        name: "two_inter",
        health: CannotTell,
        rule: "several-jobs",
        has: &[
            "no connection between these hosts was tested",
            "The log has 2 separate jobs: vm (lines",
            "vmb (lines",
            "Job 2: P2P between the 2 ranks",
        ],
        lacks: &[],
    },
    Expected {
        name: "ibhca2",
        health: Degraded,
        rule: "variable-value",
        has: &["set NCCL_IB_HCA=^=mlx5_8,mlx5_14"],
        lacks: &[],
    },
    Expected {
        name: "ofibare",
        health: Broken,
        rule: "ofi-rail-mismatch",
        has: &["EFA devices"],
        lacks: &[],
    },
    Expected {
        name: "jaxbarrier",
        health: Broken,
        rule: "cuda-illegal-access",
        has: &["barrier"],
        lacks: &[],
    },
];

fn examine_text(text: &str) -> Examination {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    reader.read_stream("job.log", text.as_bytes());
    conclude(&reader.finish(), &rules)
}

/// Returns the words of a report, with single spaces.
fn report(found: &Examination) -> String {
    let mut text = found.unseen.join("\n") + "\n" + &found.proof.join("\n");
    for finding in &found.findings {
        text += &format!("\n{} {} ", finding.rule, finding.diagnosis);
        let others = [&finding.cause, &finding.remedy].into_iter().flatten();
        others.for_each(|other| text += &format!("{other} "));
        for evidence in finding.evidence.iter().chain(&finding.consequences) {
            let rank = evidence.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
            text += &format!("\n{rank}{}", evidence.text);
        }
        finding.ranks.iter().for_each(|rank| text += &format!("\nConcerns: rank {rank};"));
    }
    for section in &found.sections {
        text += &format!("\n{}", section.title);
        match &section.body {
            Body::Facts(facts) => facts.iter().for_each(|(name, value)| text += &format!("\n{name} {value}")),
            Body::Table { rows, .. } => rows.iter().for_each(|row| text += &format!("\n{}", row.join(" "))),
            Body::Lines(lines) => text += &format!("\n{}", lines.join("\n")),
            Body::Matrix(matrix) => text += &format!("\n{}", matrix.labels.join(" ")),
        }
    }
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

#[test]
fn inputs_have_the_verdict_and_the_words_of_what_they_show() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/inputs");
    let rules = Rules::built_in();
    let mut wrong = Vec::new();
    for Expected { name, health, rule, has, lacks } in EXPECTED {
        let digest = read_files(&[folder.join(format!("{name}.log"))], &rules).unwrap();
        let found = conclude(&digest, &rules);
        let text = report(&found);
        let first = found.findings.first().map_or("", |finding| finding.rule.as_str());
        if (found.health(), first) != (*health, *rule) {
            wrong.push(format!("{name}: {:?} {first}, not {health:?} {rule}", found.health()));
        }
        let missing =
            has.iter().filter(|words| !text.contains(**words)).map(|words| format!("lacks: {words}"));
        let surplus =
            lacks.iter().filter(|words| text.contains(**words)).map(|words| format!("has: {words}"));
        wrong.extend(missing.chain(surplus).map(|problem| format!("{name} {problem}\n{text}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_input_has_an_expectation() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/inputs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let stem = name.strip_suffix(".log").unwrap();
        assert!(EXPECTED.iter().any(|each| each.name == stem), "{name} has no expectation");
    }
}

/// Two ranks on two hosts with a whole log.
const PAIR: &str = "\
hosta:100:110 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
hosta:100:110 [0] NCCL INFO Using network IB
hosta:100:110 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77 - Init START
hostb:201:211 [1] NCCL INFO Using network IB
hostb:201:211 [1] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0x77 - Init START
hosta:100:110 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77 - Init COMPLETE
hostb:201:211 [1] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0x77 - Init COMPLETE
hosta:100:110 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA
hostb:201:211 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA
hosta:100:110 [0] NCCL INFO Connected all rings
hostb:201:211 [1] NCCL INFO Connected all rings
hosta:100:110 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Destroy COMPLETE
hostb:201:211 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 busId 2000 - Destroy COMPLETE
";

#[test]
fn blanked_names_leave_a_log_healthy_if_the_rest_tells_the_ranks_apart() {
    assert_eq!(examine_text(PAIR).health(), Healthy);
    let hosts =
        |name: &str| PAIR.replace("hosta:", &format!("{name}:")).replace("hostb:", &format!("{name}:"));
    for name in ["<host>", "***", "[REDACTED]", "<my cluster>", "HOST", "", "xxxx"] {
        let found = examine_text(&hosts(name));
        assert_eq!(found.health(), Healthy, "{name}: {:?} {:?}", found.findings, found.unseen);
        assert!(found.unseen[0].starts_with("the host names are blanked or missing"), "{:?}", found.unseen);
    }
    let devices = PAIR.replace("hosta:100:110 ", "").replace("hostb:201:211 ", "");
    for text in [
        hosts("host").replace(":100:110", ":pid:tid").replace(":201:211", ":pid:tid"),
        hosts("xxxx").replace(":100:110", ":xx:xx").replace(":201:211", ":xx:xx"),
        devices.clone(),
        devices.lines().map(|line| format!("2026-11-24T13:42:01.1Z {line}\n")).collect(),
        devices.lines().map(|line| format!("(TaskRunner pid=12) {line}\n")).collect(),
    ] {
        let found = examine_text(&text);
        assert_eq!(found.health(), Healthy, "{text}: {:?} {:?}", found.findings, found.unseen);
        // The same device on each host.
        let found = examine_text(&text.replace("[1] NCCL", "[0] NCCL").replace("cudaDev 1", "cudaDev 0"));
        assert_eq!(found.health(), CannotTell, "{text}: {:?}", found.findings);
        let says = "ranks of different hosts cannot be told apart";
        assert_eq!(found.unseen.iter().filter(|line| line.contains(says)).count(), 1, "{:?}", found.unseen);
    }
}

#[test]
fn a_line_with_a_lost_beginning_is_no_communicator_beside_whole_lines() {
    let torn = "[1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA\n";
    let found = examine_text(&(PAIR.to_owned() + torn));
    assert_eq!((found.health(), &found.unseen[..]), (Healthy, &[][..]), "{:?}", found.findings);
}

/// Returns the sentence about the number of ranks.
fn size_of(text: &str) -> String {
    let text = report(&examine_text(text));
    text.lines().find(|line| line.starts_with("ranks ")).unwrap_or_default().to_owned()
}

#[test]
fn the_number_of_ranks_is_what_a_line_says() {
    let channel = "hosta:10:11 [2] NCCL INFO Channel 00/0 : 2[2] -> 1[1] via P2P/CUMEM\n";
    assert_eq!(size_of(channel), "ranks 1 in the log of at least 3");
    for line in [
        "WORLD_SIZE=8",
        "[2] distributed init: world_size=8 rank=2 local_rank=2",
        "hosta:10:11 [2] NCCL INFO Channel 00/02 : 0 1 2 3 4 5 6 7",
        "hosta:10:11 [2] NCCL INFO ncclCommInitRank comm 0x1 rank 2 nranks 8 cudaDev 2 nvmlDev 2 busId 1000 com",
        "hosta:10:11 [2] NCCL INFO Init timings - ncclCommInitRank: rank 2 nranks 8 total 0.07 (kernels 0.01)",
        "#   Rank  7 Pid   2391 on      hostb device  1 [0x07] NVIDIA H200",
    ] {
        for text in [format!("{channel}{line}\n"), format!("{line}\n{channel}")] {
            assert_eq!(size_of(&text), "ranks 1 in the log of 8", "{text}");
        }
    }
    for line in
        ["world_size=8\nworld_size=16", "LOCAL_WORLD_SIZE=8", "WORLD_SIZE=2", "# Rank  1 Pid 9 on a device 1"]
    {
        assert_eq!(size_of(&format!("{channel}{line}\n")), "ranks 1 in the log of at least 3", "{line}");
    }
}

#[test]
fn the_number_of_a_task_is_a_rank_only_if_no_line_contradicts() {
    let traceback = "Traceback (most recent call last):\n";
    let ranks = |log: &str| {
        let found = examine_text(log);
        let finding = found.findings.iter().find(|each| each.rule == "python-traceback");
        finding.map(|finding| finding.ranks.clone()).unwrap_or_default()
    };
    for label in ["1: ", "[1,1]<stderr>:", "[prterun-host-12@1,1]<stderr>:"] {
        assert_eq!(ranks(&format!("{label}{traceback}")), [1], "{label}");
    }
    let labelled: String =
        PAIR.lines().map(|line| format!("{}: {line}\n", u8::from(line.starts_with("hostb")))).collect();
    assert_eq!(ranks(&format!("{labelled}1: {traceback}")), [1]);
    // A task with two processes, a task with another rank, and a line with both.
    let two = "1: hosta:100:110 [0] NCCL INFO x\n1: hosta:200:210 [1] NCCL INFO x\n";
    let other = labelled.replace("0: hosta", "5: hosta");
    for log in [format!("{two}1: {traceback}"), format!("{other}1: {traceback}")] {
        assert_eq!(ranks(&log), [0_u32; 0], "{log}");
    }
    assert_eq!(ranks(&format!("1: [rank12]: {traceback}")), [12]);
    // MPICH: other programs write such numbers too.
    assert_eq!(ranks(&format!("[1] {traceback}")), [0_u32; 0]);
    let bare = labelled.replace("0: hosta", "[0] hosta").replace("1: hostb", "[1] hostb");
    assert_eq!(ranks(&format!("{bare}[1] {traceback}")), [1]);
}

#[test]
fn labels_do_not_hide_the_beginning_of_a_line() {
    for label in [
        "[pod/job-worker-0/trainer] ",
        "worker-1  | ",
        "node1: ",
        "[prterun-host-123@1,3]<stderr>:",
        "(RayWorkerWrapper pid=367, ip=10.1.2.3) ",
        "(TaskRunner pid=12) ",
        "Nov 24 10:00:00 node7 trainer[12]: ",
        "<34>Nov 24 10:00:00 node7 trainer[12]: ",
        "<34>1 2026-11-24T10:00:00.003Z node7 trainer 12 - - ",
        "2026-11-24T13:42:01+0000 node7 trainer[12]: ",
        "2026-11-24 13:42:01.123,",
    ] {
        let found = examine_text(&format!("{label}Traceback (most recent call last):\n"));
        let rules: Vec<&str> = found.findings.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(rules, ["python-traceback"], "{label}");
    }
}

#[test]
fn a_pod_or_a_node_in_a_label_is_the_host_of_lines_without_one() {
    for (first, second) in [
        ("[pod/job-worker-0/trainer] ", "[pod/job-worker-1/trainer] "),
        ("node1: ", "node2: "),
        ("worker-1  | ", "worker-2  | "),
        ("(Worker pid=367, ip=10.1.2.3) ", "(Worker pid=12, ip=10.1.2.4) "),
        ("Nov 24 10:00:00 node7 trainer[12]: ", "Nov 24 10:00:00 node8 trainer[12]: "),
        ("0: ", "1: "),
    ] {
        let label = |line: &str| match line.strip_prefix("hosta:100:110 ") {
            Some(line) => format!("{first}{line}\n"),
            None => format!(
                "{second}{}\n",
                line.strip_prefix("hostb:201:211 ").unwrap().replace("[1] N", "[0] N")
            ),
        };
        let found = examine_text(&PAIR.lines().map(label).collect::<String>());
        assert_eq!(found.health(), Healthy, "{first}: {:?} {:?}", found.findings, found.unseen);
    }
}

#[test]
fn broken_and_collected_lines_are_read_as_they_were_written() {
    let json = |line: &str| serde_json::Value::from(line).to_string();
    let each = |form: &dyn Fn(&str) -> String| PAIR.lines().map(|line| form(line) + "\n").collect::<String>();
    let wrapped = |width: usize| {
        each(&|line| {
            let parts = line.as_bytes().chunks(width).map(|part| String::from_utf8_lossy(part).into_owned());
            parts.collect::<Vec<_>>().join("\n")
        })
    };
    let texts = [
        wrapped(80),
        wrapped(100),
        wrapped(120),
        PAIR.replace('\n', "\\n"),
        json(PAIR),
        each(&|line| format!("{{\"message\": {}, \"logStreamName\": \"a\"}}", json(line))),
        format!("{{\"message\": {}, \"logStreamName\": \"a\"}}\n", json(PAIR)),
        each(&|line| format!("{{\"MESSAGE\":{},\"_HOSTNAME\":\"node\"}}", json(line))),
        each(&|line| format!("{{\"labels\":{{}},\"line\":{},\"timestamp\":\"x\"}}", json(line))),
        each(&|line| format!("    \"message\": {},", json(line))),
        String::from("@timestamp,@message\n") + &each(&|line| format!("2026-11-24 13:42:01.123,{line}")),
        String::from("@timestamp,@message,@logStream\n")
            + &each(&|line| format!("2026-11-24,\"{line}\",a/b")),
        each(&|line| format!("2026-11-24 13:42:01.123,\"{line}\"")),
        each(&|line| format!("2026-11-24 13:42:01.123,{line}")),
        each(&|line| format!("<34>Nov 24 10:00:00 node7 trainer[12]: {line}")),
        each(&|line| format!("<34>1 2026-11-24T10:00:00.003Z node7 trainer 12 - - {line}")),
        each(&|line| format!("2026-11-24T13:42:01.123000+00:00 stream/a/0 {line}")),
    ];
    for text in texts {
        let found = examine_text(&text);
        assert_eq!(found.health(), Healthy, "{text}: {:?} {:?}", found.findings, found.unseen);
        assert_eq!(found.proof, ["NET/IB with GPUDirect RDMA between the 2 ranks"], "{text}");
    }
}

/// Returns the lines of the threads of a communicator without a commId: of ranks on a host each, with the
/// lines of old versions about the start if `has_start` is true. With `groups`, several processes have each
/// rank.
fn threads_without_id(ranks: usize, groups: usize, has_start: bool) -> Vec<Vec<String>> {
    let mut threads = Vec::new();
    for (group, rank) in (0..groups).flat_map(|group| (0..ranks).map(move |rank| (group, rank))) {
        let (next, pid) = ((rank + 1) % ranks, 100 * (group + 1) + rank);
        let line =
            |thread: usize, message: &str| format!("host{pid}:{pid}:{thread} [{rank}] NCCL INFO {message}");
        let order: Vec<String> = (0..ranks).map(|rank| rank.to_string()).collect();
        let mut first = vec![
            line(1, &format!("Channel 00/01 : {}", order.join(" "))),
            line(1, &format!("Channel 00/0 : {rank}[0] -> {next}[0] [send] via NET/IB/0/GDRDMA")),
            line(1, "Connected all rings"),
            line(1, "Connected all trees"),
            line(1, "16 coll channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer"),
        ];
        if has_start {
            let numbers = format!("comm 0x1{rank} rank {rank} nranks {ranks} cudaDev {rank} busId 1000");
            first.insert(0, line(1, "NCCL version 2.8.4+cuda11.1"));
            first.push(line(1, &format!("{numbers} - Init COMPLETE")));
        }
        threads.push(first);
        threads.push(vec![line(2, "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}")]);
    }
    threads
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_the_lines_of_a_communicator_without_id_does_not_matter(
        (ranks, groups, has_start) in prop_oneof![
            (2..5_usize, 1..3_usize, Just(false)),
            (2..5_usize, Just(1), Just(true)),
        ],
        choices in prop::collection::vec(any::<prop::sample::Index>(), 64),
        is_any_order in any::<bool>(),
    ) {
        let mut threads = threads_without_id(ranks, groups, has_start);
        let expected = examine_text(&(threads.concat().join("\n") + "\n"));
        let mut mixed = Vec::new();
        for choice in choices.iter().cycle() {
            if threads.is_empty() {
                break;
            }
            let thread = choice.index(threads.len());
            // Lines about the start stay in their order within a thread.
            let line = if is_any_order && !has_start { choice.index(threads[thread].len()) } else { 0 };
            mixed.push(threads[thread].remove(line));
            threads.retain(|lines| !lines.is_empty());
        }
        let found = examine_text(&(mixed.join("\n") + "\n"));
        prop_assert_eq!(found.health(), expected.health(), "{:?}", mixed);
        prop_assert_eq!(report(&found), report(&expected), "{:?}", mixed);
    }
}
