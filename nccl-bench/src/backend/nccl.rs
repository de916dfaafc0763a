//! CUDA memory over NCCL: a GPU, a thread and a communicator per rank.

use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use collectives::nccl::{self, Communicator, Library, Memory, UniqueId};
use collectives::world::{self, World};
use collectives::{Element, ReduceOp};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr as _, DevicePtrMut as _, DeviceSlice as _, result};
use serde::{Deserialize, Serialize};

use super::choice::Found;
use super::{Backend, Device, Node, Work};
use crate::cli::Settings;
use crate::collective::{Collective, Placement};
use crate::data::{DeviceData, Mismatches};
use crate::run::Stop;
use crate::table;

const DEFAULT_MAX_BYTES: u64 = 4 << 30;
/// Left free on each GPU for NCCL's own buffers and kernels.
const RESERVE: u64 = 2 << 30;

/// The GPUs that a process can use.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Gpus {
    nccl_version: String,
    nccl_path: String,
    driver: i32,
    /// PCI addresses in the order of CUDA ordinals: they tell whether processes see the same GPUs.
    addresses: Vec<(u32, u32, u32)>,
}

impl Gpus {
    /// Looks for a CUDA driver, GPUs and libnccl; the error says what is missing.
    pub(super) fn find() -> Result<Self, String> {
        let count = nccl::device_count().map_err(|error| error.to_string())?;
        let library = Library::load().map_err(|error| error.to_string())?;
        let addresses: Result<_, _> = (0..count).map(pci_address).collect();
        Ok(Self {
            nccl_version: library.version().to_string(),
            nccl_path: library.path().display().to_string(),
            driver: nccl::cuda::driver_version().map_err(|error| error.to_string())?,
            addresses: addresses
                .map_err(|error| format!("the CUDA driver does not describe its GPUs: {error}"))?,
        })
    }
}

fn pci_address(ordinal: usize) -> Result<(u32, u32, u32), result::DriverError> {
    let device = result::device::get(ordinal as i32)?;
    let attribute = |attribute| {
        // SAFETY: the device handle was just returned by the driver.
        unsafe { result::device::get_attribute(device, attribute) }.map(|value| value as u32)
    };
    Ok((
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    ))
}

/// The GPUs of this process that take part, and what its ranks need to meet.
pub struct GpuNode {
    library: Library,
    id: UniqueId,
    threads: usize,
    gpus: usize,
    first: usize,
    provenance: Vec<String>,
}

/// Which GPUs a process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    first: usize,
    gpus: usize,
}

/// Divides a host's GPUs among its processes: `hosts` (name and identity) and `addresses` have an entry per process of
/// the job.
fn share(
    hosts: &[(&str, &str)],
    addresses: &[&[(u32, u32, u32)]],
    process: usize,
    threads: usize,
    gpus: Option<usize>,
) -> Result<Share, String> {
    let (host, identity) = hosts[process];
    let mates: Vec<usize> = (0..hosts.len()).filter(|&other| hosts[other].1 == identity).collect();
    let place = mates.iter().position(|&mate| mate == process).unwrap_or(0);
    let mine = addresses[process];
    let same = mates.iter().all(|&mate| addresses[mate] == mine);
    let disjoint = mates
        .iter()
        .all(|&mate| mate == process || addresses[mate].iter().all(|address| !mine.contains(address)));
    if !same && !disjoint {
        return Err(format!(
            "the processes of {host} see different GPUs that overlap: give each its own with CUDA_VISIBLE_DEVICES, \
             or let all see all"
        ));
    }
    let sharers = if disjoint { 1 } else { mates.len() };
    let wanted = match gpus {
        Some(gpus) => gpus,
        None => (mine.len() / sharers / threads).max(1),
    };
    let needed = sharers.saturating_mul(threads).saturating_mul(wanted);
    if needed > mine.len() {
        let asked = match (sharers, threads) {
            (1, 1) => format!("{wanted} GPUs (-g {wanted})"),
            (1, _) => format!("{needed} GPUs (-t {threads} times -g {wanted})"),
            _ => format!("{needed} GPUs ({sharers} processes, each with -t {threads} times -g {wanted})"),
        };
        return Err(format!(
            "{asked} are asked for on {host}, but it has {}. With mpirun, -np counts processes and -g the GPUs of \
             each: a process per GPU is -g 1",
            mine.len()
        ));
    }
    Ok(Share { first: if disjoint { 0 } else { place * threads * wanted }, gpus: wanted })
}

impl GpuNode {
    pub(super) fn prepare(
        settings: &Settings,
        process: &dyn World,
        processes: &[Found<Gpus>],
    ) -> Result<Self, Stop> {
        let hosts: Vec<(&str, &str)> =
            processes.iter().map(|each| (each.host.as_str(), each.host_id.as_str())).collect();
        let found: Vec<(&str, &Gpus)> = processes
            .iter()
            .filter_map(|each| Some((each.host.as_str(), each.found.as_ref().ok()?)))
            .collect();
        let first = found[0].1;
        if let Some((index, (host, other))) =
            found.iter().enumerate().find(|(_, (_, other))| other.nccl_version != first.nccl_version)
        {
            return Err(Stop::Refused(format!(
                "processes have different NCCL versions, which cannot talk: process 0 on {} has {} ({}), process \
                 {index} on {host} has {} ({}). Point NCCL_LIBRARY to the same version everywhere",
                found[0].0, first.nccl_version, first.nccl_path, other.nccl_version, other.nccl_path
            )));
        }
        let threads = settings.threads.unwrap_or(1);
        let addresses: Vec<&[_]> = found.iter().map(|(_, gpus)| &gpus.addresses[..]).collect();
        let shares: Vec<Share> = (0..found.len())
            .map(|index| share(&hosts, &addresses, index, threads, settings.gpus))
            .collect::<Result<_, _>>()
            .map_err(Stop::Refused)?;
        if let Some(index) = shares.iter().position(|share| share.gpus != shares[0].gpus) {
            return Err(Stop::Refused(format!(
                "process 0 on {} would use {} GPUs, but process {index} on {} {}: say with -g how many each shall use",
                hosts[0].0, shares[0].gpus, hosts[index].0, shares[index].gpus
            )));
        }
        let Share { first: first_gpu, gpus } = shares[process.rank()];
        let library = Library::load().map_err(|error| Stop::Refused(error.to_string()))?;
        let id = exchange_id(library, process)?;
        Ok(Self {
            library,
            id,
            threads,
            gpus,
            first: first_gpu,
            provenance: vec![format!(
                "Backend: nccl {} from {}; CUDA driver {}.{}",
                first.nccl_version,
                first.nccl_path,
                first.driver / 1000,
                first.driver % 1000 / 10
            )],
        })
    }
}

/// What nccl-tests sets, so that numbers compare: scheduling for NVLink from NCCL 2.28 on.
fn config(library: Library) -> nccl::Config {
    let config = nccl::Config::new();
    if library.version() >= nccl::Version::new(2, 28, 0) { config.nvlink_centric_sched(true) } else { config }
}

/// Rank 0's unique id, on every process.
fn exchange_id(library: Library, process: &dyn World) -> Result<UniqueId, Stop> {
    let mine = if process.rank() == 0 { UniqueId::new(library)?.as_bytes().to_vec() } else { Vec::new() };
    let all = process.all_gather(&mine)?;
    let bytes = all.first().map(Vec::as_slice).unwrap_or_default();
    let bytes: [u8; UniqueId::BYTES] = bytes.try_into().context("process 0 sent no NCCL unique id")?;
    Ok(UniqueId::from_bytes(bytes))
}

impl Node for GpuNode {
    fn threads(&self) -> usize {
        self.threads
    }

    fn gpus(&self) -> usize {
        self.gpus
    }

    fn provenance(&self) -> Vec<String> {
        self.provenance.clone()
    }

    fn default_max_bytes(&self) -> u64 {
        DEFAULT_MAX_BYTES
    }

    fn open(&self, index: usize) -> anyhow::Result<Box<dyn Device>> {
        let ordinal = self.first + index;
        let context = CudaContext::new(ordinal).with_context(|| format!("opening GPU {ordinal}"))?;
        let stream = context.new_stream().with_context(|| format!("creating a stream on GPU {ordinal}"))?;
        let (free, _) = context.mem_get_info()?;
        Ok(Box::new(Gpu { library: self.library, id: self.id, ordinal, context, stream, free: free as u64 }))
    }
}

struct Gpu {
    library: Library,
    id: UniqueId,
    ordinal: usize,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    free: u64,
}

impl Device for Gpu {
    fn line(&self) -> String {
        let name = self.context.name().unwrap_or_else(|_| "unknown GPU".to_owned());
        table::gpu(self.ordinal, pci_address(self.ordinal).unwrap_or_default(), &name)
    }

    fn capacity(&self) -> u64 {
        self.free.saturating_sub(RESERVE) / 2
    }

    fn memory(&self) -> String {
        format!("GPU {}", self.ordinal)
    }

    fn connect(self: Box<Self>, world: &world::Handle, bytes: usize) -> anyhow::Result<Box<dyn Backend>> {
        let data = DeviceData::new(&self.context)?;
        let config = config(self.library);
        let communicator =
            Communicator::init(self.library, &self.stream, world.rank(), world.size(), &self.id, &config)?;
        Ok(Box::new(GpuRank {
            send: Memory::alloc(self.library, &self.stream, bytes)?,
            receive: Memory::alloc(self.library, &self.stream, bytes)?,
            communicator,
            stream: self.stream,
            data,
            rank: world.rank(),
            ranks: world.size(),
        }))
    }
}

/// One rank. Fields drop in this order: the communicator before the memory that it may still use.
struct GpuRank {
    communicator: Communicator,
    send: Memory,
    receive: Memory,
    stream: Arc<CudaStream>,
    data: DeviceData,
    rank: usize,
    ranks: usize,
}

impl GpuRank {
    fn start_typed<T: Element>(
        &mut self,
        work: &Work,
        placement: Placement,
        shift: usize,
    ) -> anyhow::Result<()> {
        let mut receive = self.receive.slice_mut::<T>(shift, work.counts.receive)?;
        let op = work.op.unwrap_or(ReduceOp::Sum);
        match (work.collective, placement) {
            (Collective::AllReduce, Placement::OutOfPlace) => self.communicator.all_reduce(
                &self.send.slice::<T>(shift, work.counts.send)?,
                &mut receive,
                op,
            ),
            (Collective::AllReduce, Placement::InPlace) => {
                self.communicator.all_reduce_in_place(&mut receive, op)
            }
            (Collective::AllGather, Placement::OutOfPlace) => {
                self.communicator.all_gather(&self.send.slice::<T>(shift, work.counts.send)?, &mut receive)
            }
            (Collective::AllGather, Placement::InPlace) => {
                self.communicator.all_gather_in_place(&mut receive)
            }
        }?;
        Ok(())
    }
}

impl Backend for GpuRank {
    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()> {
        let size = work.data_type.size();
        self.stream.memset_zeros(&mut self.receive.slice_mut::<u8>(0, work.counts.receive * size)?)?;
        let (memory, start) = match placement {
            Placement::OutOfPlace => (&mut self.send, 0),
            Placement::InPlace => {
                (&mut self.receive, work.collective.in_place_start(&work.counts, self.rank) * size)
            }
        };
        let mut input = memory.slice_mut::<u8>(start, work.counts.send * size)?;
        let bytes = input.len() as u64;
        let (address, _queued) = input.device_ptr_mut(&self.stream);
        let problem = work.problem(seed, self.ranks);
        // SAFETY: the view is borrowed mutably and has these bytes; all work on this memory is on this one stream.
        unsafe { self.data.fill(&self.stream, &problem, self.rank as u32, 0, address, bytes) }?;
        self.stream.synchronize()?;
        Ok(())
    }

    fn start(&mut self, work: &Work, placement: Placement, shift: usize) -> anyhow::Result<()> {
        with_element!(work.data_type, T => self.start_typed::<T>(work, placement, shift))
    }

    /// Polls, as nccl-tests does, so that an asynchronous error ends the wait.
    fn complete(&mut self) -> anyhow::Result<()> {
        loop {
            // SAFETY: the stream is alive, and its context is current: every rank's thread has opened its own GPU.
            let state = unsafe { sys::cuStreamQuery(self.stream.cu_stream()) };
            match state {
                CUresult::CUDA_SUCCESS => return Ok(()),
                CUresult::CUDA_ERROR_NOT_READY => self.communicator.async_error()?,
                _ => state.result().context("waiting for the GPU")?,
            }
            thread::yield_now();
        }
    }

    fn damage(&mut self, work: &Work, index: usize) -> anyhow::Result<()> {
        if index < work.counts.receive {
            let size = work.data_type.size();
            let flip = work.significant_bit(self.ranks)?.to_le_bytes();
            let mut element = self.receive.slice_mut::<u8>(index * size, size)?;
            let mut bytes = self.stream.clone_dtoh(&element.as_view())?;
            bytes.iter_mut().zip(flip).for_each(|(byte, flip)| *byte ^= flip);
            self.stream.memcpy_htod(&bytes, &mut element)?;
            self.stream.synchronize()?;
        }
        Ok(())
    }

    fn check(&mut self, work: &Work, seed: u64) -> anyhow::Result<Mismatches> {
        let received = self.receive.slice::<u8>(0, work.counts.receive * work.data_type.size())?;
        let bytes = received.len() as u64;
        let (address, _queued) = received.device_ptr(&self.stream);
        let expected = work.collective.result(&work.counts, self.ranks);
        let problem = work.problem(seed, self.ranks);
        // SAFETY: the view is borrowed and has these bytes, initialised by `fill`; all work on it is on this stream.
        Ok(unsafe { self.data.check(&self.stream, &problem, &expected, address, bytes) }?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of `hosts`' processes gets of eight GPUs that all see.
    fn shares(hosts: &[(&str, &str)], threads: usize, gpus: Option<usize>) -> Vec<Result<Share, String>> {
        let all: Vec<(u32, u32, u32)> = (0..8).map(|bus| (0, bus, 0)).collect();
        let addresses = vec![&all[..]; hosts.len()];
        (0..hosts.len()).map(|process| share(hosts, &addresses, process, threads, gpus)).collect()
    }

    #[test]
    fn processes_of_one_host_share_its_gpus_and_hosts_of_one_name_do_not() {
        let share = |first, gpus| Ok(Share { first, gpus });
        let twins = [("localhost", "boot 1"), ("localhost", "boot 1")];
        assert_eq!(shares(&twins, 1, None), [share(0, 4), share(4, 4)]);
        assert_eq!(shares(&twins, 2, Some(1)), [share(0, 1), share(2, 1)]);
        let namesakes = [("localhost", "boot 1"), ("localhost", "boot 2")];
        assert_eq!(shares(&namesakes, 1, None), [share(0, 8), share(0, 8)]);
    }

    #[test]
    fn more_gpus_than_there_are_is_refused_whatever_the_number() {
        for gpus in [9, u32::MAX as usize, usize::MAX] {
            let refusal = shares(&[("node1", "boot 1"); 2], 4096, Some(gpus)).remove(0).unwrap_err();
            assert!(refusal.contains("on node1, but it has 8"), "{refusal}");
        }
    }

    #[test]
    fn gpus_that_each_process_sees_alone_are_its_own() {
        let (one, two) = ([(0, 1, 0)], [(0, 2, 0)]);
        let hosts = [("node1", "boot 1"); 2];
        let own = share(&hosts, &[&one, &two], 1, 1, None);
        assert_eq!(own, Ok(Share { first: 0, gpus: 1 }));
        let overlap = share(&hosts, &[&one, &[(0, 1, 0), (0, 2, 0)]], 0, 1, None);
        assert!(overlap.unwrap_err().contains("different GPUs that overlap"));
    }
}
