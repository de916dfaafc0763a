//! Host memory over libfabric.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytemuck::{Pod, Zeroable};
use collectives::ReduceOp;
use collectives::fabric::{self, Communicator, Library, Options};
use collectives::world::{self, World};

use super::choice::exchange;
use super::{Abilities, Backend, Body, Device, Node, Place, Rooms, Schedule, Times, Work, shift};
use crate::cli::Settings;
use crate::collective::{Collective, Member};
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
    if settings.ops.contains(&Op::MulSum)
        && settings.collectives.iter().any(|collective| collective.loops_over_ops())
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

/// What there is over host memory: all but the operator that scales on a GPU.
fn abilities() -> Abilities {
    let mut abilities = Abilities::default();
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
            sent: Vec::new(),
            received: Vec::new(),
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
    /// The parts of an alltoallv, kept so that an operation allocates nothing.
    sent: Vec<Range<usize>>,
    received: Vec<Range<usize>>,
}

impl HostRank {
    fn start_typed<T: collectives::Element + Pod>(
        &mut self,
        work: &Work,
        placement: Placement,
        index: usize,
    ) -> anyhow::Result<()> {
        let (size, counts, member) = (work.data_type.size(), &work.counts, work.member);
        self.sent.clear();
        self.received.clear();
        if let Some(traffic) = &work.traffic {
            let own = member.rank;
            let part = |start: usize, count: usize| start..start + count;
            for peer in 0..member.ranks {
                self.sent.push(part(traffic.send_start(own, peer), traffic.count(own, peer)));
                self.received.push(part(traffic.receive_start(peer, own), traffic.count(peer, own)));
            }
        }
        let at = shift(index, work.bytes(), self.rooms.size);
        match placement {
            Placement::OutOfPlace => {
                let receive = bytemuck::cast_slice_mut(self.receive.bytes(at, counts.receive * size));
                // A send buffer that has no room for the largest size is gone through by what is sent.
                let source = if self.rooms.send >= self.rooms.size {
                    at
                } else {
                    shift(index, counts.send * size, self.rooms.send)
                };
                let send = bytemuck::cast_slice_mut(self.send.bytes(source, counts.send * size));
                let parts = (&*self.sent, &*self.received);
                out_of_place::<T>(&mut self.communicator, work, send, receive, parts)?;
            }
            Placement::InPlace => {
                let whole = counts.send.max(counts.receive);
                let data = bytemuck::cast_slice_mut(self.receive.bytes(at, whole * size));
                in_place::<T>(&mut self.communicator, work, data, (&*self.sent, &*self.received))?;
            }
        }
        Ok(())
    }
}

fn out_of_place<T: collectives::Element>(
    communicator: &mut Communicator,
    work: &Work,
    send: &[T],
    receive: &mut [T],
    (sent, received): (&[Range<usize>], &[Range<usize>]),
) -> Result<(), fabric::Error> {
    let Member { rank, ranks, root } = work.member;
    let root = root.unwrap_or(0);
    let op = work.op.and_then(Op::built_in).unwrap_or(ReduceOp::Sum);
    match work.collective {
        Collective::AllReduce => communicator.all_reduce(send, receive, op),
        Collective::AllGather => communicator.all_gather(send, receive),
        Collective::ReduceScatter => communicator.reduce_scatter(send, receive, op),
        Collective::Broadcast => communicator.broadcast(Some(send), receive, root),
        Collective::Reduce => communicator.reduce(send, Some(receive), op, root),
        Collective::AllToAll => communicator.all_to_all(send, receive),
        Collective::AllToAllV => communicator.all_to_all_v(send, sent, receive, received),
        Collective::Gather => communicator.gather(send, Some(receive), root),
        Collective::Scatter => communicator.scatter(Some(send), receive, root),
        Collective::SendRecv => {
            communicator.exchange(send, (rank + 1) % ranks, receive, (rank + ranks - 1) % ranks)
        }
        Collective::Hypercube => {
            receive[rank * send.len()..][..send.len()].copy_from_slice(send);
            hypercube(communicator, work.member, receive)
        }
    }
}

fn in_place<T: collectives::Element>(
    communicator: &mut Communicator,
    work: &Work,
    data: &mut [T],
    (sent, received): (&[Range<usize>], &[Range<usize>]),
) -> Result<(), fabric::Error> {
    let Member { rank, ranks, root } = work.member;
    let root = root.unwrap_or(0);
    let op = work.op.and_then(Op::built_in).unwrap_or(ReduceOp::Sum);
    match work.collective {
        Collective::AllReduce => communicator.all_reduce_in_place(data, op),
        Collective::AllGather => communicator.all_gather_in_place(data),
        Collective::ReduceScatter => communicator.reduce_scatter_in_place(data, op),
        Collective::Broadcast => communicator.broadcast_in_place(data, root),
        Collective::Reduce => communicator.reduce_in_place(data, op, root),
        Collective::AllToAll => communicator.all_to_all_in_place(data),
        Collective::AllToAllV => communicator.all_to_all_v_in_place(data, sent, received),
        Collective::Gather => communicator.gather_in_place(data, root),
        Collective::Scatter => communicator.scatter_in_place(data, root),
        Collective::SendRecv => {
            communicator.exchange_in_place(data, (rank + 1) % ranks, (rank + ranks - 1) % ranks)
        }
        Collective::Hypercube => hypercube(communicator, work.member, data),
    }
}

/// Exchanges all parts that are known, from this rank's own on, with partners at doubling distance.
fn hypercube<T: collectives::Element>(
    communicator: &mut Communicator,
    member: Member,
    data: &mut [T],
) -> Result<(), fabric::Error> {
    let part = data.len() / member.ranks;
    for step in 0..member.ranks.ilog2() {
        let block = 1 << step;
        let peer = member.rank ^ block;
        // The partners' parts lie side by side.
        let first = member.rank / (2 * block) * (2 * block) * part;
        let (low, high) = data[first..first + 2 * block * part].split_at_mut(block * part);
        let (mine, theirs) = if member.rank < peer { (low, high) } else { (high, low) };
        communicator.exchange(mine, peer, theirs, peer)?;
    }
    Ok(())
}

impl Backend for HostRank {
    fn transport(&self) -> Option<String> {
        Some(self.communicator.describe().to_owned())
    }

    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()> {
        let size = work.data_type.size();
        let (rank, input_bytes) = (work.member.rank, work.counts.send * size);
        let cleared = match placement {
            Placement::OutOfPlace => work.counts.receive * size,
            Placement::InPlace => work.counts.send.max(work.counts.receive) * size,
        };
        self.receive.bytes(0, cleared).fill(0);
        let problem = work.problem(seed);
        if work.collective.has_input(work.member) {
            let input = match placement {
                Placement::OutOfPlace => self.send.bytes(0, input_bytes),
                Placement::InPlace => {
                    let start = work.collective.in_place_input(&work.counts, rank) * size;
                    self.receive.bytes(start, input_bytes)
                }
            };
            data::fill_input(&problem, rank as u32, 0, input)?;
        }
        if work.collective.keeps_receive(work.member) && placement == Placement::OutOfPlace {
            data::fill_input(&problem, rank as u32, 0, self.receive.bytes(0, input_bytes))?;
        }
        Ok(())
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
        // A rank that has no result has a buffer for one.
        let expected = work.result();
        let elements = if expected.is_empty() { 0 } else { work.counts.receive };
        let received = self.receive.bytes(work.result_start(placement) * size, elements * size);
        Ok(data::check(&work.problem(seed), &expected, received)?)
    }
}
