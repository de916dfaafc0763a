//! Ranks with buffers in host memory, whichever library carries the data between them.

use crate::collective::Layout as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytemuck::{Pod, Zeroable};
use collectives::world::{self, World};

use super::{Abilities, Backend, Body, Device, Node, Place, Rooms, Schedule, Side, Times, Work, shift};
use crate::data::{self, Mismatches, Op};
use crate::request::Request;
use crate::supervision::Stop;
use diagnosis::host::available_memory;
use record::{Blocking, Placement, Provenance, Rank, Registration};

const DEFAULT_MAX_BYTES: u64 = 64 << 20;

/// A library that carries data between host buffers, found on every process.
pub(super) trait Library: Send + Sync {
    /// Connects one rank with all others.
    ///
    /// # Errors
    /// When the library fails.
    fn connect(&self, world: &world::Handle) -> anyhow::Result<Box<dyn Carrier>>;
}

/// One rank's operations. Each returns when it is complete. Buffers are as long as [`Work::counts`] says, and aligned to
/// the elements.
pub(super) trait Carrier {
    /// What the data goes through, where that is known.
    fn transport(&self) -> Option<String> {
        None
    }

    /// How an operation is carried out, where that is known.
    fn algorithm(&self, _work: &Work, _placement: Placement) -> Option<record::Algorithm> {
        None
    }

    /// From one buffer into the other.
    ///
    /// # Errors
    /// When the library fails.
    fn out_of_place(&mut self, work: &Work, send: &[u8], receive: &mut [u8]) -> anyhow::Result<()>;

    /// Within a buffer as long as the longer one.
    ///
    /// # Errors
    /// When the library fails.
    fn in_place(&mut self, work: &Work, data: &mut [u8]) -> anyhow::Result<()>;

    /// Where the rank's result begins in the receive buffer, in elements.
    fn result_start(&self, work: &Work, placement: Placement) -> usize {
        work.result_start(placement)
    }
}

/// A library that was found on every process, and what it can do.
pub struct Offer {
    pub(super) library: Arc<dyn Library>,
    /// The backend's name.
    pub(super) name: &'static str,
    /// On rank 0.
    pub(super) version: String,
    pub(super) path: String,
    pub(super) abilities: Abilities,
    /// How many ranks a process has that is the only one.
    pub(super) ranks_alone: usize,
    /// What a reader should know of it.
    pub(super) notes: Vec<String>,
}

/// Finds a library on all processes alike.
pub type Find = fn(&Request, &dyn World) -> Result<Offer, Stop>;

/// What this process contributes: threads with buffers in host memory.
pub(super) struct Hosts {
    offer: Offer,
    /// What is measured in turn with it.
    versus: Option<Offer>,
    threads: usize,
    ranks_on_host: usize,
    /// That of the process's first rank.
    place: Place,
    why: String,
}

impl Hosts {
    /// Ranks whose data the library carries that `find` finds, in turn with that of `versus`. `why` says why it does.
    ///
    /// # Errors
    /// [`Stop::Refused`] when arguments do not fit host memory; and those of `find` and `versus`.
    pub(super) fn prepare(
        settings: &Request,
        process: &dyn World,
        find: Find,
        versus: Option<Find>,
        why: &str,
    ) -> Result<Self, Stop> {
        if let Some(problem) = misfit(settings) {
            return Err(Stop::Refused(problem));
        }
        let offer = find(settings, process)?;
        let versus = versus.map(|find| find(settings, process)).transpose()?;
        let alone = versus.iter().chain([&offer]).map(|offer| offer.ranks_alone).min().unwrap_or(1);
        let threads = settings.threads.unwrap_or(if process.size() == 1 { alone } else { 1 });
        Ok(Self {
            offer,
            versus,
            threads,
            ranks_on_host: process.local_size() * threads,
            place: Place { rank: process.rank() * threads, ranks: process.size() * threads, color: 0 },
            why: why.to_owned(),
        })
    }
}

/// What host memory cannot do of what is asked for.
fn misfit(settings: &Request) -> Option<String> {
    let host = |what: &str| Some(format!("{what}: only NCCL over GPUs does that, and this is host memory"));
    if asks_for(settings, Op::MulSum) {
        return host("-o mulsum");
    }
    match settings {
        Request { gpus: Some(2..), .. } => {
            Some("-g counts GPUs; for ranks over host memory use -t".to_owned())
        }
        Request { graph_launches: 1.., .. } => host("-G (CUDA graphs)"),
        Request { stream_checks: Some(_), .. } => host("--check-on-stream"),
        Request { default_stream: true, .. } => host("-y (CUDA's default stream)"),
        Request { cta_policy: Some(_), .. } => host("-x (thread blocks)"),
        Request { aggregated: 2.., .. } => host("-m (operations in a group)"),
        Request { memory_report: true, .. } => host("-M (GPU memory)"),
        Request { registration: Registration::Local | Registration::Symmetric, .. } => {
            host("-R (registered buffers)")
        }
        Request { unaligned: 1.., .. } => host("-u (shifted buffers)"),
        settings if settings.variables.split.is_some() => host("NCCL_TESTS_SPLIT"),
        _ => None,
    }
}

/// Whether an operator is asked for by its name.
pub(super) fn asks_for(settings: &Request, op: Op) -> bool {
    settings.ops.contains(&op)
        && settings.collectives.iter().any(|collective| collective.loops_over_ops())
        && !settings.all.ops
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
        let own = self.offer.abilities.clone();
        self.versus.iter().fold(own, |own, theirs| own.shared_with(&theirs.abilities))
    }

    fn versus(&self) -> Option<Abilities> {
        self.versus.as_ref().map(|theirs| theirs.abilities.clone())
    }

    fn provenance(&self) -> Provenance {
        Provenance {
            backend: self.offer.name.to_owned(),
            library_version: self.offer.version.clone(),
            library_path: self.offer.path.clone(),
            versus: self.versus.as_ref().map(|theirs| record::Library {
                backend: theirs.name.to_owned(),
                library_version: theirs.version.clone(),
                library_path: theirs.path.clone(),
            }),
            ..Provenance::default()
        }
    }

    fn notes(&self) -> Vec<String> {
        let why = format!("Host memory, {}", self.why);
        let offers = [&self.offer].into_iter().chain(&self.versus);
        [why].into_iter().chain(offers.flat_map(|offer| offer.notes.iter().cloned())).collect()
    }

    fn default_max_bytes(&self) -> u64 {
        DEFAULT_MAX_BYTES
    }

    fn open(&self, _index: usize) -> anyhow::Result<Box<dyn Device>> {
        Ok(Box::new(HostMemory {
            ours: self.offer.library.clone(),
            theirs: self.versus.as_ref().map(|theirs| theirs.library.clone()),
            capacity: available_memory()? / 2 / self.ranks_on_host as u64,
        }))
    }
}

struct HostMemory {
    ours: Arc<dyn Library>,
    theirs: Option<Arc<dyn Library>>,
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
            carrier: self.ours.connect(world)?,
            other: self.theirs.map(|theirs| theirs.connect(world)).transpose()?,
            side: Side::Ours,
            rooms,
            send: Buffer::new(rooms.send)?,
            receive: Buffer::new(rooms.receive)?,
        })
    }
}

/// Memory that begins at a page, touched when it is made.
struct Buffer {
    memory: Vec<Unit>,
    /// The byte where the page begins.
    start: usize,
}

/// The smallest page.
#[repr(C, align(4096))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Unit([u8; 4096]);

impl Buffer {
    fn new(bytes: usize) -> anyhow::Result<Self> {
        Self::of_pages(bytes, rustix::param::page_size())
    }

    /// As [`new`](Self::new), on a system with pages of so many bytes.
    fn of_pages(bytes: usize, page: usize) -> anyhow::Result<Self> {
        let beside = page.saturating_sub(size_of::<Unit>());
        let units = bytes.saturating_add(beside).div_ceil(size_of::<Unit>());
        let mut memory: Vec<Unit> = Vec::new();
        memory.try_reserve_exact(units).with_context(|| format!("allocating {bytes} bytes"))?;
        memory.resize(units, Unit([1; 4096]));
        let start = memory.as_ptr().cast::<u8>().align_offset(page);
        Ok(Self { memory, start })
    }

    fn bytes(&mut self, start: usize, len: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[self.start + start..][..len]
    }
}

/// One rank.
struct HostRank {
    /// Of the side whose turn it is.
    carrier: Box<dyn Carrier>,
    /// Of the other one. Both work on the same buffers.
    other: Option<Box<dyn Carrier>>,
    side: Side,
    rooms: Rooms,
    send: Buffer,
    receive: Buffer,
}

impl Backend for HostRank {
    fn transport(&self) -> Option<String> {
        self.carrier.transport()
    }

    fn turn(&mut self, side: Side) {
        if let Some(other) = &mut self.other
            && side != self.side
        {
            std::mem::swap(&mut self.carrier, other);
            self.side = side;
        }
    }

    fn algorithm(&self, work: &Work, placement: Placement) -> Option<record::Algorithm> {
        self.carrier.algorithm(work, placement)
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
        let (size, counts) = (work.data_type.size(), &work.counts);
        let at = shift(index, work.bytes(), self.rooms.size);
        match placement {
            Placement::OutOfPlace => {
                // A send buffer that has no room for the largest size is gone through by what is sent.
                let source = if self.rooms.send >= self.rooms.size {
                    at
                } else {
                    shift(index, counts.send * size, self.rooms.send)
                };
                let send = self.send.bytes(source, counts.send * size);
                let receive = self.receive.bytes(at, counts.receive * size);
                self.carrier.out_of_place(work, send, receive)
            }
            Placement::InPlace => {
                let whole = counts.send.max(counts.receive);
                self.carrier.in_place(work, self.receive.bytes(at, whole * size))
            }
        }
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
            let element =
                self.receive.bytes((self.carrier.result_start(work, placement) + index) * size, size);
            element.iter_mut().zip(flip).for_each(|(byte, flip)| *byte ^= flip);
        }
        Ok(())
    }

    fn check(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<Mismatches> {
        let size = work.data_type.size();
        // A rank that has no result has a buffer for one.
        let expected = work.result();
        let elements = if expected.is_empty() { 0 } else { work.counts.receive };
        let received = self.receive.bytes(self.carrier.result_start(work, placement) * size, elements * size);
        Ok(data::check(&work.problem(seed), &expected, received)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::Buffer;

    #[test]
    fn buffers_begin_at_a_page_of_4_16_or_64_kib_and_have_room_to_their_end() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for bytes in [0, 1, 4096, 65_537, 1 << 20] {
                // Two at a time, so that not both can begin at a page by chance.
                for mut buffer in [0; 2].map(|_| Buffer::of_pages(bytes, page).unwrap()) {
                    let whole = buffer.bytes(0, bytes);
                    assert!(bytes == 0 || whole.as_ptr().addr().is_multiple_of(page), "{bytes} of {page}");
                    whole.fill(7);
                    assert_eq!(whole.len(), bytes);
                    if bytes > 0 {
                        assert_eq!(buffer.bytes(bytes - 1, 1), [7]);
                    }
                }
            }
        }
    }
}
