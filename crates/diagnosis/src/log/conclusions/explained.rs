//! Findings explained by another finding.

use super::hits::Placed;
use super::job::Job;
use crate::finding::Severity;
use crate::log::digest::Example;

/// Rules of a cause and of a message written by the same process just before it.
const SAME: [(&str, &str); 1] = [("mnnvl-imex", "cuda-not-permitted")];

/// Number of lines within which a process writes several messages about one event.
pub(super) const LINES: u64 = 10;

/// Turns messages into consequences of a finding that explains them, and drops lost connections of strangers.
pub(super) fn explain_consequences(job: &Job<'_>, found: &mut Vec<Placed>) {
    for (cause, message) in SAME {
        let Some(by) = found.iter().find(|each| each.finding.rule == cause).map(|each| each.writers.clone())
        else {
            continue;
        };
        let same = found.iter_mut().filter(|each| each.finding.rule == message);
        for each in same.filter(|each| !each.writers.is_empty() && each.writers.is_subset(&by)) {
            (each.is_root, each.is_cascade) = (false, true);
        }
    }
    move_lost_connections(job, found);
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
    let is_crash = |each: &Placed| each.finding.rule == "process-crashed";
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
}
