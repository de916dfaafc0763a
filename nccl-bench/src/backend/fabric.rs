//! Host memory over libfabric.

use anyhow::Context as _;
use bytemuck::{Pod, Zeroable};
use collectives::ReduceOp;
use collectives::fabric::{self, Communicator, Library, Options};
use collectives::world::{self, World};

use super::choice::exchange;
use super::{Backend, Device, Node, Work};
use crate::cli::Settings;
use crate::collective::{Collective, Placement};
use crate::data::{self, Mismatches};
use crate::run::Stop;

const DEFAULT_MAX_BYTES: u64 = 64 << 20;

/// What this process contributes: threads with buffers in host memory.
#[derive(Debug)]
pub struct Hosts {
    threads: usize,
    options: Options,
    ranks_on_host: usize,
    provenance: Vec<String>,
}

impl Hosts {
    /// Finds libfabric on every process. `why` says why this backend runs.
    ///
    /// # Errors
    /// [`Stop::Refused`] when a process has no libfabric, or arguments do not fit this backend.
    pub fn prepare(settings: &Settings, process: &dyn World, why: &str) -> Result<Self, Stop> {
        if settings.gpus.is_some() {
            return Err(Stop::Refused("-g counts GPUs; for ranks over host memory use -t".to_owned()));
        }
        let provider = (settings.provider != "auto").then_some(settings.provider.as_str());
        let processes = exchange(process, library(provider))?;
        for (index, each) in processes.iter().enumerate() {
            if let Err(reason) = &each.found {
                return Err(Stop::Refused(format!("process {index} on {}: {reason}", each.host)));
            }
        }
        let threads = settings.threads.unwrap_or(if process.size() == 1 { 2 } else { 1 });
        let version = processes.into_iter().next().and_then(|first| first.found.ok()).unwrap_or_default();
        let mut options = Options::default();
        options.provider = provider.map(str::to_owned);
        Ok(Self {
            threads,
            options,
            ranks_on_host: process.local_size() * threads,
            provenance: vec![format!("Backend: fabric, {version}: host memory, {why}")],
        })
    }
}

/// The version and path of libfabric, for the report; an error when it has no such provider.
fn library(provider: Option<&str>) -> Result<String, String> {
    let library = Library::load().map_err(|error| error.to_string())?;
    let described = format!("libfabric {} from {}", library.version(), library.path().display());
    let Some(asked) = provider else { return Ok(described) };
    let providers = fabric::providers().map_err(|error| error.to_string())?;
    // One provider with two names: `net` in libfabric 1.17, `tcp` from 1.18 on.
    let tcp = ["tcp", "net"];
    if providers.iter().any(|each| each.name == asked || tcp.contains(&&*each.name) && tcp.contains(&asked)) {
        return Ok(described);
    }
    let names: Vec<&str> = providers.iter().map(|each| each.name.as_str()).collect();
    Err(format!(
        "--provider {asked}: {described} has no such provider for tagged messages here; it has {}",
        names.join(", ")
    ))
}

impl Node for Hosts {
    fn threads(&self) -> usize {
        self.threads
    }

    fn gpus(&self) -> usize {
        1
    }

    fn provenance(&self) -> Vec<String> {
        self.provenance.clone()
    }

    fn default_max_bytes(&self) -> u64 {
        DEFAULT_MAX_BYTES
    }

    fn open(&self, _index: usize) -> anyhow::Result<Box<dyn Device>> {
        Ok(Box::new(HostMemory {
            options: self.options.clone(),
            capacity: available_memory()? / 10 * 9 / 2 / self.ranks_on_host as u64,
        }))
    }
}

/// Bytes that the kernel says can be allocated without swapping.
fn available_memory() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let kibibytes = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .context("/proc/meminfo has no MemAvailable")?;
    Ok(kibibytes * 1024)
}

struct HostMemory {
    options: Options,
    capacity: u64,
}

impl Device for HostMemory {
    fn line(&self) -> String {
        "host memory".to_owned()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn memory(&self) -> String {
        "host memory".to_owned()
    }

    fn connect(self: Box<Self>, world: &world::Handle, bytes: usize) -> anyhow::Result<Box<dyn Backend>> {
        Ok(Box::new(HostRank {
            communicator: Communicator::new(world.clone(), &self.options)?,
            rank: world.rank(),
            ranks: world.size(),
            send: Buffer::new(bytes)?,
            receive: Buffer::new(bytes)?,
        }))
    }
}

/// Page-aligned memory, touched when it is made.
struct Buffer(Vec<Page>);

#[repr(C, align(4096))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Page([u8; 4096]);

impl Buffer {
    fn new(bytes: usize) -> anyhow::Result<Self> {
        let pages = bytes.div_ceil(size_of::<Page>());
        let mut memory = Vec::new();
        memory.try_reserve_exact(pages).with_context(|| format!("allocating {bytes} bytes"))?;
        memory.resize(pages, Page([1; 4096]));
        Ok(Self(memory))
    }

    fn bytes(&mut self, start: usize, len: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[start..start + len]
    }
}

/// One rank.
struct HostRank {
    communicator: Communicator,
    rank: usize,
    ranks: usize,
    send: Buffer,
    receive: Buffer,
}

impl HostRank {
    fn start_typed<T: collectives::Element + Pod>(
        &mut self,
        work: &Work,
        placement: Placement,
        shift: usize,
    ) -> anyhow::Result<()> {
        let size = work.data_type.size();
        let receive: &mut [T] =
            bytemuck::cast_slice_mut(self.receive.bytes(shift, work.counts.receive * size));
        let send: &[T] = bytemuck::cast_slice_mut(self.send.bytes(shift, work.counts.send * size));
        let op = work.op.unwrap_or(ReduceOp::Sum);
        match (work.collective, placement) {
            (Collective::AllReduce, Placement::OutOfPlace) => self.communicator.all_reduce(send, receive, op),
            (Collective::AllReduce, Placement::InPlace) => self.communicator.all_reduce_in_place(receive, op),
            (Collective::AllGather, Placement::OutOfPlace) => self.communicator.all_gather(send, receive),
            (Collective::AllGather, Placement::InPlace) => self.communicator.all_gather_in_place(receive),
        }?;
        Ok(())
    }
}

impl Backend for HostRank {
    fn transport(&self) -> Option<String> {
        Some(self.communicator.describe().to_owned())
    }

    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()> {
        let size = work.data_type.size();
        let (rank, input_bytes) = (self.rank, work.counts.send * size);
        self.receive.bytes(0, work.counts.receive * size).fill(0);
        let input = match placement {
            Placement::OutOfPlace => self.send.bytes(0, input_bytes),
            Placement::InPlace => {
                let start = work.collective.in_place_start(&work.counts, rank) * size;
                self.receive.bytes(start, input_bytes)
            }
        };
        Ok(data::fill_input(&work.problem(seed, self.ranks), rank as u32, 0, input)?)
    }

    fn start(&mut self, work: &Work, placement: Placement, shift: usize) -> anyhow::Result<()> {
        with_element!(work.data_type, T => self.start_typed::<T>(work, placement, shift))
    }

    fn complete(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn damage(&mut self, work: &Work, index: usize) -> anyhow::Result<()> {
        if index < work.counts.receive {
            let size = work.data_type.size();
            let flip = work.significant_bit(self.ranks)?.to_le_bytes();
            let element = self.receive.bytes(index * size, size);
            element.iter_mut().zip(flip).for_each(|(byte, flip)| *byte ^= flip);
        }
        Ok(())
    }

    fn check(&mut self, work: &Work, seed: u64) -> anyhow::Result<Mismatches> {
        let received = self.receive.bytes(0, work.counts.receive * work.data_type.size());
        let expected = work.collective.result(&work.counts, self.ranks);
        Ok(data::check(&work.problem(seed, self.ranks), &expected, received)?)
    }
}
