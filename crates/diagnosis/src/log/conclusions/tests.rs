mod jobs;
mod known;
mod lines;
mod ranks;
mod transport;

use super::*;
use crate::examination::Health;
use crate::finding::{Finding, Severity};
use crate::log::Reader;

pub(super) fn examine(log: &str) -> Examination {
    examine_files(&[log])
}

/// Examines several files in this order.
pub(super) fn examine_files(files: &[impl AsRef<str>]) -> Examination {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    files.iter().for_each(|file| reader.read_stream("job.log", file.as_ref().as_bytes()));
    conclude(&reader.finish(), &rules)
}

/// A job: ranks with their hosts, connections, and more messages of each rank.
pub(super) struct Log {
    pub(super) hosts: Vec<&'static str>,
    pub(super) nodes: u32,
    network: &'static str,
    /// Sender, receiver, transport.
    connections: Vec<(u32, u32, &'static str)>,
    /// Rank and message, before the communicator starts.
    pub(super) messages: Vec<(u32, &'static str)>,
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
        lines.push("# Avg bus bandwidth    : 12.5".to_owned());
        lines.join("\n") + "\n"
    }

    fn examine(&self) -> Examination {
        examine(&self.text())
    }
}

/// Returns the log of two ranks on two hosts.
pub(super) fn pair(network: &'static str, via: &'static str) -> Log {
    let connections = vec![(0, 1, via), (1, 0, via)];
    Log { hosts: vec!["a", "b"], nodes: 2, network, connections, messages: Vec::new() }
}

/// Returns the end of the communicator of [`pair`] on a rank.
pub(super) fn end(rank: u32, event: &str) -> String {
    let (host, pid) = (["a", "b"][rank as usize], 100 + rank);
    format!(
        "{host}:{pid}:{pid} [{rank}] NCCL INFO comm 0x{rank}1 rank {rank} nranks 2 cudaDev {rank} busId 60 - \
         {event} COMPLETE\n"
    )
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
        (whole.replace("NET/Libfabric/0/GDRDMA", "FOO/9"), "via FOO/9, a transport unknown to this program"),
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
    assert!(found.unseen[0].starts_with("job.log: it is not a log, but a program"), "{:?}", found.unseen);
}

#[test]
fn a_job_that_did_not_end_well_is_not_healthy() {
    let healthy = pair("IB", "NET/IB/0/GDRDMA").text();
    for line in [
        "a:100:100 [0] NCCL WARN",
        "a:100:100 [0] NCCL ERROR foo bad",
        "NCCL ERROR: foo bad",
        "ERROR: job exited with status 1",
        "a:100:100 [0] NCCL INFO enqueue.cc:70 -> 3",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
        "python3: malloc.c:2617: sysmalloc: Assertion `old_size >= MINSIZE' failed.",
        "/job/script: line 9: 4242 Terminated              python train.py",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
        "[a:4242] *** An error occurred in MPI_Bcast",
        "ncclGroupEnd() failed: internal error",
        "a: Test timeout (60s) common.cu:412",
        "NVRM: GPU 0000:5c:00.0: RmInitAdapter failed! (0x62:0x40:2477)",
    ] {
        let found = examine(&format!("{healthy}{line}\n"));
        assert_ne!(found.health(), Health::Healthy, "{line}");
    }
}

#[test]
fn unknown_warnings_are_shown_and_leave_the_health_open() {
    let text = pair("IB", "NET/IB/0/GDRDMA").text()
        + "\n[2026-11-24 13:40:53] a:100:100 [0] some/file.cc:379 NCCL WARN The flux capacitor is cold\n";
    let found = examine(&text);
    assert_eq!(found.health(), Health::CannotTell);
    assert_eq!(found.findings[0].diagnosis, "NCCL warns: The flux capacitor is cold");
    assert_eq!(found.findings[0].cause, None);
    assert_eq!(found.findings[0].evidence[0].line, Some(17));
}

#[test]
fn unknown_errors_leave_the_health_open_and_known_ones_have_their_rule() {
    let healthy = pair("IB", "NET/IB/0/GDRDMA").text();
    let found = examine(&format!("{healthy}b:101:101 [1] NCCL ERROR foo bad\n"));
    let told = finding(&found, "unknown-error");
    assert_eq!(told.diagnosis, "NCCL reports an error: foo bad");
    assert_eq!((found.health(), &told.ranks[..]), (Health::CannotTell, &[1][..]));
    let memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
    let found = examine(&format!("{healthy}b:101:101 [1] NCCL ERROR {memory}\n"));
    assert_eq!(found.health(), Health::Broken, "{:?}", found.findings);
    // A program's own words, outside the place of NCCL's lines.
    for line in ["no NCCL ERROR was found", "0 lines with NCCL ERROR in train.log", "NCCL ERRORS: 0"] {
        assert_eq!(examine(&format!("{healthy}{line}\n")).health(), Health::Healthy, "{line}");
    }
    assert_eq!(examine(&format!("{healthy}job exited with status 0\n")).health(), Health::Healthy);
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
    // The form of a value is wrong for every version.
    let found = with(&mut log, "NCCL_IB_HCA set to ^=mlx5_8,^=mlx5_14");
    assert_eq!(finding(&found, "variable-value").remedy.as_deref(), Some("set NCCL_IB_HCA=^=mlx5_8,mlx5_14"));
    let unknown = examine(&log.text().replace("NCCL version 2.28.9+cuda13.0", "hello"));
    assert_eq!(finding(&unknown, "variable-value").severity, Severity::Degraded);
    // The log shows the transport. The network is unrelated to P2P.
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
        "a:100 NCCL DIAG [INFO] p2p: transfer failed srcRank=0 srcCudaDev=0 dstRank=1 dstCudaDev=1 path=NVL \
         reason=mismatch\n\
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
