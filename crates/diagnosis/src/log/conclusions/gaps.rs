//! Gaps in a log with all ranks: reasons why it proves no transport.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use super::job::{self, Job, count, ranks_in_words};
use super::jobs;
use super::transport::{Way, Ways};
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::log::digest::{Communicator, Digest, Member, TestTables, VariableSeen, Writer};

/// Largest number of named hosts or groups of hosts.
const HOSTS: usize = 8;

/// Returns sentences about missing parts of the log, or none if it proves the transport of every rank.
pub(super) fn find_gaps(job: &Job<'_>, ways: &Ways<'_>) -> Vec<String> {
    let cut = job.digest.inputs.iter().any(|input| input.problem.is_some());
    let cut =
        cut.then(|| "a log was not read to its end: the missing lines can change the result".to_owned());
    let gaps = [
        cut,
        describe_contradiction(ways),
        describe_lost_beginning(ways),
        describe_starting_ranks(ways),
        describe_lost_completion(ways),
        describe_unconnected_ranks(ways),
        describe_silent_ranks(job, ways),
        describe_connecting_ranks(ways),
        broken_ring(ways),
        describe_unknown_transport(ways),
        describe_missing_end(job, ways),
    ];
    gaps.into_iter().flatten().chain(describe_transport_between_hosts(job, ways)).collect()
}

/// Describes a log without a communicator.
pub(super) fn describe_missing_communicator(job: &Job<'_>) -> String {
    let has_nccl_lines = job.digest.inputs.iter().any(|input| input.nccl_lines > 0);
    let is_begun = |writer: &Writer| writer.bootstrap.is_some() || writer.network.is_some();
    let is_loopback =
        |writer: &Writer| writer.bootstrap.as_ref().is_some_and(|name| name.contains("lo:127."));
    let tables = describe_tables(job);
    let advice = match (has_nccl_lines, count_tests(job)) {
        (true, _) if job.digest.writers.iter().any(is_loopback) => {
            "NCCL uses the loopback interface, which no other host reaches, and the log has no line about the \
             start of a communicator: for several hosts, set NCCL_SOCKET_IFNAME to the interface that they share; on one host, \
             the log is cut, or a process waits before the start: py-spy dump --pid PID"
        }
        (true, _) if job.digest.writers.iter().any(is_begun) => {
            "NCCL was loaded, and the log has no line about the start of a communicator (`Init START`): it is cut \
             or filtered, the version of NCCL writes none, or a process waits; if it hangs: py-spy dump --pid PID \
             of each process"
        }
        (true, _) => {
            "the log has no line about the start of a communicator: run the job with NCCL_DEBUG=INFO, and pass its whole \
             output"
        }
        (false, (begun, ended)) if ended > 0 && ended >= begun => {
            "nccl-tests ended, and no line of NCCL shows which transport it used: run it with \
             NCCL_DEBUG=INFO, and pass the output of all ranks"
        }
        (false, _) if job.digest.hits.iter().any(|hit| hit.rule == "gloo-backend-used") => {
            "the program uses Gloo, and not NCCL: if it hangs, a rank has not come or \
             the store (MASTER_ADDR) does not answer: look at the other ranks, and py-spy dump --pid PID"
        }
        (false, _) => {
            "there is no line of NCCL: run the job with NCCL_DEBUG=INFO, and pass the output of all ranks"
        }
    };
    match (tables, count_tests(job)) {
        (Some(tables), (_, 1..)) => format!("{advice}; {tables}"),
        (Some(tables), _) => format!("{tables}; {advice}"),
        (None, _) => advice.to_owned(),
    }
}

/// Describes the tables of nccl-tests.
fn describe_tables(job: &Job<'_>) -> Option<String> {
    let TestTables { heads, rows, size, bandwidth, .. } = job.digest.tables;
    match (heads, rows) {
        (0, 0) => None,
        (_, 0) => describe_empty_table(job),
        _ => {
            let several = if heads > 1 { format!(" {heads} tables of") } else { String::new() };
            Some(format!(
                "the log has{several} {} of nccl-tests up to {size} bytes, with at most {bandwidth:.2} GB/s \
                 (busbw)",
                count(usize::try_from(rows).unwrap_or(usize::MAX), "row")
            ))
        }
    }
}

/// Describes a table of nccl-tests without rows.
pub(super) fn describe_empty_table(job: &Job<'_>) -> Option<String> {
    let TestTables { heads, rows, .. } = job.digest.tables;
    let (_, ended) = count_tests(job);
    (heads > 0 && rows == 0 && ended == 0).then(|| {
        "nccl-tests began, wrote the head of its table and no row, and the end (`# Avg bus bandwidth`) is not in \
         the log: its first operation had not finished where the log ends (it hangs, still runs, or the log is \
         cut); as tests: NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1"
            .to_owned()
    })
}

/// Returns sentences about facts beside the proven communicators: processes without a communicator, empty
/// files, and aborts.
pub(super) fn find_gaps_beside_communicators(job: &Job<'_>) -> Vec<String> {
    let strangers = job.processes_without_communicator();
    let stranger = strangers.first().map(|(host, pid)| {
        format!(
            "{} loaded NCCL but joined no communicator, the first is {pid} on {host}: its log is cut, or it \
             waits",
            count(strangers.len(), "process")
        )
    });
    let unfinished = describe_unfinished_tests(job);
    let unjoined = describe_unjoined_hosts(job.digest);
    let others = [
        unfinished,
        unjoined,
        describe_empty_files(job),
        describe_aborted_communicators(job),
        describe_left_out_lines(job),
    ];
    stranger.into_iter().chain(others.into_iter().flatten()).collect()
}

/// Describes hosts without a communicator that joins them.
pub(super) fn describe_unjoined_hosts(digest: &Digest) -> Option<String> {
    let groups = jobs::find_unjoined_hosts(digest);
    let name = |hosts: &BTreeSet<&str>| {
        let named: Vec<&str> = hosts.iter().take(HOSTS).copied().collect();
        let more = if hosts.len() > named.len() { " ..." } else { "" };
        format!("{}{more}", named.join(" "))
    };
    let named: Vec<String> = groups.iter().take(HOSTS).map(name).collect();
    (!groups.is_empty()).then(|| {
        format!(
            "no connection between these hosts was tested, since no communicator joins them: {}; to test \
             them, start one job over all hosts",
            named.join(" | ")
        )
    })
}

/// Returns the number of runs of nccl-tests that began and that ended, as the log shows.
fn count_tests(job: &Job<'_>) -> (u64, u64) {
    let count = |rule: &str| job.digest.hits.iter().find(|hit| hit.rule == rule).map_or(0, |hit| hit.count);
    (count("nccl-tests-begin"), count("nccl-tests-end") + count("nccl-tests-slow"))
}

/// Describes runs of nccl-tests without an end.
fn describe_unfinished_tests(job: &Job<'_>) -> Option<String> {
    let (begun, ended) = count_tests(job);
    if describe_empty_table(job).is_some() {
        return None;
    }
    (begun > ended).then(|| {
        format!(
            "nccl-tests began {}, and the end (`# Avg bus bandwidth`) of {} is not in the log: it hangs, \
             failed, still runs, or the log is cut",
            count(usize::try_from(begun).unwrap_or(usize::MAX), "run"),
            begun - ended
        )
    })
}

/// Describes output of a program without its end. Connections alone do not show that an operation finished.
fn describe_missing_end(job: &Job<'_>, ways: &Ways<'_>) -> Option<String> {
    (job.digest.has_program_lines && !has_end(job, ways.communicator)).then(|| {
        "the end of the job is not in the log, neither of its communicators (`Destroy COMPLETE`) nor of \
         nccl-tests (`# Avg bus bandwidth`): the job may hang in a collective or still run, or the log may be cut"
            .to_owned()
    })
}

/// Returns advice about a log of NCCL alone without an end, as the files of NCCL_DEBUG_FILE.
pub(super) fn find_unseen_end(job: &Job<'_>) -> Option<Finding> {
    let main = job.main.filter(|main| !job.digest.has_program_lines && !has_end(job, main))?;
    let values: [(&str, &dyn Display); 1] = [("communicator", &job::describe_communicator(&main.id))];
    Some(compose_finding("end-not-shown", &values))
}

/// Returns true if all members ended the communicator, or all runs of nccl-tests ended.
fn has_end(job: &Job<'_>, communicator: &Communicator) -> bool {
    let (begun, ended) = count_tests(job);
    let is_ended = |member: &Member| member.destroyed || member.aborted;
    ended > 0 && ended >= begun || communicator.members.values().all(is_ended)
}

/// Describes a communicator without a number of ranks in the log.
pub(super) fn describe_unknown_size(communicator: &Communicator, proven: &str) -> Vec<String> {
    let members: Vec<u32> = communicator.members.keys().copied().collect();
    let size = format!(
        "no line has the number of ranks: there are at least {} ranks, and the log has lines of {}; {proven}",
        communicator.ranks,
        ranks_in_words(&members)
    );
    let shared: Vec<u32> = communicator.shared_ranks.iter().copied().collect();
    let shared = (!shared.is_empty()).then(|| {
        format!(
            "several processes have connections as {}: the log has several communicators, and does not tell \
             them apart",
            ranks_in_words(&shared)
        )
    });
    [Some(size), shared].into_iter().flatten().collect()
}

/// Describes host names and process ids that the lines do not have. Also returns true if lines of several
/// ranks cannot be told apart.
pub(super) fn describe_blanked_names(job: &Job<'_>) -> Option<(String, bool)> {
    let all = || job.digest.communicators.iter().flat_map(|each| each.members.values());
    let writers: BTreeSet<usize> = all().map(|member| member.writer).collect();
    let of_members = writers.iter().filter_map(|&index| job.writer(index));
    let writers: Vec<_> =
        if writers.is_empty() { job.digest.writers.iter().collect() } else { of_members.collect() };
    let (hosts, pids) =
        (writers.iter().any(|each| !each.names_host()), writers.iter().any(|each| !each.has_pid()));
    let names = match (hosts, pids) {
        (true, true) => "host names and process ids",
        (true, false) => "host names",
        (false, true) => "process ids",
        (false, false) => return None,
    };
    let is_shared = |communicator: &Communicator| {
        let mut seen = BTreeSet::new();
        let mut members = communicator.members.values().map(|member| member.writer);
        members
            .any(|index| job.writer(index).is_some_and(|writer| writer.is_blanked()) && !seen.insert(index))
    };
    let is_ambiguous = job.digest.communicators.iter().any(is_shared);
    let meaning = match (is_ambiguous, hosts) {
        (true, _) => "ranks of different hosts cannot be told apart",
        (false, true) => "which ranks share a host is not known",
        (false, false) => "each device of a host is taken for a process",
    };
    Some((format!("the {names} are blanked or missing: {meaning}"), is_ambiguous))
}

/// Describes lines that Ray left out. It takes lines of several processes for one, apart from their numbers.
pub(super) fn describe_left_out_lines(job: &Job<'_>) -> Option<String> {
    (job.digest.repeated > 0).then(|| {
        format!(
            "Ray dropped {} of other processes: run with RAY_DEDUP_LOGS=0",
            count(usize::try_from(job.digest.repeated).unwrap_or(usize::MAX), "repeated line")
        )
    })
}

/// Describes empty files among the files of ranks. Launchers write a second file for each rank, often an
/// empty one.
fn describe_empty_files(job: &Job<'_>) -> Option<String> {
    let (empty, full): (Vec<_>, Vec<_>) = job.digest.inputs.iter().partition(|input| input.lines == 0);
    let is_of_ranks = full.len() > empty.len().max(1) && full.iter().all(|input| input.nccl_lines > 0);
    let first = empty.first().filter(|_| is_of_ranks)?;
    Some(format!(
        "{} is empty, the first is {}: what its rank did is not known",
        count(empty.len(), "file"),
        first.name
    ))
}

fn describe_contradiction(ways: &Ways<'_>) -> Option<String> {
    let members = ways.communicator.members.iter();
    let odd: Vec<u32> =
        members.filter(|(_, member)| member.other_size.is_some()).map(|(&rank, _)| rank).collect();
    (!odd.is_empty()).then(|| {
        format!(
            "the log has another number of ranks than {} for {}",
            ways.communicator.ranks,
            ranks_in_words(&odd)
        )
    })
}

/// Describes ranks with only the end of the start in the log.
fn describe_lost_beginning(ways: &Ways<'_>) -> Option<String> {
    let lost = ranks_without_beginning(ways.communicator);
    (!lost.is_empty()).then(|| {
        format!(
            "the first lines of {} are not in the log (`Init START`): a warning can be among them",
            ranks_in_words(&lost)
        )
    })
}

/// Returns ranks that logged the end of the start, and not its beginning. Each version of NCCL that writes a
/// commId writes both.
pub(super) fn ranks_without_beginning(communicator: &Communicator) -> Vec<u32> {
    let is_lost = |member: &Member| communicator.id.starts_with("0x") && member.complete && !member.started;
    communicator.members.iter().filter(|(_, member)| is_lost(member)).map(|(&rank, _)| rank).collect()
}

fn describe_starting_ranks(ways: &Ways<'_>) -> Option<String> {
    let members = ways.communicator.members.iter();
    let open: Vec<_> = members.filter(|(_, member)| !ways.communicator.has_completed(member)).collect();
    let ranks: Vec<u32> = open.iter().map(|(rank, _)| **rank).collect();
    let is_started = open.iter().any(|(_, member)| member.started);
    (!open.is_empty()).then(|| match is_started {
        true => format!("{} did not finish the start", ranks_in_words(&ranks)),
        false => format!("the log does not show that {} finished the start", ranks_in_words(&ranks)),
    })
}

/// Describes ranks with a start completed according to their later lines.
fn describe_lost_completion(ways: &Ways<'_>) -> Option<String> {
    let is_lost =
        |member: &Member| member.started && !member.complete && ways.communicator.has_completed(member);
    let lost = ways.communicator.members.iter().filter(|(_, member)| is_lost(member));
    let lost: Vec<u32> = lost.map(|(&rank, _)| rank).collect();
    (!lost.is_empty()).then(|| {
        format!(
            "the log lacks the line `Init COMPLETE` of {}, but has lines that follow it: the log is cut or \
             filtered",
            ranks_in_words(&lost)
        )
    })
}

/// Returns true if the log lacks lines of the start of some ranks: the first ones, or lines that other ranks
/// of their host have. Rank 0 writes more lines than other ranks, and each variable set only on some ranks
/// adds a line.
pub(super) fn lacks_lines_of_start(job: &Job<'_>, communicator: &Communicator) -> bool {
    if !ranks_without_beginning(communicator).is_empty() || job.digest.repeated > 0 {
        return true;
    }
    let mut by_host: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (&rank, member) in communicator.members.iter().filter(|(rank, _)| **rank > 0) {
        if let (Some(host), Some(lines)) = (job.host_of_rank(communicator, rank), member.start_lines) {
            by_host.entry(host).or_default().push(lines);
        }
    }
    let has = |seen: &VariableSeen, rank: &u32| {
        job.ranks_of_writers(job.of_same_processes(&seen.writers)).contains(rank)
    };
    let is_partial = |seen: &&VariableSeen| communicator.members.keys().any(|rank| !has(seen, rank));
    let partial = job.digest.variables.iter().filter(is_partial).count() as u64;
    let spread =
        |lines: &Vec<u64>| lines.iter().max().zip(lines.iter().min()).map(|(most, least)| most - least);
    by_host.values().filter_map(spread).any(|spread| spread > partial)
}

/// Describes communicators aborted by the program. PyTorch aborted them at the end of every run, until its
/// pull request 141510.
fn describe_aborted_communicators(job: &Job<'_>) -> Option<String> {
    let is_aborted = |each: &&Communicator| each.members.values().any(|member| member.aborted);
    let aborted: Vec<&Communicator> = job.digest.communicators.iter().filter(is_aborted).collect();
    let first = aborted.first()?;
    Some(format!(
        "the program aborted {}, the first is {}: PyTorch before 2.6 ends every run in this way, other \
         programs only after an error",
        count(aborted.len(), "communicator"),
        if first.id.is_empty() { "without an id" } else { &first.id }
    ))
}

fn describe_unconnected_ranks(ways: &Ways<'_>) -> Option<String> {
    let unconnected = ways.unconnected_ranks();
    (!unconnected.is_empty()).then(|| {
        format!(
            "the log shows no connection of {}: NCCL connects at the first collective, and writes it with \
             NCCL_DEBUG=INFO (NCCL_DEBUG_SUBSYS, if set, needs INIT,NET,P2P,SHM)",
            ranks_in_words(&unconnected)
        )
    })
}

/// Describes ranks without a connection in their own lines, in any communicator, if other ranks' lines have
/// one. A rank with connected rings or trees sends at least to one neighbour, and logs this connection.
fn describe_silent_ranks(job: &Job<'_>, ways: &Ways<'_>) -> Option<String> {
    let all = job.digest.communicators.iter().flat_map(|each| each.members.values());
    let logging: BTreeSet<usize> =
        all.filter(|member| member.logs_connections).map(|member| member.writer).collect();
    let members = ways.communicator.members.iter();
    let (heard, silent): (Vec<_>, Vec<_>) = members.partition(|(_, member)| logging.contains(&member.writer));
    let unconnected = ways.unconnected_ranks();
    let silent: Vec<u32> =
        silent.into_iter().map(|(&rank, _)| rank).filter(|rank| !unconnected.contains(rank)).collect();
    (!heard.is_empty() && !silent.is_empty()).then(|| {
        format!(
            "the lines of {} show no connection, but the lines of other ranks do: the log is cut or filtered \
             there",
            ranks_in_words(&silent)
        )
    })
}

/// Describes ranks with connections and no line about their completion.
fn describe_connecting_ranks(ways: &Ways<'_>) -> Option<String> {
    let members = ways.communicator.members.iter();
    let open: Vec<u32> = members.filter(|(_, member)| !member.connected).map(|(&rank, _)| rank).collect();
    (!open.is_empty()).then(|| {
        format!(
            "{} did not log that the connections are complete (`Connected all rings`): the log is cut or \
             filtered, or the job waits there",
            ranks_in_words(&open)
        )
    })
}

/// Describes neighbours in a ring without a connection, if other neighbours in the ring have one.
fn broken_ring(ways: &Ways<'_>) -> Option<String> {
    let lacks = |ring: &Vec<u32>| -> Vec<(u32, u32)> {
        let neighbours = ring.iter().zip(ring.iter().cycle().skip(1)).map(|(&from, &to)| (from, to));
        let (made, open): (Vec<_>, Vec<_>) =
            neighbours.filter(|(from, to)| from != to).partition(|pair| ways.pairs.contains_key(pair));
        if made.is_empty() { Vec::new() } else { open }
    };
    let open: BTreeSet<(u32, u32)> = ways.communicator.rings.iter().flat_map(lacks).collect();
    let (from, to) = open.first()?;
    Some(format!("the log shows no connection from rank {from} to rank {to}, which are neighbours in a ring"))
}

fn describe_unknown_transport(ways: &Ways<'_>) -> Option<String> {
    ways.pairs.iter().find_map(|((from, to), way)| match way {
        Way::Other(word) => {
            Some(format!("rank {from} reaches rank {to} via {word}, a transport unknown to this program"))
        }
        _ => None,
    })
}

/// Describes a pair on two hosts with a transport of one host. NVLink between nodes is another transport
/// (MNNVL).
fn describe_transport_between_hosts(job: &Job<'_>, ways: &Ways<'_>) -> Option<String> {
    let host = |rank: u32| job.host_of_rank(ways.communicator, rank);
    let pair = ways.pairs.iter().find(|((from, to), way)| {
        matches!(way, Way::NvLink | Way::P2p | Way::Relayed | Way::Shm) && host(*from) != host(*to)
    });
    pair.map(|((from, to), way)| {
        format!(
            "rank {from} on {} and rank {to} on {} use {}, which NCCL uses within a host: are these two \
             names of one host?",
            host(*from).unwrap_or("an unknown host"),
            host(*to).unwrap_or("an unknown host"),
            way.long_text()
        )
    })
}
