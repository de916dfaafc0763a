//! Host memory over libfabric.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytemuck::{Pod, Zeroable};
use collectives::ReduceOp;
use collectives::fabric::{self, Communicator, Library, Options};
use collectives::world::{self, World};

use super::choice::exchange;
use super::{Abilities, Backend, Body, Device, Node, Place, Rooms, Schedule, Times, Work, shift};
use crate::cli::Settings;
use crate::collective::Collective;
use crate::data::{self, Mismatches, Op};
use crate::record::{Blocking, Placement, Provenance, Rank, Registration};
use crate::stop::Stop;

const DEFAULT_MAX_BYTES: u64 = 64 << 20;

/// What this process contributes: threads with buffers in host memory.
#[derive(Debug)]
pub struct Hosts {
    threads: usize,
    options: Options,
    ranks_on_host: usize,
    /// That of the process's first rank.
    place: Place,
    provenance: Provenance,
    note: String,
}

impl Hosts {
    /// Finds libfabric on every process. `why` says why this backend runs.
    ///
    /// # Errors
    /// [`Stop::Refused`] when a process has no libfabric, or arguments do not fit this backend.
    pub fn prepare(settings: &Settings, process: &dyn World, why: &str) -> Result<Self, Stop> {
        if let Some(problem) = misfit(settings) {
            return Err(Stop::Refused(problem));
        }
        let provider = (settings.provider != "auto").then_some(settings.provider.as_str());
        let processes = exchange(process, library(provider))?;
        for (index, each) in processes.iter().enumerate() {
            if let Err(reason) = &each.found {
                return Err(Stop::Refused(format!("process {index} on {}: {reason}", each.host)));
            }
        }
        let threads = settings.threads.unwrap_or(if process.size() == 1 { 2 } else { 1 });
        let first = processes.into_iter().next().and_then(|first| first.found.ok()).unwrap_or_default();
        let mut options = Options::default();
        options.provider = provider.map(str::to_owned);
        Ok(Self {
            threads,
            options,
            ranks_on_host: process.local_size() * threads,
            place: Place { rank: process.rank() * threads, ranks: process.size() * threads, color: 0 },
            note: format!("Host memory, {why}"),
            provenance: Provenance {
                backend: "fabric".to_owned(),
                library_version: first.version,
                library_path: first.path,
                ..Provenance::default()
            },
        })
    }
}

/// What this backend cannot do of what is asked for.
fn misfit(settings: &Settings) -> Option<String> {
    let host = |what: &str| Some(format!("{what}: only NCCL over GPUs does that, and this is host memory"));
    let known = abilities();
    if let Some(other) =
        settings.collectives.iter().find(|collective| !known.collectives.contains(collective))
        && !settings.all.collectives
    {
        return Some(format!(
            "{other} is not there yet over host memory (--backend fabric): it has allreduce and allgather"
        ));
    }
    if settings.ops.contains(&Op::MulSum)
        && settings.collectives.contains(&Collective::AllReduce)
        && !settings.all.ops
    {
        return host("-o mulsum");
    }
    match settings {
        Settings { gpus: Some(2..), .. } => {
            Some("-g counts GPUs; for ranks over host memory use -t".to_owned())
        }
        Settings { graph_launches: 1.., .. } => host("-G (CUDA graphs)"),
        Settings { default_stream: true, .. } => host("-y (CUDA's default stream)"),
        Settings { cta_policy: Some(_), .. } => host("-x (thread blocks)"),
        Settings { aggregated: 2.., .. } => host("-m (operations in a group)"),
        Settings { memory_report: true, .. } => host("-M (GPU memory)"),
        Settings { registration: Registration::Local | Registration::Symmetric, .. } => {
            host("-R (registered buffers)")
        }
        settings if settings.variables.split.is_some() => host("NCCL_TESTS_SPLIT"),
        _ => None,
    }
}

/// What there is over host memory.
fn abilities() -> Abilities {
    let mut abilities =
        Abilities { collectives: vec![Collective::AllReduce, Collective::AllGather], ..Abilities::default() };
    abilities.ops.retain(|op| op.built_in().is_some());
    abilities
}

/// The libfabric that a process found.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Loaded {
    version: String,
    path: String,
}

/// The version and path of libfabric, for the report; an error when it has no such provider.
fn library(provider: Option<&str>) -> Result<Loaded, String> {
    let library = Library::load().map_err(|error| error.to_string())?;
    let loaded =
        Loaded { version: library.version().to_string(), path: library.path().display().to_string() };
    let Some(asked) = provider else { return Ok(loaded) };
    let providers = fabric::providers().map_err(|error| error.to_string())?;
    // One provider with two names: `net` in libfabric 1.17, `tcp` from 1.18 on.
    let tcp = ["tcp", "net"];
    if providers.iter().any(|each| each.name == asked || tcp.contains(&&*each.name) && tcp.contains(&asked)) {
        return Ok(loaded);
    }
    let names: Vec<&str> = providers.iter().map(|each| each.name.as_str()).collect();
    let shortage = fabric::shm_shortage().filter(|_| asked == "shm");
    Err(format!(
        "--provider {asked}: libfabric {} from {} has no such provider for tagged messages here; it has {}{}",
        loaded.version,
        loaded.path,
        names.join(", "),
        shortage.map_or_else(String::new, |shortage| format!("; {shortage}"))
    ))
}

impl Node for Hosts {
    fn threads(&self) -> usize {
        self.threads
    }

    fn gpus(&self) -> usize {
        1
    }

    fn place(&self, index: usize) -> Place {
        Place { rank: self.place.rank + index, ..self.place }
    }

    fn abilities(&self) -> Abilities {
        abilities()
    }

    fn provenance(&self) -> Provenance {
        self.provenance.clone()
    }

    fn notes(&self) -> Vec<String> {
        vec![self.note.clone()]
    }

    fn default_max_bytes(&self) -> u64 {
        DEFAULT_MAX_BYTES
    }

    fn open(&self, _index: usize) -> anyhow::Result<Box<dyn Device>> {
        Ok(Box::new(HostMemory {
            options: self.options.clone(),
            capacity: available_memory()? / 2 / self.ranks_on_host as u64,
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
    fn describe(&self) -> Rank {
        Rank {
            rank: 0,
            group: 0,
            pid: 0,
            host: String::new(),
            device: None,
            pci: None,
            device_name: "host memory".to_owned(),
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn memory(&self) -> String {
        "host memory".to_owned()
    }

    fn connect(
        self: Box<Self>,
        world: &world::Handle,
        rooms: Rooms,
        body: &mut Body<'_>,
    ) -> anyhow::Result<()> {
        body(&mut HostRank {
            communicator: Communicator::new(world.clone(), &self.options)?,
            rooms,
            send: Buffer::new(rooms.send)?,
            receive: Buffer::new(rooms.receive)?,
        })
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
    rooms: Rooms,
    send: Buffer,
    receive: Buffer,
}

impl HostRank {
    fn start_typed<T: collectives::Element + Pod>(
        &mut self,
        work: &Work,
        placement: Placement,
        index: usize,
    ) -> anyhow::Result<()> {
        let size = work.data_type.size();
        let at = shift(index, work.bytes(), self.rooms.size);
        let receive: &mut [T] = bytemuck::cast_slice_mut(self.receive.bytes(at, work.counts.receive * size));
        let source = if self.rooms.send >= self.rooms.size {
            at
        } else {
            shift(index, work.counts.send * size, self.rooms.send)
        };
        let send: &[T] = bytemuck::cast_slice_mut(self.send.bytes(source, work.counts.send * size));
        let op = work.op.and_then(Op::built_in).unwrap_or(ReduceOp::Sum);
        match (work.collective, placement) {
            (Collective::AllReduce, Placement::OutOfPlace) => self.communicator.all_reduce(send, receive, op),
            (Collective::AllReduce, Placement::InPlace) => self.communicator.all_reduce_in_place(receive, op),
            (Collective::AllGather, Placement::OutOfPlace) => self.communicator.all_gather(send, receive),
            (Collective::AllGather, Placement::InPlace) => self.communicator.all_gather_in_place(receive),
            (other, _) => anyhow::bail!("{other} is not there over host memory"),
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
        let (rank, input_bytes) = (work.member.rank, work.counts.send * size);
        self.receive.bytes(0, work.counts.receive * size).fill(0);
        let input = match placement {
            Placement::OutOfPlace => self.send.bytes(0, input_bytes),
            Placement::InPlace => {
                let start = work.collective.in_place_input(&work.counts, rank) * size;
                self.receive.bytes(start, input_bytes)
            }
        };
        Ok(data::fill_input(&work.problem(seed), rank as u32, 0, input)?)
    }

    /// Returns when the operation is complete.
    fn start(&mut self, work: &Work, placement: Placement, index: usize, _graph: bool) -> anyhow::Result<()> {
        with_element!(work.data_type, T => self.start_typed::<T>(work, placement, index))
    }

    fn complete(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn time(
        &mut self,
        work: &Work,
        placement: Placement,
        schedule: &Schedule,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times> {
        let mut each_us = Vec::with_capacity(if schedule.each { schedule.iterations } else { 0 });
        let mut counted = Duration::ZERO;
        let mut start = Instant::now();
        let mut before = start;
        for iteration in 0..schedule.iterations {
            self.start(work, placement, iteration, false)?;
            if schedule.each {
                let now = Instant::now();
                each_us.push((now - before).as_secs_f64() * 1e6);
                before = now;
            }
            // Every operation is waited for.
            match schedule.blocking {
                Blocking::No | Blocking::Wait => {}
                Blocking::WaitAndBarrier => {
                    barrier()?;
                    before = Instant::now();
                }
                Blocking::Outer => {
                    counted += start.elapsed();
                    barrier()?;
                    start = Instant::now();
                    before = start;
                }
            }
        }
        let total = counted + start.elapsed();
        Ok(Times { total, enqueue: total, each_us })
    }

    fn damage(&mut self, work: &Work, placement: Placement, index: usize) -> anyhow::Result<()> {
        if index < work.counts.receive {
            let size = work.data_type.size();
            let flip = work.significant_bit()?.to_le_bytes();
            let element = self.receive.bytes((work.result_start(placement) + index) * size, size);
            element.iter_mut().zip(flip).for_each(|(byte, flip)| *byte ^= flip);
        }
        Ok(())
    }

    fn check(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<Mismatches> {
        let size = work.data_type.size();
        let received = self.receive.bytes(work.result_start(placement) * size, work.counts.receive * size);
        Ok(data::check(&work.problem(seed), &work.result(), received)?)
    }
}
