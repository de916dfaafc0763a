use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::digest::{Communicator, Digest, Transport};
use super::fuzz;
use super::{Reader, read_files};
use crate::knowledge::rules::Rules;

mod limits;
mod old;

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs").join(name)
}

fn data(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

fn digest(log: impl AsRef<[u8]>) -> Digest {
    let rules = Rules::default();
    let mut reader = Reader::new(&rules);
    reader.read_stream("log", log.as_ref());
    reader.finish()
}

fn socket() -> Transport {
    Transport::Net { name: "Socket".to_owned(), device: Some(0), gdr: false }
}

/// Returns the pairs of a communicator with their transports and numbers of channels.
fn connections(communicator: &Communicator) -> Vec<(u32, u32, Transport, u32)> {
    communicator
        .connections
        .iter()
        .flat_map(|(&(from, to), connection)| {
            connection.transports.iter().map(move |(transport, count)| (from, to, transport.clone(), *count))
        })
        .collect()
}

#[test]
fn the_pod_without_efa_is_read() {
    let digest = digest(data("seed-001.log"));
    assert_eq!((digest.inputs[0].lines, digest.inputs[0].nccl_lines), (145, 92));
    let [writer] = &digest.writers[..] else { panic!("{:?}", digest.writers) };
    assert_eq!((writer.host.as_str(), writer.pid, writer.device, writer.rank), ("vm", 152, Some(0), Some(0)));
    assert_eq!(writer.nccl.as_ref().unwrap().to_string(), "2.27.3");
    assert_eq!(writer.nccl_build.as_deref(), Some("+cuda12.9"));
    assert_eq!(writer.plugin.as_ref().unwrap().to_string(), "1.16.2");
    assert_eq!(writer.libfabric.as_ref().unwrap().to_string(), "2.1.0");
    assert_eq!((writer.driver, writer.network.as_deref()), (Some(13000), Some("Socket")));
    assert_eq!(writer.bootstrap.as_deref(), Some("eth0:192.0.2.51<0>"));
    let [world, split] = &digest.communicators[..] else { panic!("{:?}", digest.communicators) };
    assert_eq!((world.id.as_str(), world.ranks, world.nodes), ("0xbc42413ad5ab3a45", 4, Some(4)));
    assert_eq!(world.members[&0].timings["total"], 59.98);
    assert_eq!(world.members[&0].bootstrap["recv"], 59.819732);
    assert_eq!(split.id, "0xbc42413ad5ab3a45/1.2003953581");
    assert_eq!(split.members[&0].timings["total"], 0.10);
    assert!(split.members[&0].bootstrap.is_empty());
    // Four threads connect the two communicators without naming them: each communicator gets its rings and
    // trees.
    for communicator in [world, split] {
        assert_eq!(
            connections(communicator),
            [(0, 1, 2), (0, 2, 1), (1, 0, 1), (2, 0, 1), (3, 0, 2)].map(|(from, to, channels)| (
                from,
                to,
                socket(),
                channels
            ))
        );
        assert_eq!(communicator.rings, BTreeSet::from([vec![0, 1, 2, 3]]));
        assert!(
            communicator.trees && communicator.members[&0].connected && communicator.members[&0].complete
        );
    }
    let unknown: Vec<_> = digest.unknown.iter().map(|unknown| unknown.examples[0].text.as_str()).collect();
    assert_eq!(
        unknown,
        [
            "NET/OFI Unable to find a protocol that worked.  Failing initialization.",
            "NET/OFI aws-ofi-nccl initialization failed",
            "NET/OFI Initializing plugin failed"
        ]
    );
    let example = &digest.unknown[0].examples[0];
    assert_eq!((example.position.line, example.time.as_deref()), (24, Some("2025-12-28 16:04:25")));
    let variables: Vec<_> =
        digest.variables.iter().map(|seen| (seen.name.as_str(), seen.value.as_str())).collect();
    // 2.27.3 writes the default name of the plugin as well.
    assert_eq!(variables, [("NCCL_SOCKET_IFNAME", "^docker0,lo")]);
    assert!(digest.limits.is_empty());
}

#[test]
fn eight_ranks_on_nvlink_are_read() {
    let digest = digest(data("h200x8.log"));
    assert_eq!(digest.writers.len(), 8);
    let [world] = &digest.communicators[..] else { panic!("{:?}", digest.communicators) };
    assert_eq!(
        (world.ranks, world.nodes, world.channels, world.nvls_channels),
        (8, Some(1), Some(24), Some(0))
    );
    for (rank, member) in &world.members {
        let writer = &digest.writers[member.writer];
        assert_eq!((writer.rank, writer.device), (Some(*rank), Some(*rank)));
        assert_eq!(writer.pid, 4422 + u64::from(*rank));
        assert_eq!(member.bus_id, Some(format!("0000:00:{:02x}.0", 6 + rank)));
        assert!(member.started && member.complete && member.connected, "{rank}: {member:?}");
    }
    let p2p = Transport::P2p { how: "CUMEM".to_owned(), read: false };
    let expected: Vec<_> = (0..8).map(|rank| (rank, (rank + 1) % 8, p2p.clone(), 24)).collect();
    let mut found = connections(world);
    found.sort_by_key(|(from, ..)| *from);
    assert_eq!(found, expected);
    assert_eq!(
        world.choices.iter().map(|(name, count)| (name.as_str(), *count)).collect::<Vec<_>>(),
        [("RING LL", 45)]
    );
}

#[test]
fn logs_in_all_conditions_have_their_writers_and_unknown_warnings() {
    for (name, writers, communicators, unknown) in [
        ("one.log", 1, 1, 0),
        ("one-all.log", 1, 1, 0),
        ("one-commid.log", 1, 0, 1),
        ("one-net-ib.log", 1, 0, 1),
        ("one-nogpu.log", 0, 0, 0),
        ("one-stamps.log", 1, 1, 0),
        ("one-wrong-if.log", 1, 0, 1),
        ("two-dup.log", 2, 1, 1),
        ("two-dup28.log", 2, 1, 1),
        ("two-hosts.log", 2, 1, 0),
        ("two-killed.log", 2, 1, 1),
        ("two-mixed.log", 2, 1, 1),
        ("two-shm-full2.log", 2, 1, 2),
        ("two-split.log", 2, 1, 0),
        ("torchrun.log", 2, 1, 0),
        ("torch-absent.log", 2, 1, 0),
    ] {
        let digest = digest(data(name));
        let found = (digest.writers.len(), digest.communicators.len(), digest.unknown.len());
        assert_eq!(found, (writers, communicators, unknown), "{name}: {digest:#?}");
        assert!(digest.writers.iter().all(|writer| writer.host == "vm"), "{name}");
    }
}

#[test]
fn two_hosts_over_sockets_have_one_transport() {
    let digest = digest(data("two-hosts.log"));
    let [world] = &digest.communicators[..] else { panic!("{:?}", digest.communicators) };
    assert_eq!(connections(world), [(0, 1, socket(), 2), (1, 0, socket(), 2)]);
    assert_eq!(world.nodes, Some(2));
    assert!(world.members.values().all(|member| member.connected && member.complete && !member.destroyed));
    assert_eq!(digest.writers[0].nccl_build.as_deref(), Some("+cuda12.9 HEAD a5187fa2e"));
}

#[test]
fn files_of_one_job_are_one_digest() {
    let paths = [path("two-files.vm.4239.log"), path("two-files.vm.4240.log")];
    let digest = read_files(&paths, &Rules::default()).unwrap();
    assert_eq!(digest.inputs.len(), 2);
    assert_eq!(digest.communicators.len(), 1);
    assert_eq!(digest.communicators[0].members.keys().copied().collect::<Vec<_>>(), [0, 1]);
    let missing = path("missing.log");
    let error = read_files(&[&missing], &Rules::default()).unwrap_err().to_string();
    assert!(error.contains("missing.log") && error.contains("No such file"), "{error}");
    let error = read_files(&[missing.parent().unwrap()], &Rules::default()).unwrap_err().to_string();
    assert!(error.contains("it is a directory"), "{error}");
}

/// Returns a log of two ranks, each line through `prefix`.
fn with_prefix(prefix: impl Fn(usize) -> String) -> Digest {
    let text: String = data("two-hosts.log")
        .lines()
        .map(|line| format!("{}{line}\r\n", prefix(usize::from(line.starts_with("vm:3684")))))
        .collect();
    digest(text)
}

#[test]
fn prefixes_of_launchers_and_terminals_change_nothing() {
    let mut plain = digest(data("two-hosts.log"));
    plain.inputs.clear();
    type Prefix = fn(usize) -> String;
    let prefixes: [(&str, Prefix); 13] = [
        ("kubectl", |rank| format!("[pod/job-{rank}/main] ")),
        ("mpirun 4", |rank| format!("[1,{rank}]<stdout>:")),
        ("mpirun 4 with times", |rank| format!("Tue Nov 24 13:42:01 2026[1,{rank}]<stderr>:")),
        ("mpirun 5", |rank| format!("[prterun-vm-1234@1,{rank}]<stdout>:")),
        ("torchrun", |rank| format!("[default{rank}]:")),
        ("torchrun, rank", |rank| format!("[rank{rank}]:")),
        ("slurm", |rank| format!("{rank}: ")),
        ("slurm, wide", |rank| format!("  1{rank}: ")),
        ("CRI", |_| "2025-12-28T16:04:25.123456789Z stdout F ".to_owned()),
        ("docker", |_| "2025-12-28T16:04:25.123456789Z ".to_owned()),
        ("compose", |rank| format!("worker-{rank}  | ")),
        ("journal", |_| "Dec 28 16:04:25 head docker[77]: ".to_owned()),
        ("colours", |_| "\x1b[32m[stdout]\x1b[0m ".to_owned()),
    ];
    for (name, prefix) in prefixes {
        let mut digest = with_prefix(prefix);
        assert_eq!(digest.inputs[0].nccl_lines, 121, "{name}");
        digest.inputs.clear();
        assert_eq!(digest, plain, "{name}");
    }
}

#[test]
fn records_of_docker_in_any_form_change_nothing() {
    let mut plain = digest(data("two-hosts.log"));
    plain.inputs.clear();
    type Record = fn(String) -> String;
    let records: [Record; 3] = [
        |text| format!(r#"{{"log":{text},"stream":"stdout","time":"2025-12-28T16:04:25.1Z"}}"#),
        |text| format!(r#"{{"log": {text}, "stream": "stdout", "time": "2025-12-28T16:04:25.1Z"}}"#),
        |text| format!(r#"{{"stream":"stdout","time":"2025-12-28T16:04:25.1Z","log":{text}}}"#),
    ];
    for record in records {
        let text = data("two-hosts.log");
        let lines = text.lines().map(|line| record(serde_json::Value::from(format!("{line}\n")).to_string()));
        let mut digest = digest(lines.collect::<Vec<_>>().join("\n"));
        digest.inputs.clear();
        assert_eq!(digest, plain);
    }
}

#[test]
fn times_and_ranks_of_prefixes_are_kept_with_warnings() {
    for (line, time, rank) in [
        ("[2025-12-28 16:04:25] vm:1:2 [0] a.cc:5 (f) NCCL WARN x", Some("2025-12-28 16:04:25"), None),
        ("[rank3]:\n\n[rank3]: vm:1:2 [0] f(int, char**):5 NCCL WARN x", None, Some(3)),
        (
            "Tue Nov 24 13:42:01 2026[1,12]<stderr>:vm:1:2 [0] a.cc:5 NCCL WARN x",
            Some("Tue Nov 24 13:42:01 2026"),
            Some(12),
        ),
        (
            "2025-12-28T16:04:25.1Z stdout F vm:1:2 [-1] a.cc:5 NCCL WARN x",
            Some("2025-12-28T16:04:25.1Z"),
            None,
        ),
        ("2025-12-28 16:04:25 vm:1:2 [0] NCCL WARN x", Some("2025-12-28 16:04:25"), None),
        ("7: vm:1:2 [0] a.cc:5 NCCL WARN x", None, Some(7)),
    ] {
        let digest = digest(line);
        let example = &digest.unknown[0].examples[0];
        assert_eq!(
            (example.text.as_str(), example.time.as_deref(), example.rank),
            ("x", time, rank),
            "{line}"
        );
        assert_eq!((digest.writers[0].host.as_str(), digest.writers[0].pid), ("vm", 1), "{line}");
    }
}

#[test]
fn lines_written_into_each_other_are_two() {
    let begin = "vm:12:12 [0] NCCL INFO cudaDriverVersion 13000\nnode-2:13:13 [1] NCCL INFO \
                 cudaDriverVersion 12080\n";
    for torn in [
        "vm:12:12 [0] NCCL INFO Using networknode-2:13:13 [1] NCCL INFO Using network IB\n",
        "other textnode-2:13:13 [1] NCCL INFO Using network IB\n",
        "  0%| | 0/9 [00:00<?]\rnode-2:13:13 [1] NCCL INFO Using network IB\n",
        "  9%| | 1/9 [00:00<?]node-2:13:13 [1] NCCL INFO Using network IB",
    ] {
        let digest = digest(format!("{begin}{torn}"));
        assert_eq!(digest.writers.len(), 2, "{torn}: {:?}", digest.writers);
        assert_eq!(digest.writers[1].network.as_deref(), Some("IB"), "{torn}");
    }
    let digest =
        digest(format!("{begin}vm:12:12 [0] NCCL INFO Using network Socketnode-2:13:13 [1] NCCL WARN two\n"));
    assert_eq!(digest.writers[0].network.as_deref(), Some("Socket"));
    assert_eq!(digest.unknown[0].writers, BTreeSet::from([1]));
}

fn start(thread: &str, words: &str) -> String {
    format!("vm:{thread} NCCL INFO {words} - Init START\nvm:{thread} NCCL INFO {words} - Init COMPLETE\n")
}

#[test]
fn splits_are_the_same_communicator_on_all_ranks() {
    let mut log = String::new();
    for (rank, wording) in [(0, "ncclCommInitRank comm"), (1, "comm"), (2, "[Rank 2] ncclCommInitRank comm")]
    {
        let numbers = format!("rank {rank} nranks 3 cudaDev {rank} nvmlDev {rank} busId {rank}b000");
        log += &start(
            &format!("{rank}:{rank} [{rank}]"),
            &format!("{wording} 0x{rank}1 {numbers} commId 0xabc"),
        );
        // Two colors, and the same color again.
        let color = rank % 2;
        let (of, count) = (rank / 2, 2 - rank % 2);
        for (address, split) in [(2, 1), (3, 2)] {
            let numbers = format!("rank {of} nranks {count} cudaDev {rank} nvmlDev {rank} busId {rank}b000");
            let split = format!("parent 0x{rank}1 splitCount {split} color {color} key {rank}");
            log += &start(
                &format!("{rank}:9 [{rank}]"),
                &format!("ncclCommSplit comm 0x{rank}{address} {numbers} {split}"),
            );
        }
    }
    // Before 2.24, splits are not numbered, and START has no space before the dash.
    let unnumbered = log
        .replace(" splitCount 1", "")
        .replace(" splitCount 2", "")
        .replace(" - Init START", "- Init START");
    for log in [log, unnumbered] {
        let digest = digest(&log);
        let found: Vec<_> = digest
            .communicators
            .iter()
            .map(|communicator| (communicator.id.as_str(), communicator.ranks, communicator.members.len()))
            .collect();
        let expected = [
            ("0xabc", 3, 3),
            ("0xabc/1.0", 2, 2),
            ("0xabc/2.0", 2, 2),
            ("0xabc/1.1", 1, 1),
            ("0xabc/2.1", 1, 1),
        ];
        assert_eq!(found, expected, "{log}");
        let ranks: Vec<_> = digest.writers.iter().map(|writer| writer.rank).collect();
        assert_eq!(ranks, [Some(0), Some(1), Some(2)]);
        assert_eq!(digest.communicators[0].members[&2].bus_id.as_deref(), Some("0000:2b:00.0"));
    }
}

#[test]
fn ranks_that_are_threads_of_one_process_are_not_mixed() {
    let mut log = String::from("vm:5:5 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n");
    for rank in 0..2 {
        log += &start(
            &format!("5:{} [{rank}]", 10 + rank),
            &format!(
                "ncclCommInitAll comm 0x{rank}1 rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 60 \
                 commId 0xabc"
            ),
        );
    }
    for rank in 0..2 {
        let peer = 1 - rank;
        // Threads not seen before.
        log += &format!(
            "vm:5:{} [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {peer}[{peer}] via P2P/direct \
             pointer/read\n",
            20 + rank
        );
        log += &format!("vm:5:{} [{rank}] NCCL INFO Connected all rings\n", 20 + rank);
    }
    let digest = digest(log);
    let world = &digest.communicators[0];
    let p2p = Transport::P2p { how: "direct pointer".to_owned(), read: true };
    assert_eq!(connections(world), [(0, 1, p2p.clone(), 1), (1, 0, p2p, 1)]);
    assert!(world.members.values().all(|member| member.connected));
    assert!(digest.writers.iter().all(|writer| writer.nccl.as_ref().unwrap().minor == 21));
    assert_eq!(digest.writers.iter().map(|writer| writer.rank).collect::<Vec<_>>(), [Some(0), Some(1)]);
}

#[test]
fn connections_without_an_initialisation_are_kept() {
    let digest = digest("vm:5:5 [0] NCCL INFO Channel 03/0 : 4[0] -> 7[3] [send] via NET/IB/2/GDRDMA\n");
    let [unseen] = &digest.communicators[..] else { panic!("{:?}", digest.communicators) };
    assert_eq!((unseen.id.as_str(), unseen.ranks), ("", 8));
    let ib = Transport::Net { name: "IB".to_owned(), device: Some(2), gdr: true };
    assert_eq!(connections(unseen), [(4, 7, ib, 1)]);
}

#[test]
fn variables_diagnostics_choices_and_versions_are_read() {
    let digest = digest(
        "NCCL version 2.28.9+cuda13.0\n\
         vm:1:1 [0] NCCL INFO NET/OFI Adding FI_EFA_FORK_SAFE=1 to environment\n\
         vm:1:1 [0] NCCL INFO NET/OFI Setting NCCL_PROTO to \"simple\"\n\
         vm:1:1 [0] NCCL INFO NET/OFI Setting FI_EFA_FORK_SAFE environment variable to 1\n\
         vm:1:1 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n\
         vm:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to =mlx5_0.\n\
         vm:1 NCCL DIAG [OK]   p2p: all 56 directed GPU P2P edges verified\n\
         NCCL DIAG === NCCL Diagnostics ===\n\
         vm:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]={[0] mlx5_1:1/IB, [1] mlx5_2:1/IB} [RO]; \
         OOB eth0:192.0.2.2<0>\n\
         vm:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 60 commId 0x5 - Init START\n\
         vm:1:1 [0] NCCL INFO 8 Bytes -> Algo 1 proto 2 time 9.3\n\
         vm:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}\n\
         vm:1:1 [0] NCCL INFO AllGather [Symmetric]: 64 Bytes -> Kernel AllGather_LL nchannels 1 nthreads \
         512 nWorks 1\n\
         vm:1:1 [0] NCCL INFO Init timings: rank 0 nranks 1 total 0.25 (kernels 0.10, rest 0.15)\n\
         vm:1:1 NCCL CALL ncclAllReduce(1)\n",
    );
    let variables: Vec<_> = digest
        .variables
        .iter()
        .map(|seen| (seen.name.as_str(), seen.value.as_str(), seen.by_plugin))
        .collect();
    assert_eq!(
        variables,
        [
            ("FI_EFA_FORK_SAFE", "1", true),
            ("NCCL_PROTO", "simple", true),
            ("NCCL_NVLS_ENABLE", "0", false),
            ("NCCL_IB_HCA", "=mlx5_0.", false)
        ]
    );
    assert_eq!(digest.versions.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2.28.9"]);
    let diagnostics: Vec<_> =
        digest.diagnostics.iter().map(|line| (line.status.as_str(), line.text.as_str())).collect();
    assert_eq!(
        diagnostics,
        [("OK", "p2p: all 56 directed GPU P2P edges verified"), ("", "=== NCCL Diagnostics ===")]
    );
    let devices: Vec<_> = digest.writers.iter().flat_map(|writer| &writer.devices).collect();
    assert_eq!(devices, ["mlx5_0:1/RoCE", "mlx5_1:1/IB", "mlx5_2:1/IB"]);
    let choices: Vec<_> =
        digest.communicators[0].choices.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(choices, [("RING SIMPLE", 2), ("symmetric AllGather_LL", 1)]);
    assert_eq!(digest.communicators[0].members[&0].timings["total"], 0.25);
    assert_eq!(digest.inputs[0].nccl_lines, 15);
}

#[test]
fn warnings_are_folded_and_lists_have_bounds_that_are_told() {
    let mut log = String::new();
    for number in 0..2000 {
        log += &format!("vm:{number}:1 [0] a.cc:5 NCCL WARN rank {number} lost 0x{number:x}\n");
        log += &format!(
            "vm:{number}:1 [0] a.cc:5 NCCL WARN kind {}\n",
            "x".repeat(number % 200) + &"y".repeat(number % 3)
        );
    }
    let digest = digest(log);
    assert_eq!((digest.unknown[0].count, digest.unknown[0].examples.len()), (2000, 4));
    assert_eq!(digest.unknown[0].writers.len(), 2000);
    // 600 kinds of warnings in 2000 lines. The last ones appear again and again.
    assert_eq!(digest.unknown.len(), 512);
    assert!(
        digest.limits[0]
            .ends_with("warnings that no rule knows were not kept: the limit is 512 different warnings"),
        "{:?}",
        digest.limits
    );
}

#[test]
fn hits_have_the_rule_the_writer_and_the_count() {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    reader.read_stream("log", data("two-shm-full2.log").as_bytes());
    let digest = reader.finish();
    let hit = digest.hits.iter().find(|hit| hit.examples[0].text.contains("/dev/shm/nccl-")).unwrap();
    assert!(hit.count >= 4, "{hit:?}");
    assert_eq!(hit.writers, BTreeSet::from([0, 1]));
    assert!(rules.rule_by_id(&hit.rule).is_some());
    assert!(digest.unknown.is_empty(), "{:?}", digest.unknown);
}

#[test]
fn the_corpus_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/log");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        fuzz::check_log(&fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutations_of_real_logs_pass(
        file in 0..6_usize,
        start in 0..20_000_usize,
        changes in prop::collection::vec((0..4000_usize, any::<u8>(), 0..3_u8), 0..40),
    ) {
        let names = [
            "seed-001.log", "two-split.log", "two-hosts.log", "h200x8.log", "torchrun.log", "one-all.log",
        ];
        let mut bytes = data(names[file]).into_bytes();
        bytes.drain(..start.min(bytes.len()));
        bytes.truncate(4000);
        for (place, byte, kind) in changes {
            let place = place.min(bytes.len());
            match kind {
                0 if place < bytes.len() => bytes[place] = byte,
                1 if place < bytes.len() => drop(bytes.remove(place)),
                _ => bytes.insert(place, byte),
            }
        }
        fuzz::check_log(&bytes);
    }
}
