//! Ranks with buffers in host memory. A library carries the data between them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytemuck::{Pod, Zeroable};
use collectives::world::{self, World};

use super::operands::Operands;
use super::{
    Backend, BackendRole, BufferSizes, Capabilities, GroupPosition, Node, RankBody, RankDevice, TimedLoop,
    Times, Work,
};
use crate::collective::Layout as _;
use crate::data::{self, Mismatches, Op};
use crate::request::Request;
use crate::supervision::Stop;
use diagnosis::host::available_memory;
use record::{Blocking, Placement, Provenance, Rank, Registration};

const DEFAULT_MAX_BYTES: u64 = 64 << 20;

/// A library, found on every process, that carries data between host buffers.
pub(super) trait Connector: Send + Sync {
    /// Connects one rank with all others.
    ///
    /// # Errors
    /// When the library fails.
    fn connect(&self, world: &world::Handle) -> anyhow::Result<Box<dyn Carrier>>;
}

/// The operations of one rank, each complete when it returns. Buffers have the lengths of [`Work::counts`], aligned to
/// the elements.
pub(super) trait Carrier {
    /// The transport, if it is known.
    fn transport(&self) -> Option<String> {
        None
    }

    /// The algorithm of an operation, if it is known.
    fn algorithm(&self, _work: &Work, _placement: Placement) -> Option<record::Algorithm> {
        None
    }

    /// Runs an operation from one buffer into the other.
    ///
    /// # Errors
    /// When the library fails.
    fn out_of_place(&mut self, work: &Work, send: &[u8], receive: &mut [u8]) -> anyhow::Result<()>;

    /// Runs an operation within one buffer, which has the length of the longer one.
    ///
    /// # Errors
    /// When the library fails.
    fn in_place(&mut self, work: &Work, data: &mut [u8]) -> anyhow::Result<()>;

    /// Start of the rank's result in the receive buffer, in elements.
    fn result_start(&self, work: &Work, placement: Placement) -> usize {
        work.collective.result_start(&work.counts, work.participant.rank, placement)
    }
}

/// A library that was found on every process, with its capabilities.
pub struct HostBackend {
    pub(super) connector: Arc<dyn Connector>,
    /// The backend's name.
    pub(super) name: &'static str,
    /// The library's version on rank 0.
    pub(super) version: String,
    pub(super) path: String,
    pub(super) capabilities: Capabilities,
    /// Default number of ranks of a single process.
    pub(super) ranks_alone: usize,
    /// Notes for the record.
    pub(super) notes: Vec<String>,
}

/// Function that finds a library on all processes.
pub type FindHostBackend = fn(&Request, &dyn World) -> Result<HostBackend, Stop>;

/// This process's ranks: threads with buffers in host memory.
pub(super) struct HostNode {
    backend: HostBackend,
    /// The baseline (`--vs`).
    versus: Option<HostBackend>,
    threads: usize,
    ranks_on_host: usize,
    /// Position of the process's first rank.
    position: GroupPosition,
    why: String,
}

impl HostNode {
    /// Finds the library with `find`, and that of the baseline with `versus`. `why` is the reason for this choice, for
    /// the record.
    ///
    /// # Errors
    /// [`Stop::Refused`] when arguments do not fit host memory; and those of `find` and `versus`.
    pub(super) fn prepare(
        settings: &Request,
        process: &dyn World,
        find: FindHostBackend,
        versus: Option<FindHostBackend>,
        why: &str,
    ) -> Result<Self, Stop> {
        if let Some(problem) = unsupported(settings) {
            return Err(Stop::Refused(problem));
        }
        let backend = find(settings, process)?;
        let versus = versus.map(|find| find(settings, process)).transpose()?;
        let alone = versus.iter().chain([&backend]).map(|backend| backend.ranks_alone).min().unwrap_or(1);
        let threads = settings.threads.unwrap_or(if process.size() == 1 { alone } else { 1 });
        Ok(Self {
            backend,
            versus,
            threads,
            ranks_on_host: process.local_size() * threads,
            position: GroupPosition {
                rank: process.rank() * threads,
                ranks: process.size() * threads,
                color: 0,
            },
            why: why.to_owned(),
        })
    }
}

/// Returns the reason for which host memory cannot carry out a request; `None` when it can.
fn unsupported(settings: &Request) -> Option<String> {
    let host = |what: &str| Some(format!("{what}: only NCCL over GPUs does that, and this is host memory"));
    if requests_operator(settings, Op::MulSum) {
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

/// Returns true when the request names this operator for a collective that uses it.
pub(super) fn requests_operator(settings: &Request, op: Op) -> bool {
    settings.ops.contains(&op)
        && settings.collectives.iter().any(|collective| collective.loops_over_ops())
        && !settings.all.ops
}

impl Node for HostNode {
    fn threads(&self) -> usize {
        self.threads
    }

    fn gpus(&self) -> usize {
        1
    }

    fn position(&self, index: usize) -> GroupPosition {
        GroupPosition { rank: self.position.rank + index, ..self.position }
    }

    fn capabilities(&self) -> Capabilities {
        let own = self.backend.capabilities.clone();
        self.versus.iter().fold(own, |own, baseline| own.shared_with(&baseline.capabilities))
    }

    fn versus(&self) -> Option<Capabilities> {
        self.versus.as_ref().map(|baseline| baseline.capabilities.clone())
    }

    fn provenance(&self) -> Provenance {
        Provenance {
            backend: self.backend.name.to_owned(),
            library_version: self.backend.version.clone(),
            library_path: self.backend.path.clone(),
            versus: self.versus.as_ref().map(|baseline| record::BackendLibrary {
                backend: baseline.name.to_owned(),
                library_version: baseline.version.clone(),
                library_path: baseline.path.clone(),
            }),
            ..Provenance::default()
        }
    }

    fn notes(&self) -> Vec<String> {
        let why = format!("Host memory, {}", self.why);
        let backends = [&self.backend].into_iter().chain(&self.versus);
        [why].into_iter().chain(backends.flat_map(|backend| backend.notes.iter().cloned())).collect()
    }

    fn default_max_bytes(&self) -> u64 {
        DEFAULT_MAX_BYTES
    }

    fn open(&self, _index: usize) -> anyhow::Result<Box<dyn RankDevice>> {
        Ok(Box::new(HostDevice {
            primary: self.backend.connector.clone(),
            baseline: self.versus.as_ref().map(|baseline| baseline.connector.clone()),
            capacity: available_memory()? / 2 / self.ranks_on_host as u64,
        }))
    }
}

struct HostDevice {
    primary: Arc<dyn Connector>,
    baseline: Option<Arc<dyn Connector>>,
    capacity: u64,
}

impl RankDevice for HostDevice {
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
        buffer_sizes: BufferSizes,
        body: &mut RankBody<'_>,
    ) -> anyhow::Result<()> {
        body(&mut HostRank {
            carrier: self.primary.connect(world)?,
            other: self.baseline.map(|baseline| baseline.connect(world)).transpose()?,
            role: BackendRole::Primary,
            buffer_sizes,
            send: Buffer::new(buffer_sizes.send)?,
            receive: Buffer::new(buffer_sizes.receive)?,
        })
    }
}

/// Page-aligned memory, touched when it is allocated.
struct Buffer {
    memory: Vec<Page>,
    /// Offset of the first page boundary, in bytes.
    start: usize,
}

/// Unit of allocation: the smallest page size.
#[repr(C, align(4096))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Page([u8; 4096]);

impl Buffer {
    fn new(bytes: usize) -> anyhow::Result<Self> {
        Self::of_pages(bytes, rustix::param::page_size())
    }

    /// Allocates on a system with pages of `page` bytes.
    fn of_pages(bytes: usize, page: usize) -> anyhow::Result<Self> {
        let beside = page.saturating_sub(size_of::<Page>());
        let units = bytes.saturating_add(beside).div_ceil(size_of::<Page>());
        let mut memory: Vec<Page> = Vec::new();
        memory.try_reserve_exact(units).with_context(|| format!("allocating {bytes} bytes"))?;
        memory.resize(units, Page([1; 4096]));
        let start = memory.as_ptr().cast::<u8>().align_offset(page);
        Ok(Self { memory, start })
    }

    fn elements(&mut self, work: &Work, elements: Range<usize>) -> &mut [u8] {
        let size = work.data_type.size();
        self.bytes(elements.start * size, elements.len() * size)
    }

    fn bytes(&mut self, start: usize, len: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[self.start + start..][..len]
    }
}

/// One rank.
struct HostRank {
    /// Carrier of the active backend.
    carrier: Box<dyn Carrier>,
    /// Carrier of the other backend, which uses the same buffers.
    other: Option<Box<dyn Carrier>>,
    role: BackendRole,
    buffer_sizes: BufferSizes,
    send: Buffer,
    receive: Buffer,
}

impl Backend for HostRank {
    fn transport(&self) -> Option<String> {
        self.carrier.transport()
    }

    fn activate(&mut self, role: BackendRole) {
        if let Some(other) = &mut self.other
            && role != self.role
        {
            std::mem::swap(&mut self.carrier, other);
            self.role = role;
        }
    }

    fn algorithm(&self, work: &Work, placement: Placement) -> Option<record::Algorithm> {
        self.carrier.algorithm(work, placement)
    }

    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()> {
        let operands = Operands::new(work, placement, 0, &self.buffer_sizes, 0);
        let rank = work.participant.rank as u32;
        let spec = work.data_spec(seed);
        self.receive.elements(work, operands.cleared()).fill(0);
        if work.collective.has_input(work.participant) {
            let buffer = match placement {
                Placement::OutOfPlace => &mut self.send,
                Placement::InPlace => &mut self.receive,
            };
            data::fill_input(&spec, rank, 0, buffer.elements(work, operands.input))?;
        }
        if work.collective.keeps_receive(work.participant) && placement == Placement::OutOfPlace {
            data::fill_input(&spec, rank, 0, self.receive.elements(work, operands.result))?;
        }
        Ok(())
    }

    /// Returns when the operation is complete.
    fn start(&mut self, work: &Work, placement: Placement, index: usize, _graph: bool) -> anyhow::Result<()> {
        let operands = Operands::new(work, placement, index, &self.buffer_sizes, 0);
        match placement {
            Placement::OutOfPlace => {
                let send = self.send.elements(work, operands.input);
                self.carrier.out_of_place(work, send, self.receive.elements(work, operands.result))
            }
            Placement::InPlace => self.carrier.in_place(work, self.receive.elements(work, operands.whole())),
        }
    }

    fn complete(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn time(
        &mut self,
        work: &Work,
        placement: Placement,
        timed_loop: &TimedLoop,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times> {
        let mut each_us = Vec::with_capacity(if timed_loop.each { timed_loop.iterations } else { 0 });
        let mut counted = Duration::ZERO;
        let mut start = Instant::now();
        let mut before = start;
        for iteration in 0..timed_loop.iterations {
            self.start(work, placement, iteration, false)?;
            if timed_loop.each {
                let now = Instant::now();
                each_us.push((now - before).as_secs_f64() * 1e6);
                before = now;
            }
            // Each operation is complete when it returns.
            match timed_loop.blocking {
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

    fn corrupt(&mut self, work: &Work, placement: Placement, index: usize) -> anyhow::Result<()> {
        if index < work.counts.receive {
            let element = self.carrier.result_start(work, placement) + index;
            work.corrupt(self.receive.elements(work, element..element + 1))?;
        }
        Ok(())
    }

    fn check(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<Mismatches> {
        // A rank without a result has a receive buffer all the same.
        let expected = work.result();
        let count = if expected.is_empty() { 0 } else { work.counts.receive };
        let start = self.carrier.result_start(work, placement);
        let received = self.receive.elements(work, start..start + count);
        Ok(data::check(&work.data_spec(seed), &expected, received)?)
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
                // Two at a time, because one could begin at a page by chance.
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
