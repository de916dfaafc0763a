//! Lines of launchers, frameworks, networks and the kernel. After them, a job with a good start is not
//! healthy.

use super::*;

/// Lines about the end of a process of the job, or a failed device.
const FATAL: &[&str] = &[
    // nccl-bench
    "rank 1 on host vm died: its connection closed; rank 0 ends with it",
    "rank 0 on host vm: nccl-bench: no progress within 3 s: rank 1 on vm (host memory) was last heard 5 s \
     ago, in filling",
    "error: the rendezvous at bench-0.bench:29500 failed: after 600 s, 1 of 2 ranks is missing: rank 1",
    "nccl-bench: ended by SIGTERM",
    "error: rank 1 did not find rank 0 within 6 s; tried localhost:2999: Connection refused",
    "[1,1]<stderr>:error: rank 1 did not find rank 0 within 6 s; tried localhost:2999: Connection refused",
    "error: rank 0 cannot listen on port 23456: Address already in use (os error 98)",
    "error: the processes were started with different options; they differ in -e:",
    // Open MPI, PRRTE, MPICH
    "mpirun has exited due to process rank 1 with PID 0 on",
    "prterun has exited due to process rank 0 with PID 0 on node n05p016 calling",
    "mpirun noticed that the job aborted, but has no info as to the process",
    "mpirun: killing job...",
    "Abort(1090831) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:",
    "[1,0]<stderr>:Abort(1) on node 0 (rank 0 in comm 496): Fatal error in internal_Allreduce: Unknown error \
     class",
    "mpirun: abort is already in progress...hit ctrl-c again to forcibly terminate",
    "A daemon (pid 123) died unexpectedly with status 255 while attempting",
    "[mpiexec@head] control_cb (pm/pmiserv/pmiserv_cb.c:204): assert (!closed) failed",
    "[proxy:0:1@node7] main (pm/pmiserv/pmip.c:206): demux engine error waiting for event",
    // Slurm
    "srun: error: node7: tasks 0-7: Terminated",
    "srun: error: Timed out waiting for job step to complete",
    "srun: error: eio_handle_mainloop: Abandoning IO 60 secs after job shutdown initiated",
    "slurmstepd: error: *** STEP 1234.0 ON node1 FAILED (non-zero exit code or other failure mode) ***",
    "slurmstepd-node1: error: *** STEP 1234.0 ON node1 CANCELLED AT 2026-11-24T13:00:00 ***",
    "slurmstepd: error: *** STEP 1234.0 ON node1 UNCORRECTABLE MEMORY ERROR AT 2026-11-24T13:00:00 ***",
    "slurmstepd: error:  mpi/pmix_v4: pmixp_coll_ring_reset_if_to: node1 [0]: pmixp_coll_ring.c:742: 0x14d3: \
     collective timeout seq=0",
    // PyTorch and JAX
    "[rank3]:[E1124 13:46:19.6 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a \
     dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info.",
    "[rank3]:[E1124 13:46:19.6 ProcessGroupNCCL.cpp:1849] [PG ID 0 PG GUID 0(default_pg) Rank 3] Observed \
     flight recorder dump signal from another rank via TCPStore.",
    "absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
    "E0000 00:00:1 coordination_service_agent.cc:1] Coordination agent is in ERROR: UNAVAILABLE: The tasks \
     have crashed",
    // Processes
    "timeout: the monitored command dumped core",
    "make: *** [Makefile:3: run] Error 1",
    "zsh: segmentation fault  ./all_reduce_perf",
    "segmentation fault",
    "Assertion `x == y' failed.",
    "[rank3]: Assertion `x == y' failed.",
    "Bus error",
    "bash: line 1:  4425 Bus error               python train.py",
    "Aborted",
    "3: Aborted",
    "worker-1 exited with code 139",
    "exited with code 139",
    "exit status 137",
    "CUDA failure: an illegal memory access was encountered",
    // Devices
    "libfabric:1234:1700000000::efa:cq:efa_rdm_cq_poll_ibv_cq():1: Work completion status 12: Unresponsive \
     receiver",
    "[  12.5] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    "[  12.5] pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
    "Unable to determine the device handle for GPU 0000:3b:00.0: Unknown Error",
    "libfabric:4425:1732850000::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 113, message: Unreachable \
     remote (never received a response) (15)",
    "libfabric:4425:1732850000::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 22, message: Invalid \
     address handle (local) (4)",
];

/// Lines possible in the log of a job with a good end, and in the log of a job with a lost host.
const SUSPICIOUS: &[&str] = &[
    "[rank1]:[W522 11:47:46.952 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=77, \
     addr=[a]:39732, remote=[b]:29600): Broken pipe",
    "[W521 23:55:23.1 TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd=3, addr=[b]:44074, \
     remote=[a]:29500): failed to recv, got 0 bytes",
    "[  12.5] mlx5_core 0000:09:00.0 ens1: Link down",
    "ib0: link down",
    "[  12.5] bnxt_en 0000:09:00.0 ens1np0: NIC Link is Down",
    "PMIX ERROR: UNREACHABLE",
    "[a:4242] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 1741",
    "nvidia-fabricmanager[1]: fatal error",
    "FATAL: the job cannot go on",
    "2026-11-24T13:42:01.1Z stdout F FATAL: the job cannot go on",
    "Could not connect to master",
    "error: unexpected argument '--sise' found",
    "[1,0]<stderr>:error: the GPU is lost",
    "[pod/train-0/main] error: 3 tests failed",
    "Error: Os { code: 2, kind: NotFound, message: \"No such file or directory\" }",
    "[  12.5] mlx5_core 0000:09:00.0: Port module event: module 0, Cable unplugged",
    "ssh: connect to host node2 port 22: No route to host",
    "ssh: connect to host node2 port 22: Connection timed out",
    "kex_exchange_identification: Connection closed by remote host",
    "Connection to node2 closed by remote host.",
    "client_loop: send disconnect: Broken pipe",
    "Error from server: error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout",
    "22s  Warning  NodeNotReady  pod/job-3  Node is not ready",
    "Ready  Unknown  NodeStatusUnknown  Kubelet stopped posting node status.",
];

/// Lines of running jobs, or of jobs with a good end.
const HARMLESS: &[&str] = &[
    "nccl-bench: rank 0 on vm is still starting MPI, for 20 s now; it waits for all processes of the \
     launcher to do the same, and gives up after 300 s (-T, NCCL_BENCH_TIMEOUT)",
    "# Rank 0 on vm, shm: fi_shm://collectives-4026531836-18918-396c9dfb47c666e5",
    "[rank1]:[E1124 13:46:19.6 ProcessGroupNCCL.cpp:1683] [PG ID 0 PG GUID 0(default_pg) Rank 1] \
     ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1",
    "libfabric:12:1700000000::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 125, message: Flushed during \
     queue pair destroy (1)",
    "pcieport 0000:00:1c.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:73:00.1",
    "mlx5_core 0000:09:00.0 ens1: Link up",
    "Connection to node2 closed.",
    "worker-1 exited with code 0",
    "the last job was: Aborted",
    "prompt: why does Bus error happen?",
    "# Avg bus bandwidth    : 1.0034 OK",
    "# Avg bus bandwidth    : 1.0034 ",
    "0 errors",
    "error: 0",
    "Error: 1.25e-06",
    "error: none",
    "error: max = 1e-7, mean = 2e-8",
    "step 10, error: not a number yet",
    "warning: unused variable",
    "the FATAL: level is off",
    "0 fatal errors",
    "[a:4242] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
    "Could not connect to master, retrying in 5 s",
    "make: [Makefile:3: clean] Error 1 (ignored)",
    "ib0: link up",
    "slurmstepd-node1: error: couldn't chdir to `/data': No such file or directory: going to /tmp instead",
];

/// Returns the health of an otherwise healthy job with this line.
fn health_with(line: &str) -> Health {
    examine(&(pair("IB", "NET/IB/0/GDRDMA").text() + line + "\n")).health()
}

fn assert_health(lines: &[&str], health: Health) {
    let wrong: Vec<_> = lines.iter().map(|line| (health_with(line), *line)).collect();
    let wrong: Vec<_> = wrong.into_iter().filter(|(found, _)| *found != health).collect();
    assert!(wrong.is_empty(), "not {health:?}: {wrong:#?}");
}

#[test]
fn a_line_about_the_end_of_a_process_or_device_is_broken() {
    assert_health(FATAL, Health::Broken);
}

#[test]
fn a_line_that_is_only_suspicious_leaves_the_health_open() {
    assert_health(SUSPICIOUS, Health::CannotTell);
}

#[test]
fn lines_of_jobs_that_run_change_nothing() {
    assert_health(HARMLESS, Health::Healthy);
}

#[test]
fn a_bandwidth_below_the_demanded_one_is_degraded() {
    for prefix in ["", "[1,0]<stdout>:", "2026-11-24T13:42:01.1Z stdout F ", "train-0 | "] {
        let line = format!("{prefix}# Avg bus bandwidth    : 1.0034 FAILED\n");
        // nccl-bench writes the other line before it.
        for before in ["", "# Test failure: FAILED: NCCL_TESTS_MIN_BW is not reached\n"] {
            let found = examine(&(pair("IB", "NET/IB/0/GDRDMA").text() + before + &line));
            assert_eq!(found.health(), Health::Degraded, "{line}: {:?}", found.findings);
            assert_eq!(found.findings[0].rule, "nccl-tests-slow");
            assert!(found.findings[0].evidence.iter().any(|each| each.text.contains("1.0034 FAILED")));
        }
    }
}

#[test]
fn the_death_of_a_rank_is_known_in_the_words_of_the_library() {
    let error = collectives::world::Error::RankFailed {
        rank: 1,
        host: "node7".to_owned(),
        reason: collectives::world::Reason::Died("its connection closed".to_owned()),
    };
    let found = examine(&(pair("IB", "NET/IB/0/GDRDMA").text() + &format!("{error}; rank 0 ends with it\n")));
    assert_eq!(found.findings[0].rule, "nccl-bench-rank-lost", "{:?}", found.findings);
}

#[test]
fn a_lost_port_before_a_failure_is_its_possible_cause_and_a_lost_store_is_none() {
    let failed = |line: &str| {
        let closed = "a:100:100 [0] misc/socket.cc:1 NCCL WARN socketProgress: Connection closed by remote \
                      peer c<1>\n";
        examine(&(pair("IB", "NET/IB/0/GDRDMA").text() + line + "\n" + closed)).findings.remove(0)
    };
    let found = failed("mlx5_core 0000:09:00.0 ens1: Link down");
    assert_eq!((found.rule.as_str(), found.severity), ("mlx5-port-lost", Severity::Broken));
    assert!(
        found.diagnosis.starts_with("The job failed, perhaps for this reason: A network port"),
        "{found:?}"
    );
    assert_eq!(found.consequences.len(), 1);
    let found = failed(SUSPICIOUS[0]);
    assert_eq!(found.rule, "nccl-peer-closed");
}

#[test]
fn the_diagnosis_quotes_the_words_of_the_message() {
    let diagnosis = |line: &str| examine(&format!("{line}\n")).findings.remove(0).diagnosis;
    let ucx = "[1700000000.123456] [node1:4242 :0]   sock.c:33  UCX  ERROR ";
    assert!(diagnosis(&format!("{ucx}an odd error")).ends_with("reports an error: an odd error"));
    let long = diagnosis(&format!("{ucx}{}", "é".repeat(200)));
    assert!(long.ends_with(&format!(": {}...", "é".repeat(150))), "{long}");
    let in_part = diagnosis("vm:1:1 [1] include/shm.h:42 NCCL WARN Cuda failure 'invalid argument'");
    assert!(in_part.ends_with(", in the shared memory between processes of a host."), "{in_part}");
}
