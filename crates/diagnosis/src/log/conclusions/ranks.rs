//! Findings about ranks: different versions, different variables, different networks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use semver::Version;

use super::ends;
use super::gaps::{lacks_lines_of_start, ranks_without_beginning};
use super::hits::Placed;
use super::job::{self, Job, count, ranks_in_words};
use super::start;
use crate::environment::must_be_equal;
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::log::digest::{Communicator, Member, VariableSeen, Writer};

/// Returns findings about incomplete ranks, ranks without an end, and different variables and networks.
pub(super) fn find_rank_differences(job: &Job<'_>, found: &[Placed]) -> Vec<Placed> {
    let derived = find_variable_differences(job)
        .into_iter()
        .chain(find_network_differences(job))
        .chain(find_shared_gpus(job))
        .chain(find_lone_processes(job))
        .chain(find_bandwidth_drop(job))
        .map(Placed::without_line);
    let open = start::find_incomplete_start(job, found).or_else(|| ends::find_ranks_without_end(job, found));
    open.into_iter().chain(find_aborting_ranks(job)).chain(derived).collect()
}

/// Returns ranks that aborted a communicator, if its other ranks did not.
fn find_aborting_ranks(job: &Job<'_>) -> Option<Placed> {
    let (communicator, ranks) = job.digest.communicators.iter().find_map(|communicator| {
        let members = || communicator.members.iter();
        let ranks: Vec<u32> = members().filter(|(_, member)| member.aborted).map(|(&rank, _)| rank).collect();
        (!ranks.is_empty() && ranks.len() < members().count()).then_some((communicator, ranks))
    })?;
    let writer = |rank: &u32| communicator.members.get(rank).map(|member| member.writer);
    let values: [(&str, &dyn Display); 2] =
        [("communicator", &job::describe_communicator(&communicator.id)), ("ranks", &ranks_in_words(&ranks))];
    let finding = Finding {
        hosts: job.hosts_of_writers(ranks.iter().filter_map(writer)),
        ranks,
        ..compose_finding("communicator-aborted", &values)
    };
    Some(Placed { is_cascade: true, ..Placed::without_line(finding) })
}

/// Returns findings about different versions of the writers.
pub(super) fn find_version_differences(job: &Job<'_>) -> Vec<Placed> {
    let nccl = job.group_writers(|writer| writer.nccl.as_ref().map(ToString::to_string));
    let builds = group_builds(job);
    let plugin = job.group_writers(|writer| writer.plugin.as_ref().map(ToString::to_string));
    let libfabric = job.group_writers(|writer| writer.libfabric.as_ref().map(ToString::to_string));
    let driver = job.group_writers(|writer| writer.driver.map(format_cuda_version));
    let mut found = Vec::new();
    // A log can have several jobs, each with its own version.
    let version = |member: &Member| job.writer(member.writer).and_then(|writer| writer.nccl.as_ref());
    let is_mixed = |communicator: &Communicator| {
        communicator.members.values().filter_map(version).collect::<BTreeSet<_>>().len() > 1
    };
    let mixed = job.digest.communicators.iter().any(is_mixed);
    if let Some(finding) = describe_version_difference(job, &nccl, "nccl-versions-differ") {
        let broken = describe_version_difference(job, &nccl, "nccl-versions-differ/mixed");
        found.push(match broken.filter(|_| mixed) {
            Some(broken) => Placed::derived_root(broken),
            None => Placed::without_line(finding),
        });
    } else {
        let builds = describe_version_difference(job, &builds, "nccl-builds-differ");
        found.extend(builds.map(Placed::without_line));
    }
    for (values, id) in [
        (&plugin, "plugin-versions-differ"),
        (&libfabric, "libfabric-versions-differ"),
        (&driver, "driver-versions-differ"),
    ] {
        found.extend(describe_version_difference(job, values, id).map(Placed::without_line));
    }
    found
}

/// Returns a finding about ranks of one communicator with different numbers of ranks.
pub(super) fn find_other_sizes(job: &Job<'_>) -> Option<Placed> {
    let differs = |each: &&Communicator| each.members.values().any(|member| member.other_size.is_some());
    let communicator = job.digest.communicators.iter().find(differs)?;
    let mut sizes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (&rank, member) in &communicator.members {
        sizes.entry(member.other_size.unwrap_or(communicator.ranks)).or_default().push(rank);
    }
    let list: Vec<String> =
        sizes.iter().map(|(size, ranks)| format!("{size} on {}", ranks_in_words(ranks))).collect();
    let values: [(&str, &dyn Display); 2] =
        [("communicator", &job::describe_communicator(&communicator.id)), ("list", &list.join("; "))];
    let first = |(size, ranks): (&u32, &Vec<u32>)| {
        job.cite_writer(communicator.members.get(ranks.first()?)?.writer, format!("nranks {size}"))
    };
    let finding = Finding {
        evidence: sizes.iter().filter_map(first).take(4).collect(),
        ranks: communicator.members.keys().copied().collect(),
        hosts: job.hosts_of_writers(communicator.members.values().map(|member| member.writer)),
        ..compose_finding("rank-counts-differ", &values)
    };
    Some(Placed::derived_root(finding))
}

/// Returns the builds of NCCL. Only some processes write the commit: a build without it is the same as one
/// with it.
fn group_builds(job: &Job<'_>) -> BTreeMap<String, Vec<usize>> {
    let mut builds = job
        .group_writers(|writer| Some(format!("{}{}", writer.nccl.as_ref()?, writer.nccl_build.as_deref()?)));
    let continues =
        |name: &str, other: &String| other.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
    let names: Vec<String> = builds.keys().cloned().collect();
    builds.retain(|name, _| !names.iter().any(|other| continues(name, other)));
    builds
}

/// Returns a finding about ranks of a communicator on one GPU of a host. NCCL refuses this unless
/// NCCL_MULTI_RANK_GPU_ENABLE is set. Versions before 2.30 lack this variable: such a log with one node
/// contradicts itself.
fn find_shared_gpus(job: &Job<'_>) -> Option<Finding> {
    if job.digest.hits.iter().any(|hit| hit.rule == "nccl-duplicate-gpu") {
        return None;
    }
    let main = job.main?;
    let mut by_gpu: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for (&rank, member) in &main.members {
        if let (Some(host), Some(bus)) = (job.host_of_rank(main, rank), member.bus_id.as_deref()) {
            by_gpu.entry((host, bus)).or_default().push(rank);
        }
    }
    let ((host, bus), ranks) = by_gpu.into_iter().find(|(_, ranks)| ranks.len() > 1)?;
    let writer = main.members.get(ranks.first()?)?.writer;
    let version = job.writer(writer).and_then(|writer| writer.nccl.as_ref());
    let refuses = main.nodes == Some(1) && version.is_some_and(|version| *version < Version::new(2, 30, 0));
    let id = if refuses { "ranks-share-gpu/refused" } else { "ranks-share-gpu" };
    Some(Finding {
        evidence: job.cite_writer(writer, format!("busId {bus}")).into_iter().collect(),
        hosts: vec![host.to_owned()],
        ranks: ranks.clone(),
        ..compose_finding(id, &[("bus", &bus), ("host", &host), ("ranks", &ranks_in_words(&ranks))])
    })
}

/// Returns a finding about a size of nccl-tests with much less bandwidth than a smaller one.
fn find_bandwidth_drop(job: &Job<'_>) -> Option<Finding> {
    let [(small, before), (large, after)] = job.digest.tables.drop?;
    let values: [(&str, &dyn Display); 4] = [
        ("small", &small),
        ("before", &format!("{before:.2}")),
        ("large", &large),
        ("after", &format!("{after:.2}")),
    ];
    Some(compose_finding("nccl-tests-drop", &values))
}

/// Returns a finding about nccl-tests in several processes with a communicator of one rank each: on one host,
/// or as their heads show.
fn find_lone_processes(job: &Job<'_>) -> Option<Finding> {
    if job.digest.communicators.is_empty() && !job.digest.lone_tests.is_empty() {
        let hosts: Vec<String> = job.digest.lone_tests.iter().cloned().collect();
        let list = hosts.join(", ");
        return Some(Finding {
            hosts,
            ..compose_finding("nccl-tests-without-mpi/heads", &[("host", &list)])
        });
    }
    let lone = job.digest.communicators.iter().find(|each| each.ranks == 1)?;
    let writer = lone.members.values().next()?.writer;
    let (host, pid) = job.process_of(writer)?;
    let is_other = |other: &Writer| other.host == host && other.pid != pid;
    let is_of_tests = job.digest.hits.iter().any(|hit| hit.rule.starts_with("nccl-tests-"));
    let is_alone = job.digest.communicators.iter().all(|each| each.ranks == 1);
    (is_of_tests && is_alone && job.digest.writers.iter().any(is_other)).then(|| Finding {
        evidence: job.cite_writer(writer, "nRanks 1".to_owned()).into_iter().collect(),
        ..compose_finding("nccl-tests-without-mpi", &[("host", &host)])
    })
}

/// Formats a CUDA version: `13.0`, from 13000.
pub(super) fn format_cuda_version(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Returns the finding about different versions.
fn describe_version_difference(
    job: &Job<'_>,
    values: &BTreeMap<String, Vec<usize>>,
    id: &str,
) -> Option<Finding> {
    if values.len() < 2 {
        return None;
    }
    let most = values.values().map(Vec::len).max();
    let each =
        |(value, writers): (&String, &Vec<usize>)| format!("{value} on {}", describe_writers(job, writers));
    let odd = values.values().filter(|writers| Some(writers.len()) != most).flatten().copied();
    let odd: BTreeSet<usize> = odd.collect();
    let evidence = values.iter().filter_map(|(value, writers)| {
        let &writer = writers.first()?;
        Some(job.cite_line(
            job.writer(writer)?.first,
            Some(writer),
            format!("the first line of a rank with {value}"),
        ))
    });
    let list: Vec<String> = values.iter().map(each).collect();
    Some(Finding {
        ranks: job.ranks_of_writers(odd.iter().copied()),
        hosts: job.hosts_of_writers(odd),
        evidence: evidence.take(4).collect(),
        ..compose_finding(id, &[("list", &list.join("; "))])
    })
}

/// Returns the ranks of writers, or, if no rank is known, their hosts or the number of writers.
fn describe_writers(job: &Job<'_>, writers: &[usize]) -> String {
    let ranks = job.ranks_of_writers(writers.iter().copied());
    let hosts = job.hosts_of_writers(writers.iter().copied());
    match (ranks.is_empty(), hosts.is_empty()) {
        (false, _) => ranks_in_words(&ranks),
        (true, false) => hosts.join(", "),
        (true, true) => count(writers.len(), "process"),
    }
}

/// Returns findings about variables with different values on the ranks of a job.
fn find_variable_differences(job: &Job<'_>) -> Vec<Finding> {
    let mut by_name: BTreeMap<&str, Vec<&VariableSeen>> = BTreeMap::new();
    for seen in &job.digest.variables {
        by_name.entry(&seen.name).or_default().push(seen);
    }
    let alike = by_name.into_iter().filter(|(name, _)| must_be_equal(name));
    alike.filter_map(|(name, seen)| compare_variable(job, name, &seen)).collect()
}

/// Returns the finding about one variable.
fn compare_variable(job: &Job<'_>, name: &str, seen: &[&VariableSeen]) -> Option<Finding> {
    let values: BTreeSet<&str> = seen.iter().map(|each| each.value.as_str()).collect();
    // A process reads a variable once, for all its devices.
    let writers: Vec<BTreeSet<usize>> =
        seen.iter().map(|each| job.of_same_processes(&each.writers)).collect();
    let named: BTreeSet<usize> = writers.iter().flatten().copied().collect();
    // Every process reports its variables in the same places: without a report, the variable is not set.
    let with: BTreeSet<u32> = job.ranks_of_writers(named.iter().copied()).into_iter().collect();
    let members = job.main.iter().flat_map(|main| &main.members).filter(|(_, member)| member.complete);
    let lost = job.main.map(ranks_without_beginning).unwrap_or_default();
    let is_without = |rank: &u32| !with.contains(rank) && !lost.contains(rank);
    let without: Vec<u32> = members.map(|(&rank, _)| rank).filter(is_without).collect();
    let partly = is_read_by_all(name) && !without.is_empty() && !with.is_empty();
    let is_cut = partly && job.main.is_some_and(|main| lacks_lines_of_start(job, main));
    if values.len() < 2 && !partly {
        return None;
    }
    let mut list: Vec<String> = seen
        .iter()
        .zip(&writers)
        .map(|(each, writers)| {
            let writers: Vec<usize> = writers.iter().copied().collect();
            format!("{} on {}", each.value, describe_writers(job, &writers))
        })
        .collect();
    if is_cut && values.len() < 2 {
        return Some(describe_unseen_variable(name, &list, &without));
    }
    if partly {
        let state = if is_cut { "not shown for" } else { "not set on" };
        list.push(format!("{state} {}", ranks_in_words(&without)));
    }
    let evidence = seen.iter().map(|each| {
        job.cite_line(each.first, each.writers.first().copied(), format!("{name}={}", each.value))
    });
    Some(Finding {
        ranks: job.ranks_of_writers(named),
        evidence: evidence.take(4).collect(),
        ..compose_finding("variable-differs", &[("name", &name), ("list", &list.join("; "))])
    })
}

/// Returns the finding of a variable set on some ranks, if the log lacks lines of other ranks that can name
/// it.
fn describe_unseen_variable(name: &str, list: &[String], without: &[u32]) -> Finding {
    let values: [(&str, &dyn Display); 3] =
        [("name", &name), ("list", &list.join("; ")), ("ranks", &ranks_in_words(without))];
    Finding { ranks: without.to_vec(), ..compose_finding("variable-unseen", &values) }
}

/// Returns true for variables read by every process, and reported, while it builds a communicator.
fn is_read_by_all(name: &str) -> bool {
    matches!(name, "NCCL_ALGO" | "NCCL_PROTO" | "NCCL_NVLS_ENABLE" | "NCCL_P2P_DISABLE" | "NCCL_P2P_LEVEL")
}

/// Returns the values of the first communicator with different values among its members' writers. A log can
/// have several jobs, each with its own value.
fn differ_within<'a, T: Ord>(
    job: &Job<'a>,
    value: impl Fn(&'a Writer) -> Option<T>,
) -> Option<BTreeMap<T, Vec<usize>>> {
    let values = |communicator: &Communicator| {
        let mut values: BTreeMap<T, Vec<usize>> = BTreeMap::new();
        let writers: BTreeSet<usize> = communicator.members.values().map(|member| member.writer).collect();
        for writer in writers {
            if let Some(value) = job.writer(writer).and_then(&value) {
                values.entry(value).or_default().push(writer);
            }
        }
        values
    };
    job.digest.communicators.iter().map(values).find(|values| values.len() > 1)
}

/// Returns findings about different networks on ranks of a communicator.
fn find_network_differences(job: &Job<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(names) = differ_within(job, |writer| writer.network.as_deref()) {
        let list: Vec<String> = names
            .iter()
            .map(|(name, writers)| format!("{name} on {}", describe_writers(job, writers)))
            .collect();
        found.push(Finding {
            ranks: job.ranks_of_writers(names.values().flatten().copied()),
            ..compose_finding("networks-differ", &[("list", &list.join("; "))])
        });
    }
    let is_fast = |network: &Option<String>| network.as_deref().is_some_and(|name| name != "Socket");
    let devices = |writer: &Writer| {
        (is_fast(&writer.network) && !writer.devices.is_empty()).then_some(writer.devices.len())
    };
    if let Some(devices) = differ_within(job, devices) {
        let list: Vec<String> = devices
            .iter()
            .map(|(number, writers)| {
                format!("{number} on {}", job.hosts_of_writers(writers.iter().copied()).join(", "))
            })
            .collect();
        let most = devices.keys().max().copied();
        let fewer: Vec<usize> = devices
            .iter()
            .filter(|(number, _)| Some(**number) != most)
            .flat_map(|(_, writers)| writers.iter().copied())
            .collect();
        found.push(Finding {
            ranks: job.ranks_of_writers(fewer.iter().copied()),
            hosts: job.hosts_of_writers(fewer),
            ..compose_finding("nics-differ", &[("list", &list.join("; "))])
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::{end, examine, pair};
    use crate::examination::Health;

    #[test]
    fn a_communicator_that_some_ranks_aborted_is_degraded() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let destroyed = text.clone() + &end(0, "Destroy") + &end(1, "Destroy");
        assert_eq!(examine(&destroyed).health(), Health::Healthy);
        // Also without a start in the log.
        for log in [text.clone() + &end(0, "Abort"), destroyed + &end(0, "Abort")] {
            let found = examine(&log);
            assert_eq!(found.findings[0].diagnosis, "The program aborted communicator 0x77 on rank 0");
            assert_eq!((found.health(), found.proof.len()), (Health::Degraded, 0));
        }
        // PyTorch before 2.6 ends every run with an abort on all ranks.
        let found = examine(&(text.clone() + &end(0, "Abort") + &end(1, "Abort")));
        assert_eq!(found.health(), Health::CannotTell, "{:?}", found.findings);
        let says = "the program aborted 1 communicator, the first is 0x77: PyTorch before 2.6";
        assert!(found.unseen.iter().any(|line| line.starts_with(says)), "{:?}", found.unseen);
        // It follows from a failure.
        let full = "a:100:100 [0] include/alloc.h:1 NCCL WARN Cuda failure 2 'out of memory'\n";
        let found = examine(&(text + full + &end(0, "Abort")));
        assert!(
            found.findings.iter().all(|each| each.rule != "communicator-aborted"),
            "{:?}",
            found.findings
        );
    }
}
