//! Processors of ranks: the record of those that each may use, and a processor of its own for each rank that
//! shares its process.
//!
//! The threads of a process start on any processors, perhaps two on one. Ranks in host memory poll for each
//! other's data: two on one processor take turns of tens of microseconds, and the scheduler may leave them
//! there for as long as the process lives. A launcher of processes binds each of them; nothing binds threads.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use anyhow::Context as _;
use collectives::world::{self, World};
use record::Rank;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::gather::gather_json;
use crate::request::{Binding, Names};
use crate::supervision::{Stop, number_ranges};

const PROCESSORS: &str = "/sys/devices/system/cpu";

/// The processors that a rank may be bound to.
#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    /// Identity of the rank's host.
    host: String,
    has_gpu: bool,
    /// The processors, in order of preference.
    processors: Vec<usize>,
    /// Number of processors that a container's quota lets its ranks keep busy, if that is fewer than they may
    /// run on.
    quota: Option<usize>,
    /// True when the rank is to be bound.
    binds: bool,
}

/// Binds this thread as the request demands, and notes the processors in `rank`. Every rank calls it.
/// `threads`: number of ranks of this process.
///
/// # Errors
/// For [`Binding::Core`]: [`Stop::Refused`], on every rank, when some rank has a GPU or no processor is left
/// for it, and [`Stop::Failed`] when the system refuses to bind.
pub(super) fn place_rank(
    binding: Binding,
    names: Names,
    threads: usize,
    rank: &mut Rank,
    world: &dyn World,
) -> Result<(), Stop> {
    let binds = match binding {
        Binding::Auto => threads > 1,
        Binding::Core => true,
        Binding::None => false,
    };
    let host = world::host();
    let allowed = allowed_processors();
    let available = thread::available_parallelism().map_or(1, usize::from);
    let own = Claim {
        host: host.id,
        has_gpu: rank.device.is_some(),
        processors: sort_by_preference(&allowed),
        quota: (available < allowed.len()).then_some(available),
        // Threads that NCCL starts would inherit the binding.
        binds: binds && rank.device.is_none(),
    };
    let claims = gather_json(world, &own)?;
    let assigned = assign_processors(&claims);
    if binding == Binding::Core
        && let Some(index) = assigned.iter().position(Option::is_none)
    {
        return Err(Stop::Refused(describe_unbound_rank(index, &claims, names)));
    }
    if let Some(processor) = assigned[world.rank()] {
        let mut only = CpuSet::new();
        only.set(processor);
        let bound =
            sched_setaffinity(None, &only).with_context(|| format!("binding to processor {processor}"));
        // The processor may have been taken from this process since.
        if binding == Binding::Core {
            bound?;
        }
    }
    let processors = allowed_processors();
    rank.processors = (!processors.is_empty()).then(|| number_ranges(&processors));
    let nodes: BTreeSet<usize> = processors.iter().filter_map(|&processor| numa_node(processor)).collect();
    rank.numa_nodes = (!nodes.is_empty()).then(|| number_ranges(&nodes.into_iter().collect::<Vec<_>>()));
    Ok(())
}

/// The reason why rank `index` is not bound.
fn describe_unbound_rank(index: usize, claims: &[Claim], names: Names) -> String {
    let (asked, option) = (names.with_value("binding", "core"), names.field_name("binding"));
    if claims[index].has_gpu {
        return format!(
            "{asked}: rank {index} has a GPU, and threads that NCCL starts would share its processor; omit \
             {option}, or choose {}",
            names.with_value("backend", "fabric")
        );
    }
    let on_host = || claims.iter().filter(|claim| claim.host == claims[index].host);
    let processors: BTreeSet<_> = on_host().flat_map(|claim| &claim.processors).collect();
    let busy = claims[index].quota.map_or(processors.len(), |quota| quota.min(processors.len()));
    format!(
        "{asked}: the host of rank {index} has {} ranks, but together they may use only {busy} of its \
         processors; start fewer ranks, or omit {option}",
        on_host().count()
    )
}

/// Assigns a processor to each rank to be bound: the first of its list that no earlier rank has. Ranks of a
/// host with too few processors stay unbound.
fn assign_processors(claims: &[Claim]) -> Vec<Option<usize>> {
    let mut taken = BTreeSet::new();
    let mut assigned: Vec<Option<usize>> = Vec::with_capacity(claims.len());
    for claim in claims {
        let free = |processor: &&usize| !taken.contains(&(claim.host.as_str(), **processor));
        let own = claim.processors.iter().find(free).copied().filter(|_| claim.binds);
        taken.extend(own.map(|processor| (claim.host.as_str(), processor)));
        assigned.push(own);
    }
    let on_host = |host: &str| claims.iter().filter(|claim| claim.host == host).count();
    let too_few: BTreeSet<&str> = claims
        .iter()
        .zip(&assigned)
        .filter(|(claim, own)| {
            claim.binds && (own.is_none() || claim.quota.is_some_and(|quota| on_host(&claim.host) > quota))
        })
        .map(|(claim, _)| claim.host.as_str())
        .collect();
    for (claim, own) in claims.iter().zip(&mut assigned) {
        own.take_if(|_| too_few.contains(claim.host.as_str()));
    }
    assigned
}

/// The processors that this thread may use, in ascending order; none when they are not known.
fn allowed_processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// Sorts processors so that the first hardware thread of each core comes before the second ones.
fn sort_by_preference(allowed: &[usize]) -> Vec<usize> {
    let mut ordered: Vec<(usize, usize)> =
        allowed.iter().map(|&processor| (siblings_before(processor, allowed), processor)).collect();
    ordered.sort_unstable();
    ordered.into_iter().map(|(_, processor)| processor).collect()
}

/// Number of lower-numbered processors in `allowed` that are hardware threads of the same core.
fn siblings_before(processor: usize, allowed: &[usize]) -> usize {
    let path = format!("{PROCESSORS}/cpu{processor}/topology/thread_siblings_list");
    let list = fs::read_to_string(path).unwrap_or_default();
    parse_list(&list).into_iter().filter(|sibling| *sibling < processor && allowed.contains(sibling)).count()
}

/// Parses a list of the kernel: `0-3,8`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// The NUMA node of a processor, if the kernel names one.
fn numa_node(processor: usize) -> Option<usize> {
    let entries = fs::read_dir(format!("{PROCESSORS}/cpu{processor}")).ok()?;
    let number = |name: &str| name.strip_prefix("node")?.parse().ok();
    entries.flatten().find_map(|entry| number(entry.file_name().to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_claims(hosts: &[(&str, &[usize])]) -> Vec<Claim> {
        let claim = |&(host, processors): &(&str, &[usize])| Claim {
            host: host.to_owned(),
            has_gpu: false,
            processors: processors.to_vec(),
            quota: None,
            binds: true,
        };
        hosts.iter().map(claim).collect()
    }

    #[test]
    fn ranks_of_a_host_get_processors_of_their_own() {
        let ranks = make_claims(&[
            ("a", &[0, 2, 1]),
            ("a", &[0, 2, 1]),
            ("b", &[0, 1]),
            ("a", &[1, 3]),
            ("b", &[0, 1]),
        ]);
        assert_eq!(assign_processors(&ranks), [Some(0), Some(2), Some(0), Some(1), Some(1)]);
        // Bound by a launcher.
        assert_eq!(assign_processors(&make_claims(&[("a", &[3]), ("a", &[1])])), [Some(3), Some(1)]);
    }

    #[test]
    fn a_host_with_too_few_processors_binds_none() {
        let ranks = make_claims(&[("a", &[0, 1]), ("a", &[0, 1]), ("a", &[0, 1]), ("b", &[5])]);
        assert_eq!(assign_processors(&ranks), [None, None, None, Some(5)]);
        let mut limited = make_claims(&[("a", &[0, 1]), ("a", &[0, 1])]);
        limited[1].quota = Some(1);
        assert_eq!(assign_processors(&limited), [None, None]);
    }

    #[test]
    fn ranks_that_are_not_to_be_bound_take_no_processor() {
        let mut ranks = make_claims(&[("a", &[0, 1]), ("a", &[0, 1])]);
        ranks[0].binds = false;
        assert_eq!(assign_processors(&ranks), [None, Some(0)]);
    }

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(parse_list("\n").is_empty());
    }

    #[test]
    fn second_hardware_threads_come_last() {
        let allowed = allowed_processors();
        let ordered = sort_by_preference(&allowed);
        assert_eq!(ordered.iter().copied().collect::<BTreeSet<_>>(), allowed.iter().copied().collect());
        assert!(ordered.is_sorted_by_key(|&processor| siblings_before(processor, &allowed)));
    }
}
