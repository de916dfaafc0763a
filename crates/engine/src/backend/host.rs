//! Ranks with buffers in host memory. A library carries the data between them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytemuck::{Pod, Zeroable};
use collectives::world::{self, World};

use super::connections::{ConnectionPlace, Connections};
use super::operands::Operands;
use super::{
    Backend, BackendRole, Barrier, BufferSizes, Capabilities, Node, RankDevice, RankWork, TimedLoop, Times,
};
use crate::data::{self, Mismatches, Op};
use crate::groups::Groups;
use crate::request::Request;
use crate::supervision::Stop;
use diagnosis::host::available_memory;
use record::{BackendLibrary, Blocking, Placement, Provenance, Rank, Registration};

/// Default largest size.
pub(crate) const DEFAULT_MAX_BYTES: u64 = 64 << 20;

pub(super) type Connector =
    dyn Fn(&ConnectionPlace, &world::Handle) -> anyhow::Result<Box<dyn Carrier>> + Send + Sync;

/// The operations of one rank, each complete when it returns. Buffers have the lengths of
/// [`RankWork::counts`], aligned to the elements. Methods fail when the library does.
pub(super) trait Carrier {
    fn carrier_transport(&self) -> Option<String> {
        None
    }

    fn carrier_algorithm(&self, _work: &RankWork) -> Option<record::Algorithm> {
        None
    }

    fn out_of_place(&mut self, work: &RankWork, send: &[u8], receive: &mut [u8]) -> anyhow::Result<()>;

    /// Runs an operation within one buffer, which has the length of the longer one.
    fn in_place(&mut self, work: &RankWork, data: &mut [u8]) -> anyhow::Result<()>;

    /// Start of the rank's result in the receive buffer, in elements.
    fn result_start(&self, work: &RankWork) -> usize {
        work.result_start()
    }
}

/// A library that was found on every process, with its capabilities.
pub struct HostBackend {
    pub(super) connector: Arc<Connector>,
    /// The backend's name, and the library's version and path on rank 0.
    pub(super) library: BackendLibrary,
    pub(super) capabilities: Capabilities,
    /// Default number of ranks of a single process.
    pub(super) ranks_alone: usize,
    pub(super) notes: Vec<String>,
    /// True if any ranks of the job can connect over a world of these ranks, which also tells each rank that
    /// another rank has failed to connect.
    pub(super) connects_over_world: bool,
}

/// Function that finds a library on all processes. Its connections are kept for later runs.
pub type FindHostBackend = fn(&Request, &dyn World, &Connections) -> Result<HostBackend, Stop>;

/// Finds the library with `find`, and that of the baseline with `versus`. The ranks are threads with
/// buffers in host memory. `why` is the reason for this choice, for the record.
///
/// # Errors
/// [`Stop::Refused`] when arguments do not fit host memory; and those of `find` and `versus`.
pub(super) fn prepare_host_node(
    request: &Request,
    process: &dyn World,
    find: FindHostBackend,
    versus: Option<FindHostBackend>,
    connections: &Connections,
    why: &str,
) -> Result<Node, Stop> {
    if let Some(problem) = find_unsupported(request) {
        return Err(Stop::Refused(problem));
    }
    let primary = find(request, process, connections)?;
    let baseline = versus.map(|find| find(request, process, connections)).transpose()?;
    let backends = || [&primary].into_iter().chain(&baseline);
    let alone = backends().map(|backend| backend.ranks_alone).min().unwrap_or(1);
    let threads = request.threads.unwrap_or(if process.size() == 1 { alone } else { 1 });
    let groups = Groups::new(request, process.size(), threads)?;
    let connects_over_world = backends().all(|backend| backend.connects_over_world);
    if !connects_over_world {
        refuse_parts(&groups, process.size() * threads)?;
    }
    let mut notes = vec![format!("Host memory, {why}")];
    notes.extend(backends().flat_map(|backend| backend.notes.iter().cloned()));
    let BackendLibrary { backend, library_version, library_path } = primary.library;
    let versus = baseline.as_ref().map(|baseline| baseline.capabilities.clone());
    let (library, connect_baseline) = baseline.map(|baseline| (baseline.library, baseline.connector)).unzip();
    let connect = primary.connector;
    let ranks_on_host = process.local_size() * threads;
    let first = process.rank() * threads;
    let places: Vec<ConnectionPlace> = (first..first + threads)
        .map(|rank| ConnectionPlace { rank, members: groups.group_members(rank) })
        .collect();
    Ok(Node {
        threads,
        gpus: 1,
        groups,
        connects_over_world,
        capabilities: versus.iter().fold(primary.capabilities, Capabilities::shared_with),
        versus,
        provenance: Provenance {
            backend,
            library_version,
            library_path,
            versus: library,
            ..Provenance::default()
        },
        notes,
        default_max_bytes: DEFAULT_MAX_BYTES,
        open: Box::new(move |index| {
            let connectors = (Arc::clone(&connect), connect_baseline.clone());
            Ok(host_device(connectors, places[index].clone(), divide_memory(ranks_on_host)?))
        }),
    })
}

/// Refuses groups of a part of the job's `ranks` ranks, which MPI does not connect.
pub(crate) fn refuse_parts(groups: &Groups, ranks: usize) -> Result<(), Stop> {
    if groups.is_whole(ranks) {
        return Ok(());
    }
    let reason = "MPI measures all ranks of the job as one group only: unset NCCL_TESTS_SPLIT";
    Err(Stop::Refused(reason.to_owned()))
}

/// Bytes for the buffers of each of the ranks of this host.
pub(crate) fn divide_memory(ranks_on_host: usize) -> anyhow::Result<u64> {
    Ok(available_memory()? / 2 / ranks_on_host as u64)
}

/// Room of `capacity` bytes in host memory for a rank.
fn host_device(
    (primary, baseline): (Arc<Connector>, Option<Arc<Connector>>),
    place: ConnectionPlace,
    capacity: u64,
) -> RankDevice {
    RankDevice {
        rank: Rank { device_name: "host memory".to_owned(), ..Rank::default() },
        capacity,
        memory: "host memory".to_owned(),
        connect: Box::new(move |world, buffer_sizes, body| {
            body(&mut HostRank {
                carrier: primary(&place, world)?,
                other: baseline.map(|baseline| baseline(&place, world)).transpose()?,
                role: BackendRole::Primary,
                buffer_sizes,
                send: PageBuffer::new(buffer_sizes.send)?,
                receive: PageBuffer::new(buffer_sizes.receive)?,
            })
        }),
    }
}

/// Returns the reason for which host memory cannot carry out a request; `None` when it can.
pub(crate) fn find_unsupported(request: &Request) -> Option<String> {
    let (settings, names) = (&request.settings, request.names);
    let host = |what: String| {
        Some(format!("{what}: only NCCL over GPUs supports this, and this run measures host memory"))
    };
    if requests_operator(request, Op::MulSum) {
        return host(names.with_value("ops", Op::MulSum));
    }
    if request.gpus.is_some_and(|gpus| gpus > 1) {
        let (gpus, threads) = (names.field_name("gpus"), names.field_name("threads"));
        return Some(format!("{gpus} counts GPUs; for ranks over host memory use {threads}"));
    }
    let asked = [
        ("graph_launches", " (CUDA graphs)", settings.graph_launches > 0),
        ("stream_checks", "", settings.stream_checks.is_some()),
        ("default_stream", " (CUDA's default stream)", settings.default_stream),
        ("cta_policy", " (thread blocks)", settings.cta_policy.is_some()),
        ("aggregated", " (operations in a group)", settings.aggregated > 1),
        ("memory_report", " (GPU memory)", request.memory_report),
        ("registration", " (registered buffers)", settings.registration != Registration::None),
        ("unaligned", " (shifted buffers)", settings.unaligned > 0),
    ];
    let found = asked.iter().find(|(_, _, is_asked)| *is_asked);
    found.and_then(|(field, what, _)| host(format!("{}{what}", names.field_name(field))))
}

/// Returns true when the request names this operator for a collective that uses it.
pub(super) fn requests_operator(request: &Request, op: Op) -> bool {
    request.ops.contains(&op)
        && request.collectives.iter().any(|collective| collective.is_reduction())
        && !request.all.ops
}

/// Page-aligned memory, touched when it is allocated.
struct PageBuffer {
    memory: Vec<Page>,
    /// Offset of the first page boundary, in bytes.
    start: usize,
}

/// Unit of allocation: the smallest page size.
#[repr(C, align(4096))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Page([u8; 4096]);

impl PageBuffer {
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

    fn element_bytes(&mut self, work: &RankWork, elements: Range<usize>) -> &mut [u8] {
        let size = work.data_type.size();
        self.byte_range(elements.start * size, elements.len() * size)
    }

    fn byte_range(&mut self, start: usize, len: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[self.start + start..][..len]
    }
}

struct HostRank {
    carrier: Box<dyn Carrier>,
    /// Carrier of the other backend, which uses the same buffers.
    other: Option<Box<dyn Carrier>>,
    role: BackendRole,
    buffer_sizes: BufferSizes,
    send: PageBuffer,
    receive: PageBuffer,
}

impl Backend for HostRank {
    fn transport_name(&self) -> Option<String> {
        self.carrier.carrier_transport()
    }

    fn activate_role(&mut self, role: BackendRole) {
        if let Some(other) = &mut self.other
            && role != self.role
        {
            std::mem::swap(&mut self.carrier, other);
            self.role = role;
        }
    }

    fn operation_algorithm(&self, work: &RankWork) -> Option<record::Algorithm> {
        self.carrier.carrier_algorithm(work)
    }

    fn fill_buffers(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<()> {
        let operands = Operands::new(work, 0, &self.buffer_sizes, 0);
        let rank = work.participant.rank as u32;
        let spec = work.data_spec(seed);
        self.receive.element_bytes(work, operands.cleared_range()).fill(0);
        if work.has_input() {
            let buffer = match work.placement {
                Placement::OutOfPlace => &mut self.send,
                Placement::InPlace => &mut self.receive,
            };
            data::fill_input(&spec, rank, 0, buffer.element_bytes(work, operands.input))?;
        }
        if work.keeps_receive() {
            data::fill_input(&spec, rank, 0, self.receive.element_bytes(work, operands.result))?;
        }
        Ok(())
    }

    fn start_operation(&mut self, work: &RankWork, index: usize, _graph: bool) -> anyhow::Result<()> {
        let operands = Operands::new(work, index, &self.buffer_sizes, 0);
        match work.placement {
            Placement::OutOfPlace => {
                let send = self.send.element_bytes(work, operands.input);
                self.carrier.out_of_place(work, send, self.receive.element_bytes(work, operands.result))
            }
            Placement::InPlace => {
                self.carrier.in_place(work, self.receive.element_bytes(work, operands.whole_range()))
            }
        }
    }

    fn await_completion(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn time_loop(
        &mut self,
        work: &RankWork,
        timed_loop: &TimedLoop,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Times> {
        let mut each_us = Vec::with_capacity(if timed_loop.each { timed_loop.iterations } else { 0 });
        let mut counted = Duration::ZERO;
        barrier()?;
        let mut start = Instant::now();
        let mut before = start;
        for iteration in 0..timed_loop.iterations {
            self.start_operation(work, iteration, false)?;
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

    fn corrupt_result(&mut self, work: &RankWork, seed: u64, index: usize) -> anyhow::Result<()> {
        if let Some(wrong) = work.wrong_bits(seed, index)? {
            let element = self.carrier.result_start(work) + index;
            let wrong = &wrong.to_le_bytes()[..work.data_type.size()];
            self.receive.element_bytes(work, element..element + 1).copy_from_slice(wrong);
        }
        Ok(())
    }

    fn check_result(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<Mismatches> {
        // A rank without a result has a receive buffer all the same.
        let expected = work.expected_result();
        let count = if expected.is_empty() { 0 } else { work.counts.receive };
        let start = self.carrier.result_start(work);
        let received = self.receive.element_bytes(work, start..start + count);
        data::check(&work.data_spec(seed), &expected, received)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::PageBuffer;

    #[test]
    fn buffers_begin_at_a_page_of_4_16_or_64_kib_and_have_room_to_their_end() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for bytes in [0, 1, 4096, 65_537, 1 << 20] {
                // Two at a time, because one could begin at a page by chance.
                for mut buffer in [0; 2].map(|_| PageBuffer::of_pages(bytes, page).unwrap()) {
                    let whole = buffer.byte_range(0, bytes);
                    assert!(bytes == 0 || whole.as_ptr().addr().is_multiple_of(page), "{bytes} of {page}");
                    whole.fill(7);
                    assert_eq!(whole.len(), bytes);
                    if bytes > 0 {
                        assert_eq!(buffer.byte_range(bytes - 1, 1), [7]);
                    }
                }
            }
        }
    }
}
