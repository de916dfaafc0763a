//! Failed attempts to connect, and the first failed call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use super::explained;
use super::hits::Placed;
use super::job::{Job, count, ranks_in_words};
use crate::finding::{Evidence, Finding, Role, Severity};
use crate::knowledge::parts::{Part, find_part};
use crate::knowledge::rules::{Rule, Rules};
use crate::knowledge::texts::compose_finding;
use crate::log::digest::{CallFailure, Example, Position, Retries};

/// Largest number of peers in the findings.
const PEERS: usize = 4;

/// Rules about connections given up by NCCL.
const GIVEN_UP: [&str; 3] = ["nccl-connect-refused", "nccl-connect-timeout", "nccl-connect-retries"];

/// Files of NCCL's source with the functions of its interface. A result code that does not reach them had no
/// effect: NCCL continues despite the failure.
const OUTERMOST: [&str; 3] = ["init.cc:", "group.cc:", "enqueue.cc:"];

/// The rule about collectives in the switches, which NCCL tries first and does without.
const COLLNET: &str = "collnet-fallback";

/// The attempts of several writers, by index.
type Attempts<'a> = Vec<(usize, &'a Retries)>;

/// Returns findings about peers that accepted no connection up to the end of the log. They describe a
/// failure. The cause is at the peer.
pub(super) fn find_unreachable_peers(job: &Job<'_>) -> Vec<Placed> {
    let mut peers: BTreeMap<(Option<&str>, &str), Attempts<'_>> = BTreeMap::new();
    for (index, writer) in job.digest.writers.iter().enumerate() {
        let Some(retries) = &writer.retries else { continue };
        if writer.last == retries.last || has_given_up(job, index) {
            peers.entry((retries.peer.as_deref(), &retries.reason)).or_default().push((index, retries));
        }
    }
    let mut peers: Vec<_> = peers.into_iter().collect();
    peers.sort_by_key(|(_, writers)| std::cmp::Reverse(writers.len()));
    peers
        .into_iter()
        .take(PEERS)
        .map(|((peer, reason), writers)| describe_unreachable_peer(job, peer, reason, &writers))
        .collect()
}

fn has_given_up(job: &Job<'_>, writer: usize) -> bool {
    let hits = &job.digest.hits;
    hits.iter().any(|hit| GIVEN_UP.contains(&hit.rule.as_str()) && hit.writers.contains(&writer))
}

/// Returns the finding about a peer unreachable for some writers.
fn describe_unreachable_peer(
    job: &Job<'_>,
    peer: Option<&str>,
    reason: &str,
    writers: &[(usize, &Retries)],
) -> Placed {
    let indices = || writers.iter().map(|&(index, _)| index);
    let (ranks, hosts) = (job.ranks_of_writers(indices()), job.hosts_of_writers(indices()));
    let who = match (&ranks[..], &hosts[..]) {
        ([], []) => "A process".to_owned(),
        ([], hosts) => format!("A process on {}", hosts.join(", ")),
        (ranks, _) => {
            let words = ranks_in_words(ranks);
            words.replacen('r', "R", 1)
        }
    };
    // Old versions do not number the attempts, and write one of a thousand.
    let attempts = writers.iter().filter_map(|(_, retries)| retries.attempt).max();
    let tries =
        attempts.map_or_else(|| "again and again".to_owned(), |attempts| count(attempts as usize, "time"));
    let to = peer.map_or_else(|| "a peer".to_owned(), str::to_owned);
    let example = |&(index, retries): &(usize, &Retries)| Example {
        position: retries.last,
        writer: Some(index),
        text: format!("its last attempt: {}", retries.reason),
        ..Example::default()
    };
    let examples: Vec<Example> = writers.iter().take(PEERS).map(example).collect();
    let values: [(&str, &dyn Display); 4] =
        [("who", &who), ("tries", &tries), ("peer", &to), ("reason", &reason)];
    let finding = Finding {
        ranks,
        hosts,
        evidence: examples.iter().map(|example| job.cite_example(example)).collect(),
        occurrences: writers.iter().map(|(_, retries)| retries.count).sum(),
        ..compose_finding("peer-not-reached", &values)
    };
    let writers = indices().collect();
    Placed { is_cascade: true, is_lead: true, examples, writers, ..Placed::without_line(finding) }
}

/// Returns the first failed call as evidence of a failure without a known cause, among failures returned by a
/// function of NCCL's interface. A failure of the call itself comes before reports about a peer.
pub(super) fn first_failed_call(job: &Job<'_>) -> Option<Evidence> {
    let (writer, failure) = first_returned_failure(job)?;
    Some(cite_failure(job, writer, failure))
}

/// Returns the part of NCCL in which the first failure returned by a function of its interface began. A lost
/// peer and a wrong call have their causes elsewhere.
pub(super) fn find_first_failed_part(job: &Job<'_>) -> Option<&'static Part> {
    let (_, failure) = first_returned_failure(job)?;
    find_failed_part(failure)
}

fn find_failed_part(failure: &CallFailure) -> Option<&'static Part> {
    if !(1..=3).contains(&failure.code) {
        return None;
    }
    find_part(&failure.caller).or_else(|| find_part(&failure.place))
}

/// Returns the first failure returned by a function of NCCL's interface, with the index of its writer.
fn first_returned_failure<'a>(job: &'a Job<'_>) -> Option<(usize, &'a CallFailure)> {
    let is_of_attempt = find_collnet_attempts(job);
    let reached = |failure: &CallFailure| {
        OUTERMOST.iter().any(|file| failure.outermost.starts_with(file)) && !is_of_attempt(failure)
    };
    let writers = job.digest.writers.iter().enumerate();
    let failures = writers.flat_map(|(index, writer)| writer.failures.iter().map(move |each| (index, each)));
    let order = |failure: &CallFailure| (failure.name == "ncclRemoteError", failure.first);
    failures.filter(|(_, each)| reached(each)).min_by_key(|(_, each)| order(each))
}

/// Returns a test for failures of the attempt to use collectives in the switches. Its result code ends in
/// init.cc, and NCCL goes on.
fn find_collnet_attempts(job: &Job<'_>) -> impl Fn(&CallFailure) -> bool {
    let has_fallen_back = job.digest.hits.iter().any(|hit| hit.rule == COLLNET);
    move |failure| {
        let ends = ["init.cc:", "transport.cc:", "transport/coll_net.cc:"];
        has_fallen_back && ends.iter().any(|file| failure.outermost.starts_with(file))
    }
}

/// Returns a failure returned by a function of NCCL's interface, with the index of its writer, and a message
/// just above it in the same process that is harmless where NCCL continues.
fn find_harmless_message<'a>(
    job: &'a Job<'_>,
    rules: &'a Rules,
) -> Option<(usize, &'a CallFailure, &'a Rule, &'a Example)> {
    let known = job.digest.hits.iter().filter_map(|hit| Some((hit, rules.rule_by_id(&hit.rule)?)));
    let harmless = known.filter(|(_, rule)| rule.role == Role::Harmless);
    let mut messages = harmless.flat_map(|(hit, rule)| hit.examples.iter().map(move |each| (rule, each)));
    messages.find_map(|(rule, message)| {
        let writers = job.digest.writers.iter().enumerate();
        let same = writers.filter(|&(index, _)| job.process_of(index) == job.process_of_message(message));
        let mut failures =
            same.flat_map(|(index, writer)| writer.failures.iter().map(move |each| (index, each)));
        let (writer, failure) = failures.find(|(_, failure)| {
            let lines = failure.first.line.checked_sub(message.position.line);
            failure.first.input == message.position.input
                && lines.is_some_and(|lines| lines <= 2)
                && OUTERMOST.iter().any(|file| failure.outermost.starts_with(file))
        })?;
        Some((writer, failure, rule, message))
    })
}

/// Finds the first unexplained failed call within NCCL, with the index of its writer. Three kinds need no
/// explanation: during the start (NCCL continues despite the failure, or the start has a finding), at the end
/// of a communicator (its threads stop with an error), and beside a message with a finding.
fn find_inner_failure<'a>(job: &'a Job<'_>, found: &[Placed]) -> Option<(usize, &'a CallFailure)> {
    let members = job.digest.communicators.iter().flat_map(|each| each.members.values());
    let ended: BTreeSet<_> = members
        .filter(|member| member.destroyed || member.aborted)
        .filter_map(|member| job.process_of(member.writer))
        .collect();
    let is_harmless = |writer: usize, failure: &CallFailure| {
        failure.is_of_start
            || failure.is_of_end && job.process_of(writer).is_some_and(|process| ended.contains(&process))
    };
    let messages: Vec<&Example> =
        found.iter().flat_map(|each| &each.examples).filter(|example| example.writer.is_some()).collect();
    let is_beside = |message: &Example, position: Position| {
        message.position.input == position.input
            && message.position.line.abs_diff(position.line) <= explained::LINES
    };
    let is_told = |writer: usize, failure: &CallFailure| {
        let own =
            || messages.iter().filter(|message| job.process_of_message(message) == job.process_of(writer));
        [failure.first, failure.last].iter().all(|&place| own().any(|message| is_beside(message, place)))
    };
    let writers = job.digest.writers.iter().enumerate();
    let failures = writers.flat_map(|(index, writer)| writer.failures.iter().map(move |each| (index, each)));
    let is_of_attempt = find_collnet_attempts(job);
    let open = failures.filter(|&(writer, each)| {
        !is_harmless(writer, each) && !is_told(writer, each) && !is_of_attempt(each)
    });
    open.min_by_key(|(_, each)| each.first)
}

/// Returns the last unknown warning of the process of a failed call, above the call's last line.
fn find_warning_above<'a>(
    job: &Job<'_>,
    writer: usize,
    failure: &CallFailure,
    found: &'a [Placed],
) -> Option<&'a Example> {
    let unknown = found.iter().filter(|each| each.finding.rule == "unknown-warning");
    let of_process = unknown
        .flat_map(|each| &each.examples)
        .filter(|example| job.process_of_message(example) == job.process_of(writer))
        .filter(|example| example.position.input == failure.last.input && example.position < failure.last);
    of_process.max_by_key(|example| example.position)
}

fn cite_failure(job: &Job<'_>, writer: usize, failure: &CallFailure) -> Evidence {
    let CallFailure { place, outermost, code, name, .. } = failure;
    let way = if place == outermost { String::new() } else { format!(", returned up to {outermost}") };
    let position: Position = failure.first;
    let text = format!("the first failing call: {place} -> {code} ({name}){way}");
    job.cite_line(position, Some(writer), text)
}

/// Returns the finding of a failed call, by the program or within NCCL, in a log without another failure. Its
/// message is missing: the level of the log excludes it, the log is cut, or NCCL wrote none. A program can
/// handle the error, so it decides the health only if no communicator was completed.
pub(super) fn find_unexplained_failure(job: &Job<'_>, rules: &Rules, found: &[Placed]) -> Option<Placed> {
    let before = find_harmless_message(job, rules);
    let first = before.map(|(writer, failure, ..)| (writer, failure)).or_else(|| first_returned_failure(job));
    let returned = first.map(|(writer, failure)| (writer, failure, "A call to NCCL"));
    let within =
        || find_inner_failure(job, found).map(|(writer, failure)| (writer, failure, "A call within NCCL"));
    let (writer, failure, call) = returned.or_else(within)?;
    let mut members = job.digest.communicators.iter().flat_map(|each| each.members.values());
    let severity = if members.any(|member| member.complete) { Severity::Unknown } else { Severity::Broken };
    let (ranks, hosts) = (job.ranks_of_writers([writer]), job.hosts_of_writers([writer]));
    let who = match (&ranks[..], &hosts[..]) {
        ([], []) => String::new(),
        ([], hosts) => format!(" on {}", hosts.join(", ")),
        (ranks, _) => format!(" on {}", ranks_in_words(ranks)),
    };
    let id = match failure.code {
        1 => "nccl-call-failed/cuda",
        2 => "nccl-call-failed/system",
        4 | 5 => "nccl-call-failed/usage",
        6 => "nccl-call-failed/remote",
        _ => "nccl-call-failed",
    };
    let id = if before.is_some() { "nccl-call-failed/after" } else { id };
    let reason = before.map(|(.., rule, _)| rule.diagnosis.trim_end_matches('.')).unwrap_or_default();
    let values: [(&str, &dyn Display); 4] =
        [("call", &call), ("who", &who), ("name", &failure.name), ("before", &reason)];
    let mut finding = Finding {
        severity,
        evidence: vec![cite_failure(job, writer, failure)],
        ranks,
        hosts,
        ..compose_finding(id, &values)
    };
    if let Some((.., rule, message)) = before {
        finding.evidence.insert(0, job.cite_example(message));
        finding.cause = rule.cause.clone().or(finding.cause);
        finding.remedy = rule.remedy.clone().or(finding.remedy);
    } else if let Some(warning) = find_warning_above(job, writer, failure, found) {
        let text = warning.text.trim();
        finding.diagnosis =
            format!("{call} failed{who} ({}), perhaps after this warning of NCCL: {text}", failure.name);
        finding.evidence.insert(0, job.cite_example(warning));
        let part = find_part(&warning.place).or_else(|| find_failed_part(failure));
        finding.cause = part.map(|part| part.cause.clone()).or(finding.cause);
        finding.remedy = part.map(|part| part.remedy.clone()).or(finding.remedy);
    } else if let Some(part) = find_failed_part(failure) {
        finding.diagnosis = format!(
            "{call} failed{who} ({}), in {}; no message in this log gives the reason",
            failure.name, part.name
        );
        (finding.cause, finding.remedy) = (Some(part.cause.clone()), Some(part.remedy.clone()));
    }
    let writers = [writer].into();
    Some(Placed { is_cascade: false, writers, ..Placed::without_line(finding) })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{examine, pair};
    use crate::examination::Health;

    const RETRY: &str =
        "NCCL INFO socketPollConnect: connect to 192.0.2.5<4000> returned Connection refused, retrying";

    fn start(rank: u32) -> String {
        format!(
            "vm:{rank}:1 [{rank}] NCCL INFO ncclCommInitRank comm 0x{rank}1 rank {rank} nranks 3 cudaDev \
             {rank} nvmlDev {rank} busId {rank}000 commId 0x7 - Init START\n"
        )
    }

    #[test]
    fn a_failed_attempt_at_collectives_in_the_switches_is_no_failed_call() {
        let trace = "a:1:3 [0] NCCL INFO transport.cc:291 -> 2\na:1:3 [0] NCCL INFO init.cc:670 -> 2\n";
        let warning = "b:2:3 [1] transport.cc:323 NCCL WARN Cannot initialize CollNet, using \
                       point-to-point network instead\n";
        let found = examine(&format!("{trace}{warning}"));
        assert_eq!((found.health(), found.findings[0].rule.as_str()), (Health::Degraded, "collnet-fallback"));
        let returned = trace.to_owned() + "a:1:3 [0] NCCL INFO group.cc:64 -> 2 [Async thread]\n" + warning;
        assert_eq!(examine(&returned).health(), Health::Broken);
    }

    #[test]
    fn a_peer_that_was_never_reached_is_told() {
        let tries = |rank: u32, number: u32| {
            format!("vm:{rank}:1 [{rank}] {RETRY} ({number}/34) after sleep for 100 msec\n")
        };
        let log = start(1) + &start(2) + &tries(1, 33) + &tries(1, 34) + &tries(2, 12);
        let given_up = "vm:1:1 [1] misc/socket.cc:5 NCCL WARN socketPollConnect: connect to 192.0.2.5<4000> \
                        returned Connection refused, exceeded error retry count after 34 attempts\n\
                        vm:1:1 [1] NCCL INFO misc/socket.cc:6 -> 6\n";
        for text in [log.clone(), log.clone() + given_up] {
            let found = examine(&text);
            let finding = &found.findings[0];
            assert_eq!(
                finding.diagnosis,
                "Ranks 1-2 tried 34 times to connect to 192.0.2.5<4000> and never connected: Connection \
                 refused"
            );
            assert_eq!((finding.evidence[0].line, &finding.ranks[..]), (Some(4), &[1, 2][..]));
            assert_eq!(found.health(), Health::Broken);
        }
        let old = "vm:1:1 [1] NCCL INFO Call to connect returned Connection refused, retrying\n";
        assert_eq!(
            examine(&(start(1) + old)).findings[0].diagnosis,
            "Rank 1 tried again and again to connect to a peer and never connected: Connection refused"
        );
        // A root is the cause.
        let root = "vm:1:1 [1] include/alloc.h:1 NCCL WARN Cuda failure 2 'out of memory'\n".to_owned();
        let found = examine(&(root + &log));
        assert!(found.findings.iter().all(|each| each.rule != "peer-not-reached"), "{:?}", found.findings);
    }

    #[test]
    fn a_harmless_message_just_before_a_failed_call_is_its_possible_reason() {
        let path = "vm:1:1 [1] graph/xml.cc:332 NCCL WARN Could not find real path of \
                    /sys/class/pci_bus/0000:03/../../0000:03:00.0\n";
        let trace = "vm:1:1 [1] NCCL INFO graph/xml.cc:469 -> 2\nvm:1:1 [1] NCCL INFO init.cc:540 -> 2\n";
        let told = |text: &str| examine(text).findings.remove(0).diagnosis;
        let reason = "A call to NCCL failed on vm (ncclSystemError), perhaps for this reason: The PCI device of \
                      a GPU is not visible in /sys";
        assert_eq!(told(&[path, trace].concat()), reason);
        for text in [[trace, path].concat(), [&path.replace("vm:1:1", "vm:2:2"), trace].concat()] {
            assert!(told(&text).ends_with("no message in this log gives the reason"), "{text}");
        }
    }

    #[test]
    fn retries_of_a_connection_that_came_are_no_finding() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let found = examine(&(format!("a:100:100 [0] {RETRY} (3/34) after sleep for 300 msec\n") + &text));
        assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    }

    #[test]
    fn the_first_failing_call_is_evidence_of_a_failure_without_cause() {
        let traces = "vm:1:1 [1] NCCL INFO transport/p2p.cc:7 -> 3\n\
                      vm:2:1 [2] NCCL INFO misc/socket.cc:9 -> 6\n\
                      vm:2:1 [2] NCCL INFO init.cc:8 -> 6\n\
                      vm:1:1 [1] NCCL INFO transport/net.cc:123 -> 2\n\
                      vm:1:1 [1] NCCL INFO init.cc:9 -> 2\n";
        let found = examine(&(start(1) + &start(2) + traces));
        let texts: Vec<&str> = found.findings[0].evidence.iter().map(|each| each.text.as_str()).collect();
        let told =
            "the first failing call: transport/net.cc:123 -> 2 (ncclSystemError), returned up to init.cc:9";
        assert!(texts.contains(&told), "{:?}", found.findings);
        assert_eq!(found.findings[0].evidence.last().and_then(|each| each.line), Some(6));
    }

    #[test]
    fn a_call_that_failed_within_nccl_after_the_start_is_no_health() {
        let healthy = pair("IB", "NET/IB/0/GDRDMA").text();
        for (trace, told) in [
            ("transport/net_ib.cc:1295 -> 6", "(ncclRemoteError), and"),
            ("transport/net.cc:1134 -> 6", "(ncclRemoteError), and"),
            ("proxy.cc:874 -> 6 [Progress Thread]", "(ncclRemoteError), and"),
            ("proxy.cc:983 (ncclProxyProgress) -> 6 [Progress Thread]", "(ncclRemoteError), and"),
            ("bootstrap.cc:1295 -> 3", "(ncclInternalError), in its start over TCP (bootstrap);"),
            ("misc/socket.cc:47 -> 3", "(ncclInternalError), in a TCP connection between ranks;"),
            ("include/net.h:24 -> 2", "(ncclSystemError), and"),
        ] {
            let found = examine(&format!("{healthy}b:101:9 [1] NCCL INFO {trace}\n"));
            let first = &found.findings[0];
            let says =
                format!("A call within NCCL failed on rank 1 {told} no message in this log gives the reason");
            assert_eq!((first.rule.as_str(), &first.diagnosis), ("nccl-call-failed", &says), "{trace}");
            assert_eq!((found.health(), &first.ranks[..]), (Health::CannotTell, &[1][..]), "{trace}");
        }
        // A call in progress is not a failure.
        let found = examine(&format!("{healthy}b:101:9 [1] NCCL INFO transport/net.cc:1134 -> 7\n"));
        assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
    }

    #[test]
    fn threads_that_stop_with_their_communicator_are_healthy() {
        let healthy = pair("IB", "NET/IB/0/GDRDMA").text();
        let end = |rank: u32| {
            let (host, pid) = (["a", "b"][rank as usize], 100 + rank);
            format!(
                "{host}:{pid}:{pid} [{rank}] NCCL INFO comm 0x{rank}1 rank {rank} nranks 2 cudaDev {rank} \
                 busId 60 - Destroy COMPLETE\n"
            )
        };
        let stop = "b:101:9 [1] NCCL INFO misc/socket.cc:47 -> 3\nb:101:9 [1] NCCL INFO misc/socket.cc:58 \
                    (socketWait) -> 3\n\
                    b:101:8 [1] NCCL INFO proxy.cc:1521 -> 3\n";
        for ends in [end(0) + stop + &end(1), end(0) + &end(1) + stop] {
            let found = examine(&(healthy.clone() + &ends));
            assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
        }
        // Other codes, other files, and lines before the ends, are failures also there.
        for trace in
            ["misc/socket.cc:47 -> 6", "transport/net.cc:1134 -> 3", "proxy.cc:874 -> 6 [Progress Thread]"]
        {
            let line = format!("b:101:9 [1] NCCL INFO {trace}\n");
            for ends in [line.clone() + stop + &end(0) + &end(1), stop.to_owned() + &end(0) + &end(1) + &line]
            {
                let found = examine(&(healthy.clone() + &ends));
                assert_eq!(found.health(), Health::CannotTell, "{trace}: {:?}", found.findings);
            }
        }
    }

    #[test]
    fn failures_of_the_start_leave_room_for_later_ones() {
        let healthy = pair("IB", "NET/IB/0/GDRDMA").text();
        let early: String = (0..8)
            .map(|line| format!("b:101:101 [1] NCCL INFO include/net.h:2 -> {}\n", 2 + line % 2))
            .collect();
        let found = examine(&(early + &healthy + "b:101:9 [1] NCCL INFO transport/net.cc:1134 -> 6\n"));
        assert_eq!((found.health(), found.findings[0].ranks.as_slice()), (Health::CannotTell, &[1][..]));
    }

    #[test]
    fn an_error_that_was_returned_without_a_message_is_no_health() {
        let healthy = pair("IB", "NET/IB/0/GDRDMA").text();
        // NCCL continued despite the failure in a start, and RAS does not concern the job.
        let inner = "a:100:100 [0] NCCL INFO include/net.h:24 -> 2\n";
        let begun = healthy.find("Init START\n").unwrap() + "Init START\n".len();
        let during = [&healthy[..begun], inner, &healthy[begun..]].concat();
        let ras = "a:100:100 [0] NCCL INFO ras/client.cc:8 -> 2\n";
        for log in [inner.to_owned() + &healthy, during, healthy.clone() + ras] {
            let found = examine(&log);
            assert_eq!(found.health(), Health::Healthy, "{:?}", found.findings);
        }
        for trace in ["init.cc:9 -> 2", "group.cc:64 -> 3 [Async thread]", "enqueue.cc:70 -> 1"] {
            let found = examine(&format!("{healthy}a:100:100 [0] NCCL INFO {trace}\n"));
            assert_eq!(found.health(), Health::CannotTell, "{trace}: {:?}", found.findings);
            assert_eq!(found.findings[0].rule, "nccl-call-failed");
        }
        let socket = "vm:1:7 [0] NCCL INFO misc/socket.cc:64 -> 2\nvm:1:7 [0] NCCL INFO bootstrap.cc:70 -> \
                      2\n\
                      vm:1:7 [0] NCCL INFO init.cc:13 -> 2\n";
        let found = examine(socket);
        assert_eq!(found.health(), Health::Broken, "{:?}", found.findings);
        assert_eq!(
            found.findings[0].diagnosis,
            "A call to NCCL failed on vm (ncclSystemError), in its start over TCP (bootstrap); no message in \
             this log gives the reason"
        );
        // A failure with a message explains it.
        let told = format!("{socket}vm:1:7 [0] a.cc:1 NCCL WARN Cuda failure 2 'out of memory'\n");
        assert!(examine(&told).findings.iter().all(|each| each.rule != "nccl-call-failed"));
    }
}
