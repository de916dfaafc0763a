//! Logs of old versions, of RCCL, of failures, and of several jobs.

use std::collections::BTreeSet;

use super::{connections, digest, start};
use crate::knowledge::rules::Rules;
use crate::log::Reader;
use crate::log::digest::{Digest, Position, Transport};

fn with_rules(log: &str) -> Digest {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    reader.read_stream("log", log.as_bytes());
    reader.finish()
}

/// Returns name, ranks and members of each communicator.
fn communicators(digest: &Digest) -> Vec<(&str, u32, Vec<u32>)> {
    let all = digest.communicators.iter();
    all.map(|each| (each.id.as_str(), each.ranks, each.members.keys().copied().collect())).collect()
}

#[test]
fn ranks_without_comm_id_are_members_of_one_communicator() {
    let mut log = String::from("NCCL version 2.8.4+cuda11.1\n");
    for rank in 0..3 {
        let peer = (rank + 1) % 3;
        log += &format!(
            "vm:{0}:20 [{rank}] NCCL INFO Channel 01 : {rank}[100000] -> {peer}[200000] via direct shared \
             memory\n",
            10 + rank
        );
    }
    for rank in [0, 2, 1] {
        log += &format!(
            "vm:{}:20 [{rank}] NCCL INFO comm 0x7f{rank}0 rank {rank} nranks 3 cudaDev {rank} busId \
             {rank}00000 - Init COMPLETE\n",
            10 + rank
        );
    }
    let one = digest(&log);
    assert_eq!(communicators(&one), [("without commId", 3, vec![0, 1, 2])]);
    let shm = |from, to| (from, to, Transport::Shm, 1);
    assert_eq!(connections(&one.communicators[0]), [shm(0, 1), shm(1, 2), shm(2, 0)]);
    assert!(one.communicators[0].members.values().all(|member| member.complete && !member.started));
    // Rank 0 writes the version to its standard output.
    let versions: Vec<_> = one
        .writers
        .iter()
        .map(|writer| (writer.rank, writer.nccl.as_ref().map(ToString::to_string)))
        .collect();
    assert_eq!(versions, [(Some(0), Some("2.8.4".to_owned())), (Some(1), None), (Some(2), None)]);
    assert_eq!(one.writers[0].nccl_build.as_deref(), Some("+cuda11.1"));
    // A second communicator of the same ranks, and one of another size.
    for (rank, ranks) in [(0, 3), (1, 3), (0, 2)] {
        log += &format!(
            "vm:{}:20 [{rank}] NCCL INFO comm 0x8{ranks}{rank} rank {rank} nranks {ranks} cudaDev {rank} \
             busId {rank} - Init COMPLETE\n",
            10 + rank
        );
    }
    let name = "without commId";
    assert_eq!(
        communicators(&digest(&log)),
        [(name, 3, vec![0, 1, 2]), (name, 3, vec![0, 1]), (name, 2, vec![0])]
    );
}

#[test]
fn the_size_of_a_communicator_is_that_of_its_shape() {
    // The log begins after START.
    let log = "vm:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0\n\
        vm:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n";
    let found = digest(log);
    assert_eq!(communicators(&found), [("without commId", 4, vec![0])]);
    assert_eq!(found.communicators[0].nodes, Some(2));
    let complete = "comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 10 commId 0xabc - Init COMPLETE";
    let other = "comm 0x7 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 20 commId 0xabc - Init COMPLETE";
    let found = digest(format!("{log}vm:1:2 [0] NCCL INFO {complete}\nvm:2:2 [1] NCCL INFO {other}\n"));
    assert_eq!(communicators(&found), [("0xabc", 4, vec![0, 1])]);
    assert_eq!(found.communicators[0].connections.len(), 1);
    // START is torn, and connections come before the commId.
    let channel = "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct";
    let found = digest(format!(
        "vm:1:2 [0] NCCL INFO {channel}\nvm:1:2 [0] NCCL INFO {complete}\nvm:2:2 [1] NCCL INFO {other}\n"
    ));
    assert_eq!(communicators(&found), [("0xabc", 4, vec![0, 1])]);
    assert_eq!(found.communicators[0].connections.len(), 1);
}

#[test]
fn channels_of_rccl_have_their_transport_and_size() {
    let found = digest(
        "RCCL version 2.18.3+hip5.7 HEAD:b502725\n\
         g1:43:94 [0] NCCL INFO Channel 01/0 : 0[c1000] -> 1[c6000] via P2P/IPC comm 0xf37f2e0 nRanks 08\n",
    );
    let ipc = Transport::P2p { how: "IPC".to_owned(), read: false };
    assert_eq!(connections(&found.communicators[0]), [(0, 1, ipc, 1)]);
    assert_eq!(communicators(&found), [("", 8, vec![0])]);
    assert_eq!(found.versions.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2.18.3"]);
    assert_eq!(found.inputs[0].nccl_lines, 2);
}

#[test]
fn words_of_a_program_are_no_warning_and_an_error_with_a_version_is_read() {
    let found = digest(concat!(
        "vm: I print NCCL WARN often\n",
        "print(\"NCCL WARN Timeout\")\n",
        "[WARN] NCCL WARN is not printed here\n",
    ));
    assert_eq!((found.unknown.len(), found.inputs[0].nccl_lines), (0, 0));
    let found = digest(
        "NCCL WARN a\n[rank3]: NCCL WARN b\n[5] ibvwrap.c:262 (f) NCCL WARN c\ninit.cc:4 NCCL WARN d\n",
    );
    assert_eq!(found.unknown.len(), 4);
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    let line = "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error (run with \
                NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n";
    reader.read_stream("log", line.as_bytes());
    let found = reader.finish();
    assert_eq!(found.hits.iter().map(|hit| hit.rule.as_str()).collect::<Vec<_>>(), ["nccl-result-system"]);
}

#[test]
fn a_file_is_no_host_and_device_minus_one_is_none() {
    let found = digest("[0] init.cc:497 NCCL WARN Duplicate GPU detected\ninit.cc:497 NCCL WARN two\n");
    assert!(!found.writers.iter().any(crate::log::digest::Writer::names_host), "{:?}", found.writers);
    assert_eq!(found.unknown.len(), 2);
    let found = digest("vm:5:6 [-1] a.cc:5 NCCL WARN x\nvm:5:6 [1] NCCL INFO y\n");
    assert_eq!(found.writers.iter().map(|writer| writer.device).collect::<Vec<_>>(), [None, Some(1)]);
}

#[test]
fn ranks_that_one_thread_initialises_belong_to_their_devices() {
    let mut log = String::new();
    for rank in 0..2 {
        log += &start(
            "5:5 [0]",
            &format!(
                "ncclCommInitAll comm 0x{rank}1 rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 60 \
                 commId 0xabc"
            ),
        );
    }
    log += "vm:5:9 [1] a.cc:3 NCCL WARN failed\n";
    let found = digest(log);
    let writers: Vec<_> = found.writers.iter().map(|writer| (writer.device, writer.rank)).collect();
    assert_eq!(writers, [(Some(0), Some(0)), (Some(1), Some(1))]);
    assert_eq!(found.communicators[0].members[&1].writer, 1);
    assert_eq!(found.unknown[0].writers, BTreeSet::from([1]));
}

#[test]
fn failures_and_retries_are_kept_by_writer() {
    let retry = "NCCL INFO socketPollConnect: connect to 192.0.2.7<41> returned Connection refused, retrying";
    let found = digest(format!(
        "vm:9:43 [1] {retry} (1/34) after sleep for 100 msec\n\
         vm:9:43 [1] {retry} (34/34) after sleep for 3400 msec\n\
         vm:9:43 [1] NCCL INFO ras/client_support.cc:178 -> 2\n\
         vm:9:43 [1] NCCL INFO misc/socket.cc:635 -> 6\n\
         vm:9:43 [1] NCCL INFO bootstrap.cc:605 -> 6\n\
         vm:9:9 [1] NCCL INFO group.cc:64 -> 7\n\
         vm:9:9 [1] NCCL INFO group.cc:64 -> 1 [Async thread]\n"
    ));
    let retries = found.writers[0].retries.as_ref().unwrap();
    assert_eq!((retries.count, retries.attempt, retries.attempts), (2, Some(34), Some(34)));
    assert_eq!(
        (retries.peer.as_deref(), retries.reason.as_str()),
        (Some("192.0.2.7<41>"), "Connection refused")
    );
    assert_eq!((retries.first.line, retries.last.line), (1, 2));
    let failures: Vec<_> = found.writers[0]
        .failures
        .iter()
        .map(|failure| {
            (failure.place.as_str(), failure.outermost.as_str(), failure.name.as_str(), failure.first.line)
        })
        .collect();
    assert_eq!(
        failures,
        [
            ("misc/socket.cc:635", "bootstrap.cc:605", "ncclRemoteError", 4),
            ("group.cc:64", "group.cc:64", "ncclUnhandledCudaError", 7)
        ]
    );
}

#[test]
fn failures_of_a_thread_without_rank_are_those_of_its_process() {
    let found = digest(
        start(
            "5:6 [0]",
            "ncclCommInitRank comm 0x1 rank 3 nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0xabc",
        ) + "vm:5:7 [-1] NCCL INFO proxy.cc:9 -> 2\nvm:5:6 [0] NCCL INFO init.cc:9 -> 3\n",
    );
    let [writer] = &found.writers[..] else { panic!("{:?}", found.writers) };
    assert_eq!(writer.failures.iter().map(|failure| failure.code).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn warnings_of_ras_are_not_those_of_the_transport() {
    let bind = "NCCL WARN Call to bind failed: Address already in use";
    let found = with_rules(&format!("vm:5:6 [0] ras/client_support.cc:178 {bind}\n"));
    assert_eq!(found.hits.iter().map(|hit| hit.rule.as_str()).collect::<Vec<_>>(), ["ras-fault"]);
    assert!(found.unknown.is_empty());
    let found = with_rules(&format!("vm:5:6 [0] misc/socket.cc:178 {bind}\n"));
    assert!(found.hits.iter().all(|hit| hit.rule != "ras-fault"), "{:?}", found.hits);
    let lost = "RAS keep-alive timeout error (20s) on socket connection with 192.0.2.5<45789>";
    let found = with_rules(&format!("vm:5:6 [0] ras/rasnet.cc:813 NCCL WARN {lost}\n"));
    assert_eq!(found.hits[0].rule, "ras-peer-lost");
}

#[test]
fn jobs_one_after_the_other_have_their_own_worlds_and_places() {
    let mut log = String::new();
    for (pid, id) in [(5, "0xa"), (7, "0xb")] {
        log += &start(
            &format!("{pid}:6 [0]"),
            &format!("ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId {id}"),
        );
        log += "between\n";
    }
    let found = digest(log);
    let worlds: Vec<_> = found
        .communicators
        .iter()
        .map(|world| {
            (
                world.id.as_str(),
                world.first.line,
                world.last.line,
                found.writers[world.members[&0].writer].pid,
            )
        })
        .collect();
    assert_eq!(worlds, [("0xa", 1, 2, 5), ("0xb", 4, 5, 7)]);
    assert_eq!(found.writers[1].first, Position { input: 0, line: 4 });
}

#[test]
fn warnings_that_programs_quote_are_those_of_nccl() {
    let rules = Rules::built_in();
    let hits = |log: &str| -> Vec<(String, u64, Option<u32>)> {
        let mut reader = Reader::new(&rules);
        reader.read_stream("log", log.as_bytes());
        let hits = reader.finish().hits.into_iter();
        hits.map(|hit| (hit.rule, hit.examples[0].position.line, hit.examples[0].rank)).collect()
    };
    let closed = "socketProgress: Connection closed by remote peer b<32926>";
    assert_eq!(
        hits(&format!("[rank1]: Last error:\n\n[rank1]: {closed}\n")),
        [("nccl-peer-closed".to_owned(), 3, Some(1))]
    );
    let jax = "F0000 failed: ... Last NCCL warning(error): 'Bootstrap : no socket interface found'";
    assert_eq!(hits(&format!("{jax}\n{jax}\n")), [("nccl-no-interface".to_owned(), 1, None)]);
    let one = "what(): NCCL error: x, NCCL version 2.14.3 Last error: Bootstrap : no socket interface found";
    assert_eq!(hits(&format!("{one}\n")), [("nccl-no-interface".to_owned(), 1, None)]);
    assert_eq!(hits("[http] Last error: Connection reset by peer\n"), []);
    // Without a writer, the file is still read.
    let launch = "[1] enqueue.cc:1500 NCCL WARN Cuda failure 1 'invalid argument'\n";
    assert_eq!(hits(launch), [("cuda-launch-invalid".to_owned(), 1, None)]);
    // Another line of a program is not a line of NCCL.
    assert_eq!(hits(&format!("Last error:\nnone\n{closed}\n")), []);
    assert_eq!(hits(&format!("My Last error: {closed}\nLast NCCL warning(error): '\n")), []);
}

#[test]
fn a_line_of_level_attn_is_a_warning() {
    let text = "a:1:2 [0] init.cc:2900 (envConfigOverride) NCCL ATTN Unknown words about a setting\n";
    let digest = digest(text.as_bytes());
    assert_eq!((digest.unknown.len(), digest.inputs[0].nccl_lines), (1, 1), "{digest:?}");
    assert_eq!(digest.unknown[0].examples[0].text, "Unknown words about a setting");
}
