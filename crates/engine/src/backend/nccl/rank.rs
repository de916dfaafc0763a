//! One rank's buffers and communicator on its GPU.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use collectives::nccl::{self, Capture, Communicator, Graph, Preparation, Prepared};
use cudarc::driver::sys::{self, CUevent_flags, CUresult};
use cudarc::driver::{CudaEvent, CudaStream, result};

use super::memory::{RankMemory, has_overlap};
use super::operation::{self, LaunchMode, LoopOp, Scalar};
use crate::backend::operands::Operands;
use crate::backend::{Backend, Barrier, MemoryUse, RankWork, StreamRounds, TimedLoop, Times};
use crate::data::{DeviceData, Mismatches, Op, Tally};
use record::Blocking;

/// Approximate number of operations that are prepared before the clock starts. They are queued again for
/// later iterations.
const PREPARED: usize = 4096;

pub(super) struct GpuRank<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) data: DeviceData,
    pub(super) memory: RankMemory,
    used: MemoryUse,
    /// Bytes that were free on the GPU after connecting and allocating.
    free: u64,
    /// Created when first needed.
    events: Vec<CudaEvent>,
}

/// Iterations of a loop, prepared before the clock starts.
struct PreparedLoop {
    operations: Prepared,
    /// Number of iterations, at least 1. Each has the same number of entries.
    iterations: usize,
    /// Source and target addresses of the copies before each iteration's operations, the same number for each
    /// iteration.
    copies: Vec<(u64, u64)>,
}

impl<'a> GpuRank<'a> {
    pub(super) fn new(
        communicator: &'a Communicator,
        data: DeviceData,
        memory: RankMemory,
        used: MemoryUse,
    ) -> Self {
        let free = communicator.stream().context().mem_get_info().map_or(0, |(free, _)| free as u64);
        Self { communicator, data, memory, used, free, events: Vec::new() }
    }

    pub(super) fn communicator_stream(&self) -> &'a std::sync::Arc<CudaStream> {
        self.communicator.stream()
    }

    /// Address of the copy of the input, for a rank whose receive buffer must stay unchanged.
    pub(super) fn kept_address(&self, work: &RankWork) -> Option<u64> {
        work.keeps_receive().then(|| self.memory.receive_address(work))
    }

    pub(super) fn loop_operator<T: Scalar>(&self, work: &RankWork) -> Result<LoopOp<'a, T>, nccl::Error> {
        let is_scaled = work.op == Some(Op::MulSum) && work.collective.is_reduction();
        let scale = || T::of(Op::scale_of(work.participant.rank as u32));
        is_scaled.then(|| self.communicator.scaled_sum(scale())).transpose()
    }

    /// Copies a hypercube's own part to its position before the exchanges.
    pub(super) fn copy_own_part(&self, work: &RankWork, operands: &Operands) -> anyhow::Result<()> {
        self.memory.own_part(work, operands).map_or(Ok(()), |addresses| self.copy_part(work, addresses))
    }

    /// Copies a rank's part.
    fn copy_part(&self, work: &RankWork, (source, target): (u64, u64)) -> anyhow::Result<()> {
        let bytes = work.counts.send * work.data_type.size();
        // SAFETY: both are within this rank's memory, and its stream is alive.
        unsafe { result::memcpy_dtod_async(target, source, bytes, self.communicator_stream().cu_stream()) }
            .context("copying the own part")
    }

    /// Queues one operation with buffers that are made for it: separate memory if operands overlap, also with
    /// those of concurrent operations.
    pub(super) fn queue_operands<T: Scalar>(
        &mut self,
        mode: LaunchMode<'_>,
        work: &RankWork,
        scaled: &LoopOp<'_, T>,
        operands: &Operands,
        at_once: bool,
    ) -> anyhow::Result<()> {
        if at_once || has_overlap(work) {
            let mut apart = self.memory.separate_operands(work, operands)?;
            operation::queue_operation(mode, self.communicator, work, scaled, &mut apart.buffer_views::<T>()?)
        } else {
            let mut buffers = self.memory.operand_views::<T>(operands)?;
            operation::queue_operation(mode, self.communicator, work, scaled, &mut buffers)
        }
    }

    fn start_typed<T: Scalar>(&mut self, work: &RankWork, index: usize, graph: bool) -> anyhow::Result<()> {
        if !graph {
            let prepared = self.prepare_iterations::<T>(work, index..index + 1, 1)?;
            return self.queue_iterations(work, &prepared, 0..1);
        }
        let scaled = self.loop_operator::<T>(work)?;
        let operands = self.memory.operation_operands(work, index);
        self.copy_own_part(work, &operands)?;
        let graph = Graph::capture(|capture| {
            self.queue_operands(LaunchMode::Capture(capture), work, &scaled, &operands, false)
        })?;
        graph.launch()?;
        // The graph must not be dropped before it has run.
        self.await_stream()
    }

    /// Prepares iterations of one operation, or of several in a group.
    fn prepare_iterations<T: Scalar>(
        &mut self,
        work: &RankWork,
        iterations: Range<usize>,
        aggregated: usize,
    ) -> anyhow::Result<PreparedLoop> {
        let scaled = self.loop_operator::<T>(work)?;
        let (count, communicator, mut copies) = (iterations.len(), self.communicator, Vec::new());
        let mut add = |preparation: &Preparation<'_>, index: usize| {
            let operands = self.memory.operation_operands(work, index);
            copies.extend(self.memory.own_part(work, &operands));
            self.queue_operands(LaunchMode::Prepare(preparation), work, &scaled, &operands, aggregated > 1)
        };
        let operations = communicator.prepare(|preparation| {
            iterations.map(|iteration| iteration * aggregated).try_for_each(|first| {
                if aggregated == 1 {
                    return add(preparation, first);
                }
                preparation.group(|group| (first..first + aggregated).try_for_each(|index| add(group, index)))
            })
        })?;
        Ok(PreparedLoop { operations, iterations: count, copies })
    }

    /// Queues prepared iterations.
    fn queue_iterations(
        &self,
        work: &RankWork,
        prepared: &PreparedLoop,
        iterations: Range<usize>,
    ) -> anyhow::Result<()> {
        let PreparedLoop { operations, iterations: count, copies } = prepared;
        let (entries, copied) = (operations.len() / count, copies.len() / count);
        let queue = |iterations: Range<usize>| {
            let range = iterations.start * entries..iterations.end * entries;
            self.communicator.queue_range(operations, range)
        };
        if copies.is_empty() {
            return Ok(queue(iterations)?);
        }
        for iteration in iterations {
            let copies = &copies[iteration * copied..(iteration + 1) * copied];
            copies.iter().try_for_each(|&addresses| self.copy_part(work, addresses))?;
            queue(iteration..iteration + 1)?;
        }
        Ok(())
    }

    fn time_typed<T: Scalar>(
        &mut self,
        work: &RankWork,
        timed_loop: &TimedLoop,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Times> {
        let TimedLoop { iterations, aggregated, blocking, each, .. } = *timed_loop;
        if each {
            self.make_events(2 * iterations)?;
        }
        let prepared =
            self.prepare_iterations::<T>(work, 0..iterations.min(PREPARED.div_ceil(aggregated)), aggregated)?;
        let at_once = if each || blocking != Blocking::No { 1 } else { prepared.iterations };
        barrier()?;
        let mut counted = Duration::ZERO;
        let mut start = Instant::now();
        for iteration in (0..iterations).step_by(at_once) {
            if each {
                self.events[2 * iteration].record(self.communicator_stream())?;
            }
            let first = iteration % prepared.iterations;
            let end = first + at_once.min(iterations - iteration);
            self.queue_iterations(work, &prepared, first..end)?;
            if each {
                self.events[2 * iteration + 1].record(self.communicator_stream())?;
            }
            match blocking {
                Blocking::No => {}
                Blocking::Wait => self.await_stream()?,
                Blocking::WaitAndBarrier => {
                    self.await_stream()?;
                    barrier()?;
                }
                Blocking::Outer => {
                    self.await_stream()?;
                    counted += start.elapsed();
                    barrier()?;
                    start = Instant::now();
                }
            }
        }
        let enqueue = counted + start.elapsed();
        self.await_stream()?;
        let total = counted + start.elapsed();
        let each_us = if each { self.each_us(iterations, aggregated)? } else { Vec::new() };
        Ok(Times { total, enqueue, each_us })
    }

    fn time_graph<T: Scalar>(
        &mut self,
        work: &RankWork,
        timed_loop: &TimedLoop,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Times> {
        let TimedLoop { iterations, aggregated, graph_launches, .. } = *timed_loop;
        let scaled = self.loop_operator::<T>(work)?;
        let mut queue = |capture: &Capture, index: usize| {
            let operands = self.memory.operation_operands(work, index);
            self.queue_operands(LaunchMode::Capture(capture), work, &scaled, &operands, aggregated > 1)
        };
        let graph = Graph::capture(|capture| {
            (0..iterations).map(|iteration| iteration * aggregated).try_for_each(|first| {
                if aggregated == 1 {
                    return queue(capture, first);
                }
                capture
                    .group(|capture| (first..first + aggregated).try_for_each(|index| queue(capture, index)))
            })
        })?;
        barrier()?;
        let start = Instant::now();
        for _ in 0..graph_launches {
            graph.launch()?;
        }
        let enqueue = start.elapsed();
        self.await_stream()?;
        Ok(Times { total: start.elapsed(), enqueue, each_us: Vec::new() })
    }

    fn make_events(&mut self, count: usize) -> anyhow::Result<()> {
        while self.events.len() < count {
            let event =
                self.communicator_stream().context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
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

    /// Waits for the stream by polling, as nccl-tests does, so that an asynchronous error ends the wait.
    pub(super) fn await_stream(&self) -> anyhow::Result<()> {
        loop {
            // SAFETY: the stream is alive, and its context is current: every rank's thread has opened its own
            // GPU.
            let state = unsafe { sys::cuStreamQuery(self.communicator_stream().cu_stream()) };
            match state {
                CUresult::CUDA_SUCCESS => return Ok(()),
                CUresult::CUDA_ERROR_NOT_READY => self.communicator.async_error()?,
                _ => state.result().context("waiting for the GPU")?,
            }
            thread::yield_now();
        }
    }

    pub(super) fn fill_at(&mut self, work: &RankWork, seed: u64, address: u64) -> anyhow::Result<()> {
        let bytes = (work.counts.send * work.data_type.size()) as u64;
        let (stream, spec) = (self.communicator_stream(), work.data_spec(seed));
        // SAFETY: the address has room for a rank's input, all work on this memory is on this one stream.
        unsafe { self.data.fill_buffer(stream, &spec, work.participant.rank as u32, 0, address, bytes) }
    }
}

impl Backend for GpuRank<'_> {
    fn list_notes(&self) -> Vec<String> {
        self.memory.note.iter().cloned().collect()
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        let (free, _) = self.communicator_stream().context().mem_get_info().ok()?;
        Some(MemoryUse { operations: self.free.saturating_sub(free as u64), ..self.used })
    }

    fn fill_buffers(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<()> {
        let cleared = self.memory.operation_operands(work, 0).cleared_range().len() * work.data_type.size();
        let receive = self.memory.receive_address(work);
        // SAFETY: the receive buffer has room for the largest size, and its stream is alive.
        unsafe { result::memset_d8_async(receive, 0, cleared, self.communicator_stream().cu_stream()) }
            .context("clearing the result")?;
        let addresses = [self.memory.input_address(work), self.kept_address(work)];
        for address in addresses.into_iter().flatten() {
            self.fill_at(work, seed, address)?;
        }
        #[expect(clippy::disallowed_methods, reason = "an error ends the measurement")]
        self.communicator_stream().synchronize()?;
        Ok(())
    }

    fn start_operation(&mut self, work: &RankWork, index: usize, graph: bool) -> anyhow::Result<()> {
        with_element!(work.data_type, T => self.start_typed::<T>(work, index, graph))
    }

    fn await_completion(&mut self) -> anyhow::Result<()> {
        self.await_stream()
    }

    fn time_loop(
        &mut self,
        work: &RankWork,
        timed_loop: &TimedLoop,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Times> {
        with_element!(work.data_type, T => if timed_loop.graph_launches > 0 {
            self.time_graph::<T>(work, timed_loop, barrier)
        } else {
            self.time_typed::<T>(work, timed_loop, barrier)
        })
    }

    fn corrupt_result(&mut self, work: &RankWork, seed: u64, index: usize) -> anyhow::Result<()> {
        self.corrupt_on_stream(work, seed, index)?;
        self.await_stream()
    }

    fn check_result(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<Mismatches> {
        let expected = work.expected_result();
        let elements: u64 = expected.iter().map(|segment| segment.count).sum();
        if elements == 0 {
            return Ok(Mismatches::default());
        }
        let size = work.data_type.size();
        let address = self.memory.result_address(work);
        let (stream, spec) = (self.communicator_stream(), work.data_spec(seed));
        // SAFETY: the result is in this rank's memory, initialised by `fill_buffers`; all work on it is on
        // this stream.
        unsafe { self.data.check_buffer(stream, &spec, &expected, address, elements * size as u64) }
    }

    fn check_on_stream(
        &mut self,
        work: &RankWork,
        rounds: &StreamRounds,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Option<Tally>> {
        with_element!(work.data_type, T => self.rounds_on_stream::<T>(work, rounds, barrier))
    }
}
