//! Findings explained by another finding.

use std::collections::BTreeSet;

use super::hits::{Placed, add_roll};
use super::job::Job;
use super::moment::Moment;
use crate::finding::Severity;
use crate::knowledge::rules::Rules;
use crate::log::digest::{Example, Position};

/// Number of lines within which a process writes several messages about one event.
pub(super) const LINES: u64 = 10;

/// Turns messages into consequences of a finding that explains them, and drops lost connections of strangers.
pub(super) fn explain_consequences(job: &Job<'_>, found: &mut Vec<Placed>) {
    let is_later = |each: &Placed| found.iter().any(|by| by.is_root && is_below_in_thread(job, by, each));
    let is_explained = |each: &Placed| each.is_root && (is_said_better(job, found, each) || is_later(each));
    let explained: Vec<bool> = found.iter().map(is_explained).collect();
    for (each, _) in found.iter_mut().zip(explained).filter(|(_, is_explained)| *is_explained) {
        (each.is_root, each.is_cascade) = (false, true);
    }
    move_lost_connections(job, found);
}

/// Returns true for a vague finding if more exact ones stand beside its messages, and one of them is a root.
fn is_said_better(job: &Job<'_>, found: &[Placed], each: &Placed) -> bool {
    let exact = || found.iter().filter(|by| (by.is_root || by.is_cascade) && !by.is_vague);
    let beside = |other| exact().filter(move |by| by.examples.iter().any(|one| is_near(job, one, other)));
    // The digest keeps the first messages only, perhaps of different threads.
    let is_cut = each.finding.occurrences > each.examples.len() as u64;
    let writers = || exact().flat_map(|by| by.writers.iter().copied()).collect();
    each.is_vague
        && each.examples.iter().flat_map(beside).any(|by| by.is_root)
        && match is_cut {
            true => each.writers.is_subset(&job.of_same_processes(&writers())),
            false => each.examples.iter().all(|other| beside(other).next().is_some()),
        }
}

/// Returns true if the messages of the second finding stand below those of the first in the same threads. A
/// more exact message does not follow from a vague one.
fn is_below_in_thread(job: &Job<'_>, by: &Placed, each: &Placed) -> bool {
    let mut pairs = by.examples.iter().flat_map(|one| each.examples.iter().map(move |other| (one, other)));
    by.is_vague == each.is_vague
        && by.first_example().map(|one| one.position) < each.first_example().map(|one| one.position)
        && each.writers.is_subset(&job.of_same_processes(&by.writers))
        && pairs.any(|(one, other)| one.thread < other.thread && is_near(job, one, other))
}

/// Returns true for two messages of one thread, written within some lines or a second. Lines of other
/// programs have no thread, and are compared by their process.
fn is_near(job: &Job<'_>, one: &Example, other: &Example) -> bool {
    let moment = |example: &Example| Moment::parse(example.time.as_deref()?);
    let seconds = || moment(one)?.seconds_since(&moment(other)?);
    match (one.thread, other.thread) {
        (Some((thread, line)), Some((same, below))) => {
            thread == same && (line.abs_diff(below) <= LINES || seconds().is_some_and(|s| s.abs() <= 1.0))
        }
        _ => {
            one.position.input == other.position.input
                && one.position.line.abs_diff(other.position.line) <= LINES
                && job.process_of_message(one) == job.process_of_message(other)
        }
    }
}

/// Adds the functions of NCCL in the stacks below the messages about crashes.
pub(super) fn add_stack_frames(job: &Job<'_>, rules: &Rules, found: &mut [Placed]) {
    let mut named: BTreeSet<(usize, &str)> = BTreeSet::new();
    for hit in &job.digest.hits {
        let Some(rule) = rules.rule_by_id(&hit.rule).filter(|rule| !rule.frame_of.is_empty()) else {
            continue;
        };
        for example in &hit.examples {
            let function = rule.pattern.as_ref().and_then(|pattern| pattern.first_group(&example.text));
            let Some(function) = function else { continue };
            let is_below = |crash: Position| {
                let lines = example.position.line.checked_sub(crash.line);
                crash.input == example.position.input && lines.is_some_and(|lines| lines <= LINES)
            };
            let crash = found.iter().position(|each| {
                rule.frame_of.contains(&each.finding.rule)
                    && each.examples.iter().any(|crash| is_below(crash.position))
            });
            let Some(crash) = crash else { continue };
            let finding = &mut found[crash].finding;
            finding.evidence.push(job.cite_example(example));
            if hit.roll.describe().is_some() {
                finding.diagnosis = add_roll(&finding.diagnosis, hit);
                break;
            }
            if named.insert((crash, &rule.diagnosis)) {
                let [crash, frame] =
                    [&finding.diagnosis, &rule.diagnosis].map(|text| text.trim_end_matches('.'));
                finding.diagnosis = format!("{crash}. {frame}: {function}.");
            }
        }
    }
}

/// Moves closed connections of processes outside the job into the finding about these processes. The process
/// then refuses the connection, and continues.
fn move_lost_connections(job: &Job<'_>, found: &mut Vec<Placed>) {
    let Some(stray) = found.iter().position(|each| each.finding.rule == "nccl-stray-connection") else {
        return;
    };
    let refusals = found[stray].examples.clone();
    let is_strange = |closed: &Example| {
        let is_refused = refusals.iter().any(|refusal| {
            let lines = refusal.position.line.checked_sub(closed.position.line);
            refusal.position.input == closed.position.input
                && refusal.text.contains("Accept failed")
                && job
                    .process_of_message(refusal)
                    .is_some_and(|process| job.process_of_message(closed) == Some(process))
                && lines.is_some_and(|lines| lines <= LINES)
        });
        is_refused && remote_peer(&closed.text).is_some_and(|peer| !is_of_job(job, peer))
    };
    let is_stranger = |each: &Placed| {
        each.finding.rule == "nccl-peer-closed"
            && each.finding.occurrences == each.examples.len() as u64
            && each.examples.iter().all(is_strange)
    };
    let Some(closed) = found.iter().position(is_stranger) else { return };
    let evidence = found[closed].finding.evidence.clone();
    let finding = &mut found[stray].finding;
    finding.evidence.extend(evidence);
    finding.severity = Severity::Advice;
    found.remove(closed);
}

/// Turns a crash into a consequence of a root just above it: a program that ends after an error can crash.
pub(super) fn explain_crashes(found: &mut [Placed]) {
    let is_crash = |each: &Placed| each.finding.rule.starts_with("process-crashed");
    let is_below = |crash: &Example, root: &Example| {
        let lines = crash.position.line.checked_sub(root.position.line);
        crash.position.input == root.position.input
            && crash.rank == root.rank
            && lines.is_some_and(|lines| lines <= LINES)
    };
    let errors: Vec<Example> = found
        .iter()
        .filter(|each| each.is_root && !each.is_reported_late && !is_crash(each))
        .flat_map(|each| each.examples.iter().cloned())
        .collect();
    for crash in found.iter_mut().filter(|each| is_crash(each) && each.is_root) {
        let first = crash.first_example();
        if first.is_some_and(|crash| errors.iter().any(|root| is_below(crash, root))) {
            (crash.is_root, crash.is_cascade) = (false, true);
        }
    }
}

/// Returns the host of `... by remote peer 192.0.2.7<46494>`.
fn remote_peer(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("remote peer ").or_else(|| text.split_once(" from "))?;
    let (host, _) = rest.split_once('<')?;
    (!host.is_empty()).then_some(host)
}

/// Returns true for an address or a host of the job in the log.
fn is_of_job(job: &Job<'_>, peer: &str) -> bool {
    let is_address =
        |text: &str| text.split_once(':').is_some_and(|(_, rest)| rest.split('<').next() == Some(peer));
    job.digest.writers.iter().any(|writer| {
        let short = peer.split('.').next();
        writer.host == peer
            || short == Some(writer.host.as_str())
            || writer.bootstrap.as_deref().is_some_and(is_address)
            || writer.devices.iter().any(|device| is_address(device))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{examine, pair};
    use crate::examination::Health;

    #[test]
    fn a_stranger_that_connects_is_advice() {
        let job = pair("IB", "NET/IB/0/GDRDMA").text();
        let closed = |peer: &str| {
            format!(
                "a:100:7 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer \
                 {peer}<46494>\n\
                 a:100:7 [0] NCCL INFO misc/socket.cc:58 -> 6\n"
            )
        };
        let refused = "a:100:7 [0] proxy.cc:1494 NCCL WARN [Service thread] Accept failed Success\n";
        let rules = |text: &str| -> (Health, Vec<String>) {
            let found = examine(text);
            (found.health(), found.findings.into_iter().map(|finding| finding.rule).collect())
        };
        let (health, found) = rules(&(job.clone() + &closed("203.0.113.3") + refused));
        assert!(
            health == Health::Healthy && found.contains(&"nccl-stray-connection".to_owned()),
            "{found:?}"
        );
        // A rank of the job, and a connection without a refusal.
        for text in [
            closed("b") + refused,
            closed("b.example") + refused,
            closed("203.0.113.3"),
            closed("203.0.113.3") + refused + &closed("203.0.113.4"),
        ] {
            assert_eq!(rules(&(job.clone() + &text)).0, Health::Broken, "{text}");
        }
        let own = "a:100:100 [0] NCCL INFO Bootstrap: Using eth0:203.0.113.3<0>\n".to_owned();
        assert_eq!(rules(&(own + &job + &closed("203.0.113.3") + refused)).0, Health::Broken);
    }

    #[test]
    fn a_crash_just_below_an_error_of_its_process_is_a_consequence() {
        let rules = |text: &str| -> Vec<String> {
            examine(text).findings.into_iter().map(|finding| finding.rule).collect()
        };
        let (error, crash) = ("RuntimeError: can't start new thread\n", "Segmentation fault (core dumped)\n");
        assert_eq!(rules(&(error.to_owned() + crash)), ["thread-limit"]);
        for text in [
            crash.to_owned() + error,
            error.to_owned() + &"a line\n".repeat(20) + crash,
            format!("[rank0]: {error}[rank1]: {crash}"),
        ] {
            assert_eq!(rules(&text).len(), 2, "{text}");
        }
    }

    #[test]
    fn the_imex_channel_is_the_cause_of_a_refused_call() {
        let call =
            "a:1:1 [1] include/alloc.h:228 NCCL WARN Cuda failure 800 'operation not permitted'\n".to_owned();
        let imex = "a:1:1 [1] mnnvl.cc:67 NCCL WARN MNNVL (cliqueSize 8) is available but not working on \
                    this system.\n";
        let found = examine(&(call.clone() + imex));
        assert_eq!(found.findings[0].rule, "mnnvl-imex", "{:?}", found.findings);
        assert!(found.findings[0].consequences[0].text.contains("operation not permitted"));
        assert_eq!(examine(&(call + &imex.replace("a:1:1", "b:2:2"))).findings.len(), 2);
    }

    #[test]
    fn a_vague_message_and_a_later_one_of_its_thread_are_consequences() {
        let rules = |text: &str| -> Vec<String> {
            let found = examine(text).findings.into_iter();
            found.map(|finding| finding.rule).filter(|rule| rule != "known-faults").collect()
        };
        let error = |time: &str, thread: u32, text: &str| {
            format!("{time}a:1:{thread} [1] transport/x.cc:7 NCCL WARN {text}\n")
        };
        const VAGUE: &str = "NET/IB: ncclIbTest: Got CQE with error (devIndex=0, wr_id=0)";
        const EXACT: &str = "NET/IB: Got completion from peer b<1> with status=12 opcode=0";
        let (vague, exact) = (error("", 2, VAGUE), error("", 2, EXACT));
        for text in [
            vague.clone() + &exact,
            exact.clone() + &vague,
            exact.clone() + &"another line\n".repeat(50) + &vague,
        ] {
            assert_eq!(rules(&text), ["ib-retry-exceeded"], "{text}");
        }
        // Two processes, of which one only follows.
        let (flushed, of_other) = (exact.replace("=12", "=5"), |text: &str| text.replace("a:1:2", "b:2:2"));
        assert_eq!(
            rules(&(vague.clone() + &of_other(&vague) + &flushed + &of_other(&exact))),
            ["ib-retry-exceeded"]
        );
        // Another process, and a message of this thread much later.
        let lines = "a:1:2 [1] NCCL INFO A line\n".repeat(20);
        let other = vague.replace("a:1:2", "b:2:2");
        for text in [exact.clone() + &other, exact.clone() + &lines + &vague] {
            assert_eq!(rules(&text), ["ib-retry-exceeded", "ib-completion"], "{text}");
        }
        let at = |second: u32, text: &str| error(&format!("[2026-09-09 10:46:{second}] "), 2, text);
        assert_eq!(rules(&(at(33, EXACT) + &lines + &at(34, VAGUE))), ["ib-retry-exceeded"]);
        assert_eq!(rules(&(at(33, EXACT) + &lines + &at(36, VAGUE))).len(), 2);
        // Of two exact ones, the first of a thread is the cause.
        let full = error("", 2, "Error: failed to extend /dev/shm/nccl-x to 9 bytes");
        assert_eq!(rules(&(full.clone() + &exact)), ["nccl-shm-full"]);
        assert_eq!(rules(&(full + &error("", 3, EXACT))).len(), 2);
    }

    #[test]
    fn the_first_function_of_nccl_below_a_crash_is_told() {
        let crash = "[vm:4425] Signal: Segmentation fault (11)\n";
        let frame =
            |name: &str| format!("[vm:4425] [ 1] /usr/lib/libnccl.so.2({name}+0x1a)[0x7f3c00001000]\n");
        let told = |log: &str| examine(log).findings.remove(0).diagnosis;
        let both = crash.to_owned() + &frame("ncclProxySaveOp") + &frame("ncclAllReduce");
        assert_eq!(
            told(&both),
            "A process of the job crashed. A frame of a stack is in NCCL: ncclProxySaveOp."
        );
        for log in
            [frame("ncclAllReduce") + crash, crash.to_owned() + &"x\n".repeat(30) + &frame("ncclAllReduce")]
        {
            assert_eq!(told(&log), "A process of the job crashed.");
        }
    }
}
