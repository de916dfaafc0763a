//! Failures at the end of a job, after all operations.

use std::collections::BTreeSet;

use super::hits::Placed;
use super::job::Job;
use crate::finding::Severity;

/// Rule about a communicator left allocated at the end.
const NOT_FREED: &str = "nccl-cleanup-failed";

/// Rule about NVLink multicast. NCCL also maps its memory back at the end.
const MULTICAST: &str = "nvls-cuda-failed";

/// Makes a message about the end of another process advice if all ranks of the log have destroyed all their
/// communicators, and nothing failed.
pub(super) fn excuse_ends(job: &Job<'_>, found: &mut [Placed]) {
    let mut members = job.digest.communicators.iter().flat_map(|each| each.members.values());
    if job.main.is_none() || !members.all(|member| member.destroyed) || found.iter().any(Placed::is_failure) {
        return;
    }
    for each in found.iter_mut().filter(|each| each.is_aftermath) {
        each.finding.severity = Severity::Advice;
    }
}

/// Makes failures of the cleanup degraded if, by the log, the job had finished: all ranks completed their
/// start and connected, no operation returned an error, and nothing else failed.
pub(super) fn soften_cleanup_failures(job: &Job<'_>, found: &mut [Placed]) {
    let is = |each: &Placed, rule: &str| each.finding.rule == rule;
    let freed = found.iter().find(|each| is(each, NOT_FREED));
    let Some(writers) = freed.map(|each| each.writers.clone()) else { return };
    let is_part = |each: &Placed| {
        is(each, NOT_FREED)
            || is(each, MULTICAST) && each.writers.is_subset(&writers) && !each.writers.is_empty()
    };
    if !found.iter().filter(|each| each.is_failure()).all(is_part) || !has_finished(job, &writers) {
        return;
    }
    let has_multicast = found.iter().any(|each| is(each, MULTICAST));
    for each in found.iter_mut().filter(|each| is_part(each)) {
        each.finding.severity = Severity::Degraded;
        if is(each, MULTICAST) {
            "Only the cleanup at the end failed: CUDA refused to free NVLink multicast (NVLS)."
                .clone_into(&mut each.finding.diagnosis);
        } else if !has_multicast {
            each.is_cascade = false;
            "Only the cleanup at the end failed: a communicator was not freed."
                .clone_into(&mut each.finding.diagnosis);
        }
    }
}

/// Returns true if all ranks of the log completed their start, all ranks of the job connected, and none of
/// these writers traced an error of an operation.
fn has_finished(job: &Job<'_>, writers: &BTreeSet<usize>) -> bool {
    let mut members = job.digest.communicators.iter().flat_map(|each| each.members.values());
    let main = job.main.iter().flat_map(|main| main.members.values());
    let has_failed = |&index: &usize| job.writer(index).is_none_or(|writer| writer.operation_failed);
    job.main.is_some()
        && !writers.is_empty()
        && members.all(|member| member.complete)
        && main.into_iter().all(|member| member.connected)
        && !writers.iter().any(has_failed)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{end, examine, pair};
    use crate::examination::Health;
    use crate::finding::Severity;

    const MULTICAST: &str = "a:100:100 [0] transport/nvls.cc:246 NCCL WARN Cuda failure 999 'unknown error'\n\
        a:100:100 [0] NCCL INFO transport/nvls.cc:394 -> 1\n\
        a:100:100 [0] NCCL INFO init.cc:365 -> 1\n";
    const NOT_FREED: &str = "a:100:100 [0] init.cc:2869 NCCL WARN commReclaim: cleanup comm 0x01 rank 0 \
                             failed in destroy/abort, error 1\n";

    #[test]
    fn a_failure_of_the_cleanup_alone_is_degraded() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let found = examine(&(text.clone() + MULTICAST + NOT_FREED));
        assert_eq!(found.health(), Health::Degraded, "{:?}", found.findings);
        let first = &found.findings[0];
        assert_eq!(
            first.diagnosis,
            "Only the cleanup at the end failed: CUDA refused to free NVLink multicast (NVLS)."
        );
        assert_eq!((first.severity, first.consequences.len()), (Severity::Degraded, 1));
        let found = examine(&(text + NOT_FREED));
        assert_eq!(found.health(), Health::Degraded, "{:?}", found.findings);
        assert_eq!(
            found.findings[0].diagnosis,
            "Only the cleanup at the end failed: a communicator was not freed."
        );
    }

    #[test]
    fn a_store_that_is_lost_after_the_end_of_all_communicators_is_advice() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let lost = "[rank1]:[W522 11:47:46.952883182 TCPStore.cpp:125] [c10d] recvValue failed on \
                    SocketImpl(fd=7): failed to recv\n";
        let whole = text.clone() + &end(0, "Destroy") + &end(1, "Destroy") + lost;
        assert_eq!(examine(&whole).health(), Health::Healthy, "{:?}", examine(&whole).findings);
        let crash = "Segmentation fault (core dumped)\n";
        for (log, health) in [
            (text.clone() + lost, Health::CannotTell),
            (text + &end(0, "Destroy") + lost, Health::CannotTell),
            (whole + crash, Health::Broken),
        ] {
            assert_eq!(examine(&log).health(), health, "{:?}", examine(&log).findings);
        }
    }

    #[test]
    fn a_failure_before_the_cleanup_stays_broken() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let operation = "a:100:100 [0] NCCL INFO enqueue.cc:2200 -> 1\n";
        let other = "b:101:101 [1] include/alloc.h:1 NCCL WARN Cuda failure 2 'out of memory'\n";
        let of_other_rank = MULTICAST.replace("a:100:100 [0]", "b:101:101 [1]");
        let unconnected = text.replace("Connected all rings", "Hello");
        for log in [
            text.clone() + MULTICAST,
            text.clone() + MULTICAST + operation + NOT_FREED,
            text.clone() + MULTICAST + NOT_FREED + other,
            text.clone() + &of_other_rank + NOT_FREED,
            unconnected + MULTICAST + NOT_FREED,
            MULTICAST.to_owned() + NOT_FREED,
        ] {
            let found = examine(&log);
            assert_eq!(found.health(), Health::Broken, "{:?}", found.findings);
        }
    }
}
