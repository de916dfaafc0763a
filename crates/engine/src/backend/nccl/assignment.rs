//! Assignment of a host's GPUs to its processes.

use collectives::nccl::Version;

use crate::request::Names;

/// Variable that lets several ranks share a GPU, in NCCL from this version on.
pub(super) const MULTI_RANK: &str = "NCCL_MULTI_RANK_GPU_ENABLE";
const MULTI_RANK_NCCL: Version = Version::new(2, 30, 0);
/// Maximum number of ranks of a GPU, whose kernels must run at the same time.
const MOST_PER_GPU: usize = 16;

/// PCI address of a GPU: domain, bus, device.
pub(super) type Address = (u32, u32, u32);

/// A process of the job with its GPUs and the variables that affect their assignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessGpus<'a> {
    pub(super) host: &'a str,
    /// Identity of the machine, which distinguishes hosts of the same name.
    pub(super) machine: &'a str,
    /// PCI addresses of the GPUs that it sees.
    pub(super) addresses: &'a [Address],
    /// `NCCL_TESTS_DEVICE`.
    pub(super) base: Option<usize>,
    /// `NCCL_MULTI_RANK_GPU_ENABLE`.
    pub(super) multi_rank: bool,
}

/// The GPUs that are assigned to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GpuAssignment {
    pub(super) gpus: usize,
    /// CUDA ordinal of each rank's GPU.
    pub(super) ordinals: Vec<usize>,
}

impl GpuAssignment {
    pub(super) fn has_a_gpu_twice(&self) -> bool {
        (1..self.ordinals.len()).any(|index| self.ordinals[..index].contains(&self.ordinals[index]))
    }
}

/// Assigns GPUs of its host to a process. Each process has `threads` threads with `gpus` GPUs each, or
/// with its share of all.
pub(super) fn assign_gpus(
    processes: &[ProcessGpus<'_>],
    process: usize,
    (threads, gpus): (usize, Option<usize>),
    loaded: Version,
    names: Names,
) -> Result<GpuAssignment, String> {
    let ProcessGpus { host, machine, addresses: mine, base, multi_rank } = processes[process];
    let mates: Vec<usize> =
        (0..processes.len()).filter(|&other| processes[other].machine == machine).collect();
    let place = mates.iter().position(|&mate| mate == process).unwrap_or(0);
    let same = mates.iter().all(|&mate| processes[mate].addresses == mine);
    let disjoint = mates.iter().all(|&mate| {
        mate == process || processes[mate].addresses.iter().all(|address| !mine.contains(address))
    });
    if !same && !disjoint {
        return Err(format!(
            "the processes of {host} see different GPUs that overlap: give each process its own GPUs with \
             CUDA_VISIBLE_DEVICES, or let all processes see all GPUs"
        ));
    }
    // With NCCL_TESTS_DEVICE every process begins with the same GPU.
    let sharers = if disjoint || base.is_some() { 1 } else { mates.len() };
    let skipped = base.unwrap_or(0);
    let usable = mine.len().saturating_sub(skipped);
    let wanted = gpus.unwrap_or_else(|| (usable / sharers / threads).max(1));
    let needed = sharers.saturating_mul(threads).saturating_mul(wanted);
    let possible = if multi_rank && loaded >= MULTI_RANK_NCCL { usable * MOST_PER_GPU } else { usable };
    if needed > possible {
        let (per_process, per_thread) =
            (names.with_value("threads", threads), names.with_value("gpus", wanted));
        let asked = match (sharers, threads) {
            (1, 1) => format!("{wanted} GPUs ({per_thread})"),
            (1, _) => format!("{needed} GPUs ({per_process} times {per_thread})"),
            _ => format!("{needed} GPUs ({sharers} processes, each with {per_process} times {per_thread})"),
        };
        let asked = match base {
            Some(base) => format!("{asked} from GPU {base} on (NCCL_TESTS_DEVICE)"),
            None => asked,
        };
        let hint = match (multi_rank, loaded >= MULTI_RANK_NCCL) {
            (true, true) => format!("At most {MOST_PER_GPU} ranks can share a GPU ({MULTI_RANK})"),
            (true, false) => format!("{MULTI_RANK} needs NCCL {MULTI_RANK_NCCL}, and {loaded} is loaded"),
            (false, _) => format!(
                "With mpirun, -np counts processes and {} the GPUs of each: a process per GPU is {}",
                names.field_name("gpus"),
                names.with_value("gpus", 1)
            ),
        };
        return Err(format!("{asked} are asked for on {host}, but it has {}. {hint}", mine.len()));
    }
    let first = if disjoint || base.is_some() { 0 } else { place * threads * wanted };
    let ordinals = (first..first + threads * wanted).map(|rank| skipped + rank % usable).collect();
    Ok(GpuAssignment { gpus: wanted, ordinals })
}

/// Number of ranks of the job on the GPU of each rank of a process.
pub(super) fn ranks_on_gpus(
    processes: &[ProcessGpus<'_>],
    shares: &[GpuAssignment],
    process: usize,
) -> Vec<usize> {
    let all: Vec<(&str, Address)> = processes
        .iter()
        .zip(shares)
        .flat_map(|(each, assignment)| {
            assignment.ordinals.iter().map(|&ordinal| (each.machine, each.addresses[ordinal]))
        })
        .collect();
    let ProcessGpus { machine, addresses, multi_rank, .. } = processes[process];
    let count = |&ordinal: &usize| {
        // MIG instances of one GPU share its address.
        if multi_rank { all.iter().filter(|gpu| **gpu == (machine, addresses[ordinal])).count() } else { 1 }
    };
    shares[process].ordinals.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Version = Version::new(2, 29, 9);
    const SINCE: Version = Version::new(2, 30, 0);
    const EIGHT: [Address; 8] =
        [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0), (0, 4, 0), (0, 5, 0), (0, 6, 0), (0, 7, 0)];

    fn process<'a>(machine: &'a str, addresses: &'a [Address]) -> ProcessGpus<'a> {
        ProcessGpus { host: "node1", machine, addresses, base: None, multi_rank: false }
    }

    fn sharing<'a>(addresses: &'a [Address]) -> ProcessGpus<'a> {
        ProcessGpus { multi_rank: true, ..process("boot 1", addresses) }
    }

    /// [`assign_gpus`] with messages that name fields.
    fn assign(
        processes: &[ProcessGpus<'_>],
        process: usize,
        asked: (usize, Option<usize>),
        loaded: Version,
    ) -> Result<GpuAssignment, String> {
        assign_gpus(processes, process, asked, loaded, Names::default())
    }

    fn all(processes: &[ProcessGpus<'_>], threads: usize, gpus: Option<usize>) -> Vec<GpuAssignment> {
        let assignment = |process| assign(processes, process, (threads, gpus), SINCE).unwrap();
        (0..processes.len()).map(assignment).collect()
    }

    fn given(gpus: usize, ordinals: impl IntoIterator<Item = usize>) -> GpuAssignment {
        GpuAssignment { gpus, ordinals: ordinals.into_iter().collect() }
    }

    #[test]
    fn processes_of_one_host_share_its_gpus_and_hosts_of_one_name_do_not() {
        let twins = [process("boot 1", &EIGHT); 2];
        assert_eq!(all(&twins, 1, None), [given(4, 0..4), given(4, 4..8)]);
        assert_eq!(all(&twins, 2, Some(1)), [given(1, 0..2), given(1, 2..4)]);
        let namesakes = [process("boot 1", &EIGHT), process("boot 2", &EIGHT)];
        assert_eq!(all(&namesakes, 1, None), [given(8, 0..8), given(8, 0..8)]);
    }

    #[test]
    fn more_gpus_than_there_are_is_refused_whatever_the_number() {
        for each in [process("boot 1", &EIGHT), sharing(&EIGHT)] {
            for gpus in [9, u32::MAX as usize, usize::MAX] {
                let refusal = assign(&[each; 2], 0, (4096, Some(gpus)), SINCE).unwrap_err();
                assert!(refusal.contains("on node1, but it has 8"), "{refusal}");
            }
        }
    }

    #[test]
    fn ranks_share_gpus_in_turn_where_nccl_can() {
        let (one, two) = ([(0, 1, 0)], [(0, 1, 0), (0, 2, 0)]);
        assert_eq!(all(&[sharing(&one)], 1, Some(2)), [given(2, [0, 0])]);
        assert_eq!(all(&[sharing(&one)], 2, None), [given(1, [0, 0])]);
        assert_eq!(all(&[sharing(&two)], 1, None), [given(2, 0..2)], "not without being asked");
        assert_eq!(all(&[sharing(&two)], 3, Some(1)), [given(1, [0, 1, 0])]);
        assert_eq!(all(&[sharing(&two); 3], 1, None), [given(1, [0]), given(1, [1]), given(1, [0])]);
        let from_1 = ProcessGpus { base: Some(1), ..sharing(&two) };
        assert_eq!(all(&[from_1], 1, Some(2)), [given(2, [1, 1])]);
        let refused = |process, gpus, loaded| assign(&[process], 0, (1, Some(gpus)), loaded).unwrap_err();
        let past = ProcessGpus { base: Some(2), ..sharing(&two) };
        assert!(refused(past, 1, SINCE).contains("from GPU 2 on (NCCL_TESTS_DEVICE)"));
        assert!(refused(sharing(&one), 17, SINCE).contains("At most 16 ranks can share a GPU"));
        assert_eq!(
            refused(sharing(&one), 2, BEFORE),
            "2 GPUs (gpus 2) are asked for on node1, but it has 1. NCCL_MULTI_RANK_GPU_ENABLE needs NCCL \
             2.30, and 2.29.9 is loaded"
        );
        assert!(refused(process("boot 1", &one), 2, SINCE).contains("a process per GPU is gpus 1"));
    }

    #[test]
    fn ranks_on_a_gpu_are_counted_over_the_processes_of_its_host() {
        let elsewhere = ProcessGpus { machine: "boot 2", ..sharing(&EIGHT) };
        let processes = [sharing(&EIGHT), sharing(&EIGHT), elsewhere];
        let shares = all(&processes, 1, Some(5));
        assert_eq!(ranks_on_gpus(&processes, &shares, 0), [2, 2, 1, 1, 1]);
        assert_eq!(ranks_on_gpus(&processes, &shares, 1), [1, 1, 1, 2, 2]);
        assert_eq!(ranks_on_gpus(&processes, &shares, 2), [1; 5]);
        let based = [ProcessGpus { base: Some(3), ..process("boot 1", &EIGHT) }; 2];
        assert_eq!(
            ranks_on_gpus(&based, &all(&based, 1, Some(1)), 0),
            [1],
            "they did not say that they share"
        );
    }

    #[test]
    fn every_process_begins_with_the_gpu_of_nccl_tests_variable() {
        let from = |base, gpus| {
            let each = ProcessGpus { base: Some(base), ..process("boot 1", &EIGHT) };
            assign(&[each; 2], 1, (1, gpus), SINCE)
        };
        assert_eq!(from(3, Some(2)), Ok(given(2, [3, 4])));
        assert_eq!(from(6, None), Ok(given(2, [6, 7])));
        assert!(from(7, Some(2)).unwrap_err().contains("from GPU 7 on (NCCL_TESTS_DEVICE)"));
    }

    #[test]
    fn gpus_that_each_process_sees_alone_are_its_own() {
        let (one, two, both) = ([(0, 1, 0)], [(0, 2, 0)], [(0, 1, 0), (0, 2, 0)]);
        let own = [process("boot 1", &one), process("boot 1", &two)];
        assert_eq!(assign(&own, 1, (1, None), SINCE), Ok(given(1, [0])));
        let overlap = [process("boot 1", &one), process("boot 1", &both)];
        let refusal = assign(&overlap, 0, (1, None), SINCE).unwrap_err();
        assert!(refusal.contains("different GPUs that overlap"), "{refusal}");
    }
}
