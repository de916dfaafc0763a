//! One rank's buffers and communicator on its GPU.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use collectives::Element;
use collectives::nccl::{self, Communicator, Graph, RawBuffer};
use cudarc::driver::sys::{self, CUevent_flags, CUresult};
use cudarc::driver::{CudaEvent, CudaStream, result};

use super::operate::{self, Buffers, Common, Exchange, Scalar, Way};
use crate::backend::{Backend, MemoryUse, Rooms, Schedule, StreamRounds, Times, Work, shift};
use crate::collective::Collective;
use crate::data::{DeviceData, Mismatches, Op, Tally};
use crate::record::{self, Blocking, Placement};

/// How many operations of a loop are made before the clock starts, about. Later ones begin again at the first one's
/// place.
const PREPARED: usize = 4096;

/// How the buffers are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferSettings {
    /// Elements by which they are shifted.
    pub(super) unaligned: usize,
    /// How NCCL knows them.
    pub(super) registration: record::Registration,
}

/// One rank. The addresses are those of memory that outlives it, and that nothing else uses meanwhile.
pub(super) struct GpuRank<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) data: DeviceData,
    rooms: Rooms,
    send: u64,
    receive: u64,
    settings: BufferSettings,
    memory: MemoryUse,
    /// Bytes that were free on the GPU when all of it was made.
    free: u64,
    note: Option<String>,
    /// Made when first needed.
    events: Vec<CudaEvent>,
}

impl<'a> GpuRank<'a> {
    /// `addresses` are those of the send and the receive buffer.
    pub(super) fn new(
        communicator: &'a Communicator,
        data: DeviceData,
        rooms: Rooms,
        [send, receive]: [u64; 2],
        settings: BufferSettings,
        memory: MemoryUse,
        note: Option<String>,
    ) -> Self {
        let free = communicator.stream().context().mem_get_info().map_or(0, |(free, _)| free as u64);
        Self { communicator, data, rooms, send, receive, settings, memory, free, note, events: Vec::new() }
    }

    pub(super) fn stream(&self) -> &'a std::sync::Arc<CudaStream> {
        self.communicator.stream()
    }

    /// The two buffers, shifted as asked.
    fn buffers(&self, work: &Work) -> (u64, u64) {
        let shifted = (self.settings.unaligned * work.data_type.size()) as u64;
        (self.send + shifted, self.receive + shifted)
    }

    /// Where this rank's input is; `None` where it has none.
    pub(super) fn input_address(&self, work: &Work, placement: Placement) -> Option<u64> {
        let (send, receive) = self.buffers(work);
        work.collective.has_input(work.member).then(|| match placement {
            Placement::OutOfPlace => send,
            Placement::InPlace => {
                let elements = work.collective.in_place_input(&work.counts, work.member.rank);
                receive + (elements * work.data_type.size()) as u64
            }
        })
    }

    /// Where the input is once more, for a rank that must find its receive buffer as it was.
    pub(super) fn kept_address(&self, work: &Work, placement: Placement) -> Option<u64> {
        let kept = work.collective.keeps_receive(work.member) && placement == Placement::OutOfPlace;
        kept.then(|| self.buffers(work).1)
    }

    /// Where this rank's result is.
    pub(super) fn result_address(&self, work: &Work, placement: Placement) -> u64 {
        self.buffers(work).1 + (work.result_start(placement) * work.data_type.size()) as u64
    }

    /// A buffer of elements from this address on.
    fn raw<T: Element>(&self, address: u64, len: usize) -> RawBuffer<T> {
        // SAFETY: the address and the length are within this rank's memory, which is zeroed when it is made and used on this
        // one stream; every bit pattern is an element. Where operations overlap, in place, in a group or in a graph, what
        // they leave is not defined, and nobody looks at it before it is filled again.
        unsafe { RawBuffer::new(address, len, self.stream().clone()) }
    }

    /// What the operations of a loop share.
    pub(super) fn common<T: Scalar>(&self, work: &Work) -> Result<Common<'a, T>, nccl::Error> {
        let member = work.member;
        let scaled = match work.op {
            Some(Op::MulSum) if work.collective.reduces() => {
                Some(self.communicator.scaled_sum(T::of(Op::scale_of(member.rank as u32)))?)
            }
            _ => None,
        };
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        if let Some(traffic) = &work.traffic {
            let own = member.rank;
            let part = |start: usize, count: usize| start..start + count;
            for peer in 0..member.ranks {
                sent.push(part(traffic.send_start(own, peer), traffic.count(own, peer)));
                received.push(part(traffic.receive_start(peer, own), traffic.count(peer, own)));
            }
        }
        Ok(Common { scaled, sent, received })
    }

    /// What operation `index` of a loop works on.
    pub(super) fn operation<T: Element>(
        &self,
        work: &Work,
        placement: Placement,
        index: usize,
    ) -> Buffers<T> {
        let (size, counts, member) = (work.data_type.size(), &work.counts, work.member);
        let (send, receive) = self.buffers(work);
        let at = |address: u64, elements: usize| address + (elements * size) as u64;
        let forward = |room: usize, step: usize| shift(index, step, room) as u64;
        let receive = receive + forward(self.rooms.receive, work.bytes());
        let source = match placement {
            Placement::InPlace => at(receive, work.collective.in_place_input(counts, member.rank)),
            // A send buffer that has no room for the largest size is gone through by what is sent.
            Placement::OutOfPlace if self.rooms.send >= self.rooms.size => {
                send + forward(self.rooms.send, work.bytes())
            }
            Placement::OutOfPlace => send + forward(self.rooms.send, counts.send * size),
        };
        let target = at(receive, work.result_start(placement));
        let exchanges = match work.collective {
            Collective::SendRecv => vec![Exchange {
                send: self.raw(source, counts.send),
                to: (member.rank + 1) % member.ranks,
                receive: self.raw(target, counts.receive),
                from: (member.rank + member.ranks - 1) % member.ranks,
            }],
            Collective::Hypercube => {
                let steps = (0..member.ranks.ilog2()).map(|step| {
                    let block = 1_usize << step;
                    let peer = member.rank ^ block;
                    let first = |rank: usize| (rank & !(block - 1)) * counts.send;
                    Exchange {
                        send: self.raw(at(receive, first(member.rank)), block * counts.send),
                        to: peer,
                        receive: self.raw(at(receive, first(peer)), block * counts.send),
                        from: peer,
                    }
                });
                steps.collect()
            }
            _ => Vec::new(),
        };
        Buffers { send: self.raw(source, counts.send), receive: self.raw(target, counts.receive), exchanges }
    }

    /// The first operations of a loop.
    fn operations<T: Element>(&self, work: &Work, placement: Placement, count: usize) -> Vec<Buffers<T>> {
        (0..count).map(|index| self.operation(work, placement, index)).collect()
    }

    /// What an operation does beside NCCL's work: a hypercube's own part goes to its place first.
    pub(super) fn prepare<T: Element>(
        &self,
        work: &Work,
        placement: Placement,
        buffers: &Buffers<T>,
    ) -> anyhow::Result<()> {
        use collectives::nccl::DeviceBuffer as _;
        if work.collective != Collective::Hypercube || placement == Placement::InPlace {
            return Ok(());
        }
        let stream = self.stream();
        let source = buffers.send.read(stream).address();
        let own = work.member.rank * work.counts.send * work.data_type.size();
        let target = buffers.receive.read(stream).address() + own as u64;
        let bytes = work.counts.send * work.data_type.size();
        // SAFETY: both are within this rank's memory, and its stream is alive.
        unsafe { result::memcpy_dtod_async(target, source, bytes, stream.cu_stream()) }
            .context("copying the own part")
    }

    fn start_typed<T: Scalar>(
        &self,
        work: &Work,
        placement: Placement,
        index: usize,
        graph: bool,
    ) -> anyhow::Result<()> {
        let common = self.common::<T>(work)?;
        let mut buffers = self.operation(work, placement, index);
        self.prepare(work, placement, &buffers)?;
        if !graph {
            return Ok(operate::queue(&Way::Now, self.communicator, work, &common, &mut buffers)?);
        }
        let graph = Graph::capture(self.communicator.library(), |capture| {
            operate::queue(&Way::Capture(capture), self.communicator, work, &common, &mut buffers)
        })?;
        graph.launch()?;
        // Before the graph ends.
        self.wait()
    }

    /// One iteration: one operation, or several in a group.
    fn iterate<T: Scalar>(
        &self,
        work: &Work,
        placement: Placement,
        common: &Common<'_, T>,
        operations: &mut [Buffers<T>],
    ) -> anyhow::Result<()> {
        operations.iter().try_for_each(|buffers| self.prepare(work, placement, buffers))?;
        if let [one] = operations {
            return Ok(operate::queue(&Way::Now, self.communicator, work, common, one)?);
        }
        nccl::group(self.communicator.library(), |group| {
            operations.iter_mut().try_for_each(|buffers| {
                operate::queue(&Way::Group(group), self.communicator, work, common, buffers)
            })
        })?;
        Ok(())
    }

    fn time_typed<T: Scalar>(
        &mut self,
        work: &Work,
        placement: Placement,
        schedule: &Schedule,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times> {
        let Schedule { iterations, aggregated, blocking, .. } = *schedule;
        if schedule.each {
            self.make_events(2 * iterations)?;
        }
        let prepared = iterations.min(PREPARED.div_ceil(aggregated));
        let common = self.common::<T>(work)?;
        let mut operations = self.operations(work, placement, prepared * aggregated);
        barrier()?;
        let event = |index: usize| self.events[index].record(self.stream());
        let mut counted = Duration::ZERO;
        let mut start = Instant::now();
        for iteration in 0..iterations {
            if schedule.each {
                event(2 * iteration)?;
            }
            let first = iteration % prepared * aggregated;
            self.iterate(work, placement, &common, &mut operations[first..first + aggregated])?;
            if schedule.each {
                event(2 * iteration + 1)?;
            }
            match blocking {
                Blocking::No => {}
                Blocking::Wait => self.wait()?,
                Blocking::WaitAndBarrier => {
                    self.wait()?;
                    barrier()?;
                }
                Blocking::Outer => {
                    self.wait()?;
                    counted += start.elapsed();
                    barrier()?;
                    start = Instant::now();
                }
            }
        }
        let enqueue = counted + start.elapsed();
        self.wait()?;
        let total = counted + start.elapsed();
        let each_us = if schedule.each { self.each_us(iterations, aggregated)? } else { Vec::new() };
        Ok(Times { total, enqueue, each_us })
    }

    fn time_graph<T: Scalar>(
        &self,
        work: &Work,
        placement: Placement,
        schedule: &Schedule,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times> {
        let Schedule { iterations, aggregated, graph_launches, .. } = *schedule;
        let common = self.common::<T>(work)?;
        let mut all = self.operations(work, placement, iterations * aggregated);
        let graph = Graph::capture(self.communicator.library(), |capture| {
            all.chunks_mut(aggregated).try_for_each(|iteration| match iteration {
                [one] => operate::queue(&Way::Capture(capture), self.communicator, work, &common, one),
                several => capture.group(|capture| {
                    let way = Way::Capture(capture);
                    several
                        .iter_mut()
                        .try_for_each(|each| operate::queue(&way, self.communicator, work, &common, each))
                }),
            })
        })?;
        barrier()?;
        let start = Instant::now();
        for _ in 0..graph_launches {
            graph.launch()?;
        }
        let enqueue = start.elapsed();
        self.wait()?;
        Ok(Times { total: start.elapsed(), enqueue, each_us: Vec::new() })
    }

    fn make_events(&mut self, count: usize) -> anyhow::Result<()> {
        while self.events.len() < count {
            let event = self.stream().context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
            self.events.push(event);
        }
        Ok(())
    }

    /// Microseconds per operation of each iteration, from its two events.
    fn each_us(&self, iterations: usize, aggregated: usize) -> anyhow::Result<Vec<f64>> {
        let pairs = self.events.chunks_exact(2).take(iterations);
        let elapsed = |pair: &[CudaEvent]| -> anyhow::Result<f64> {
            Ok(f64::from(pair[0].elapsed_ms(&pair[1])?) * 1e3 / aggregated as f64)
        };
        pairs.map(elapsed).collect()
    }

    /// Polls, as nccl-tests does, so that an asynchronous error ends the wait.
    pub(super) fn wait(&self) -> anyhow::Result<()> {
        loop {
            // SAFETY: the stream is alive, and its context is current: every rank's thread has opened its own GPU.
            let state = unsafe { sys::cuStreamQuery(self.stream().cu_stream()) };
            match state {
                CUresult::CUDA_SUCCESS => return Ok(()),
                CUresult::CUDA_ERROR_NOT_READY => self.communicator.async_error()?,
                _ => state.result().context("waiting for the GPU")?,
            }
            thread::yield_now();
        }
    }

    pub(super) fn fill_at(&mut self, work: &Work, seed: u64, address: u64) -> anyhow::Result<()> {
        let bytes = (work.counts.send * work.data_type.size()) as u64;
        let (stream, problem) = (self.stream(), work.problem(seed));
        // SAFETY: the address has room for a rank's input, all work on this memory is on this one stream.
        unsafe { self.data.fill(stream, &problem, work.member.rank as u32, 0, address, bytes) }?;
        Ok(())
    }
}

impl Backend for GpuRank<'_> {
    fn notes(&self) -> Vec<String> {
        self.note.clone().into_iter().collect()
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        let (free, _) = self.stream().context().mem_get_info().ok()?;
        Some(MemoryUse { operations: self.free.saturating_sub(free as u64), ..self.memory })
    }

    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()> {
        let size = work.data_type.size();
        let (_, receive) = self.buffers(work);
        let cleared = match placement {
            Placement::OutOfPlace => work.counts.receive * size,
            Placement::InPlace => work.bytes(),
        };
        // SAFETY: the receive buffer has room for the largest size, and its stream is alive.
        unsafe { result::memset_d8_async(receive, 0, cleared, self.stream().cu_stream()) }
            .context("clearing the result")?;
        let addresses = [self.input_address(work, placement), self.kept_address(work, placement)];
        for address in addresses.into_iter().flatten() {
            self.fill_at(work, seed, address)?;
        }
        self.stream().synchronize()?;
        Ok(())
    }

    fn start(&mut self, work: &Work, placement: Placement, index: usize, graph: bool) -> anyhow::Result<()> {
        with_element!(work.data_type, T => self.start_typed::<T>(work, placement, index, graph))
    }

    fn complete(&mut self) -> anyhow::Result<()> {
        self.wait()
    }

    fn time(
        &mut self,
        work: &Work,
        placement: Placement,
        schedule: &Schedule,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times> {
        with_element!(work.data_type, T => if schedule.graph_launches > 0 {
            self.time_graph::<T>(work, placement, schedule, barrier)
        } else {
            self.time_typed::<T>(work, placement, schedule, barrier)
        })
    }

    fn damage(&mut self, work: &Work, placement: Placement, index: usize) -> anyhow::Result<()> {
        if index < work.counts.receive {
            let size = work.data_type.size();
            let flip = work.significant_bit()?.to_le_bytes();
            let address = self.result_address(work, placement) + (index * size) as u64;
            let mut element = [0_u8; 8];
            // SAFETY: the element is in this rank's memory, whose work is done.
            unsafe { result::memcpy_dtoh_sync(&mut element[..size], address) }?;
            element.iter_mut().zip(flip).for_each(|(byte, flip)| *byte ^= flip);
            // SAFETY: as above.
            unsafe { result::memcpy_htod_sync(address, &element[..size]) }?;
        }
        Ok(())
    }

    fn check(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<Mismatches> {
        let expected = work.result();
        let elements: u64 = expected.iter().map(|segment| segment.count).sum();
        if elements == 0 {
            return Ok(Mismatches::default());
        }
        let size = work.data_type.size();
        let address = self.result_address(work, placement);
        let (stream, problem) = (self.stream(), work.problem(seed));
        // SAFETY: the result is in this rank's memory, initialised by `fill`; all work on it is on this stream.
        Ok(unsafe { self.data.check(stream, &problem, &expected, address, elements * size as u64) }?)
    }

    fn check_on_stream(
        &mut self,
        work: &Work,
        placement: Placement,
        rounds: &StreamRounds,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Tally>> {
        with_element!(work.data_type, T => self.rounds_on_stream::<T>(work, placement, rounds, barrier))
    }
}
