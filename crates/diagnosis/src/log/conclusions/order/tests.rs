use super::*;
use crate::log::conclusions::tests::{examine, pair};

/// Returns a message of a rank of [`pair`], on host `a` or `b`.
fn warn(rank: u32, time: &str, text: &str) -> String {
    let host = ["a", "b"][rank as usize];
    let time = if time.is_empty() { String::new() } else { format!("[{time}] ") };
    format!("{time}{host}:10{rank}:10{rank} [{rank}] some/file.cc:1 NCCL WARN {text}\n")
}

const CLOSED: &str = "socketProgress: Connection closed by remote peer c<1>";
const FULL: &str = "Error: failed to extend /dev/shm/nccl-x to 9 bytes, error: No space left on device (28)";

/// Returns the first finding of a log with these lines after the start of the job.
fn first(lines: &str) -> Finding {
    examine(&(pair("IB", "NET/IB/0/GDRDMA").text() + lines)).findings.remove(0)
}

fn far(count: usize) -> String {
    "another program\n".repeat(count)
}

#[test]
fn a_root_above_the_cascade_of_its_process_is_the_cause() {
    let found = first(&(warn(0, "", FULL) + &far(500) + &warn(0, "", CLOSED)));
    assert_eq!(found.rule, "nccl-shm-full");
    assert_eq!(found.consequences.len(), 1);
}

#[test]
fn a_root_below_the_cascade_of_its_process_is_not_the_cause() {
    let found = first(&(warn(0, "", CLOSED) + &far(30) + &warn(0, "", FULL)));
    assert!(found.diagnosis.contains("; the cause is not in this log"), "{found:?}");
    assert_eq!(found.consequences.len(), 0);
    // Threads of a process write at the same time.
    let near = first(&(warn(0, "", CLOSED) + &warn(0, "", FULL)));
    assert_eq!((near.rule.as_str(), near.consequences.len()), ("nccl-shm-full", 1));
}

#[test]
fn a_root_of_another_process_is_the_cause_wherever_it_stands() {
    for lines in [0, 39, 500] {
        let found = first(&(warn(0, "", CLOSED) + &far(lines) + &warn(1, "", FULL)));
        assert_eq!((found.rule.as_str(), found.consequences.len()), ("nccl-shm-full", 1), "{lines}");
    }
    // Rank 0 has both, in reverse order. Rank 1 has the root alone.
    let lines = warn(0, "", CLOSED) + &far(30) + &warn(0, "", FULL) + &warn(1, "", FULL);
    assert_eq!(first(&lines).rule, "nccl-shm-full");
}

#[test]
fn a_root_that_is_later_by_its_time_is_not_the_cause() {
    let lines = |cascade: &str, root: &str| warn(0, cascade, CLOSED) + &warn(1, root, FULL);
    for (root, is_cause) in [
        ("2026-11-24 13:40:50", true),
        ("2026-11-24 13:40:53", true),
        // The clocks of two hosts differ by that much.
        ("2026-11-24 13:40:57", true),
        ("2026-11-24 13:41:07", false),
        ("2026-11-24 17:40:53", false),
    ] {
        let found = first(&lines("2026-11-24 13:40:53", root));
        assert_eq!(found.rule == "nccl-shm-full", is_cause, "{root}: {}", found.diagnosis);
    }
    // The order of the lines does not matter if times are known.
    let lines = warn(1, "2026-11-24 17:40:53", FULL) + &warn(0, "2026-11-24 13:40:53", CLOSED);
    assert_eq!(first(&lines).rule, "nccl-peer-closed");
}

#[test]
fn a_report_of_a_launcher_is_the_cause_of_what_stands_above_it() {
    let killed = "mpirun noticed that process rank 1 with PID 0 on node b exited on signal 9 (Killed).\n";
    assert_eq!(first(&(warn(0, "", CLOSED) + &far(500) + killed)).rule, "mpirun-killed");
}

#[test]
fn the_nearest_unknown_warning_of_the_process_leads() {
    let lines = warn(0, "", "The early one")
        + &warn(0, "", "The near one")
        + &warn(1, "", "The other rank's")
        + &warn(0, "", CLOSED)
        + &warn(0, "", "The late one");
    let found = first(&lines);
    assert_eq!(found.diagnosis, "The job failed, perhaps after this warning of NCCL: The near one");
    assert_eq!(found.consequences.len(), 1);
    // Without one of the process, the nearest above it.
    let lines = warn(1, "", "Far") + &warn(1, "", "Near") + &warn(0, "", CLOSED);
    assert!(first(&lines).diagnosis.ends_with(": Near"));
    // Times are more exact than places.
    let lines = warn(1, "2026-11-24 13:40:30", "Earlier")
        + &warn(1, "2026-11-24 14:40:30", "Later")
        + &warn(0, "2026-11-24 13:40:53", CLOSED);
    assert!(first(&lines).diagnosis.ends_with(": Earlier"));
}

#[test]
fn a_warning_tells_the_part_of_nccl_by_its_file() {
    let warning = "b:1:1 [1] bootstrap.cc:77 NCCL WARN The odd one\n";
    let found = first(&(warning.to_owned() + &warn(1, "", CLOSED)));
    let told =
        "The job failed, perhaps after this warning of NCCL in its start over TCP (bootstrap): The odd one";
    assert_eq!(found.diagnosis, told);
    assert!(found.remedy.is_some_and(|remedy| remedy.contains("NCCL_SOCKET_IFNAME")));
}

#[test]
fn a_quoted_warning_that_no_rule_knows_leads() {
    let error = "[rank3]: ncclInternalError: Internal check failed.\n[rank3]: Last error:\n";
    let found = first(&format!("{error}[rank3]: The odd one of NCCL\n"));
    assert_eq!(found.diagnosis, "The job failed, perhaps after this warning of NCCL: The odd one of NCCL");
    let of_xla = "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled system error. Last NCCL \
                  warning(error) log entry (may be unrelated) 'The odd one of NCCL'.\n";
    assert!(first(of_xla).diagnosis.ends_with("of NCCL: The odd one of NCCL"));
    // Lines that stand in the place of a warning.
    for text in [
        "\n[rank3]: train.py: step 3",
        "[rank3]: Exception raised from checkError",
        "[rank1]: a line of rank 1",
    ] {
        assert!(!first(&format!("{error}{text}\n")).diagnosis.contains("this warning"), "{text}");
    }
}

#[test]
fn an_unknown_warning_close_below_the_cascade_of_its_process_leads() {
    let found = first(&(warn(0, "", CLOSED) + &warn(0, "", "The odd one")));
    assert_eq!(found.diagnosis, "The job failed, perhaps after this warning of NCCL: The odd one");
    let found = first(&(warn(0, "", CLOSED) + &far(30) + &warn(0, "", "The odd one")));
    assert!(found.diagnosis.contains("; the cause is not in this log"), "{found:?}");
}

#[test]
fn stamps_of_one_host_tell_an_order_beyond_a_second() {
    // Both ranks run on one host. A launcher stamps their lines when it reads them.
    let lines = |root: &str| {
        let log = pair("IB", "NET/IB/0/GDRDMA").text()
            + &warn(0, "2026-11-24 13:40:53.100", CLOSED)
            + &warn(1, &format!("2026-11-24 13:40:{root}"), FULL);
        examine(&log.replace("b:101:101", "a:101:101")).findings.remove(0).rule
    };
    assert_eq!(lines("53.900"), "nccl-shm-full");
    assert_eq!(lines("54.200"), "nccl-peer-closed");
}

#[test]
fn an_unknown_warning_is_kept_where_nothing_but_a_lead_follows_it() {
    let digest = crate::log::digest::Digest::default();
    let lead = Finding::new("lead", Severity::Broken, "Rank 1 did not call it".to_owned());
    let warning = Finding::new("unknown-warning", Severity::Unknown, "NCCL warns: odd".to_owned());
    let example = Example { text: "odd".to_owned(), ..Example::default() };
    let found = vec![
        Placed { is_lead: true, is_cascade: true, ..Placed::without_line(lead) },
        Placed { examples: vec![example], ..Placed::without_line(warning) },
    ];
    let found = order_findings(&Job::new(&digest), found);
    let rules: Vec<_> = found.iter().map(|finding| (finding.rule.as_str(), finding.severity)).collect();
    assert_eq!(rules, [("unknown-warning", Severity::Broken), ("lead", Severity::Broken)]);
}

#[test]
fn reports_of_launchers_come_after_what_they_caused() {
    let closed = warn(0, "2026-11-24 13:40:53", CLOSED);
    for (time, text, rule) in [
        (
            "[2026-11-24 13:42:00]",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0.",
            "slurm-oom",
        ),
        (
            "[2026-11-24 13:42:00]",
            "JOB 1 ON b CANCELLED DUE TO NODE FAILURE, SEE SLURMCTLD LOG",
            "slurm-node-failure",
        ),
        ("[2026-11-24 13:42:00]", "Last State: Terminated, Reason: OOMKilled", "k8s-oom-killed"),
        ("[2026-11-24 13:42:00]", "failed (exitcode: -9) local_rank: 1 (pid: 101)", "torch-child-killed"),
    ] {
        let found = first(&format!("{closed}{time} {text}\n"));
        assert_eq!((found.rule.as_str(), found.consequences.len()), (rule, 1), "{found:?}");
    }
}

#[test]
fn the_first_sign_is_a_message_that_says_more_than_that_something_failed() {
    let end = "torch.distributed.DistBackendError: NCCL error in: a.cpp:268, remote process exited or there was a \
               network error, NCCL version 2.21.5\n";
    let found = first(&(end.to_owned() + &warn(0, "", CLOSED)));
    assert_eq!((found.rule.as_str(), found.consequences.len()), ("nccl-peer-closed", 1));
    assert_eq!(first(end).rule, "nccl-result-remote");
}

#[test]
fn an_unknown_warning_of_another_process_below_the_first_failure_may_be_its_cause() {
    let found = first(&(warn(0, "", CLOSED) + &warn(1, "", "the frobnicator of this host is not ready")));
    assert_eq!((found.rule.as_str(), found.consequences.len()), ("unknown-warning", 1), "{found:?}");
}
