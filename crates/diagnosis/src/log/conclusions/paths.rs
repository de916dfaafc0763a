//! Findings about slow transports: TCP instead of the requested network, sockets between nodes, networks
//! without GPUDirect RDMA, and data between GPUs of one node through the host.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::hits::{self, Placed};
use super::job::{Job, count, ranks_in_words};
use super::transport::{Way, Ways};
use crate::finding::{Evidence, Finding, Severity};
use crate::knowledge::rules::Rules;
use crate::knowledge::texts::compose_finding;
use crate::log::digest::{Communicator, VariableSeen, Writer};

/// Adds all findings about transports. Messages of an unused network become evidence of its finding.
pub(super) fn find_transport_problems(
    job: &Job<'_>,
    rules: &Rules,
    ways: Option<&Ways<'_>>,
    found: &mut Vec<Placed>,
) {
    spare_plugin(job, found);
    if let Some(mut fallback) = find_fallback(job, ways) {
        let is_told = |each: &Placed| each.is_of_network && each.finding.severity != Severity::Advice;
        if matches!(fallback.severity, Severity::Broken | Severity::Degraded) {
            hits::absorb_network(job, rules, &mut fallback, found);
            found.insert(0, Placed::without_line(fallback));
        } else if !found.iter().any(is_told) {
            found.push(Placed::without_line(fallback));
        }
    } else if let Some(split) = ways.and_then(|ways| split_host(job, ways)) {
        found.push(Placed::without_line(split));
    } else {
        found.extend(ways.and_then(|ways| find_sockets_between_nodes(job, ways)).map(Placed::without_line));
    }
    if Usage::socket_usage(job, ways) == Usage::OneNode {
        // Nothing goes over the network.
        let of_network = found.iter_mut().filter(|each| each.finding.rule == "gdr-disabled");
        of_network.for_each(|each| each.finding.severity = Severity::Advice);
    }
    if let Some(ways) = ways {
        found.extend(find_staged_networks(job, ways).map(Placed::without_line));
        found.extend(through_host(job, ways).map(Placed::without_line));
    }
}

/// Adds slow transports of a further communicator, unless an earlier finding is the same and as bad.
pub(super) fn of_group(job: &Job<'_>, ways: &Ways<'_>, found: &mut Vec<Placed>) {
    let network = split_host(job, ways).or_else(|| find_sockets_between_nodes(job, ways));
    for finding in [network, find_staged_networks(job, ways), through_host(job, ways)].into_iter().flatten() {
        let is_tcp = |rule: &str| {
            matches!(rule, "nodes-over-tcp" | "network-fell-back-to-tcp" | "host-counted-as-nodes")
        };
        let is_same = |each: &Placed| {
            let is_rule = each.finding.rule == finding.rule;
            each.finding.severity <= finding.severity
                && (is_rule || is_tcp(&finding.rule) && is_tcp(&each.finding.rule))
        };
        if !found.iter().any(is_same) {
            found.push(Placed::without_line(finding));
        }
    }
}

/// Makes failures of aws-ofi-nccl advice if all writers use InfiniBand or another network: images have the
/// plugin also on hosts without EFA.
fn spare_plugin(job: &Job<'_>, found: &mut [Placed]) {
    let networks: Vec<&str> =
        job.digest.writers.iter().filter_map(|writer| writer.network.as_deref()).collect();
    if networks.is_empty() || networks.iter().any(|name| *name == "Socket" || name.contains("Libfabric")) {
        return;
    }
    let is_plugin = |each: &&mut Placed| {
        each.first_example().is_some_and(|first| {
            first.text.starts_with("NET/OFI") || first.text.contains("NET plugin Libfabric")
        })
    };
    for each in found.iter_mut().filter(is_plugin) {
        each.finding.severity = Severity::Advice;
        (each.is_root, each.is_cascade) = (false, false);
    }
}

/// A network intended for the job instead of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// EFA.
    Efa,
    /// InfiniBand or RoCE.
    Ib,
    /// Another network, by its name.
    Other(&'static str),
    /// Only the plugin: an image can have it on hosts without its network.
    Plugin,
}

/// Returns the requested network, by a variable or by a loaded plugin.
fn requested_network(job: &Job<'_>) -> Option<(Wanted, Vec<Evidence>)> {
    if job.variables_named("NCCL_NET").any(|net| net.value.eq_ignore_ascii_case("socket")) {
        // Sockets were requested.
        return None;
    }
    let variable = |name: &'static str, wanted: fn(&str) -> bool| {
        job.variables_named(name).find(move |variable| wanted(&variable.value.to_ascii_lowercase()))
    };
    let efa = variable("FI_PROVIDER", is_efa);
    let other = variable("FI_PROVIDER", |value| !value.is_empty() && !is_efa(value));
    let on_sockets = |writer: &Writer| writer.network.as_deref() == Some("Socket");
    let loaded = |writer: &Writer| writer.plugin.is_some() && on_sockets(writer);
    let first = |wanted: &dyn Fn(&Writer) -> bool| job.digest.writers.iter().position(wanted);
    let plugin = first(&|writer| writer.efa && loaded(writer)).or_else(|| first(&loaded));
    if let Some((index, writer)) = plugin.and_then(|index| Some((index, job.writer(index)?))) {
        let wanted = match (efa, other) {
            (Some(_), _) => Wanted::Efa,
            (None, Some(seen)) if seen.value.to_ascii_lowercase().contains("cxi") => {
                Wanted::Other("Slingshot")
            }
            (None, Some(_)) => Wanted::Other("libfabric"),
            (None, None) if writer.efa => Wanted::Efa,
            (None, None) => Wanted::Plugin,
        };
        let version = writer.plugin.as_ref().map(ToString::to_string).unwrap_or_default();
        let text = format!("aws-ofi-nccl {version} was loaded; then: Using network Socket");
        let line = job.cite_writer(index, text);
        return Some((
            wanted,
            line.into_iter().chain(efa.or(other).map(|seen| cite_variable(job, seen))).collect(),
        ));
    }
    let net = variable("NCCL_NET", |value| value != "socket" && !value.is_empty());
    let found = |wanted, seen: &VariableSeen| Some((wanted, vec![cite_variable(job, seen)]));
    let library = variable("NCCL_NET_PLUGIN", |value| value != "none" && !value.is_empty());
    match (efa, net.or(library)) {
        (Some(seen), _) => found(Wanted::Efa, seen),
        (None, Some(seen)) if seen.value.eq_ignore_ascii_case("ib") => found(Wanted::Ib, seen),
        (None, Some(seen)) => found(Wanted::Other("Another network"), seen),
        (None, None) => None,
    }
}

/// Returns true for values of FI_PROVIDER that select EFA: `efa`, `efa;ofi_rxr`, but not `^efa`.
fn is_efa(value: &str) -> bool {
    value.contains("efa") && !value.starts_with('^')
}

/// Returns a variable as evidence.
fn cite_variable(job: &Job<'_>, variable: &VariableSeen) -> Evidence {
    let writer = variable.writers.first().copied();
    job.cite_line(variable.first, writer, format!("{}={}", variable.name, variable.value))
}

/// Returns the indices of the writers on sockets.
fn on_sockets(job: &Job<'_>) -> Vec<usize> {
    let network = |index: &usize| job.writer(*index).and_then(|writer| writer.network.as_deref());
    (0..job.digest.writers.len()).filter(|index| network(index) == Some("Socket")).collect()
}

/// Returns a finding about the silent fall-back from a network to sockets.
fn find_fallback(job: &Job<'_>, ways: Option<&Ways<'_>>) -> Option<Finding> {
    let (wanted, mut evidence) = requested_network(job)?;
    let writers = on_sockets(job);
    if writers.is_empty() {
        return None;
    }
    evidence.extend(tcp_evidence(job, ways));
    let usage = Usage::socket_usage(job, ways);
    let severity = match (usage, wanted) {
        (Usage::Tcp, Wanted::Plugin) => Severity::Degraded,
        (Usage::Tcp, _) => Severity::Broken,
        (Usage::OneNode, _) => Severity::Advice,
        (Usage::NotShown, _) => Severity::Unknown,
    };
    let effect = match (usage, wanted) {
        (Usage::Tcp, Wanted::Plugin) => "NCCL uses TCP",
        (Usage::Tcp, _) => "you are on TCP",
        (Usage::OneNode, _) => "several nodes would use TCP",
        (Usage::NotShown, _) => "NCCL chose TCP; the log shows no connection over it",
    };
    let (id, network) = match wanted {
        Wanted::Efa => ("network-fell-back-to-tcp/efa", "EFA"),
        Wanted::Ib => ("network-fell-back-to-tcp/ib", "InfiniBand or RoCE"),
        Wanted::Other(name) => ("network-fell-back-to-tcp", name),
        Wanted::Plugin => ("network-fell-back-to-tcp/plugin", ""),
    };
    Some(Finding {
        severity,
        ranks: job.ranks_of_writers(writers.iter().copied()),
        hosts: job.hosts_of_writers(writers),
        evidence,
        ..compose_finding(id, &[("network", &network), ("effect", &effect)])
    })
}

/// Use of the sockets chosen by NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usage {
    /// Data goes over them.
    Tcp,
    /// The job runs on one node: nothing goes over the network.
    OneNode,
    /// The log does not show it.
    NotShown,
}

impl Usage {
    fn socket_usage(job: &Job<'_>, ways: Option<&Ways<'_>>) -> Self {
        if ways.is_some_and(|ways| ways.pairs.values().any(|way| *way == Way::Socket)) {
            return Self::Tcp;
        }
        let Some(main) = job.main else { return Self::NotShown };
        match main.nodes {
            Some(1) => Self::OneNode,
            Some(_) => Self::Tcp,
            // Old versions do not write the number of nodes.
            None if main.members.len() == main.ranks as usize
                && !main.is_size_guessed
                && hosts_of_members(job, main).len() == 1 =>
            {
                Self::OneNode
            }
            None => Self::NotShown,
        }
    }
}

/// Returns a connection over sockets as evidence.
fn tcp_evidence(job: &Job<'_>, ways: Option<&Ways<'_>>) -> Option<Evidence> {
    let ways = ways?;
    let tcp = ways.by_way().get(&Way::Socket)?.clone();
    let &(from, to) = tcp.first()?;
    let writer = ways.communicator.members.get(&from).or_else(|| ways.communicator.members.get(&to))?.writer;
    let text =
        format!("{} via NET/Socket, the first from rank {from} to rank {to}", count(tcp.len(), "connection"));
    job.cite_writer(writer, text)
}

/// Returns a finding about connections between nodes over sockets, if no other network was requested.
fn find_sockets_between_nodes(job: &Job<'_>, ways: &Ways<'_>) -> Option<Finding> {
    let by_way = ways.by_way();
    let pairs = by_way.get(&Way::Socket)?;
    let variable = |name: &str, value: &str| {
        job.variables_named(name).find(|variable| variable.value.eq_ignore_ascii_case(value)).cloned()
    };
    let set_by = variable("NCCL_NET", "socket").or_else(|| variable("NCCL_IB_DISABLE", "1"));
    let id = if set_by.is_some() { "nodes-over-tcp/set" } else { "nodes-over-tcp" };
    let (setting, name) = describe_setting(set_by.as_ref());
    let ranks: BTreeSet<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
    Some(Finding {
        ranks: ranks.into_iter().collect(),
        evidence: set_by
            .iter()
            .map(|seen| cite_variable(job, seen))
            .chain(tcp_evidence(job, Some(ways)))
            .collect(),
        ..compose_finding(
            id,
            &[("setting", &setting), ("name", &name), ("connections", &count(pairs.len(), "connection"))],
        )
    })
}

/// Returns a finding about networks that stage data in the host's memory.
fn find_staged_networks(job: &Job<'_>, ways: &Ways<'_>) -> Option<Finding> {
    let pairs: Vec<(u32, u32)> = ways
        .pairs
        .iter()
        .filter(|(_, way)| matches!(way, Way::NetStaged(_)))
        .map(|(&pair, _)| pair)
        .collect();
    let &(from, to) = pairs.first()?;
    let way = ways.pairs.get(&(from, to)).map(Way::long_text).unwrap_or_default();
    let ranks: BTreeSet<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
    // Both halves of a ConnectX-7 of GB10. It has one memory for CPU and GPU, and no GPUDirect RDMA.
    let spark =
        job.digest.writers.iter().flat_map(|writer| &writer.devices).any(|name| name.contains("roceP2p1s0"));
    let id = if spark { "network-without-gdr/spark" } else { "network-without-gdr" };
    let evidence = format!("{}, the first from rank {from} to rank {to}", count(pairs.len(), "connection"));
    Some(Finding {
        ranks: ranks.into_iter().collect(),
        evidence: vec![Evidence::at_place("connections", evidence)],
        ..compose_finding(id, &[("way", &way)])
    })
}

/// Returns a finding about GPUs of one host that exchange data through the host's memory or over a network.
fn through_host(job: &Job<'_>, ways: &Ways<'_>) -> Option<Finding> {
    let communicator = ways.communicator;
    if communicator.nodes.is_some_and(|nodes| nodes > 1) && hosts_of_members(job, communicator).len() == 1 {
        // Another finding explains this.
        return None;
    }
    let same_host = |from, to| {
        let (a, b) = (job.host_of_rank(communicator, from), job.host_of_rank(communicator, to));
        a.is_some() && a == b && from != to
    };
    let is_slow = |way: &Way| matches!(way, Way::Shm | Way::Socket | Way::NetStaged(_) | Way::NetDirect(_));
    let slow = ways.pairs.iter().filter(|&(&(from, to), way)| same_host(from, to) && is_slow(way));
    let slow: Vec<((u32, u32), &Way)> = slow.map(|(&pair, way)| (pair, way)).collect();
    let &((from, to), way) = slow.first()?;
    let off = p2p_off(job);
    let linked = slow.iter().any(|(pair, _)| ways.linked.contains(pair));
    let id = match (off, linked) {
        (Some(_), _) => "no-p2p-within-node/set",
        (None, true) => "no-p2p-within-node/nvlink",
        (None, false) => "no-p2p-within-node",
    };
    let (setting, name) = describe_setting(off);
    // Many kinds of GPU have no P2P. NCCL then takes shared memory, and nothing is wrong.
    let is_normal = off.is_none() && !linked && slow.iter().all(|(_, way)| **way == Way::Shm);
    let severity = if is_normal { Severity::Advice } else { Severity::Degraded };
    let ranks: BTreeSet<u32> = slow.iter().flat_map(|&((from, to), _)| [from, to]).collect();
    let evidence = format!("{}, the first from rank {from} to rank {to}", count(slow.len(), "connection"));
    let evidence = Evidence::at_place("connections", evidence);
    Some(Finding {
        severity,
        ranks: ranks.into_iter().collect(),
        evidence: off.map(|seen| cite_variable(job, seen)).into_iter().chain([evidence]).collect(),
        ..compose_finding(id, &[("way", &way.long_text()), ("setting", &setting), ("name", &name)])
    })
}

/// Returns a variable as `NAME=VALUE`, and its name, for the texts of a finding.
fn describe_setting(variable: Option<&VariableSeen>) -> (String, String) {
    let text = variable.map(|set| (format!("{}={}", set.name, set.value), set.name.clone()));
    text.unwrap_or_default()
}

/// Returns the variable that disables P2P, or limits it.
fn p2p_off<'a>(job: &Job<'a>) -> Option<&'a VariableSeen> {
    let level = || job.variables_named("NCCL_P2P_LEVEL").find(|variable| limits_p2p(&variable.value));
    job.variables_named("NCCL_P2P_DISABLE").find(|variable| variable.value != "0").or_else(level)
}

/// Returns true for values of NCCL_P2P_LEVEL that exclude some pairs of GPUs of a host.
fn limits_p2p(level: &str) -> bool {
    let all = level.eq_ignore_ascii_case("SYS") || level.parse::<u32>().is_ok_and(|number| number >= 4);
    !all
}

/// Returns the hosts of a communicator's members.
pub(super) fn hosts_of_members<'a>(job: &Job<'a>, communicator: &Communicator) -> BTreeSet<&'a str> {
    communicator.members.keys().filter_map(|&rank| job.host_of_rank(communicator, rank)).collect()
}

/// Returns a finding about ranks of one host counted by NCCL as several nodes.
fn split_host(job: &Job<'_>, ways: &Ways<'_>) -> Option<Finding> {
    let communicator = ways.communicator;
    let nodes = communicator.nodes.filter(|&nodes| nodes > 1)?;
    let hosts = hosts_of_members(job, communicator);
    let host = hosts.first().filter(|_| hosts.len() == 1 && communicator.members.len() > 1)?;
    let ids: Vec<&VariableSeen> = job.variables_named("NCCL_HOSTID").collect();
    // Several machines can have one host name. Their GPUs then have equal bus ids.
    let buses: BTreeSet<_> =
        communicator.members.values().filter_map(|member| member.bus_id.as_deref()).collect();
    if ids.len() < 2 && buses.len() < communicator.members.len() {
        return None;
    }
    let ranks: Vec<u32> = communicator.members.keys().copied().collect();
    if let (true, Some(only)) = (ids.is_empty(), network_only(job, ways, host, &ranks)) {
        return Some(only);
    }
    let id = if ids.len() > 1 { "host-counted-as-nodes/set" } else { "host-counted-as-nodes" };
    let variables = ids.iter().take(4).map(|seen| cite_variable(job, seen));
    Some(Finding {
        ranks: ranks.clone(),
        hosts: vec![(*host).to_owned()],
        evidence: variables.chain(tcp_evidence(job, Some(ways))).collect(),
        ..compose_finding(id, &[("ranks", &ranks_in_words(&ranks)), ("host", host), ("nodes", &nodes)])
    })
}

/// Returns a finding about variables that leave only a network between the ranks of a host. NCCL then counts
/// each rank as a node.
fn network_only(job: &Job<'_>, ways: &Ways<'_>, host: &str, ranks: &[u32]) -> Option<Finding> {
    let shm = job.variables_named("NCCL_SHM_DISABLE").find(|variable| variable.value != "0")?;
    let p2p = p2p_off(job)?;
    let settings = format!("{}={} and {}={}", p2p.name, p2p.value, shm.name, shm.value);
    let values: [(&str, &dyn Display); 4] = [
        ("host", &host),
        ("ranks", &ranks_in_words(ranks)),
        ("settings", &settings),
        ("names", &format!("{} {}", p2p.name, shm.name)),
    ];
    Some(Finding {
        ranks: ranks.to_vec(),
        hosts: vec![host.to_owned()],
        evidence: [cite_variable(job, p2p), cite_variable(job, shm)]
            .into_iter()
            .chain(tcp_evidence(job, Some(ways)))
            .collect(),
        ..compose_finding("network-within-host", &values)
    })
}
