//! The check on the stream: fill, operation and check follow each other without the host between, eager or as
//! a graph.
//!
//! Ordinary verification waits for the GPU between these steps, so it cannot detect an operation that starts
//! before the preceding kernel has written the operation's input. Here that kernel lets the operation start
//! early, and until the kernel writes, every bit of the input is wrong.

use std::time::Duration;

use anyhow::Context as _;
use cudarc::driver::CudaGraph;
use cudarc::driver::result;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::operation::{LaunchMode, LoopOp, Scalar};
use super::rank::GpuRank;
use crate::backend::{Barrier, RankWork, StreamRounds};
use crate::data::Tally;

/// Number of eager rounds after which the host waits for the stream. Operations that start too early were
/// seen mainly in the first rounds after such a wait.
const SERIES: usize = 16;

/// Delays from the trigger of the next kernel to the first write, used in turn. The host must queue the
/// operation within the delay.
const DELAYS: [Duration; 3] = [Duration::from_micros(100), Duration::from_micros(20), Duration::ZERO];

impl GpuRank<'_> {
    /// See [`Backend::check_on_stream`](crate::backend::Backend::check_on_stream).
    pub(super) fn rounds_on_stream<T: Scalar>(
        &mut self,
        work: &RankWork,
        rounds: &StreamRounds,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Option<Tally>> {
        // Loading cannot be captured, and may wait for the device, which must not wait for another rank then.
        self.data.load_kernels(work.data_type)?;
        if self.data.triggers_early {
            self.data.load_invert()?;
        }
        let scaled = self.loop_operator::<T>(work)?;
        self.data.clear_findings(self.communicator_stream())?;
        if rounds.graph_launches > 0 {
            let graph = self.capture_rounds(work, rounds, &scaled)?;
            barrier()?;
            for _ in 0..rounds.graph_launches {
                graph.launch().context("launching the graph of the check on the stream")?;
            }
            // The graph must not be dropped before it has run.
            self.await_stream()?;
        } else {
            barrier()?;
            for round in 0..rounds.rounds {
                self.queue_round(work, rounds, round, &scaled)?;
                if (round + 1).is_multiple_of(SERIES) {
                    self.await_stream()?;
                }
            }
            self.await_stream()?;
        }
        self.data.read_tally(self.communicator_stream())
    }

    fn capture_rounds<T: Scalar>(
        &mut self,
        work: &RankWork,
        rounds: &StreamRounds,
        scaled: &LoopOp<'_, T>,
    ) -> anyhow::Result<CudaGraph> {
        let stream = self.communicator_stream();
        // Relaxed, as in the safe layer, because NCCL may allocate memory meanwhile.
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .context("beginning the capture of the check on the stream")?;
        let queued = (0..rounds.rounds).try_for_each(|round| self.queue_round(work, rounds, round, scaled));
        // Ends the capture also when a round has failed.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        queued?;
        let graph = graph.context("capturing the check on the stream")?;
        let graph = graph.context("the graph of the check on the stream is empty")?;
        graph.upload().context("uploading the graph of the check on the stream")?;
        Ok(graph)
    }

    fn queue_round<T: Scalar>(
        &mut self,
        work: &RankWork,
        rounds: &StreamRounds,
        round: usize,
        scaled: &LoopOp<'_, T>,
    ) -> anyhow::Result<()> {
        let seed = rounds.seed.wrapping_add(round as u64);
        self.write_input(work, seed, DELAYS[round % DELAYS.len()])?;
        let operands = self.memory.operation_operands(work, 0);
        self.copy_own_part(work, &operands)?;
        let mode = if rounds.graph_launches > 0 { LaunchMode::Captured } else { LaunchMode::Immediate };
        self.queue_operands(mode, work, scaled, &operands, false)?;
        if let Some(index) = rounds.corrupt_index {
            self.corrupt_on_stream(work, seed, index)?;
        }
        let expected = work.expected_result();
        let elements: u64 = expected.iter().map(|segment| segment.count).sum();
        let address = self.memory.result_address(work);
        let (stream, spec) = (self.communicator_stream(), work.data_spec(seed));
        let bytes = elements * work.data_type.size() as u64;
        // SAFETY: the result is in this rank's memory, which is initialised; all work on it is on this
        // stream.
        unsafe { self.data.count_wrong(stream, &spec, &expected, address, bytes) }
    }

    /// Queues the kernels that write the input. The last one triggers programmatic launch before it writes,
    /// if the GPU supports that.
    fn write_input(&mut self, work: &RankWork, seed: u64, delay: Duration) -> anyhow::Result<()> {
        if let Some(kept) = self.kept_address(work) {
            self.fill_at(work, seed, kept)?;
        }
        let Some(input) = self.memory.input_address(work) else { return Ok(()) };
        self.fill_at(work, seed, input)?;
        if self.data.triggers_early {
            let bytes = (work.counts.send * work.data_type.size()) as u64;
            for early in [None, Some(delay)] {
                let stream = self.communicator_stream();
                // SAFETY: as in `fill_at`.
                unsafe { self.data.invert_bits(stream, input, bytes, early) }?;
            }
        }
        Ok(())
    }

    /// Queues a write of a wrong value to an element of the result, if there is such an element.
    pub(super) fn corrupt_on_stream(&self, work: &RankWork, seed: u64, index: usize) -> anyhow::Result<()> {
        let Some(wrong) = work.wrong_bits(seed, index)? else { return Ok(()) };
        let size = work.data_type.size();
        let address = self.memory.result_address(work) + (index * size) as u64;
        // Byte by byte, because a graph keeps the value of a memset, but only the source address of a copy.
        for (place, &byte) in (address..).zip(&wrong.to_le_bytes()[..size]) {
            // SAFETY: the element is in this rank's memory, and its stream is alive.
            unsafe { result::memset_d8_async(place, byte, 1, self.communicator_stream().cu_stream()) }
                .context("damaging the result")?;
        }
        Ok(())
    }
}
