//! Backend of ranks that do not measure: it only takes part in barriers.

use super::{Backend, Barrier, StreamRounds, TimedLoop, Times, Work};
use crate::data::{Mismatches, Tally};

/// The backend of a rank that does not measure.
pub(crate) struct Idle;

impl Backend for Idle {
    fn fill(&mut self, _work: &Work, _seed: u64) -> anyhow::Result<()> {
        Ok(())
    }

    fn start(&mut self, _work: &Work, _index: usize, _graph: bool) -> anyhow::Result<()> {
        Ok(())
    }

    fn complete(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn time(&mut self, _work: &Work, timed_loop: &TimedLoop, barrier: &Barrier<'_>) -> anyhow::Result<Times> {
        (0..timed_loop.count_barriers()).try_for_each(|_| barrier())?;
        Ok(Times::default())
    }

    fn corrupt(&mut self, _work: &Work, _seed: u64, _index: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn check(&mut self, _work: &Work, _seed: u64) -> anyhow::Result<Mismatches> {
        Ok(Mismatches::default())
    }

    fn check_on_stream(
        &mut self,
        _work: &Work,
        _rounds: &StreamRounds,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Option<Tally>> {
        barrier()?;
        Ok(None)
    }
}
