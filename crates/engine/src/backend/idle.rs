//! Backend of ranks that do not measure: it only takes part in barriers.

use super::{Backend, Barrier, RankWork, StreamRounds, TimedLoop, Times};
use crate::data::{Mismatches, Tally};

/// The backend of a rank that does not measure.
pub(crate) struct Idle;

impl Backend for Idle {
    fn fill_buffers(&mut self, _work: &RankWork, _seed: u64) -> anyhow::Result<()> {
        Ok(())
    }

    fn start_operation(&mut self, _work: &RankWork, _index: usize, _graph: bool) -> anyhow::Result<()> {
        Ok(())
    }

    fn await_completion(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn time_loop(
        &mut self,
        _work: &RankWork,
        timed_loop: &TimedLoop,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Times> {
        (0..timed_loop.count_barriers()).try_for_each(|_| barrier())?;
        Ok(Times::default())
    }

    fn corrupt_result(&mut self, _work: &RankWork, _seed: u64, _index: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn check_result(&mut self, _work: &RankWork, _seed: u64) -> anyhow::Result<Mismatches> {
        Ok(Mismatches::default())
    }

    fn check_on_stream(
        &mut self,
        _work: &RankWork,
        _rounds: &StreamRounds,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Option<Tally>> {
        barrier()?;
        Ok(None)
    }
}
