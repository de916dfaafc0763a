//! Several jobs, or groups of one job, in a log.

use super::{examine, finding, pair};
use crate::examination::Health;
use crate::finding::Severity;

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
        "The log has 2 separate jobs: lines 1 to 14; lines 16 to 29"
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
    // A failure of the first job does not belong to the second one's ranks.
    let killed =
        "a:100:100 [0] misc/socket.cc:59 NCCL WARN socketProgress: Connection closed by remote peer b<1>\n";
    let found = examine(&(first.clone() + killed + &second(&first)));
    assert!(
        found.findings[0].diagnosis.starts_with("Job 1: A peer closed its connection"),
        "{:?}",
        found.findings[0]
    );
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
        notice.starts_with("The log has 20 separate jobs") && notice.contains("judged are the last 16"),
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
    let found = examine(&(first.clone() + &gpus));
    assert!(found.findings.iter().all(|each| each.rule != "several-jobs"), "{:?}", found.findings);
    assert_eq!(found.proof, ["2 communicators: NET/IB with GPUDirect RDMA between the 2 ranks"]);
    // No connection between the pods was tested.
    let found = examine(&(first.clone() + &pods));
    assert_eq!((found.health(), found.proof.len()), (Health::CannotTell, 0));
    let says = "no connection between these hosts was tested, since no communicator joins them: a b | c d;";
    assert!(found.unseen[0].starts_with(says), "{:?}", found.unseen);
    assert_eq!(
        finding(&found, "several-jobs").diagnosis,
        "The log has 2 separate jobs: a, b (lines 1 to 14); c, d (lines 16 to 29)"
    );
    // The first group proves nothing about the second one.
    let slow = pods.replace("NET/IB/0/GDRDMA", "NET/IB/0");
    let found = examine(&(first.clone() + &slow));
    let without = finding(&found, "network-without-gdr");
    assert!(
        without.severity == Severity::Degraded && without.diagnosis.starts_with("Job 2: "),
        "{:?}",
        found.findings
    );
    let open = pods.replace("Connected all rings", "Hello");
    let found = examine(&(first.clone() + &open));
    assert_eq!((found.health(), found.proof.len()), (Health::CannotTell, 0));
    assert!(found.unseen.iter().any(|text| text.starts_with("Job 2: ")), "{:?}", found.unseen);
    // A failure of one group is the cause of the other one's reports.
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
        "The log has 4 separate jobs: a, b (lines 1 to 14); c, d (lines 16 to 29); a, b (lines 31 to 44); c, d (lines \
         46 to 59)"
    );
}
